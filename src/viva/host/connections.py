"""Connections and requests before they reach an endpoint: time limits, numbers of connections, and checks of headers.

A client that sends its request slowly, or nothing at all, is cut off. Clients without a token share a part of the
connections. When it is full, the oldest of them that waits for a request is closed, so silent clients lock out no others.
"""

import asyncio
import resource
from collections import Counter
from collections.abc import Iterable
from functools import partial
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Literal
from urllib.parse import urlsplit

import h11
from msgspec import Struct, structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from viva.config import Settings
from viva.host.errors import ApiError, forbidden, not_found, validation_error
from viva.model import codec
from viva.text.addresses import is_loopback
from viva.text.duration import parse_duration

RETRY_AFTER_S = 5
_RESERVED_FILES = 200
CONNECTION_KEY = "viva.connection"
Phase = Literal["idle", "header", "body", "response"]
"""What a connection waits for: the next request, the rest of a header, the rest of a body, or the response of the host."""


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
    """How many connections may have sent no valid token yet."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies. `max_per_address` does not apply to them."""


def load_connection_limits(settings: Settings) -> ConnectionLimits:
    """Loads the limits from `[serve]`. Raises BadInput."""
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


def fit_to_open_file_limit(limits: ConnectionLimits) -> ConnectionLimits:
    """Lowers the limits to the number of files that this process may open, with some reserved for runs."""
    room = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _RESERVED_FILES)
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
        """How many connections the host itself has closed, by reason."""

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def anonymous_count(self) -> int:
        return len(self._anonymous)

    def add(self, connection: "Connection", address: str) -> bool:
        """Adds a new connection. Returns False if there is no room for it."""
        limits, name = self.limits, _group_address(address)
        is_proxy = self._is_proxy(address)
        if not is_proxy and self._per_address[name] >= limits.max_per_address:
            return False
        is_full = len(self) >= limits.max_connections or len(self._anonymous) >= limits.max_anonymous
        if is_full and not self._close_oldest_anonymous():
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

    def _close_oldest_anonymous(self) -> bool:
        """Closes the oldest connection that has sent no token and waits for its client. Returns whether there was one."""
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
    """Returns the address, or for IPv6 its /64 network, all of which belongs to one client."""
    try:
        value = ip_address(address)
    except ValueError:
        return address
    return str(ip_network((int(value) >> 64 << 64, 64))) if isinstance(value, IPv6Address) else address


class Connection(H11Protocol):
    """A connection of uvicorn with time limits."""

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
            self._send_error_and_close(
                ApiError(503, "too_many_connections", "Too many connections. Try again later", None, headers)
            )
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
            self._update_phase(is_begun=True)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._update_phase(is_begun=bool(self.conn.trailing_data[0]))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._limits.write_s, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def send_400_response(self, msg: str) -> None:
        """Responds to bytes that are not an HTTP request."""
        self._send_error_and_close(ApiError(400, "bad_request", "The request is not valid HTTP"))

    def close_early(self, reason: str) -> None:
        self._registry.closed_early[reason] += 1
        self._cancel_timers()
        self.transport.close()

    def _update_phase(self, *, is_begun: bool) -> None:
        """Sets the time limit of a new phase. Data that arrives in the same phase does not extend the limit."""
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
            self._timer = self.loop.call_later(seconds, self._close_after_timeout)

    def _close_after_timeout(self) -> None:
        if self.transport.is_closing():
            return
        self._registry.closed_early[f"{self.phase}_timeout"] += 1
        message = f"The {self.phase} of the request took too long"
        self._send_error_and_close(ApiError(408, "request_timeout", message))

    def _send_error_and_close(self, error: ApiError) -> None:
        """Sends an error, unless the request has a response already, and closes the connection."""
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


_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class KnownHosts:
    """The names and addresses under which clients may reach a host."""

    def __init__(self, bind_address: str, public_url: str, names: Iterable[str] = ()) -> None:
        self._names = {bind_address.lower(), *(name.lower() for name in names), urlsplit(public_url).hostname or ""}
        if is_loopback(bind_address):
            self._names.update(_LOOPBACK_NAMES)
        # A page that a browser was sent to under a foreign name has that name as its Host, never an address.
        self._takes_any_address = bind_address in ("0.0.0.0", "::")  # noqa: S104 -- compared, not bound

    def includes(self, header: str) -> bool:
        """Is the value of a header Host one of the names? The port is ignored: it may be forwarded."""
        try:
            name = "" if set("/?#@\\") & set(header) else urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        return name in self._names or (self._takes_any_address and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


METRICS_PATHS = ("/metrics", "/healthz", "/readyz")
"""The paths that the address for metrics serves."""


class RequestChecks:
    """ASGI middleware that responds to requests with invalid headers, and passes on all others."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            error = _find_error(Request(scope))
            if error is not None:
                response = Response(codec.encode(error.to_json()), error.status, error.headers, "application/json")
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def is_on_metrics_address(request: Request) -> bool:
    """Did the request arrive on the address for metrics?"""
    address = request.app.state.host.operations.metrics_address
    server = request.scope.get("server")
    return address is not None and server is not None and server[1] == address[1]


def _find_error(request: Request) -> ApiError | None:
    headers, host = request.headers, request.app.state.host
    if is_on_metrics_address(request) and request.url.path not in METRICS_PATHS:
        return not_found("endpoint")
    if len(headers.getlist("authorization")) > 1:
        return _header_error("A request has one header Authorization")
    if "content-length" in headers and "transfer-encoding" in headers:
        return _header_error("A request has either Content-Length or Transfer-Encoding, not both")
    if any(encoding.strip().lower() not in ("", "identity") for encoding in headers.getlist("content-encoding")):
        return _header_error("This host takes bodies without Content-Encoding only")
    if not host.known_hosts.includes(headers.get("host", "")):
        return validation_error("The header Host does not name this host", "Host")
    origin = headers.get("origin")
    if origin is not None and _parse_netloc(origin) not in (
        headers.get("host"),
        _parse_netloc(host.options.public_url),
    ):
        return forbidden("Requests from pages of other origins are refused")
    return None


def _header_error(message: str) -> ApiError:
    return ApiError(400, "validation_error", message, headers={"Connection": "close"})


def _parse_netloc(url: str) -> str | None:
    try:
        return urlsplit(url).netloc
    except ValueError:
        return None
