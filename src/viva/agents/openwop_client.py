"""A client for OpenWOP hosts: starts runs and follows their events, also across lost connections."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from msgspec import Struct, field

from viva.agents.json_objects import as_object
from viva.errors import Unreachable
from viva.llm.calls import RetryPolicy, describe_status, extract_error_message, is_overload_status, send_request
from viva.llm.sse import SseParser
from viva.model import codec
from viva.model.connector import Secret
from viva.model.progress import CallProgress
from viva.protocols import Request, Response, Transport

FINAL_EVENTS = frozenset({"run.completed", "run.failed", "run.cancelled"})
MAX_STREAM_FAILURES = 16
"""Consecutive short streams without a new event, after which the run is given up: about a minute, since a host that is
restarted drains first."""
_IDLE_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


class HostRefused(Unreachable):
    """The host answered with an error status and usually its own code and message."""

    def __init__(self, status: int, code: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.details = details or {}

    @property
    def field(self) -> str | None:
        """The field of the request that is wrong."""
        field = self.details.get("field")
        return field if isinstance(field, str) else None


class HostClient(Struct, frozen=True, kw_only=True):
    """A host. Its token is only sent as a header."""

    url: str
    token: Secret | None
    http: Transport
    progress: CallProgress = field(default_factory=CallProgress)
    retries: int = 4
    sleep: Callable[[float], Any] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic

    async def get(self, path: str) -> Any:
        return self._decode(await self._send(Request(self._build_url(path), b"", self._build_headers(), "GET", 90.0)))

    async def post(self, path: str, body: Any, *, idempotent: bool = False) -> Any:
        """The decoded answer to a POST. With `idempotent` the request has an Idempotency-Key and is sent again if the answer is lost."""
        headers = self._build_headers({"Content-Type": "application/json"})
        if idempotent:
            headers["Idempotency-Key"] = secrets.token_hex(16)
        return self._decode(await self._send(Request(self._build_url(path), codec.encode(body), headers, "POST", 90.0)))

    async def create_run(self, body: Any) -> str:
        """Starts a run and returns its id."""
        run = as_object(await self.post("/v1/runs", body, idempotent=True)).get("runId")
        if not isinstance(run, str) or not run:
            raise Unreachable(f"{self.url}: its answer has no runId")
        return run

    async def iterate_events(self, run: str, mode: str = "updates") -> AsyncGenerator[dict[str, Any], None]:
        """Each event of a run once, in order, until the last one. A broken stream is resumed after the last event."""
        last, failures = -1, 0
        while True:
            began = self.clock()
            try:
                async with aclosing(self._stream_events(run, mode, last)) as stream:
                    async for event in stream:
                        if event["sequence"] <= last:
                            continue
                        last, failures = event["sequence"], 0
                        yield event
                        if event["type"] in FINAL_EVENTS:
                            return
            except Unreachable as error:
                if (
                    isinstance(error, HostRefused) and not is_overload_status(error.status)
                ) or failures >= MAX_STREAM_FAILURES:
                    raise
            was_alive = self.clock() - began > _LONGEST_PAUSE_S  # a quiet run, whose stream a proxy may close
            failures = 1 if was_alive else failures + 1
            if failures > MAX_STREAM_FAILURES:
                raise Unreachable("the host closes the event stream before the run has ended")
            await self.sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**failures))

    async def _stream_events(self, run: str, mode: str, last: int) -> AsyncGenerator[dict[str, Any], None]:
        """The events of one connection."""
        headers = self._build_headers({"Accept": "text/event-stream"})
        if last >= 0:
            headers["Last-Event-ID"] = str(last)
        path = f"/v1/runs/{quote(run, safe='')}/events?streamMode={mode}"
        request = Request(self._build_url(path), b"", headers, "GET", _IDLE_S, 2**40)
        async with self.http.stream(request) as answer:
            if answer.status != 200:
                body = b"".join([piece async for piece in answer.chunks()])
                self._decode(Response(answer.status, answer.headers, body))
            lines = SseParser()
            async for piece in answer.chunks():
                for data in lines.feed_data(piece):
                    yield self._decode_event(data)

    def _decode_event(self, data: bytes) -> dict[str, Any]:
        try:
            event = codec.decode(data)
        except codec.DecodeError as error:
            raise Unreachable("the host sent an event that is not JSON") from error
        fields = as_object(event)
        if not isinstance(fields.get("type"), str) or type(fields.get("sequence")) is not int:
            raise Unreachable("the host sent something that is not an event of a run")
        return fields

    async def _send(self, request: Request) -> Response:
        only_unsent = request.method == "POST" and "Idempotency-Key" not in request.headers
        retry = RetryPolicy(
            "openwop host", self.retries, is_overload_status, only_unsent=only_unsent, secrets=self._list_secrets()
        )
        return await send_request(self.http, request, retry, self.progress)

    def _decode(self, answer: Response) -> Any:
        try:
            value = codec.decode(answer.body) if answer.body else None
        except codec.DecodeError:
            value = None
        if 200 <= answer.status < 300 and value is not None:
            return value
        error = as_object(value)
        code, message = str(error.get("error", "")), str(error.get("message", ""))
        text = (
            extract_error_message(message.encode(), self._list_secrets()) if message else describe_status(answer.status)
        )
        details = as_object(error.get("details"))
        where = f" ({details['field']})" if isinstance(details.get("field"), str) else ""
        raise HostRefused(answer.status, code, f"{self.url}: {text}{where}", details)

    def _build_url(self, path: str) -> str:
        return self.url.rstrip("/") + path

    def _build_headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        own = {"Authorization": f"Bearer {self.token.reveal()}"} if self.token else {}
        return {"Accept": "application/json", **own, **(more or {})}

    def _list_secrets(self) -> tuple[str, ...]:
        return (self.token.reveal(),) if self.token else ()
