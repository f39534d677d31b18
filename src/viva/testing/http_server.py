"""A small HTTP/1.1 server on a real loopback socket, for tests: it answers as told, breaks as told, and remembers all.

It runs in a thread of its own, so a test may be plain (`with`) or asynchronous (`async with`). The stand-ins for model
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
    """A request as it arrived. Header names are in lower case; `connection` counts from 1 which connection brought it."""

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
    """What the server does with a request.

    `chunks` are sent in the chunked encoding, one write each, instead of `body`; `raw` pieces are written as they are,
    instead of everything else. `delay_s` comes first. `hold` keeps the client waiting until `release()`, before a byte is
    sent or amid the chunks. `cut` drops the connection: before a byte is sent, after the headers, or amid the body.
    `close` ends a kept-alive connection: `said` with a header, `unsaid` without one, as a server does that has waited
    long enough.
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = {}
    chunks: tuple[bytes, ...] | None = None
    raw: tuple[bytes, ...] | None = None
    delay_s: float = 0.0
    hold: Literal["amid_body"] | bool = False
    cut: Literal["before", "after_headers", "amid_body"] | None = None
    close: Literal["said", "unsaid"] | None = None


Handler = Callable[[ReceivedRequest], StubResponse]


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> StubResponse:
    """An answer that holds a value as JSON."""
    return StubResponse(
        body=codec.encode(value), status=status, headers={"Content-Type": "application/json"} | dict(headers or {})
    )


class HttpServer:
    """Calls `handler` for each request. Use it as a context manager; `url` is its address.

    A handler that raises answers 500, and its error is raised again when the server closes, so that no test misses it.
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
        """The port that it listens on."""
        return self._port

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls else 'http'}://{host}:{self._port}"

    @property
    def url(self) -> str:
        """Its address."""
        return self.origin

    def __enter__(self) -> Self:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listening = socket.create_server((self._host, self._port), family=family, backlog=1024)
        self._port = listening.getsockname()[1]
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(listening)), name="viva-http-server", daemon=True
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
        """Lets the answers go that `hold`, those to come too."""
        self._loop.call_soon_threadsafe(self._released.set)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Blocks until something holds of this server, such as `lambda: server.open_connections == 0`."""
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                raise TimeoutError("what the test waited for did not happen")

    async def _serve(self, listening: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop, self._released, self._empty = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._alive: set[_Connection] = set()
        server = await self._loop.create_server(lambda: _Connection(self), sock=listening, ssl=self._tls)
        self._ready.set()
        await self._stop.wait()
        server.close()
        await self._rounds()
        for connection in list(self._alive):
            connection.abort()
        if self._alive:
            self._empty.clear()
            await self._empty.wait()
        for handshake in asyncio.all_tasks() - {asyncio.current_task()}:
            handshake.cancel()
        await self._rounds()

    async def _rounds(self) -> None:
        """A socket that was just accepted, or is just being closed, needs a few rounds of the loop for that."""
        for _ in range(5):
            await asyncio.sleep(0)

    def add_connection(self, connection: "_Connection") -> int:
        """For the server's own use: a connection was made."""
        with self._changed:
            self._alive.add(connection)
            self.connections += 1
            self.open_connections += 1
            self._changed.notify_all()
            return self.connections

    def remove_connection(self, connection: "_Connection") -> None:
        """For the server's own use: a connection was lost."""
        with self._changed:
            self._alive.discard(connection)
            self.open_connections -= 1
            if not self._alive:
                self._empty.set()
            self._changed.notify_all()

    def handle_request(self, received: ReceivedRequest) -> StubResponse:
        """Remembers a request and asks the handler what to do with it."""
        with self._changed:
            self.requests.append(received)
            self._changed.notify_all()
        try:
            return self.handler(received)
        except Exception as broken:  # the handler is the test's own code: the client must not hang on its bug
            self.handler_errors.append(broken)
            return StubResponse(status=500, body=repr(broken).encode())

    async def wait_released(self) -> None:
        """Waits until `release` was called."""
        await self._released.wait()


class _Connection(asyncio.Protocol):
    """One connection: requests come one after another, each answered before the next is read."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._due = 0
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._number = self._server.add_connection(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
        # Only the next round of the loop: by then the socket is closed too.
        asyncio.get_running_loop().call_soon(self._server.remove_connection, self)

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._buffer and not self._buffer[:1].isalpha():  # TLS, or something else that is not HTTP
            self._transport.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self._transport.close()
        elif self._task is None and (received := self._take()) is not None:
            self._task = asyncio.get_running_loop().create_task(self._respond(received))

    def _take(self) -> ReceivedRequest | None:
        """The next whole request in the buffer. Until as much is there as is due, it is not looked at again."""
        if len(self._buffer) < self._due or (end := self._buffer.find(b"\r\n\r\n")) < 0:
            return None
        head = bytes(self._buffer[:end])
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            if (whole := _joined(self._buffer, end + 4)) is None:
                return None
            body, self._due = whole
        else:
            self._due = end + 4 + int(headers.get("content-length", "0"))
            if len(self._buffer) < self._due:
                return None
            body = bytes(self._buffer[end + 4 : self._due])
        self._buffer, self._due = self._buffer[self._due :], 0
        method, path, _ = first.split(" ")
        return ReceivedRequest(method, path, headers, body, self._number)

    async def _respond(self, received: ReceivedRequest) -> None:
        answer = self._server.handle_request(received)
        if answer.delay_s:
            await asyncio.sleep(answer.delay_s)
        if answer.hold is True:
            await self._server.wait_released()
        await self._write(answer, received.method)
        self._task = None
        if answer.cut is not None or answer.close is not None:
            self._transport.close()
        else:
            self.data_received(b"")

    async def _write(self, answer: StubResponse, method: str) -> None:
        if answer.cut == "before":
            return
        if answer.raw is not None:
            for piece in answer.raw:
                await self._send(piece)
            return
        await self._send(_head(answer))
        if answer.cut == "after_headers" or method == "HEAD":
            return
        if answer.chunks is None:
            await self._send(answer.body[: len(answer.body) // 2] if answer.cut else answer.body)
            return
        half = len(answer.chunks) // 2
        for at, chunk in enumerate(answer.chunks[:half] if answer.cut else answer.chunks):
            if at == half and answer.hold == "amid_body":
                await self._server.wait_released()
            await self._send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        if not answer.cut:
            await self._send(b"0\r\n\r\n")

    async def _send(self, piece: bytes) -> None:
        """Each piece is a write of its own, with a round of the loop between: the client gets them apart."""
        self._transport.write(piece)
        await asyncio.sleep(0)


def _joined(buffer: bytearray, at: int) -> tuple[bytes, int] | None:
    """A body that comes in chunks, and where it ends; None until all of it is there."""
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


def _head(answer: StubResponse) -> bytes:
    phrase = HTTPStatus(answer.status).phrase if answer.status in set(HTTPStatus) else "Unknown"
    lines = [f"HTTP/1.1 {answer.status} {phrase}", *(f"{name}: {value}" for name, value in answer.headers.items())]
    lines.append("Transfer-Encoding: chunked" if answer.chunks is not None else f"Content-Length: {len(answer.body)}")
    if answer.close == "said":
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
