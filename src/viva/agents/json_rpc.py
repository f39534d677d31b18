"""JSON-RPC 2.0 over the standard streams of a process, one message per line, for the Agent Client Protocol.

The protocol's own SDK would bring pydantic and its start-up time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from viva.model import codec
from viva.workspace.processes import Process

METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR, RESOURCE_NOT_FOUND = -32601, -32602, -32603, -32002


class RpcError(Exception):
    """The other side answered a request with an error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data


class ConnectionClosed(Exception):  # noqa: N818 -- closing is not an error in itself
    """The process has closed its output."""


class _Error(Struct):
    code: int = 0
    message: str = ""
    data: Any = None


class _RpcMessage(Struct):
    id: int | str | UnsetType | None = UNSET
    method: str = ""
    params: Any = None
    result: Any = None
    error: _Error | None = None


_message_decoder = codec.Decoder[_RpcMessage](_RpcMessage)


class JsonRpcConnection:
    """One connection. `on_request` answers the other side's requests, `on_notification` gets its notifications,
    `on_unparsed_line` gets lines that are not messages. Messages are handled in order.
    """

    def __init__(
        self,
        process: Process,
        on_request: Callable[[str, Any], Awaitable[Any]],
        on_notification: Callable[[str, Any], None],
        on_unparsed_line: Callable[[bytes], None],
    ) -> None:
        self._process, self._on_request, self._on_notification, self._on_unparsed_line = (
            process,
            on_request,
            on_notification,
            on_unparsed_line,
        )
        self._waiting: dict[int, tuple[asyncio.Future[Any], Callable[[], None] | None]] = {}
        self._count = 0
        self._is_closed = False

    async def request(self, method: str, params: Mapping[str, Any], on_answer: Callable[[], None] | None = None) -> Any:
        """Sends a request and returns its result. RpcError if the answer is an error, ConnectionClosed if none came.

        `on_answer` is called as soon as the answer arrives.
        """
        if self._is_closed:
            raise ConnectionClosed
        self._count += 1
        number = self._count
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future, on_answer
        try:
            await self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            return await future
        finally:
            self._waiting.pop(number, None)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        with suppress(ConnectionClosed):
            await self._send({"jsonrpc": "2.0", "method": method, "params": params})

    async def listen(self) -> None:
        """Reads messages until the output ends."""
        try:
            async for data in self._process.lines():
                try:
                    line: _RpcMessage = _message_decoder.decode(data)
                except codec.DecodeError:
                    self._on_unparsed_line(data)
                    continue
                await self._handle(line)
        finally:
            self._is_closed = True
            for future, _ in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionClosed())
                    future.exception()  # marks it as retrieved

    async def _handle(self, line: _RpcMessage) -> None:
        if line.method and line.id is UNSET:
            self._on_notification(line.method, line.params)
        elif line.method:
            await self._answer_request(line)
        elif isinstance(line.id, int) and (waiting := self._waiting.get(line.id)) is not None:
            future, answered = waiting
            if future.done():
                return
            if answered is not None:
                answered()
            if line.error is None:
                future.set_result(line.result)
            else:
                future.set_exception(RpcError(line.error.code, line.error.message, line.error.data))

    async def _answer_request(self, line: _RpcMessage) -> None:
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": line.id}
        try:
            answer["result"] = await self._on_request(line.method, line.params)
        except RpcError as error:
            answer["error"] = {"code": error.code, "message": error.message}
        with suppress(ConnectionClosed):
            await self._send(answer)

    async def _send(self, message: Mapping[str, Any]) -> None:
        try:
            await self._process.send(codec.encode(message) + b"\n")
        except OSError as error:
            raise ConnectionClosed from error
