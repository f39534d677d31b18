"""One call of a model or agent over HTTP, tried again where that can help: retries with jitter, Retry-After, limits.

A call that is being retried says so in its `CallProgress`, so that a timeout is charged to the provider that failed.
"""

import asyncio
import codecs
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar, cast

from msgspec import Struct

from viva.errors import ConnectFailed, Unreachable
from viva.llm.limits import ConnectorLimits, Sleep
from viva.model import codec
from viva.model.progress import CallProgress
from viva.protocols import Request, Response, Transport
from viva.text.duration import format_duration

T = TypeVar("T")

MAX_RETRY_WAIT_S = 60.0
_FIRST_S = 0.5
_LONGEST_S = 20.0
_FOREVER_S = 1e9
_PASSING = frozenset({408, 409, 429})
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")
_RETRY_DELAY = re.compile(rb'"retryDelay"\s*:\s*"(\d+(?:\.\d+)?)s"')
_TAGS = re.compile(r"<[^>]*>")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE | re.ASCII)
_NO_CHARSETS = frozenset({"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined"})
"""Codecs of Python that are no charsets of the web; some take time that grows with the square of the length."""
_STATUSES = frozenset(HTTPStatus)
_SHORT = 300
_READ = 4000
_SENSITIVE = ("auth", "key", "token", "secret", "cookie", "password")
_TELLING = 6


def is_transient(status: int) -> bool:
    """Is this a status of a server that may do better the next time?"""
    return status >= 500 or status in _PASSING


def is_busy(status: int) -> bool:
    """Does the server say that it did not even try?"""
    return status in (429, 503)


class Retry(Struct, frozen=True):
    """How often and when a call is tried again. `who` is its name in texts; `secrets` are struck out of them.

    With `only_unsent` a call that may have arrived is not sent again: who gets it may have acted.
    """

    name: str
    retries: int = 4
    should_retry: Callable[[int], bool] = is_transient
    only_unsent: bool = False
    secrets: tuple[str, ...] = ()
    sleep: Sleep = asyncio.sleep
    jitter: Callable[[], float] = random.random


async def send_request(
    http: Transport,
    request: Request,
    retry: Retry,
    progress: CallProgress,
    *,
    limiter: ConnectorLimits | None = None,
    tokens: float = 0.0,
) -> Response:
    """The answer, whatever its status, unless that is one worth a retry: then Unreachable, once the tries are used up.

    `tokens` is a guess of what the call will use, for the limiter.
    """
    return await _persist(lambda: http.request(request), retry, progress, limiter, tokens)


async def read_stream(
    http: Transport,
    request: Request,
    parse: Callable[[AsyncIterator[bytes]], Awaitable[T]],
    retry: Retry,
    progress: CallProgress,
    *,
    limiter: ConnectorLimits | None = None,
    tokens: float = 0.0,
) -> T | Response:
    """The same for an answer that comes as a stream: what `digest` makes of it, or the answer if its status is no success."""

    async def attempt() -> T | Response:
        async with http.stream(request) as streaming:
            if streaming.status < 300:
                return await parse(streaming.chunks())
            body = b"".join([piece async for piece in streaming.chunks()])
            return Response(streaming.status, streaming.headers, body)

    return await _persist(attempt, retry, progress, limiter, tokens)


async def _persist(
    attempt: Callable[[], Awaitable[T | Response]],
    retry: Retry,
    progress: CallProgress,
    limiter: ConnectorLimits | None,
    tokens: float,
) -> T | Response:
    tries = 0
    while True:
        tries += 1
        wait_s = None
        if limiter is not None:
            await limiter.acquire(tokens)
        try:
            answer = await attempt()
        except Unreachable as failed:
            trouble = _told(retry, tries, failed.message)
            if tries > retry.retries or (retry.only_unsent and not isinstance(failed, ConnectFailed)):
                raise type(failed)(trouble) from failed
        else:
            answer = convert_to_utf8(answer) if isinstance(answer, Response) else answer
            if not isinstance(answer, Response) or not retry.should_retry(answer.status):
                progress.provider_trouble = None
                return answer
            what, detail = describe_status(answer.status), extract_error_message(answer.body, retry.secrets)
            trouble = _told(retry, tries, what, detail)
            wait_s = _asked_for(answer)
            if tries > retry.retries or b"insufficient_quota" in answer.body:
                raise Unreachable(trouble)
            if wait_s is not None and wait_s > MAX_RETRY_WAIT_S:
                what += f" (it asks for {format_duration(wait_s)}: too long to wait)"
                raise Unreachable(_told(retry, tries, what, detail))
        progress.provider_trouble = trouble
        await retry.sleep(_pause_s(retry, tries, wait_s))


def _told(retry: Retry, tries: int, what: str, detail: str = "") -> str:
    after = f" after {tries} tries" if tries > 1 else ""
    return f"{retry.name}: {what}{after}" + (f": {detail}" if detail else "")


def _pause_s(retry: Retry, tries: int, wait_s: float | None) -> float:
    """Full jitter, so that many callers do not come back together; what the server asked for is kept, and a bit more."""
    if wait_s is not None:
        return wait_s * (1 + retry.jitter() / 4)
    return retry.jitter() * min(_LONGEST_S, _FIRST_S * 2 ** (tries - 1))


def _asked_for(answer: Response) -> float | None:
    """What Retry-After says: seconds, or a date. Google says it in the body."""
    said = answer.headers.get("retry-after")
    if said is None:
        told = _RETRY_DELAY.search(answer.body)
        wait_s = None if told is None else float(told[1])
    elif _SECONDS.fullmatch(said):
        wait_s = float(said)
    else:
        from email.utils import parsedate_to_datetime  # loaded late: few servers ever ask

        try:
            wait_s = parsedate_to_datetime(said).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError, OSError):
            return None
    return None if wait_s is None else max(0.0, min(wait_s, _FOREVER_S))


def convert_to_utf8(answer: Response) -> Response:
    """The answer with its body in UTF-8, if its Content-Type names another charset that the body really is in."""
    kind = answer.headers.get("content-type", "")
    named = _CHARSET.search(kind) if "charset" in kind.lower() else None
    if named is None or named[1].lower() in ("utf-8", "utf8"):
        return answer
    try:
        charset = codecs.lookup(named[1]).name
        if charset in _NO_CHARSETS or (not charset.startswith("utf-") and _is_utf8(answer.body)):
            return answer  # JSON is UTF-8, whatever the label says
        return Response(answer.status, answer.headers, answer.body.decode(charset).encode())
    except (LookupError, UnicodeError):  # whoever decodes the body says what is wrong with it
        return answer


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def describe_status(status: int) -> str:
    """The status with its name: `429 Too Many Requests`."""
    return f"{status} {HTTPStatus(status).phrase}" if status in _STATUSES else str(status)


def find_header_secrets(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The values of headers whose names say that they are secret, with and without a word such as Bearer before them."""
    values = [value for name, value in headers.items() if any(word in name.lower() for word in _SENSITIVE)]
    words = {word for value in values for word in (value, value.rpartition(" ")[2]) if len(word) >= _TELLING}
    return tuple(sorted(words, key=len, reverse=True))


def extract_error_message(body: bytes, secrets: tuple[str, ...] = ()) -> str:
    """What an answer says about an error, in one line and without our own keys."""
    try:
        text = _message_in(codec.decode(body)) or ""
    except codec.DecodeError:
        text = ""
    text = " ".join((text[:_READ] or _TAGS.sub(" ", body[:_READ].decode(errors="replace"))).split())
    for secret in secrets:
        text = text.replace(secret, "***")
    return text if len(text) <= _SHORT else text[:_SHORT] + "…"


def _message_in(value: Any) -> str | None:
    """The message of an error in the shapes that providers use."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        known = cast("dict[str, Any]", value)
        return next(
            (found for key in ("error", "message", "detail") if key in known and (found := _message_in(known[key]))),
            None,
        )
    return None
