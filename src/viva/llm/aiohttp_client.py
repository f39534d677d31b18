"""An HTTP client on aiohttp, for proxies and for streamed answers."""

import asyncio
import io
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp

from viva.errors import ConnectFailed, Unreachable
from viva.llm.response_parser import create_too_large_error
from viva.llm.target import CONNECT_TIMEOUT_S, Target, describe_connection_error
from viva.protocols import Request, Response
from viva.text.duration import format_duration

_AUTO_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_LARGE_BODY_BYTES = 1024 * 1024  # aiohttp sends larger bodies in pieces
_is_connection_reused: ContextVar[bool] = ContextVar("reused", default=False)


class _Connector(aiohttp.TCPConnector):
    """Knows whether the connection of the current call was used before."""

    def __init__(self, tls: ssl.SSLContext, *, fresh: bool) -> None:
        super().__init__(limit=0, ssl=tls, force_close=fresh)
        self._used: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:  # noqa: ASYNC109 -- aiohttp's signature
        connection = await super().connect(req, traces, timeout)
        _is_connection_reused.set(connection.protocol in self._used)
        self._used[connection.protocol] = connection.transport
        return connection

    def abort_connections(self) -> None:
        """Drops connections that aiohttp closes gracefully: with a peer that does not read they would stay open."""
        for transport in list(self._used.values()):
            transport.abort()


class AiohttpClient:
    """Two aiohttp sessions: one reuses connections; the other always opens a new one, for a second try."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._connectors = [_Connector(tls, fresh=fresh) for fresh in (False, True)]
        self._sessions = [
            aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), skip_auto_headers=_AUTO_HEADERS
            )
            for connector in self._connectors
        ]
        self._timeouts: dict[tuple[float | None, bool], aiohttp.ClientTimeout] = {}

    async def request(self, request: Request, target: Target) -> Response:
        response = await self._start_response(request, target, whole=True)
        answer = _StreamedResponse(response, request, target)
        try:
            pieces = [piece async for piece in answer.chunks()]
            return Response(answer.status, answer.headers, pieces[0] if len(pieces) == 1 else b"".join(pieces))
        finally:
            response.close()

    @asynccontextmanager
    async def stream(self, request: Request, target: Target) -> AsyncGenerator["_StreamedResponse", None]:
        response = await self._start_response(request, target, whole=False)
        try:
            yield _StreamedResponse(response, request, target)
        finally:
            # An answer that was read to its end has released its connection; any other closes it.
            response.close()

    async def close(self) -> None:
        for session in self._sessions:
            await session.close()
        for connector in self._connectors:
            connector.abort_connections()

    async def _start_response(self, request: Request, target: Target, *, whole: bool) -> aiohttp.ClientResponse:
        """Retries once if a reused connection was closed. A request that must not be resent never reuses one."""
        regular, fresh = self._sessions
        try:
            if not request.never_resend:
                try:
                    return await self._send(regular, request, target, whole)
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as lost:
                    if not _was_connection_stale(lost):
                        raise
            return await self._send(fresh, request, target, whole)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as failed:
            raise _create_unreachable_error(failed, request, target) from failed

    async def _send(
        self, session: aiohttp.ClientSession, request: Request, target: Target, whole: bool
    ) -> aiohttp.ClientResponse:
        proxy = target.proxy
        return await session.request(
            request.method,
            target.parsed_url,
            data=request.body if len(request.body) < _LARGE_BODY_BYTES else io.BytesIO(request.body),
            headers=target.headers,
            allow_redirects=False,
            timeout=self._get_timeout(request.timeout_s, whole),
            proxy=proxy.url if proxy else None,
            proxy_headers=proxy.headers if proxy else None,
        )

    def _get_timeout(self, timeout_s: float | None, whole: bool) -> aiohttp.ClientTimeout:
        """The time limit of a complete answer, or of the gap between two pieces of a stream."""
        timeout = self._timeouts.get((timeout_s, whole))
        if timeout is None:
            total, between = (timeout_s, None) if whole else (None, timeout_s)
            timeout = aiohttp.ClientTimeout(total=total, sock_connect=CONNECT_TIMEOUT_S, sock_read=between)
            self._timeouts[timeout_s, whole] = timeout
        return timeout


class _StreamedResponse:
    """A streamed answer."""

    def __init__(self, response: aiohttp.ClientResponse, request: Request, target: Target) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._request = request
        self._target = target

    async def chunks(self) -> AsyncIterator[bytes]:
        size, max_bytes = 0, self._request.max_bytes
        try:
            while piece := await self._response.content.readany():
                size += len(piece)
                if size > max_bytes:
                    raise Unreachable(f"{self._target.host_port}: {create_too_large_error(max_bytes)}")
                yield piece
        except (aiohttp.ClientError, TimeoutError, OSError) as failed:
            raise _create_unreachable_error(failed, self._request, self._target) from failed


def _was_connection_stale(lost: Exception) -> bool:
    never_connected = isinstance(lost, aiohttp.ClientConnectorError)
    answered_in_part = isinstance(lost, aiohttp.ServerDisconnectedError) and isinstance(
        lost.message, aiohttp.http.RawResponseMessage
    )
    return _is_connection_reused.get() and not never_connected and not answered_in_part


def _create_unreachable_error(failed: Exception, request: Request, target: Target) -> Unreachable:
    """The error with host and port only: aiohttp's own texts may contain the whole URL."""
    place = target.host_port
    match failed:
        case aiohttp.ClientProxyConnectionError():
            return ConnectFailed(
                f"{place}: the proxy {target.proxy.host_port if target.proxy else ''}: {describe_connection_error(failed.os_error)}"
            )
        case aiohttp.ClientHttpProxyError():
            return ConnectFailed(
                f"{place}: the proxy {target.proxy.host_port if target.proxy else ''} refused: {failed.status} {failed.message}"
            )
        case aiohttp.ClientConnectorCertificateError():
            return ConnectFailed(f"{place}: {describe_connection_error(failed.certificate_error)}")
        case aiohttp.ClientConnectorError():
            return ConnectFailed(f"{place}: {describe_connection_error(failed.os_error)}")
        case aiohttp.ConnectionTimeoutError():
            return ConnectFailed(
                f"{place}: no connection within {format_duration(min(CONNECT_TIMEOUT_S, request.timeout_s or CONNECT_TIMEOUT_S))}"
            )
        case asyncio.TimeoutError():
            return Unreachable(f"{place}: no answer within {format_duration(request.timeout_s or 0)}")
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError():
            return Unreachable(f"{place}: closed the connection without an answer")
        case aiohttp.ClientPayloadError():
            return Unreachable(f"{place}: its answer was cut off")
        case aiohttp.ClientResponseError():
            return Unreachable(f"{place}: it does not speak HTTP/1.1")
        case _:
            return Unreachable(f"{place}: {describe_connection_error(failed)}")
