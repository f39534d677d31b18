"""The stand-in HTTP server, seen by a client that shares no code with Viva."""

import http.client
import socket
import threading
from contextlib import closing

import pytest

from viva.testing import HttpServer, StubResponse, json_response


def connect(server: HttpServer) -> "closing[http.client.HTTPConnection]":
    return closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=300))


def test_it_hears_and_answers():
    with HttpServer(lambda r: json_response({"got": r.json}, 201, {"X-A": "b"})) as server, connect(server) as client:
        client.request("POST", "/p?q=1", b'{"n":1}', {"X-Key": "v"})
        response = client.getresponse()
        assert (response.status, response.reason, response.headers["x-a"], response.read()) == (
            201,
            "Created",
            "b",
            b'{"got":{"n":1}}',
        )
    (received,) = server.requests
    assert (received.method, received.path, received.headers["x-key"], received.connection) == (
        "POST",
        "/p?q=1",
        "v",
        1,
    )


def test_a_connection_carries_many_requests():
    with HttpServer(lambda r: StubResponse(body=b"x")) as server, connect(server) as client:
        for _ in range(3):
            client.request("GET", "/")
            assert client.getresponse().read() == b"x"
    assert server.connections == 1


def test_chunks_are_joined_by_any_client():
    with HttpServer(lambda r: StubResponse(chunks=(b"a", b"bc"))) as server, connect(server) as client:
        client.request("GET", "/")
        assert client.getresponse().read() == b"abc"


@pytest.mark.parametrize(
    ("cut", "error"),
    [
        ("before", http.client.RemoteDisconnected),
        ("after_headers", http.client.IncompleteRead),
        ("amid_body", http.client.IncompleteRead),
    ],
)
def test_a_connection_is_dropped_where_asked(cut, error):
    with HttpServer(lambda r: StubResponse(body=b"hello", cut=cut)) as server, connect(server) as client:
        client.request("GET", "/")
        with pytest.raises(error):
            client.getresponse().read()


def test_raw_bytes_go_out_as_they_are():
    with (
        HttpServer(lambda r: StubResponse(raw=(b"HTTP/1.1 299 Odd\r\n", b"Content-Length: 1\r\n\r\nx"))) as server,
        connect(server) as client,
    ):
        client.request("GET", "/")
        response = client.getresponse()
        assert (response.status, response.read()) == (299, b"x")


def test_an_answer_is_held_until_it_is_released():
    with HttpServer(lambda r: StubResponse(body=b"x", hold=True)) as server, connect(server) as client:
        client.request("GET", "/")
        server.wait_for(lambda: len(server.requests) == 1)
        threading.Thread(target=server.release).start()
        assert client.getresponse().read() == b"x"


def test_it_knows_when_a_client_has_gone():
    with HttpServer(lambda r: StubResponse(hold=True)) as server:
        with connect(server) as client:
            client.request("GET", "/")
            server.wait_for(lambda: server.open_connections == 1)
        server.wait_for(lambda: server.open_connections == 0)
        with pytest.raises(TimeoutError):
            server.wait_for(lambda: server.connections == 2, timeout_s=0.01)


def test_a_delay_delays():
    with HttpServer(lambda r: StubResponse(body=b"x", delay_s=0.01)) as server, connect(server) as client:
        client.request("GET", "/")
        assert client.getresponse().read() == b"x"


def test_a_bug_in_a_handler_is_reported_at_the_end():
    def broken(received):
        raise LookupError("oops")

    def scenario() -> None:
        with HttpServer(broken) as server, connect(server) as client:
            client.request("GET", "/")
            assert client.getresponse().status == 500

    with pytest.raises(LookupError):
        scenario()


def test_what_is_not_http_is_refused():
    with (
        HttpServer(lambda r: StubResponse()) as server,
        closing(socket.create_connection(("127.0.0.1", server.port))) as client,
    ):
        client.sendall(b"\x16\x03\x01")
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")
