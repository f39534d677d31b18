"""One call of a model or agent over HTTP, tried again where that can help: retries with jitter, Retry-After, limits.

A call that is cut off while it is being retried says so in a note on the CancelledError, so that a time-out can be
charged to the provider that did not answer.
"""

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, TypeVar

from msgspec import Struct

from viva.errors import NotSent, Unreachable
from viva.llm.limits import Limiter, Pause
from viva.model import codec
from viva.protocols import Request, Response, Transport

T = TypeVar("T")

MAX_WAIT_S = 60.0
_FIRST_S = 0.5
_LONGEST_S = 20.0
_PASSING = frozenset({408, 409, 429})


def is_passing(status: int) -> bool:
    """Is this a status of a server that may do better the next time?"""
    return status >= 500 or status in _PASSING


def is_busy(status: int) -> bool:
    """Does the server say that it did not even try?"""
    return status in (429, 503)


class Retry(Struct, frozen=True):
    """How often and when a call is tried again. `who` is its name in texts; `secrets` are struck out of them.

    With `only_unsent` a call that may have arrived is not sent again: who gets it may have acted.
    """

    who: str
    retries: int = 4
    worth: Callable[[int], bool] = is_passing
    only_unsent: bool = False
    secrets: tuple[str, ...] = ()
    limiter: Limiter | None = None
    pause: Pause = asyncio.sleep
    roll: Callable[[], float] = random.random


async def post(http: Transport, request: Request, retry: Retry, tokens: float = 0.0) -> Response:
    """The answer, whatever its status, unless that is one worth a retry: then Unreachable, once the tries are used up."""
    return await _persist(lambda: http.request(request), retry, tokens)


async def read(
    http: Transport, request: Request, retry: Retry, digest: Callable[[AsyncIterator[bytes]], Awaitable[T]], tokens: float = 0.0
) -> T | Response:
    """The same for an answer that comes as a stream: what `digest` makes of it, or the answer if its status is no success."""

    async def attempt() -> T | Response:
        async with http.stream(request) as streaming:
            if streaming.status < 300:
                return await digest(streaming.chunks())
            return Response(streaming.status, streaming.headers, b"".join([piece async for piece in streaming.chunks()]))

    return await _persist(attempt, retry, tokens)


async def _persist(attempt: Callable[[], Awaitable[T]], retry: Retry, tokens: float) -> T:
    tries, trouble = 0, ""
    try:
        while True:
            tries += 1
            if retry.limiter is not None:
                await retry.limiter.take(tokens)
            wait_s = None
            try:
                answer = await attempt()
            except Unreachable as failed:
                trouble = failed.said
                if tries > retry.retries or (retry.only_unsent and not isinstance(failed, NotSent)):
                    raise type(failed)(_told(retry, trouble, tries)) from failed
            else:
                if not isinstance(answer, Response) or not retry.worth(answer.status):
                    return answer
                trouble = described(answer, retry.secrets)
                wait_s = _asked_for(answer)
                _give_up(retry, answer, trouble, tries, wait_s)
            await retry.pause(_pause_s(retry, tries, wait_s))
    except asyncio.CancelledError as cut:
        if trouble:
            cut.add_note(f"{retry.who}: {trouble} (try {tries} of {retry.retries + 1})")
        raise


def _give_up(retry: Retry, answer: Response, trouble: str, tries: int, wait_s: float | None) -> None:
    if tries > retry.retries or b"insufficient_quota" in answer.body:
        raise Unreachable(_told(retry, trouble, tries))
    if wait_s is not None and wait_s > MAX_WAIT_S:
        raise Unreachable(_told(retry, f"{trouble} (it asks for {wait_s:.0f} s of patience; {MAX_WAIT_S:.0f} s is the most)", tries))


def _told(retry: Retry, trouble: str, tries: int) -> str:
    status, colon, rest = trouble.partition(": ")
    after = f" after {tries} tries" if tries > 1 else ""
    return f"{retry.who}: {status}{after}{colon}{rest}"


def _pause_s(retry: Retry, tries: int, wait_s: float | None) -> float:
    """Full jitter, so that many callers do not come back together; what the server asked for is kept, and a bit more."""
    if wait_s is not None:
        return wait_s + retry.roll() * wait_s / 4
    return retry.roll() * min(_LONGEST_S, _FIRST_S * 2 ** (tries - 1))
