"""An HTTP/1.1 client for calls without proxy whose answer is read at once: one asyncio.Protocol for each connection.

A call takes a fraction of the CPU of a general client. Anything unusual raises Unreachable.
"""

import asyncio
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

from viva.errors import ConnectFailed, Unreachable
from viva.llm.response_parser import ProtocolError, ResponseParser
from viva.llm.target import CONNECT_TIMEOUT_S, Target, describe_connection_error
from viva.protocols import Request, Response
from viva.text.duration import format_duration

_MAX_IDLE_S = 15.0
_LOOKUP_CACHE_S = 10.0
_MAX_CONNECTING = 256
"""How many connections to one server are opened at the same time. More would overflow the queue of the server, and a call
that waits can often use a connection that another call has released meanwhile.
"""
_MAX_RESUMED_CALLS = 16
"""How many calls continue in one step of the event loop. When hundreds of answers arrive together, timers and other calls
run between the steps.
"""
_Addresses = list[tuple[Any, ...]]


class _StaleConnection(Exception):  # noqa: N818 -- private
    """A reused connection was closed before a byte of the answer arrived."""


class Http1Client:
    """A pool of connections, one for each concurrent call. Belongs to one event loop."""

    def __init__(self, tls: Callable[[], ssl.SSLContext]) -> None:
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._idle: dict[tuple[str, int, bool], list[_Connection]] = {}
        self._lookups: dict[tuple[str, int], tuple[float, asyncio.Task[_Addresses]]] = {}
        self._connect_limits: dict[tuple[str, int, bool], asyncio.Semaphore] = {}
        self._open: set[_Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._all_closed: asyncio.Future[None] | None = None
        self._resumed_count = 0  # in this step of the event loop
        self._answered_calls: deque[tuple[asyncio.Future[ResponseParser], ResponseParser]] = deque()

    async def request(self, request: Request, target: Target) -> Response:
        connection = self._take_idle_connection(target, request.never_resend) or await self._connect(target, request)
        try:
            return await connection.send_and_receive(request, target)
        except _StaleConnection:
            if request.never_resend:
                raise Unreachable(f"{target.host_port}: closed the connection without an answer") from None
        connection = await self._connect(target, request, may_reuse=False)
        return await connection.send_and_receive(request, target)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for _, lookup in self._lookups.values():
            lookup.cancel()
        if self._open:
            self._all_closed = self._loop.create_future()
            for connection in tuple(self._open):
                connection.abort()
            await self._all_closed

    def add_connection(self, connection: "_Connection") -> None:
        self._open.add(connection)

    def remove_connection(self, connection: "_Connection") -> None:
        self._open.discard(connection)
        if self._all_closed is not None and not self._open and not self._all_closed.done():
            self._all_closed.set_result(None)

    def resume_call(self, waiter: "asyncio.Future[ResponseParser]", answer: ResponseParser) -> None:
        """Continues a call with its complete answer, in this step of the event loop or in one of the next."""
        if not self._resumed_count:
            self._loop.call_soon(self._resume_answered_calls)
        if self._resumed_count < _MAX_RESUMED_CALLS:
            self._resumed_count += 1
            waiter.set_result(answer)
        else:
            self._answered_calls.append((waiter, answer))

    def _resume_answered_calls(self) -> None:
        self._resumed_count = 0
        for _ in range(min(len(self._answered_calls), _MAX_RESUMED_CALLS)):
            waiter, answer = self._answered_calls.popleft()
            if not waiter.done():
                self.resume_call(waiter, answer)

    def schedule_timeout(self, due: float) -> None:
        """Let the timer fire at `due` or earlier. One timer serves all calls: a timer for each would be expensive."""
        if self._timer is None or due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            self._timer = self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._loop.time()
        for connection in self._open:
            connection.check_deadline(now)
        if waiting := [connection.deadline for connection in self._open if connection.deadline]:
            self.schedule_timeout(min(waiting))

    def _take_idle_connection(self, target: Target, never_resend: bool) -> "_Connection | None":
        idle = self._idle.get(target.origin)
        while idle:
            connection = idle.pop()
            if connection.is_closing():
                continue
            if connection.idle_since > self._loop.time() - _MAX_IDLE_S and not (
                never_resend and connection.has_unread_data()
            ):
                return connection
            connection.abort()
        return None

    async def _connect(self, target: Target, request: Request, *, may_reuse: bool = True) -> "_Connection":
        """Opens a connection. After a wait for its turn, a call uses a connection that another call has released meanwhile."""
        timeout_s = request.timeout_s
        limit_s = CONNECT_TIMEOUT_S if timeout_s is None else min(CONNECT_TIMEOUT_S, timeout_s)
        idle = self._idle.setdefault(target.origin, [])
        gate = self._connect_limits.setdefault(target.origin, asyncio.Semaphore(_MAX_CONNECTING))
        try:
            async with asyncio.timeout(limit_s), gate:
                if may_reuse and (free := self._take_idle_connection(target, request.never_resend)) is not None:
                    return free
                _, connection = await self._loop.create_connection(
                    lambda: _Connection(self, idle, target.host_port),
                    **await self._build_connect_arguments(target),
                    ssl=self._tls() if target.tls else None,
                    server_hostname=target.host if target.tls else None,
                )
        except TimeoutError as failed:
            raise ConnectFailed(f"{target.host_port}: no connection within {format_duration(limit_s)}") from failed
        except OSError as failed:
            raise ConnectFailed(f"{target.host_port}: {describe_connection_error(failed)}") from failed
        return connection

    async def _build_connect_arguments(self, target: Target) -> dict[str, Any]:
        """Chooses the address to connect to: the only IPv4 address, or a socket already connected to the fastest of several."""
        addresses = await self._resolve_host(target.host, target.port)
        if len(addresses) == 1 and addresses[0][0] == socket.AF_INET:
            host, port = addresses[0][4]
            return {"host": host, "port": port}
        import aiohappyeyeballs  # takes a while; a server on this machine has one address

        connected = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=0.25, interleave=1)  # pyright: ignore[reportArgumentType] -- as getaddrinfo returns them
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return {"sock": connected}

    async def _resolve_host(self, host: str, port: int) -> _Addresses:
        """Resolves a host. Connections share one lookup, whose result is cached for a few seconds."""
        expires, lookup = self._lookups.get((host, port), (0.0, None))
        if lookup is None or expires < self._loop.time():
            lookup = self._loop.create_task(self._query_addresses(host, port))
            self._lookups[host, port] = (self._loop.time() + _LOOKUP_CACHE_S, lookup)
        try:
            return await asyncio.shield(lookup)
        except OSError:
            self._lookups.pop((host, port), None)
            raise

    async def _query_addresses(self, host: str, port: int) -> _Addresses:
        return list(await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))


class _Connection(asyncio.Protocol):
    """One connection. It carries one call at a time and returns to its pool when the answer is complete."""

    def __init__(self, client: Http1Client, idle: "list[_Connection]", place: str) -> None:
        self._client = client
        self._idle = idle
        self._host_port = place
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[ResponseParser] | None = None
        self._incoming: ResponseParser
        self._reused = False
        self._timeout_s = 0.0
        self.deadline = 0.0
        self.idle_since = 0.0

    async def send_and_receive(self, request: Request, target: Target) -> Response:
        """Sends a request and waits for its answer. Any error, and cancellation, closes the connection."""
        loop = self._loop
        self._incoming = ResponseParser(request.method, request.max_bytes)
        waiter: asyncio.Future[ResponseParser] = loop.create_future()
        self._waiter = waiter
        if (timeout_s := request.timeout_s) is not None:
            self._timeout_s = timeout_s
            self.deadline = due = loop.time() + timeout_s
            self._client.schedule_timeout(due)
        self._transport.write(b"%b%d\r\n\r\n%b" % (target.request_head, len(request.body), request.body))
        try:
            incoming = await waiter
            response = incoming.build_response()
        except ProtocolError as invalid:
            self._transport.abort()
            raise Unreachable(f"{self._host_port}: {invalid}") from invalid
        except BaseException:
            self._transport.abort()
            raise
        finally:
            self._waiter = None
            self.deadline = 0.0
        if incoming.is_reusable and not self._transport.get_write_buffer_size():
            self._reused = True
            self.idle_since = loop.time()
            self._idle.append(self)
        else:
            self._transport.abort()
        return response

    def check_deadline(self, now: float) -> None:
        if self.deadline and self.deadline <= now and self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(
                Unreachable(f"{self._host_port}: no answer within {format_duration(self._timeout_s)}")
            )

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def has_unread_data(self) -> bool:
        """Is there unread data on an idle connection? That means it was closed."""
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport  # uvloop's transports do not derive from asyncio's
        self._client.add_connection(self)

    def data_received(self, data: bytes) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():  # no request is running
            self._transport.abort()
            return
        try:
            if self._incoming.feed(data):
                self._finish_call(waiter)
        except ProtocolError as invalid:
            waiter.set_exception(invalid)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.remove_connection(self)
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if exc is None and self._incoming.feed_eof():
            self._finish_call(waiter)
        elif self._incoming.has_started:
            waiter.set_exception(Unreachable(f"{self._host_port}: its answer was cut off"))
        elif self._reused:
            waiter.set_exception(_StaleConnection())
        else:
            waiter.set_exception(Unreachable(f"{self._host_port}: closed the connection without an answer"))

    def _finish_call(self, waiter: "asyncio.Future[ResponseParser]") -> None:
        self._waiter = None  # what happens to the connection from now on does not change the answer
        self._client.resume_call(waiter, self._incoming)
