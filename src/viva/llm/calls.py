"""One HTTP call of a model or agent, with retries: jitter, Retry-After, rate limits.

A call that is being retried says so in its `CallProgress`, so that a timeout is charged to the provider.
"""

import asyncio
import codecs
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import Any, TypeVar, cast

from msgspec import Struct

from viva.errors import ConnectFailed, Unreachable
from viva.llm.limits import ConnectorLimits, Sleep
from viva.llm.pacing import ConnectorPace
from viva.model import codec
from viva.model.ellipsis import cut_end, decode_start
from viva.model.progress import CallProgress
from viva.protocols import Request, Response, StreamingResponse, Transport
from viva.text.credentials import find_header_credentials
from viva.text.duration import format_duration
from viva.text.pattern import LazyPattern

T = TypeVar("T")

MAX_RETRY_WAIT_S = 60.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 20.0
_MAX_RETRY_AFTER_S = 1e9
_TRANSIENT_STATUSES = frozenset({408, 409, 429})
_SECONDS = LazyPattern(r"[0-9]+(\.[0-9]+)?")
_RETRY_DELAY = re.compile(rb'"retryDelay"\s*:\s*"(\d+(?:\.\d+)?)s"')
_TAGS = LazyPattern(r"<[^>]*>")
_CHARSET = LazyPattern(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE | re.ASCII)
_NO_CHARSETS = frozenset({"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined"})
"""Python codecs that are not charsets of the web. Some take quadratic time."""
_STATUSES = frozenset(HTTPStatus)
_MAX_MESSAGE_CHARACTERS = 300
_MAX_READ_CHARACTERS = 4000
_MIN_SECRET_LENGTH = 6


def is_transient_status(status: int) -> bool:
    """Can a retry succeed after this status?"""
    return status >= 500 or status in _TRANSIENT_STATUSES


def is_overload_status(status: int) -> bool:
    """Does this status mean that the server did not process the request?"""
    return status in (429, 503)


class RetryPolicy(Struct, frozen=True):
    """When a call is retried. `name` stands in messages; `secrets` are removed from them.

    With `only_unsent` a request that may have arrived is not sent again: the receiver may have acted on it.
    """

    name: str
    retries: int = 4
    should_retry: Callable[[int], bool] = is_transient_status
    only_unsent: bool = False
    secrets: tuple[str, ...] = ()
    sleep: Sleep = asyncio.sleep
    jitter: Callable[[], float] = random.random


async def send_request(
    http: Transport,
    request: Request,
    retry: RetryPolicy,
    progress: CallProgress,
    *,
    limiter: ConnectorLimits | None = None,
    tokens: float = 0.0,
) -> Response:
    """Sends a request, repeats it after connection failures and retryable statuses, and returns an answer of any other status.

    Raises Unreachable when no try is left, or when another try is pointless: the quota is spent, or the wait too long.

    `tokens` is an estimate of the call's usage, for the rate limits.
    """
    return await _retry_until_done(lambda: http.request(request), retry, progress, limiter, tokens)


async def read_stream(
    open_stream: Callable[[], AbstractAsyncContextManager[StreamingResponse]],
    parse: Callable[[AsyncIterator[bytes]], Awaitable[T]],
    retry: RetryPolicy,
    progress: CallProgress,
    *,
    limiter: ConnectorLimits | None = None,
    tokens: float = 0.0,
) -> T | Response:
    """Like `send_request`, for a streamed answer: `open_stream` sends the request, once for each try.

    Returns the result of `parse`, or the answer itself if its status is not a success.
    """

    async def attempt() -> T | Response:
        async with open_stream() as streaming:
            if streaming.status < 300:
                return await parse(streaming.chunks())
            body = b"".join([piece async for piece in streaming.chunks()])
            return Response(streaming.status, streaming.headers, body)

    return await _retry_until_done(attempt, retry, progress, limiter, tokens)


async def _retry_until_done(
    attempt: Callable[[], Awaitable[T | Response]],
    retry: RetryPolicy,
    progress: CallProgress,
    limiter: ConnectorLimits | None,
    tokens: float,
) -> T | Response:
    tries = 0
    while True:
        tries += 1
        wait_s = None
        started = 0.0
        if limiter is not None:
            if limiter.pace.must_wait and progress.provider_trouble is None:
                progress.provider_trouble = (
                    f"{retry.name}: calls are waiting, because the provider rejected some as too many"
                )
            started = await limiter.acquire(tokens)
        try:
            answer = await _attempt_call(attempt, limiter)
        except Unreachable as failed:
            trouble = _describe_failure(retry, tries, failed.message)
            if tries > retry.retries or (retry.only_unsent and not isinstance(failed, ConnectFailed)):
                raise type(failed)(trouble) from failed
        else:
            answer = convert_to_utf8(answer) if isinstance(answer, Response) else answer
            if limiter is not None:
                _report_answer_to_pace(limiter.pace, started, answer)
            if not isinstance(answer, Response) or not retry.should_retry(answer.status):
                progress.provider_trouble = None
                return answer
            what, detail = describe_status(answer.status), extract_error_message(answer.body, retry.secrets)
            trouble = _describe_failure(retry, tries, what, detail)
            wait_s = _parse_retry_after(answer)
            if tries > retry.retries or b"insufficient_quota" in answer.body:
                raise Unreachable(trouble)
            if wait_s is not None and wait_s > MAX_RETRY_WAIT_S:
                what += f" (it asks for {format_duration(wait_s)}: too long to wait)"
                raise Unreachable(_describe_failure(retry, tries, what, detail))
        progress.provider_trouble = trouble
        await retry.sleep(_compute_pause_s(retry, tries, wait_s))


async def _attempt_call(attempt: Callable[[], Awaitable[T]], limiter: ConnectorLimits | None) -> T:
    """Makes one attempt. A call that ends without an answer does not change the pace: it says nothing about the load."""
    try:
        return await attempt()
    except BaseException:
        if limiter is not None:
            limiter.pace.cancel_call()
        raise


def _report_answer_to_pace(pace: ConnectorPace, started: float, answer: object) -> None:
    if not isinstance(answer, Response):
        pace.accept_call(started)
    elif is_overload_status(answer.status):
        pace.reject_call(started, _parse_retry_after(answer))
    else:
        pace.accept_call(started, answer.headers)


def _describe_failure(retry: RetryPolicy, tries: int, what: str, detail: str = "") -> str:
    after = f" after {tries} tries" if tries > 1 else ""
    return f"{retry.name}: {what}{after}" + (f": {detail}" if detail else "")


def _compute_pause_s(retry: RetryPolicy, tries: int, wait_s: float | None) -> float:
    """Full jitter, so that callers do not retry at the same moment; at least the time that the server asks for."""
    if wait_s is not None:
        return wait_s * (1 + retry.jitter() / 4)
    return retry.jitter() * min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (tries - 1))


def _parse_retry_after(answer: Response) -> float | None:
    """The wait time of Retry-After, in seconds or as a date. Google puts it into the body."""
    header = answer.headers.get("retry-after")
    if header is None:
        match = _RETRY_DELAY.search(answer.body)
        wait_s = None if match is None else float(match[1])
    elif _SECONDS.fullmatch(header):
        wait_s = float(header)
    else:
        from email.utils import parsedate_to_datetime  # slow to import, rarely needed

        try:
            wait_s = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError, OSError):
            return None
    return None if wait_s is None else max(0.0, min(wait_s, _MAX_RETRY_AFTER_S))


def convert_to_utf8(answer: Response) -> Response:
    """The answer with its body in UTF-8, if Content-Type names another charset and the body has it. A byte order mark is dropped."""
    if answer.body.startswith(codecs.BOM_UTF8):
        return Response(answer.status, answer.headers, answer.body.removeprefix(codecs.BOM_UTF8))
    content_type = answer.headers.get("content-type", "")
    match = _CHARSET.search(content_type) if "charset" in content_type.lower() else None
    if match is None or match[1].lower() in ("utf-8", "utf8"):
        return answer
    try:
        charset = codecs.lookup(match[1]).name
        if charset in _NO_CHARSETS or (not charset.startswith("utf-") and _is_utf8(answer.body)):
            return answer  # JSON is UTF-8, whatever the label says
        return Response(answer.status, answer.headers, answer.body.decode(charset).encode())
    except (LookupError, UnicodeError):  # decoding the body reports what is wrong with it
        return answer


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def describe_status(status: int) -> str:
    """`429 Too Many Requests`."""
    return f"{status} {HTTPStatus(status).phrase}" if status in _STATUSES else str(status)


def find_header_secrets(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Credentials in header values, the longest first."""
    secrets = {secret for secret in find_header_credentials(headers) if len(secret) >= _MIN_SECRET_LENGTH}
    return tuple(sorted(secrets, key=len, reverse=True))


def extract_error_message(body: bytes, secrets: tuple[str, ...] = (), limit: int = _MAX_MESSAGE_CHARACTERS) -> str:
    """The error message of an answer, in one line and without secrets."""
    try:
        text = _find_error_message(codec.decode(body)) or ""
    except codec.DecodeError:
        text = ""
    text = " ".join(
        (cut_end(text, _MAX_READ_CHARACTERS) or _TAGS.sub(" ", decode_start(body, _MAX_READ_CHARACTERS))).split()
    )
    for secret in secrets:
        text = text.replace(secret, "***")
    return cut_end(text, limit)


def _find_error_message(value: Any) -> str | None:
    """The message of an error, in the shapes that providers use."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        error = cast("dict[str, Any]", value)
        messages = (_find_error_message(error[key]) for key in ("error", "message", "detail") if key in error)
        return next(filter(None, messages), None)
    return None
