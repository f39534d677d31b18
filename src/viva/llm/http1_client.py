"""HTTP/1.1 with nothing in between: an asyncio.Protocol a connection, for calls that are answered whole and need no proxy.

A call costs a fraction of what a general client takes. Whatever is unusual ends in Unreachable, never in a guess.
"""

import asyncio
import select
import socket
import ssl
from collections.abc import Callable
from typing import Any

import aiohappyeyeballs

from viva.errors import ConnectFailed, Unreachable
from viva.llm.response_parser import ProtocolError, ResponseParser
from viva.llm.target import CONNECT_TIMEOUT_S, Target, describe_connection_error
from viva.protocols import Request, Response
from viva.text.duration import format_duration

_IDLE_S = 15.0
_NAMES_S = 10.0
_Addresses = list[tuple[Any, ...]]


class _Stale(Exception):  # noqa: N818 -- it never leaves this module
    """A kept-alive connection was closed before a byte of the answer came."""


class Http1Client:
    """A pool of connections, as many as there are calls at once. Belongs to one event loop."""

    def __init__(self, tls: Callable[[], ssl.SSLContext]) -> None:
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._idle: dict[tuple[str, int, bool], list[_Connection]] = {}
        self._names: dict[tuple[str, int], tuple[float, asyncio.Task[_Addresses]]] = {}
        self._open: set[_Connection] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._all_lost: asyncio.Future[None] | None = None

    async def request(self, request: Request, target: Target) -> Response:
        connection = self._reusable(target, request.never_resend)
        if connection is not None:
            try:
                return await connection.exchange(request, target)
            except _Stale:
                if request.never_resend:
                    raise Unreachable(f"{target.host_port}: closed the connection without an answer") from None
        connection = await self._connect(target, request.timeout_s)
        return await connection.exchange(request, target)

    async def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        for _, lookup in self._names.values():
            lookup.cancel()
        if self._open:
            self._all_lost = self._loop.create_future()
            for connection in tuple(self._open):
                connection.abort()
            await self._all_lost

    def add_connection(self, connection: "_Connection") -> None:
        self._open.add(connection)

    def remove_connection(self, connection: "_Connection") -> None:
        self._open.discard(connection)
        if self._all_lost is not None and not self._open and not self._all_lost.done():
            self._all_lost.set_result(None)

    def schedule_timeout(self, due: float) -> None:
        """One alarm serves all calls: a timer for each would cost more than the rest of the bookkeeping."""
        if self._alarm is None or due < self._alarm_at:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_at = due
            self._alarm = self._loop.call_at(due, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now = self._loop.time()
        for connection in self._open:
            connection.expire(now)
        if waiting := [connection.due for connection in self._open if connection.due]:
            self.schedule_timeout(min(waiting))

    def _reusable(self, target: Target, once: bool) -> "_Connection | None":
        idle = self._idle.get(target.origin)
        while idle:
            connection = idle.pop()
            if connection.is_closing():
                continue
            if connection.idle_since > self._loop.time() - _IDLE_S and not (once and connection.has_news()):
                return connection
            connection.abort()
        return None

    async def _connect(self, target: Target, timeout_s: float | None) -> "_Connection":
        limit_s = CONNECT_TIMEOUT_S if timeout_s is None else min(CONNECT_TIMEOUT_S, timeout_s)
        idle = self._idle.setdefault(target.origin, [])
        try:
            async with asyncio.timeout(limit_s):
                addresses = await self._addresses(target.host, target.port)
                connected = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=0.25, interleave=1)  # pyright: ignore[reportArgumentType] -- just as getaddrinfo gave them
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _, connection = await self._loop.create_connection(
                    lambda: _Connection(self, idle, target.host_port),
                    sock=connected,
                    ssl=self._tls() if target.tls else None,
                    server_hostname=target.host if target.tls else None,
                )
        except TimeoutError as failed:
            raise ConnectFailed(f"{target.host_port}: no connection within {format_duration(limit_s)}") from failed
        except OSError as failed:
            raise ConnectFailed(f"{target.host_port}: {describe_connection_error(failed)}") from failed
        return connection

    async def _addresses(self, host: str, port: int) -> _Addresses:
        """Many connections open at once: they share one look-up, and keep what it found for a moment."""
        expires, lookup = self._names.get((host, port), (0.0, None))
        if lookup is None or expires < self._loop.time():
            lookup = self._loop.create_task(self._look_up(host, port))
            self._names[host, port] = (self._loop.time() + _NAMES_S, lookup)
        try:
            return await asyncio.shield(lookup)
        except OSError:
            self._names.pop((host, port), None)
            raise

    async def _look_up(self, host: str, port: int) -> _Addresses:
        return list(await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))


class _Connection(asyncio.Protocol):
    """One connection: it carries one call at a time, and goes back to its pool when the answer is whole."""

    def __init__(self, client: Http1Client, idle: "list[_Connection]", place: str) -> None:
        self._client = client
        self._idle = idle
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[ResponseParser] | None = None
        self._incoming: ResponseParser
        self._reused = False
        self._timeout_s = 0.0
        self.due = 0.0
        self.idle_since = 0.0

    async def exchange(self, request: Request, target: Target) -> Response:
        """Sends a request and waits for its answer. Whatever else happens, a cancel too, closes the connection."""
        loop = self._loop
        self._incoming = ResponseParser(request.method, request.max_bytes)
        self._waiter = waiter = loop.create_future()
        if (timeout_s := request.timeout_s) is not None:
            self._timeout_s = timeout_s
            self.due = due = loop.time() + timeout_s
            self._client.schedule_timeout(due)
        self._transport.write(b"%b%d\r\n\r\n%b" % (target.request_head, len(request.body), request.body))
        try:
            incoming = await waiter
            response = incoming.response()
        except ProtocolError as garbled:
            self._transport.abort()
            raise Unreachable(f"{self._place}: {garbled}") from garbled
        except BaseException:
            self._transport.abort()
            raise
        finally:
            self._waiter = None
            self.due = 0.0
        if incoming.keeps and not self._transport.get_write_buffer_size():
            self._reused = True
            self.idle_since = loop.time()
            self._idle.append(self)
        else:
            self._transport.abort()
        return response

    def expire(self, now: float) -> None:
        if self.due and self.due <= now and self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(
                Unreachable(f"{self._place}: no answer within {format_duration(self._timeout_s)}")
            )

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def has_news(self) -> bool:
        """Something came on an idle connection that the loop has not read yet: surely that it was closed."""
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
        if waiter is None or waiter.done():  # nobody asked
            self._transport.abort()
            return
        try:
            if self._incoming.feed(data):
                waiter.set_result(self._incoming)
        except ProtocolError as garbled:
            waiter.set_exception(garbled)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.remove_connection(self)
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if exc is None and self._incoming.feed_eof():
            waiter.set_result(self._incoming)
        elif self._incoming.has_started:
            waiter.set_exception(Unreachable(f"{self._place}: its answer was cut off"))
        elif self._reused:
            waiter.set_exception(_Stale())
        else:
            waiter.set_exception(Unreachable(f"{self._place}: closed the connection without an answer"))
