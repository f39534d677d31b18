"""The Transport of a run: its own HTTP/1.1 client for plain calls, aiohttp for proxies and streams."""

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from viva.llm.target import FindProxy, Target, find_environment_proxy, resolve_target
from viva.protocols import Request, Response, StreamingResponse

if TYPE_CHECKING:
    from viva.llm.aiohttp_client import AiohttpClient
    from viva.llm.http1_client import Http1Client

_MAX_TARGETS = 1024


def load_stream_client() -> None:
    """Imports the client for streams, which takes a while: the first streamed reply must not wait for that."""
    import_module("viva.llm.aiohttp_client")


class HttpTransport:
    """The transport of one run. It creates its clients on first use, and belongs to the event loop that uses it first."""

    def __init__(self, find_proxy: FindProxy = find_environment_proxy) -> None:
        self._find_proxy = find_proxy
        self._targets: dict[tuple[object, ...], Target] = {}

    async def request(self, request: Request) -> Response:
        target = self._get_target(request)
        if target.proxy is None:
            return await self._http1.request(request, target)
        return await self._aiohttp.request(request, target)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[StreamingResponse, None]:
        async with self._aiohttp.stream(request, self._get_target(request)) as streaming:
            yield streaming

    async def close(self) -> None:
        for name in ("_http1", "_aiohttp"):
            client: Http1Client | AiohttpClient | None = self.__dict__.pop(name, None)
            if client is not None:
                await client.close()

    def _get_target(self, request: Request) -> Target:
        key = (request.method, request.url, *request.headers.items())
        target = self._targets.get(key)
        if target is None:
            if len(self._targets) >= _MAX_TARGETS:  # URLs that differ from call to call
                self._targets.clear()
            target = self._targets[key] = resolve_target(request, self._find_proxy)
        return target

    @cached_property
    def _http1(self) -> "Http1Client":
        from viva.llm.http1_client import Http1Client

        return Http1Client(lambda: self._tls)

    @cached_property
    def _aiohttp(self) -> "AiohttpClient":
        from viva.llm.aiohttp_client import AiohttpClient

        return AiohttpClient(self._tls)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Trusts what the system trusts. OpenSSL itself reads SSL_CERT_FILE."""
        return ssl.create_default_context()
