"""Connections on real sockets: time limits, numbers, and room for clients with a token."""

import http.client
import json
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from running_host import ACME, Client, run_host, write_project

GET = f"GET /v1/agents HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {ACME}\r\n\r\n".encode()
POST = (
    f"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {ACME}\r\nContent-Length: 99\r\n\r\n".encode()
)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A host with short time limits."""
    folder = tmp_path_factory.mktemp("hasty")
    write_project(
        folder,
        serve='header_timeout = "200ms"\nbody_timeout = "200ms"\nidle_timeout = "200ms"\nwrite_timeout = "200ms"',
    )
    with run_host(folder, conformance=True) as client:
        yield client


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A host with few connections, but long time limits."""
    folder = tmp_path_factory.mktemp("small")
    limits = "max_connections = 12\nmax_connections_per_address = 8\nmax_anonymous_connections = 4"
    write_project(
        folder, serve=f'{limits}\nidle_timeout = "1h"\nheader_timeout = "1h"\ntrusted_proxies = ["127.0.0.9"]'
    )
    with run_host(folder) as client:
        yield client


def connect(client: Client, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", client.port), timeout=300, source_address=(source, 0))


def read_all(connection: socket.socket) -> bytes:
    """All that the host sends until it closes the connection."""
    received = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


def ask(connection: socket.socket) -> int:
    """The status of one request on a connection that stays open."""
    connection.sendall(GET)
    return read_status(connection)


def read_status(connection: socket.socket) -> int:
    """The status of a response, which is read to its end."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    response.read()
    return response.status


def is_closed(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0]) and connection.recv(1, socket.MSG_PEEK) == b""


@pytest.mark.parametrize("sent", [b"", b"GET /v1/agents HT", GET[:-2], POST, POST + b'{"workflowId":'])
def test_a_request_that_does_not_come_is_cut_off(hasty: Client, sent: bytes):
    with connect(hasty) as connection:
        connection.sendall(sent)
        head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert head.split()[1] == b"408"
    assert b"connection: close" in head.lower()
    assert json.loads(body)["error"] == "request_timeout"


@pytest.mark.parametrize("start", [b"GET /v1/agents HTTP/1.1\r\nX-Slow: ", POST])
def test_a_byte_now_and_then_does_not_extend_the_limit(hasty: Client, start: bytes):
    with connect(hasty) as connection:
        connection.sendall(start)
        while not select.select([connection], [], [], 0.02)[0]:
            connection.sendall(b"x")
        assert connection.recv(65536).split()[1] in (b"408", b"400")


def test_an_idle_connection_is_closed_without_a_response(hasty: Client):
    with connect(hasty) as connection:
        assert ask(connection) == 200
        assert read_all(connection) == b""


def test_a_second_request_on_a_connection_has_the_limits_too(hasty: Client):
    with connect(hasty) as connection:
        assert ask(connection) == 200
        connection.sendall(b"GET /v1/ag")
        assert read_all(connection).split()[1] == b"408"


def test_bytes_after_a_refused_body_do_not_keep_the_connection(hasty: Client):
    """The host answers 401 at once and waits a limited time for the rest of the body."""
    with connect(hasty) as connection:
        connection.sendall(POST.replace(ACME.encode(), b"wrong"))
        assert read_status(connection) == 401
        with suppress(ConnectionError):
            while not select.select([connection], [], [], 0.02)[0]:
                connection.sendall(b"x")
        assert read_all(connection) == b""


def test_waiting_for_a_run_is_not_an_idle_connection(hasty: Client):
    """A stream, a poll and a run that take longer than all time limits are not cut off."""
    body = {"workflowId": "conformance-delay", "inputs": {"delayMs": 900}}
    run = hasty.post("/v1/runs", body).json["runId"]
    assert [frame["event"] for frame in hasty.read_stream(run)] == ["run.started", "node.completed", "run.completed"]


def test_a_client_that_does_not_read_is_cut_off(hasty: Client):
    head = b"GET /v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with connect(hasty) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # It is aborted: more responses than the buffers of both sides can hold.
        with pytest.raises(ConnectionError):
            connection.sendall(head * 100_000)


def test_silent_connections_do_not_block_others(small: Client):
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(small)) for _ in range(30)]
        assert small.get("/v1/agents").status == 200
        assert sum(map(is_closed, silent)) >= 25


def test_a_connection_with_a_token_is_not_closed_for_others(small: Client):
    with ExitStack() as stack:
        known = stack.enter_context(connect(small))
        assert ask(known) == 200
        for source in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
            for _ in range(10):
                stack.enter_context(connect(small, source))
        assert ask(known) == 200


def test_one_address_cannot_take_all_connections(small: Client):
    with ExitStack() as stack:
        for _ in range(8):
            assert ask(stack.enter_context(connect(small, "127.0.0.4"))) == 200
        refused = read_all(stack.enter_context(connect(small, "127.0.0.4")))
        assert (refused.split()[1], b"Retry-After: 5" in refused) == (b"503", True)
        assert ask(stack.enter_context(connect(small, "127.0.0.5"))) == 200


def test_a_trusted_proxy_may_have_all_connections(small: Client):
    with ExitStack() as stack:
        for _ in range(12):
            assert ask(stack.enter_context(connect(small, "127.0.0.9"))) == 200
        assert read_all(stack.enter_context(connect(small, "127.0.0.6"))).split()[1] == b"503"
