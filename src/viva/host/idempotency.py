"""Idempotency keys: each mutation is executed once, on whichever host it arrives."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from weakref import WeakValueDictionary

from msgspec import Struct

from viva.host.errors import ApiError, validation_error
from viva.host.store import Store, StoredResponse
from viva.host.tokens import Principal

KEY_HEADER = "idempotency-key"
REPLAY_HEADER = "openwop-Idempotent-Replay"
MAX_KEY_LENGTH = 255
ACK_TIMEOUT_S = 30
"""How long a request waits for an earlier one with the same key; OpenWOP asks for at least 5 seconds."""
_RETRY_AFTER_S = 1


def _nothing() -> None:
    return None


class Mutation(Struct, frozen=True):
    """A validated change: the response, what to write in the same transaction, and what to start afterwards."""

    status: int
    body: bytes
    write: Callable[[], None] = _nothing
    start: Callable[[], None] = _nothing


class _AnsweredMeanwhile(Exception):  # noqa: N818 -- it undoes a transaction; nothing is wrong
    """Another host has executed the same key."""


class IdempotencyCache:
    """Executes each idempotency key once. Only digests of keys are stored."""

    def __init__(self, store: Store, ack_timeout_s: float = ACK_TIMEOUT_S) -> None:
        self._store = store
        self._ack_timeout_s = ack_timeout_s
        self._locks: WeakValueDictionary[tuple[str, str, str], asyncio.Lock] = WeakValueDictionary()

    async def run_once(
        self,
        principal: Principal,
        operation: str,
        key: str | None,
        body: bytes,
        validate: Callable[[], Awaitable[Mutation]],
    ) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers of the mutation, or of an earlier one with the same key.

        A concurrent request with the same key waits for the first one, but not for ever. An ApiError of `validate` is not stored: a
        corrected request may use the same key.
        """
        if key is None:
            mutation = await validate()
            with self._store.transaction(is_durable=True):
                mutation.write()
            mutation.start()
            return mutation.status, mutation.body, {}
        if not 1 <= len(key) <= MAX_KEY_LENGTH:
            raise validation_error(f"Idempotency-Key must have 1 to {MAX_KEY_LENGTH} characters", "Idempotency-Key")
        place = (principal.tenant, operation, sha256(key.encode()).hexdigest())
        request = sha256(body).hexdigest()
        async with _acquire(self._locks.setdefault(place, asyncio.Lock()), self._ack_timeout_s):
            stored = self._store.find_response(*place)
            if stored is None:
                mutation = await validate()
                stored = self._apply(place, request, mutation)
                if stored is None:
                    return mutation.status, mutation.body, {REPLAY_HEADER: "false"}
            if stored.request != request:
                raise ApiError(409, "idempotency_key_mismatch", "This Idempotency-Key was used for another request")
            return stored.status, stored.body, {REPLAY_HEADER: "true"}

    def _apply(self, place: tuple[str, str, str], request: str, mutation: Mutation) -> StoredResponse | None:
        """Executes a mutation. If another host was faster, nothing is executed, and its response is returned."""
        try:
            with self._store.transaction(is_durable=True):
                if not self._store.save_response(*place, StoredResponse(request, mutation.status, mutation.body)):
                    raise _AnsweredMeanwhile
                mutation.write()
        except _AnsweredMeanwhile:
            return self._store.find_response(*place)
        mutation.start()
        return None


@asynccontextmanager
async def _acquire(lock: asyncio.Lock, timeout_s: float) -> AsyncGenerator[None]:
    try:
        await asyncio.wait_for(lock.acquire(), timeout_s)
    except TimeoutError:
        message = "A request with this Idempotency-Key is still in progress"
        headers = {"Retry-After": str(_RETRY_AFTER_S)}
        raise ApiError(409, "idempotency_in_flight", message, {"retryAfter": _RETRY_AFTER_S}, headers) from None
    try:
        yield
    finally:
        lock.release()
