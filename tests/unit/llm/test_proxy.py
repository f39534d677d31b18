"""Requests through a proxy, on real sockets; and when there is one at all."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from viva.errors import ConnectFailed
from viva.llm.target import find_environment_proxy
from viva.llm.transport import HttpTransport
from viva.protocols import Request, Response
from viva.testing.http_server import HttpServer, StubResponse

TLS = Path(__file__).parents[2] / "contract" / "tls"


async def ask(proxy: str, url: str, **fields) -> Response:
    http = HttpTransport(lambda scheme, host, port: proxy)
    try:
        return await http.request(Request(url, timeout_s=10, **fields))
    finally:
        await http.close()


@asynccontextmanager
async def tunnel(heads: list[bytes], to_port: int) -> AsyncGenerator[str, None]:
    """A proxy that does what CONNECT asks for, whatever host it names."""
    piping: list[asyncio.Task[None]] = []

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", to_port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        piping.extend(
            (asyncio.create_task(pipe(reader, onward_writer)), asyncio.create_task(pipe(onward_reader, writer)))
        )

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        await asyncio.gather(*piping)
        server.close()


def test_a_plain_request_names_its_whole_address_to_the_proxy():
    with HttpServer(lambda r: StubResponse(body=b"via")) as proxy:
        response = asyncio.run(ask(proxy.url.replace("//", "//me:geheim@"), "http://model.test/v1?a=b", body=b"q"))
    (received,) = proxy.requests
    assert response.body == b"via"
    assert (received.path, received.headers["host"], received.body) == ("http://model.test/v1?a=b", "model.test", b"q")
    assert received.headers["proxy-authorization"] == "Basic bWU6Z2VoZWlt"


def test_a_tls_request_goes_through_a_tunnel(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem")
    heads: list[bytes] = []

    async def scenario() -> bytes:
        async with tunnel(heads, server.port) as proxy:
            return (await ask(proxy, "https://localhost:7443/v1", headers={"X-Key": "geheim"})).body

    with HttpServer(lambda r: StubResponse(body=b"tunnelled"), tls=context) as server:
        assert asyncio.run(scenario()) == b"tunnelled"
    assert heads[0].startswith(b"CONNECT localhost:7443 HTTP/1.1\r\n")
    assert b"geheim" not in heads[0]
    assert server.requests[0].headers["x-key"] == "geheim"


def test_a_proxy_that_refuses_is_named_without_its_password():
    with HttpServer(lambda r: StubResponse(status=407)) as proxy, pytest.raises(ConnectFailed) as failed:
        asyncio.run(ask(proxy.url.replace("//", "//me:geheim@"), "https://model.test/v1"))
    assert (
        failed.value.message
        == f"model.test:443: the proxy 127.0.0.1:{proxy.port} refused: 407 Proxy Authentication Required"
    )


def test_a_proxy_that_does_not_exist_is_named():
    with HttpServer(lambda r: StubResponse()) as gone:
        pass
    with pytest.raises(ConnectFailed) as failed:
        asyncio.run(ask(gone.url, "http://model.test/v1"))
    assert failed.value.message == f"model.test:80: the proxy 127.0.0.1:{gone.port}: connection refused"


def test_a_proxy_of_another_kind_is_refused():
    with pytest.raises(ConnectFailed, match=r"the proxy p:1080 has the scheme socks5"):
        asyncio.run(ask("socks5://me:geheim@p", "http://model.test/v1"))


@pytest.fixture
def environment(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch.setenv


def test_the_environment_chooses_the_proxy_by_scheme(environment):
    environment("https_proxy", "http://secure:1")
    environment("all_proxy", "http://any:1")
    assert find_environment_proxy("https", "model.test", 443) == "http://secure:1"
    assert find_environment_proxy("http", "model.test", 80) == "http://any:1"


def test_without_one_in_the_environment_there_is_none(environment):
    assert find_environment_proxy("https", "model.test", 443) is None


def test_no_proxy_is_honoured(environment):
    environment("http_proxy", "http://any:1")
    environment("no_proxy", "model.test,10.0.0.1")
    assert find_environment_proxy("http", "model.test", 80) is None
    assert find_environment_proxy("http", "10.0.0.1", 80) is None
    assert find_environment_proxy("http", "other.test", 80) == "http://any:1"


@pytest.mark.parametrize("host", ["localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_loopback_takes_no_proxy(environment, host):
    environment("http_proxy", "http://any:1")
    assert find_environment_proxy("http", host, 80) is None
