"""The same request under the same key is done once, however often and however concurrently it is sent."""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from weakref import WeakValueDictionary

from msgspec import Struct

from viva.host.auth import Principal
from viva.host.errors import ApiError, validation_error
from viva.host.store import Store, StoredResponse

KEY_HEADER = "idempotency-key"
REPLAY_HEADER = "openwop-Idempotent-Replay"
MAX_KEY_LENGTH = 255


def _nothing() -> None:
    return None


class Mutation(Struct, frozen=True):
    """Something that was checked and can be done: what to write down, how to answer, and what to begin then."""

    status: int
    body: bytes
    write: Callable[[], None] = _nothing
    start: Callable[[], None] = _nothing


class IdempotencyCache:
    """Answers by key. The key itself is kept nowhere, only its digest; what waits for it is kept in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._busy: WeakValueDictionary[tuple[str, str, str], asyncio.Lock] = WeakValueDictionary()

    async def run_once(
        self,
        principal: Principal,
        operation: str,
        key: str | None,
        body: bytes,
        check: Callable[[], Awaitable[Mutation]],
    ) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers: of the deed, or of an earlier one.

        Whoever comes while the first is still at work waits for its answer. A refusal (raised by `check`) is never
        kept, so a request can be put right under the same key. The deed and its answer are one transaction.
        """
        if key is None:
            deed = await check()
            self._do(deed)
            return deed.status, deed.body, {}
        if not 1 <= len(key) <= MAX_KEY_LENGTH:
            raise validation_error(f"an Idempotency-Key has 1 to {MAX_KEY_LENGTH} characters", "Idempotency-Key")
        place = (principal.tenant, operation, sha256(key.encode()).hexdigest())
        request = sha256(body).hexdigest()
        lock = self._busy.setdefault(place, asyncio.Lock())
        async with lock:
            known = self._store.find_response(*place)
            if known is None:
                deed = await check()
                answer = StoredResponse(request, deed.status, deed.body)
                self._do(deed, lambda: self._store.save_response(*place, answer))
                return deed.status, deed.body, {REPLAY_HEADER: "false"}
            if known.request != request:
                raise ApiError(
                    409, "idempotency_key_mismatch", "this Idempotency-Key was used for another request before"
                )
            return known.status, known.body, {REPLAY_HEADER: "true"}

    def _do(self, deed: Mutation, also: Callable[[], None] = _nothing) -> None:
        with self._store.transaction():
            deed.write()
            also()
        deed.start()
