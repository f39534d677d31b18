"""A small HTTP/1.1 test server on a loopback socket, with scripted responses and failures.

It runs in its own thread, so a test may be synchronous (`with`) or asynchronous (`async with`). The stand-ins for model
providers are built on it.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Literal, Self

from msgspec import Struct

from viva.model import codec


class ReceivedRequest(Struct, frozen=True):
    """A request with header names in lower case. `connection` is the number of its connection, from 1."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return codec.decode(self.body)


class StubResponse(Struct, frozen=True, kw_only=True):
    """A response, and what the server does to it.

    `chunks` are sent with chunked encoding, one write each, instead of `body`. `raw` pieces are written unchanged, instead of
    headers and body. The server first waits for `delay_s`. `hold` blocks the response until `release()` is called: at its
    start or, with `amid_body`, in the middle of the chunks. `cut` drops the connection: before the first byte, after the
    headers, or in the middle of the body. `close` ends the connection after the response: `announced` by a header, or
    `silent`, like a server after an idle time-out.
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = {}
    chunks: tuple[bytes, ...] | None = None
    raw: tuple[bytes, ...] | None = None
    delay_s: float = 0.0
    hold: Literal["amid_body"] | bool = False
    cut: Literal["before", "after_headers", "amid_body"] | None = None
    close: Literal["announced", "silent"] | None = None


Handler = Callable[[ReceivedRequest], StubResponse]


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> StubResponse:
    """Return a response with a value as JSON."""
    return StubResponse(
        body=codec.encode(value), status=status, headers={"Content-Type": "application/json"} | dict(headers or {})
    )


class HttpServer:
    """A context manager that serves requests with `handler`; `url` is its address.

    If the handler raises, the client gets a 500 and the error is raised again when the server closes.
    """

    def __init__(
        self, handler: Handler, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.handler = handler
        self.requests: list[ReceivedRequest] = []
        self.connections = 0
        self.open_connections = 0
        self.handler_errors: list[Exception] = []
        self._tls = tls
        self._host = host
        self._changed = threading.Condition()
        self._ready = threading.Event()
        self._port = port

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._port

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls else 'http'}://{host}:{self._port}"

    @property
    def url(self) -> str:
        """Its address, such as http://127.0.0.1:8000."""
        return self.origin

    def __enter__(self) -> Self:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.create_server((self._host, self._port), family=family, backlog=1024)
        self._port = listener.getsockname()[1]
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(listener)), name="viva-http-server", daemon=True
        )
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self.handler_errors and error is None:
            raise self.handler_errors[0]

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def release(self) -> None:
        """Send all responses with `hold`, those that wait now and later ones."""
        self._loop.call_soon_threadsafe(self._released.set)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Block until a condition holds, for example `lambda: server.open_connections == 0`."""
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                raise TimeoutError(f"the condition did not hold within {timeout_s:g} s")

    async def _serve(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop, self._released, self._empty = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._connections: set[_Connection] = set()
        server = await self._loop.create_server(lambda: _Connection(self), sock=listener, ssl=self._tls)
        self._ready.set()
        await self._stop.wait()
        server.close()
        await self._let_loop_run()
        for connection in list(self._connections):
            connection.abort()
        if self._connections:
            self._empty.clear()
            await self._empty.wait()
        for handshake in asyncio.all_tasks() - {asyncio.current_task()}:
            handshake.cancel()
        await self._let_loop_run()

    async def _let_loop_run(self) -> None:
        """Let the event loop finish accepting and closing sockets."""
        for _ in range(5):
            await asyncio.sleep(0)

    def add_connection(self, connection: "_Connection") -> int:
        """Internal: add a new connection and return its number."""
        with self._changed:
            self._connections.add(connection)
            self.connections += 1
            self.open_connections += 1
            self._changed.notify_all()
            return self.connections

    def remove_connection(self, connection: "_Connection") -> None:
        """Internal: remove a closed connection."""
        with self._changed:
            self._connections.discard(connection)
            self.open_connections -= 1
            if not self._connections:
                self._empty.set()
            self._changed.notify_all()

    def handle_request(self, request: ReceivedRequest) -> StubResponse:
        """Internal: record a request and call the handler."""
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        try:
            return self.handler(request)
        except Exception as error:  # the client must not hang on a bug in the test's handler
            self.handler_errors.append(error)
            return StubResponse(status=500, body=repr(error).encode())

    async def wait_released(self) -> None:
        """Internal: wait until `release` is called."""
        await self._released.wait()


class _Connection(asyncio.Protocol):
    """One connection. Each request is answered before the next is read."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._needed_bytes = 0
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._number = self._server.add_connection(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
        # In the next loop step the socket is closed too.
        asyncio.get_running_loop().call_soon(self._server.remove_connection, self)

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._buffer and not self._buffer[:1].isalpha():  # TLS, or other data that is not HTTP
            self._transport.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self._transport.close()
        elif self._task is None and (request := self._pop_request()) is not None:
            self._task = asyncio.get_running_loop().create_task(self._respond(request))

    def _pop_request(self) -> ReceivedRequest | None:
        """Return the next complete request in the buffer, or None."""
        if len(self._buffer) < self._needed_bytes or (end := self._buffer.find(b"\r\n\r\n")) < 0:
            return None
        head = bytes(self._buffer[:end])
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            if (decoded := _decode_chunks(self._buffer, end + 4)) is None:
                return None
            body, self._needed_bytes = decoded
        else:
            self._needed_bytes = end + 4 + int(headers.get("content-length", "0"))
            if len(self._buffer) < self._needed_bytes:
                return None
            body = bytes(self._buffer[end + 4 : self._needed_bytes])
        self._buffer, self._needed_bytes = self._buffer[self._needed_bytes :], 0
        method, path, _ = first.split(" ")
        return ReceivedRequest(method, path, headers, body, self._number)

    async def _respond(self, request: ReceivedRequest) -> None:
        response = self._server.handle_request(request)
        if response.delay_s:
            await asyncio.sleep(response.delay_s)
        if response.hold is True:
            await self._server.wait_released()
        await self._write(response, request.method)
        self._task = None
        if response.cut is not None or response.close is not None:
            self._transport.close()
        else:
            self.data_received(b"")

    async def _write(self, response: StubResponse, method: str) -> None:
        if response.cut == "before":
            return
        if response.raw is not None:
            for piece in response.raw:
                await self._send(piece)
            return
        await self._send(_build_head(response))
        if response.cut == "after_headers" or method == "HEAD":
            return
        if response.chunks is None:
            await self._send(response.body[: len(response.body) // 2] if response.cut else response.body)
            return
        half = len(response.chunks) // 2
        for at, chunk in enumerate(response.chunks[:half] if response.cut else response.chunks):
            if at == half and response.hold == "amid_body":
                await self._server.wait_released()
            await self._send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        if not response.cut:
            await self._send(b"0\r\n\r\n")

    async def _send(self, piece: bytes) -> None:
        """Write a piece and let the loop run, so that the client gets the pieces separately."""
        self._transport.write(piece)
        await asyncio.sleep(0)


def _decode_chunks(buffer: bytearray, at: int) -> tuple[bytes, int] | None:
    """Return a chunked body and the position after it in the buffer, or None if it is incomplete."""
    body = bytearray()
    while (end := buffer.find(b"\r\n", at)) >= 0:
        size = int(bytes(buffer[at:end]).partition(b";")[0], 16)
        at = end + 2 + size + 2
        if len(buffer) < at:
            return None
        if not size:
            return bytes(body), at
        body += buffer[end + 2 : at - 2]
    return None


def _build_head(response: StubResponse) -> bytes:
    phrase = HTTPStatus(response.status).phrase if response.status in set(HTTPStatus) else "Unknown"
    lines = [f"HTTP/1.1 {response.status} {phrase}", *(f"{name}: {value}" for name, value in response.headers.items())]
    lines.append(
        "Transfer-Encoding: chunked" if response.chunks is not None else f"Content-Length: {len(response.body)}"
    )
    if response.close == "announced":
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
