"""What every Transport does, on real sockets: lean connections and aiohttp alike."""

import asyncio
import gzip
import socket
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop

from viva.errors import ConnectFailed, Unreachable
from viva.llm.http1_client import _MAX_CONNECTING, _MAX_RESUMED_CALLS
from viva.llm.transport import HttpTransport
from viva.protocols import Request, Response
from viva.testing.http_server import HttpServer, ReceivedRequest, StubResponse, json_response

TLS = Path(__file__).parent / "tls"
OK = b"HTTP/1.1 200 OK\r\n"


class AiohttpOnly(HttpTransport):
    async def request(self, request: Request) -> Response:
        return await self._aiohttp.request(request, self._get_target(request))


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


KITS = {
    "lean": (HttpTransport, asyncio.run),
    "lean-uvloop": (HttpTransport, uvloop.run),
    "aiohttp": (AiohttpOnly, asyncio.run),
    "aiohttp-uvloop": (AiohttpOnly, uvloop.run),
}


@pytest.fixture(params=KITS.values(), ids=list(KITS))
def make(request):
    return request.param


def use(make, scenario: Callable[[HttpTransport], Awaitable[Any]]) -> None:
    """Runs a scenario with a transport of its own."""
    transport, run = make

    async def whole() -> None:
        http = transport()
        try:
            await scenario(http)
        finally:
            await http.close()

    run(whole())


def answers(*script: StubResponse) -> Callable[[ReceivedRequest], StubResponse]:
    due = iter(script)
    return lambda received: next(due)


def ask(make, server: HttpServer, *, times: int = 1, **fields) -> list[Response]:
    got: list[Response] = []

    async def scenario(http: HttpTransport) -> None:
        got.extend([await http.request(Request(server.url + "/x", **fields)) for _ in range(times)])

    use(make, scenario)
    return got


def fails(make, server: HttpServer, kind: type[Unreachable] = Unreachable, **fields) -> str:
    """What a call says that has to fail."""
    with pytest.raises(kind) as failed:
        ask(make, server, **fields)
    return failed.value.message


def test_a_request_arrives_as_given_and_its_answer_comes_back(make):
    with HttpServer(answers(json_response({"a": 1}, 418, {"X-Thing": "yes"}))) as server:
        (response,) = ask(
            make, server, body=b'{"q":1}', headers={"X-Key": "k", "Content-Type": "application/json"}, method="PUT"
        )
    (received,) = server.requests
    assert (received.method, received.path, received.body) == ("PUT", "/x", b'{"q":1}')
    assert received.headers["x-key"] == "k"
    assert received.headers["content-type"] == "application/json"
    assert received.headers["host"] == f"127.0.0.1:{server.port}"
    assert received.headers["user-agent"].startswith("viva/")
    assert (response.status, response.headers["x-thing"], response.body) == (418, "yes", b'{"a":1}')


def test_a_path_and_query_are_sent_as_they_are_written(make):
    with HttpServer(lambda r: StubResponse(body=b"x")) as server:

        async def scenario(http):
            await http.request(Request(server.url + "/a%2Fb/c?q=1%202&é=ü#part"))
            await http.request(Request(server.url))

        use(make, scenario)
    assert [r.path for r in server.requests] == ["/a%2Fb/c?q=1%202&%C3%A9=%C3%BC", "/"]


def test_a_user_and_password_in_the_address_become_a_header(make):
    with HttpServer(lambda r: StubResponse(body=b"x")) as server:
        use(make, lambda http: http.request(Request(server.url.replace("//", "//me:p%40ss@") + "/x")))
    (received,) = server.requests
    assert received.headers["authorization"] == "Basic bWU6cEBzcw=="
    assert received.path == "/x"


def test_calls_one_after_another_share_a_connection(make):
    with HttpServer(lambda r: StubResponse(body=b"x")) as server:
        ask(make, server, times=3)
    assert [r.connection for r in server.requests] == [1, 1, 1]


def test_calls_at_once_have_a_connection_each_with_no_limit(make):
    with HttpServer(lambda r: StubResponse(body=b"x", hold=True)) as server:

        async def scenario(http):
            calls = [asyncio.create_task(http.request(Request(server.url, timeout_s=30))) for _ in range(150)]
            await asyncio.to_thread(server.wait_for, lambda: len(server.requests) == 150)
            server.release()
            assert {(await call).body for call in calls} == {b"x"}

        use(make, scenario)
    assert server.connections == 150


@pytest.mark.parametrize(
    "answer",
    [StubResponse(body=b"x", close="announced"), StubResponse(raw=(b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",))],
)
def test_a_connection_that_will_close_is_not_used_again(make, answer):
    with HttpServer(lambda r: answer) as server:
        assert [r.body for r in ask(make, server, times=2)] == [b"x", b"x"]
    assert [r.connection for r in server.requests] == [1, 2]


def test_a_connection_closed_between_calls_costs_nothing(make):
    with HttpServer(lambda r: StubResponse(body=b"x", close="silent")) as server:

        async def scenario(http):
            for _ in range(3):
                await http.request(Request(server.url, never_resend=True))
                await asyncio.to_thread(server.wait_for, lambda: server.open_connections == 0)

        use(make, scenario)
    assert [r.connection for r in server.requests] == [1, 2, 3]


def test_a_closed_connection_that_the_loop_has_not_noticed_yet_costs_nothing_either(make):
    with HttpServer(lambda r: StubResponse(body=b"x", close="silent")) as server:

        async def scenario(http):
            for _ in range(3):
                await http.request(Request(server.url, never_resend=True))
                server.wait_for(lambda: server.open_connections == 0)  # blocks the loop, as busy code does

        use(make, scenario)
    assert len(server.requests) == 3


def test_a_kept_connection_that_dies_on_a_call_is_tried_once_more_on_a_new_one(make):
    with HttpServer(answers(StubResponse(body=b"1"), StubResponse(cut="before"), StubResponse(body=b"2"))) as server:
        assert [r.body for r in ask(make, server, times=2)] == [b"1", b"2"]
    assert [r.connection for r in server.requests] == [1, 1, 2]


def test_the_second_try_is_the_last(make):
    with HttpServer(answers(StubResponse(body=b"1"), StubResponse(cut="before"), StubResponse(cut="before"))) as server:
        assert "closed the connection without an answer" in fails(make, server, times=2)
    assert len(server.requests) == 3


def test_a_request_to_be_sent_once_is_not_sent_again(make):
    with HttpServer(answers(StubResponse(body=b"1"), StubResponse(cut="before"))) as server:
        assert "closed the connection without an answer" in fails(make, server, times=2, never_resend=True)
    assert len(server.requests) == 2


def test_a_new_connection_that_is_dropped_is_not_tried_again(make):
    with HttpServer(lambda r: StubResponse(cut="before")) as server:
        output = fails(make, server)
    assert output == f"127.0.0.1:{server.port}: closed the connection without an answer"
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        StubResponse(body=b"hello", cut="after_headers"),
        StubResponse(body=b"hello", cut="amid_body"),
        StubResponse(chunks=(b"hello", b"world"), cut="amid_body"),
        StubResponse(chunks=(b"hello", b"world"), cut="after_headers"),
    ],
)
def test_an_answer_that_is_cut_off_is_not_an_answer(make, answer):
    with HttpServer(lambda r: answer) as server:
        assert fails(make, server) == f"127.0.0.1:{server.port}: its answer was cut off"


@pytest.mark.parametrize(
    "wire",
    [
        OK + b"Content-Length: 5\r\n\r\nhello",
        OK + b"content-LENGTH:5\r\n\r\nhello",
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nTrailer: 1\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
        + OK
        + b"Content-Length: 5\r\n\r\nhello",
    ],
)
def test_bytes_may_come_one_by_one(make, wire):
    with HttpServer(lambda r: StubResponse(raw=tuple(bytes([b]) for b in wire))) as server:
        assert [r.body for r in ask(make, server, times=2)] == [b"hello", b"hello"]
    assert server.connections == 1


def test_a_body_may_end_with_the_connection(make):
    with HttpServer(lambda r: StubResponse(raw=(OK + b"\r\nhel", b"lo"), close="silent")) as server:
        (response,) = ask(make, server)
    assert response.body == b"hello"


@pytest.mark.parametrize(
    ("method", "head"), [("POST", b"HTTP/1.1 204 No Content\r\n\r\n"), ("HEAD", OK + b"Content-Length: 9\r\n\r\n")]
)
def test_an_answer_may_have_no_body(make, method, head):
    with HttpServer(lambda r: StubResponse(raw=(head,))) as server:
        assert [r.body for r in ask(make, server, times=2, method=method)] == [b"", b""]


def test_ten_megabytes_go_both_ways(make):
    big = bytes(range(256)) * 40_000
    with HttpServer(lambda r: StubResponse(body=r.body)) as server:
        (response,) = ask(make, server, body=big)
    assert response.body == big


@pytest.mark.parametrize(
    "answer",
    [
        StubResponse(body=b"x" * 101),
        StubResponse(chunks=(b"x" * 60, b"x" * 41)),
        StubResponse(raw=(OK + b"\r\n", b"x" * 101), close="silent"),
        StubResponse(body=gzip.compress(b"x" * 10_000_000), headers={"Content-Encoding": "gzip"}),
    ],
)
def test_an_answer_past_the_limit_is_refused(make, answer):
    with HttpServer(lambda r: answer) as server:
        limit = 100 if len(answer.body) < 1000 else 100_000
        assert f"longer than {limit} bytes" in fails(make, server, max_bytes=limit)


def test_an_answer_of_just_the_limit_is_fine(make):
    with HttpServer(lambda r: StubResponse(body=b"x" * 100)) as server:
        assert len(ask(make, server, max_bytes=100)[0].body) == 100


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compression_is_not_asked_for_but_understood(make, encoding):
    import zlib

    packed = gzip.compress(b"hello") if encoding == "gzip" else zlib.compress(b"hello")
    with HttpServer(lambda r: StubResponse(body=packed, headers={"Content-Encoding": encoding})) as server:
        (response,) = ask(make, server)
    assert response.body == b"hello"
    assert server.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH_9.7\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        OK + b"Content-Length: five\r\n\r\nhello",
        OK + b"Content-Length: 5\r\nContent-Length: 4\r\n\r\nhello",
        OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\nhello\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_what_is_not_http_is_not_guessed_at(make, wire):
    with HttpServer(lambda r: StubResponse(raw=(wire,), close="silent")) as server:
        assert fails(make, server).startswith(f"127.0.0.1:{server.port}: ")


def test_an_answer_may_come_before_the_request_is_all_sent(make):
    """The rest of the request still clogs that connection: the next call takes another one."""
    with closing(socket.create_server(("127.0.0.1", 0))) as hasty:
        hasty.settimeout(10)
        accepted: list[socket.socket] = []

        def serve() -> None:
            for _ in range(2):
                accepted.append(hasty.accept()[0])
                accepted[-1].settimeout(10)
                accepted[-1].recv(100)
                accepted[-1].sendall(b"HTTP/1.1 413 Too Much\r\nContent-Length: 2\r\n\r\nno")

        async def scenario(http):
            serving = asyncio.create_task(asyncio.to_thread(serve))
            url = f"http://127.0.0.1:{hasty.getsockname()[1]}"
            for body in (b"x" * 30_000_000, b"y"):
                response = await http.request(Request(url, body, timeout_s=10))
                assert (response.status, response.body) == (413, b"no")
            await serving
            for each in accepted:  # while the loop still runs: with so much unsent, closing it could wait forever
                each.close()

        use(make, scenario)


def test_a_redirect_is_an_answer_and_is_not_followed(make):
    with HttpServer(lambda r: StubResponse(status=302, headers={"Location": "/elsewhere"})) as server:
        (response,) = ask(make, server)
    assert (response.status, response.headers["location"]) == (302, "/elsewhere")
    assert len(server.requests) == 1


def test_cookies_are_not_kept(make):
    with HttpServer(lambda r: StubResponse(body=b"x", headers={"Set-Cookie": "a=b"})) as server:
        ask(make, server, times=2)
    assert "cookie" not in server.requests[1].headers


def check_cancelled_call_closes_its_connection(make, server: HttpServer) -> None:
    async def scenario(http):
        call = asyncio.create_task(http.request(Request(server.url, timeout_s=60)))
        await asyncio.to_thread(server.wait_for, lambda: len(server.requests) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.to_thread(server.wait_for, lambda: server.open_connections == 0)

    use(make, scenario)


def test_a_cancelled_call_closes_its_connection(make):
    with HttpServer(lambda r: StubResponse(hold=True)) as server:
        check_cancelled_call_closes_its_connection(make, server)


def test_a_call_that_takes_too_long_is_cut_off_and_its_connection_closed(make):
    with HttpServer(lambda r: StubResponse(hold=True) if r.path == "/slow" else StubResponse(body=b"x")) as server:

        async def scenario(http):
            await http.request(Request(server.url + "/quick", timeout_s=60))
            with pytest.raises(Unreachable) as failed:
                await asyncio.wait_for(http.request(Request(server.url + "/slow", timeout_s=0.05)), 10)
            assert failed.value.message == f"127.0.0.1:{server.port}: no answer within 50ms"
            await asyncio.to_thread(server.wait_for, lambda: server.open_connections == 0)

        use(make, scenario)


def test_a_body_that_stops_coming_is_cut_off_too(make):
    stops = StubResponse(raw=(OK + b"Content-Length: 9\r\n\r\nhel",))
    with HttpServer(answers(StubResponse(body=b"x"), stops)) as server:

        async def scenario(http):
            await http.request(Request(server.url))
            with pytest.raises(Unreachable, match="no answer within 50ms"):
                await http.request(Request(server.url, timeout_s=0.05))

        use(make, scenario)


def test_a_refused_connection_is_reported(make):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]

    async def scenario(http):
        with pytest.raises(ConnectFailed) as failed:
            await http.request(
                Request(f"http://127.0.0.1:{port}/v1?key=geheim", headers={"Authorization": "Bearer geheim"})
            )
        assert failed.value.message == f"127.0.0.1:{port}: connection refused"

    use(make, scenario)


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b"])
def test_a_host_that_does_not_exist_is_named(make, host):
    async def scenario(http):
        with pytest.raises(ConnectFailed) as failed:
            await http.request(Request(f"http://{host}/v1?key=geheim"))
        assert failed.value.message.startswith(f"{host}:80: ")
        assert "geheim" not in failed.value.message

    use(make, scenario)


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("ftp://x/geheim", {}),
        ("/v1/geheim", {}),
        ("http://h:port/geheim", {}),
        ("http://127.0.0.1:1", {"X-Key": "gehe\r\nim: x"}),
        ("http://127.0.0.1:1", {"X Key": "geheim"}),
        ("http://a b/geheim", {}),
    ],
)
def test_an_error_about_an_invalid_request_does_not_contain_its_value(make, url, headers):
    async def scenario(http):
        with pytest.raises(ConnectFailed) as failed:
            await http.request(Request(url, headers=headers))
        assert "geheim" not in failed.value.message
        assert "gehe" not in failed.value.message

    use(make, scenario)


def _tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem")
    return context


def test_a_private_ca_is_trusted_when_the_environment_names_it(make, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
    with HttpServer(lambda r: StubResponse(body=b"x"), tls=_tls()) as server:
        assert [r.body for r in ask(make, server, times=2, timeout_s=30)] == [b"x", b"x"]
    assert server.connections == 1


def test_a_cancelled_call_closes_its_tls_connection(make, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
    with HttpServer(lambda r: StubResponse(hold=True), tls=_tls()) as server:
        check_cancelled_call_closes_its_connection(make, server)


def test_an_untrusted_certificate_is_refused(make):
    with HttpServer(lambda r: StubResponse(body=b"x"), tls=_tls()) as server:
        output = fails(make, server, ConnectFailed)
    assert "its certificate is not trusted" in output
    assert server.requests == []


def test_tls_with_a_server_that_has_none_fails_in_words(make):
    with HttpServer(lambda r: StubResponse(body=b"x")) as server:

        async def scenario(http):
            with pytest.raises(ConnectFailed, match="TLS failed"):
                await http.request(Request(server.url.replace("http:", "https:"), timeout_s=10))

        use(make, scenario)


@pytest.mark.parametrize("host", ["127.0.0.1", *(["::1"] if _has_ipv6() else [])])
def test_both_kinds_of_addresses_work(make, host):
    with HttpServer(lambda r: StubResponse(body=b"x"), host=host) as server:
        (response,) = ask(make, server)
    assert response.body == b"x"
    assert server.requests[0].headers["host"] == server.origin.removeprefix("http://")


def test_a_name_may_stand_for_several_addresses(make):
    """`localhost` often means ::1 first, where this server does not listen."""
    with HttpServer(lambda r: StubResponse(body=b"x")) as server:

        async def scenario(http):
            url = server.url.replace("127.0.0.1", "localhost")
            calls = [http.request(Request(url, timeout_s=10)) for _ in range(5)]
            assert {response.body for response in await asyncio.gather(*calls)} == {b"x"}

        use(make, scenario)


def test_a_call_cancelled_while_it_connects_leaves_nothing_open(make):
    """A server that accepts and then says nothing never finishes a TLS handshake."""
    with closing(socket.create_server(("127.0.0.1", 0))) as mute:

        def rest_of(accepted: socket.socket) -> None:
            with closing(accepted):
                accepted.settimeout(10)
                while accepted.recv(65536):
                    pass

        async def scenario(http):
            call = asyncio.create_task(http.request(Request(f"https://127.0.0.1:{mute.getsockname()[1]}")))
            accepted, _ = await asyncio.to_thread(mute.accept)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            with suppress(ConnectionResetError):
                await asyncio.to_thread(rest_of, accepted)

        use(make, scenario)


def test_a_connection_that_does_not_come_about_in_time_was_not_used(make):
    with closing(socket.create_server(("127.0.0.1", 0))) as mute:

        async def scenario(http):
            with pytest.raises(Unreachable, match="within 50ms"):
                await http.request(Request(f"https://127.0.0.1:{mute.getsockname()[1]}", timeout_s=0.05))

        use(make, scenario)


def test_a_transport_is_made_without_loading_a_client():
    code = "import sys, viva.llm.transport as t; t.HttpTransport(); sys.exit(bool({'aiohttp', 'viva.llm.http1_client'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_closed_transport_leaves_no_connection_open(make):
    with HttpServer(lambda r: StubResponse(body=b"x")) as server:
        ask(make, server)
        server.wait_for(lambda: server.open_connections == 0)
        assert server.connections == 1


def test_a_method_that_is_none_is_not_sent(make):
    with HttpServer(lambda r: StubResponse(body=b"x")) as server:
        assert "is not an HTTP method" in fails(make, server, ConnectFailed, method="GET /y HTTP/1.1")
    assert server.requests == []


def test_a_stream_comes_as_it_is_sent(make):
    with HttpServer(
        lambda r: StubResponse(chunks=(b"one", b"two"), headers={"Content-Type": "text/event-stream"})
    ) as server:

        async def scenario(http):
            for _ in range(2):
                async with http.stream(Request(server.url + "/x", b"q", timeout_s=30)) as streaming:
                    assert (streaming.status, streaming.headers["content-type"]) == (200, "text/event-stream")
                    assert b"".join([piece async for piece in streaming.chunks()]) == b"onetwo"

        use(make, scenario)
    assert [(r.body, r.connection) for r in server.requests] == [(b"q", 1), (b"q", 1)]


def test_a_piece_of_a_stream_does_not_wait_for_the_next(make):
    first = OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n"
    with HttpServer(lambda r: StubResponse(raw=(first,))) as server:

        async def scenario(http):
            async with http.stream(Request(server.url)) as streaming:
                assert await anext(streaming.chunks()) == b"one"
            await asyncio.to_thread(server.wait_for, lambda: server.open_connections == 0)

        use(make, scenario)


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        (StubResponse(chunks=(b"one", b"two"), cut="amid_body"), "its answer was cut off"),
        (StubResponse(chunks=(b"x" * 60, b"x" * 41)), "longer than 100 bytes"),
        (StubResponse(raw=(OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n",)), "no answer within 50ms"),
    ],
)
def test_a_stream_that_breaks_says_so(make, answer, output):
    with HttpServer(lambda r: answer) as server:

        async def scenario(http):
            with pytest.raises(Unreachable, match=output):
                async with http.stream(
                    Request(server.url, timeout_s=0.05 if answer.raw else 30, max_bytes=100)
                ) as streaming:
                    assert [piece async for piece in streaming.chunks()] == "never whole"
            if answer.raw:
                await asyncio.to_thread(server.wait_for, lambda: server.open_connections == 0)

        use(make, scenario)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_connections_to_one_server_are_not_all_opened_at_once(run):
    """The server accepts and never answers the TLS handshake, so that no connection is ready."""
    calls = _MAX_CONNECTING + 20
    accepted: list[asyncio.StreamWriter] = []

    async def scenario() -> None:
        is_full = asyncio.Event()

        def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.append(writer)
            if len(accepted) == _MAX_CONNECTING:
                is_full.set()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        host_port = "{}:{}".format(*server.sockets[0].getsockname())
        http = HttpTransport()
        waiting = [asyncio.ensure_future(http.request(Request(f"https://{host_port}/x"))) for _ in range(calls)]
        await is_full.wait()
        with pytest.raises(ConnectFailed):  # a round trip of the loop, in which further connections would be accepted
            await http.request(Request("http://127.0.0.1:9/x"))
        assert len(accepted) == _MAX_CONNECTING
        for call in waiting:
            call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await http.close()
        for writer in accepted:
            writer.close()
        server.close()

    run(scenario())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_answers_that_arrive_together_leave_the_loop_free_in_between(run):
    """A server of one step sends all answers and closes: each is delivered, a few in each step of the event loop."""
    count = 5 * _MAX_RESUMED_CALLS
    steps: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writers.append(writer)
        if len(writers) == count:
            for each in writers:
                each.write(OK + b"Content-Length: 2\r\nConnection: close\r\n\r\nok")
                each.close()

    writers: list[asyncio.StreamWriter] = []

    async def whole() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=count)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        http = HttpTransport()
        answers = [asyncio.ensure_future(http.request(Request(url))) for _ in range(count)]
        while not all(answer.done() for answer in answers):
            steps.append(sum(answer.done() for answer in answers))
            await asyncio.sleep(0)
        assert [answer.result().body for answer in answers] == [b"ok"] * count
        await http.close()
        server.close()

    run(whole())
    steps.append(count)
    assert max(after - before for before, after in pairwise(steps)) <= _MAX_RESUMED_CALLS
