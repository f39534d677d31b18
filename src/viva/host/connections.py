"""Connections of a host: how long one may take, how many there may be, and which are closed to make room.

A client that sends its request slowly, or nothing at all, is cut off. Clients without a token share a part of the
connections. When it is full, the oldest of them that waits for a request is closed, so silent clients lock out no others.
"""

import asyncio
import resource
from collections import Counter
from functools import partial
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Literal

import h11
from msgspec import Struct, structs
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from viva.config import Settings
from viva.host.errors import ApiError
from viva.model import codec
from viva.text.duration import parse_duration

RETRY_AFTER_S = 5
_OTHER_FILES = 200
CONNECTION_KEY = "viva.connection"
Phase = Literal["idle", "header", "body", "response"]
"""What a connection waits for: a next request, the rest of its header, the rest of its body, or the host."""


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """Time limits in seconds, and numbers of connections."""

    header_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 15.0
    write_s: float = 60.0
    """How long a client may leave a response unread."""
    max_connections: int = 2000
    max_per_address: int = 1000
    max_anonymous: int = 500
    """Connections on which no valid token was sent yet."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks. Their connections are those of many clients."""


def load_limits(settings: Settings) -> ConnectionLimits:
    """The limits of `[serve]`. Raises BadInput."""
    serve = settings.serve
    durations: dict[str, float] = {}
    for key in ("header", "body", "idle", "write"):
        name = f"{key}_timeout"
        if name in serve:
            try:
                durations[f"{key}_s"] = parse_duration(serve[name])
            except ValueError as error:
                raise settings.problem(str(error), "serve", name) from error
    numbers = {
        "max_connections": "max_connections",
        "max_per_address": "max_connections_per_address",
        "max_anonymous": "max_anonymous_connections",
    }
    for proxy in serve.get("trusted_proxies", ()):
        try:
            ip_network(proxy)
        except ValueError as error:
            message = f"{proxy!r} is neither an address nor a network such as 10.0.0.0/8"
            raise settings.problem(message, "serve", "trusted_proxies") from error
    return ConnectionLimits(
        **durations,
        **{field: serve[name] for field, name in numbers.items() if name in serve},
        trusted_proxies=tuple(serve.get("trusted_proxies", ())),
    )


def fit_to_open_files(limits: ConnectionLimits) -> ConnectionLimits:
    """The limits with no more connections than this process may have files open, beside those of its runs."""
    room = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_FILES)
    if room >= limits.max_connections:
        return limits
    return structs.replace(limits, max_connections=room, max_anonymous=min(limits.max_anonymous, max(1, room // 2)))


class ConnectionRegistry:
    """The open connections of a host, oldest first."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._proxies = [ip_network(proxy) for proxy in limits.trusted_proxies]
        self._addresses: dict[Connection, str] = {}
        self._per_address: Counter[str] = Counter()
        self._anonymous: dict[Connection, None] = {}
        self.closed_early: Counter[str] = Counter()
        """How many connections the host closed itself, by reason."""

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def anonymous_count(self) -> int:
        return len(self._anonymous)

    def add(self, connection: "Connection", address: str) -> bool:
        """Takes a new connection, if there is room for it."""
        limits, name = self.limits, _group_address(address)
        is_proxy = self._is_proxy(address)
        if not is_proxy and self._per_address[name] >= limits.max_per_address:
            return False
        is_full = len(self) >= limits.max_connections or len(self._anonymous) >= limits.max_anonymous
        if is_full and not self._close_oldest():
            return False
        self._addresses[connection] = name
        self._anonymous[connection] = None
        self._per_address[name] += 1
        return True

    def remove(self, connection: "Connection") -> None:
        name = self._addresses.pop(connection, None)
        self._anonymous.pop(connection, None)
        if name is not None:
            self._per_address[name] -= 1
            if not self._per_address[name]:
                del self._per_address[name]

    def mark_authenticated(self, connection: "Connection") -> None:
        self._anonymous.pop(connection, None)

    def _close_oldest(self) -> bool:
        """Closes the oldest connection without a token that waits for its client."""
        for connection in self._anonymous:
            if connection.phase != "response":
                self.remove(connection)
                connection.close_early("evicted")
                return True
        return False

    def _is_proxy(self, address: str) -> bool:
        try:
            return any(ip_address(address) in network for network in self._proxies)
        except ValueError:
            return False


def _group_address(address: str) -> str:
    """The address, or the network of an IPv6 address: one client has all of it."""
    try:
        value = ip_address(address)
    except ValueError:
        return address
    return str(ip_network((int(value) >> 64 << 64, 64))) if isinstance(value, IPv6Address) else address


class Connection(H11Protocol):
    """One connection, with its limits."""

    def __init__(self, registry: ConnectionRegistry, **fields: Any) -> None:
        super().__init__(**fields)
        self._registry = registry
        self._limits = registry.limits
        self.timeout_keep_alive = registry.limits.idle_s  # type: ignore[assignment] -- passed to call_later
        self.app = partial(self._call_app, self.app)  # type: ignore[assignment] -- an ASGI application
        self.phase: Phase = "header"
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    async def _call_app(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        scope[CONNECTION_KEY] = self
        await app(scope, receive, send)

    def mark_authenticated(self) -> None:
        self._registry.mark_authenticated(self)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if not self._registry.add(self, self.client[0] if self.client else ""):
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            self._refuse(ApiError(503, "too_many_connections", "Too many connections. Try again later", None, headers))
            self._registry.closed_early["full"] += 1
            return
        self._set_timer("header")

    def connection_lost(self, exc: Exception | None) -> None:
        self._registry.remove(self)
        self._cancel_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)
            self._follow_request(is_begun=True)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._follow_request(is_begun=bool(self.conn.trailing_data[0]))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._limits.write_s, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def send_400_response(self, msg: str) -> None:
        """For bytes that are no HTTP request."""
        self._refuse(ApiError(400, "bad_request", "The request is not valid HTTP"))

    def close_early(self, reason: str) -> None:
        self._registry.closed_early[reason] += 1
        self._cancel_timers()
        self.transport.close()

    def _follow_request(self, *, is_begun: bool) -> None:
        """Sets the time limit for what the client has to send next. A part of it does not extend the limit."""
        state = self.conn.their_state
        if state is h11.IDLE:
            phase: Phase = "header" if is_begun else "idle"
        else:
            phase = "body" if state is h11.SEND_BODY else "response"
        if phase != self.phase:
            self._set_timer(phase)

    def _set_timer(self, phase: Phase) -> None:
        self.phase = phase
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        seconds = {"header": self._limits.header_s, "body": self._limits.body_s}.get(phase)
        if seconds is not None:  # uvicorn has a timer of its own for idle connections
            self._timer = self.loop.call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        if self.transport.is_closing():
            return
        self._registry.closed_early[f"{self.phase}_timeout"] += 1
        message = f"The {self.phase} of the request took too long"
        self._refuse(ApiError(408, "request_timeout", message))

    def _refuse(self, error: ApiError) -> None:
        """Answers, unless this request has a response already, and closes the connection."""
        self._cancel_timers()
        cycle: Any = self.cycle  # None before the first request
        is_answered = (
            cycle is not None and cycle.response_started and (self.phase == "body" or not cycle.response_complete)
        )
        if not is_answered:
            body = codec.encode(error.to_json())
            reason = {400: "Bad Request", 408: "Request Timeout", 503: "Service Unavailable"}[error.status]
            headers = {
                **error.headers,
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
                "Connection": "close",
            }
            lines = [f"HTTP/1.1 {error.status} {reason}", *(f"{name}: {value}" for name, value in headers.items())]
            self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()

    def _abort(self) -> None:
        self._registry.closed_early["write_timeout"] += 1
        self.transport.abort()

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._write_timer = None
