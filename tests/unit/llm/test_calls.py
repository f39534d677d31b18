"""Retries, on real sockets; pauses are counted, not slept."""

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial

import pytest
from msgspec import structs

from viva.errors import ConnectFailed, Unreachable
from viva.llm.calls import (
    RetryPolicy,
    extract_error_message,
    find_header_secrets,
    is_overload_status,
    read_stream,
    send_request,
)
from viva.llm.limits import ConnectorLimits
from viva.llm.pacing import RunPacing
from viva.llm.transport import HttpTransport
from viva.model.connector import Connector
from viva.model.progress import CallProgress
from viva.protocols import Request, Response
from viva.testing.http_server import HttpServer, StubResponse, json_response


class Pauses(list[float]):
    """Remembers each pause and goes on at once."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def retry(pauses: Pauses, **fields) -> RetryPolicy:
    return structs.replace(RetryPolicy("acme", retries=2, sleep=pauses, jitter=lambda: 1.0), **fields)


def call(script, pauses: Pauses, **fields) -> tuple[Response, HttpServer]:
    due = iter(script)

    async def scenario() -> Response:
        http = HttpTransport()
        try:
            return await send_request(http, Request(server.url, timeout_s=10), retry(pauses, **fields), CallProgress())
        finally:
            await http.close()

    with HttpServer(lambda r: next(due)) as server:
        return asyncio.run(scenario()), server


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_a_status_that_may_pass_is_tried_again(status):
    pauses = Pauses()
    response, server = call([StubResponse(status=status), StubResponse(body=b"x")], pauses)
    assert response.body == b"x"
    assert len(server.requests) == 2
    assert pauses == [0.5]


@pytest.mark.parametrize("status", [200, 204, 302, 400, 401, 403, 404, 413, 422])
def test_any_other_status_is_an_answer(status):
    pauses = Pauses()
    response, server = call([StubResponse(status=status)], pauses)
    assert response.status == status
    assert (len(server.requests), pauses) == (1, [])


def test_pauses_double_up_to_a_limit_with_full_jitter():
    pauses = Pauses()
    with pytest.raises(Unreachable):
        call([StubResponse(status=500)] * 9, pauses, retries=8)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 20, 20]
    rolled = Pauses()
    with pytest.raises(Unreachable):
        call([StubResponse(status=500)] * 3, rolled, jitter=lambda: 0.1)
    assert rolled == [0.05, 0.1]


def test_used_up_tries_say_who_what_how_often_and_why():
    answer = json_response({"error": {"message": "Rate limit\n reached"}}, 429)
    with pytest.raises(Unreachable) as failed:
        call([answer] * 3, Pauses())
    assert failed.value.message == "acme: 429 Too Many Requests after 3 tries: Rate limit reached"


def test_a_single_try_is_not_counted():
    with pytest.raises(Unreachable) as failed:
        call([StubResponse(status=529)], Pauses(), retries=0)
    assert failed.value.message == "acme: 529"


@pytest.mark.parametrize(("expected", "pause"), [("3", 3.75), ("0", 0.0), ("1.5", 1.875), ("soon", 0.5), ("-1", 0.5)])
def test_retry_after_in_seconds_is_kept_and_a_bit_more(expected, pause):
    pauses = Pauses()
    call([StubResponse(status=429, headers={"Retry-After": expected}), StubResponse()], pauses)
    assert pauses == [pause]


def test_retry_after_as_a_date_is_kept():
    pauses = Pauses()
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    call([StubResponse(status=503, headers={"Retry-After": soon}), StubResponse()], pauses, jitter=lambda: 0.0)
    assert 28 <= pauses[0] <= 30
    past = Pauses()
    call([StubResponse(status=503, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}), StubResponse()], past)
    assert past == [0.0]


def test_a_wait_that_is_too_long_ends_it_at_once():
    pauses = Pauses()
    with pytest.raises(Unreachable) as failed:
        call([StubResponse(status=429, headers={"Retry-After": "3600"}, body=b"busy")], pauses)
    assert failed.value.message == "acme: 429 Too Many Requests (it asks for 1h: too long to wait): busy"
    assert pauses == []


def test_a_spent_quota_is_not_waited_for():
    pauses = Pauses()
    with pytest.raises(Unreachable, match="You exceeded your quota"):
        call(
            [json_response({"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}, 429)],
            pauses,
        )
    assert pauses == []


def test_a_dropped_connection_is_tried_again():
    pauses = Pauses()
    response, _ = call(
        [StubResponse(cut="before"), StubResponse(body=b"hello", cut="amid_body"), StubResponse(body=b"x")], pauses
    )
    assert response.body == b"x"
    assert pauses == [0.5, 1.0]


def test_what_may_have_arrived_is_not_sent_again_where_that_could_harm():
    with pytest.raises(Unreachable, match=r"^acme: 127\.0\.0\.1:[0-9]+: closed the connection without an answer$"):
        call([StubResponse(cut="before")], Pauses(), only_unsent=True)


def test_an_unsent_request_is_always_retried():
    with HttpServer(lambda r: StubResponse()) as gone:
        pass
    pauses = Pauses()

    async def scenario() -> None:
        http = HttpTransport()
        with pytest.raises(ConnectFailed) as failed:
            await send_request(http, Request(gone.url), retry(pauses, only_unsent=True), CallProgress())
        assert failed.value.message == f"acme: 127.0.0.1:{gone.port}: connection refused after 3 tries"
        await http.close()

    asyncio.run(scenario())
    assert pauses == [0.5, 1.0]


def test_who_is_only_busy_is_told_from_who_fails():
    assert call([StubResponse(status=500)], Pauses(), should_retry=is_overload_status)[0].status == 500
    assert (
        call(
            [StubResponse(status=503), StubResponse(status=429), StubResponse()],
            Pauses(),
            should_retry=is_overload_status,
        )[0].status
        == 200
    )


def test_a_cut_off_between_tries_tells_what_it_was_waiting_for():
    """So that a time-out can be charged to the provider."""

    paused = asyncio.Event()
    progress = CallProgress()

    async def pause(_seconds: float) -> None:
        paused.set()
        await asyncio.Event().wait()

    async def scenario() -> None:
        http = HttpTransport()
        call = asyncio.ensure_future(
            send_request(http, Request(server.url), RetryPolicy("acme", sleep=pause), progress)
        )
        await paused.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await http.close()

    with HttpServer(lambda r: StubResponse(status=503, body=b"down")) as server:
        asyncio.run(scenario())
    assert progress.provider_trouble == "acme: 503 Service Unavailable: down"  # N17


def test_trouble_that_is_over_is_forgotten():
    progress = CallProgress()

    async def scenario() -> None:
        http = HttpTransport()
        await send_request(http, Request(server.url), retry(Pauses()), progress)
        await http.close()

    due = iter([StubResponse(status=503), StubResponse()])
    with HttpServer(lambda r: next(due)) as server:
        asyncio.run(scenario())
    assert progress.provider_trouble is None


def test_each_try_asks_the_limiter():
    slots = Pauses()
    limiter = ConnectorLimits(Connector(name="c", requests_per_minute=60), slots, now=lambda: 0.0)

    async def scenario() -> None:
        http = HttpTransport()
        await send_request(http, Request(server.url), retry(Pauses()), CallProgress(), limiter=limiter)
        await http.close()

    due = iter([StubResponse(status=500), StubResponse(status=500), StubResponse()])
    with HttpServer(lambda r: next(due)) as server:
        asyncio.run(scenario())
    assert slots == [1.0]


def test_a_call_that_waits_for_its_turn_is_the_providers_delay():  # N17
    """A provider that refused calls sets the pace: a time limit that ends then is not charged to the agent."""
    limiter = ConnectorLimits(Connector(name="c"))
    progress = CallProgress()

    async def scenario() -> None:
        http = HttpTransport()
        started = await limiter.acquire(0)
        limiter.pace.reject_call(started, 60.0)
        call = asyncio.create_task(
            send_request(http, Request("http://127.0.0.1:9"), retry(Pauses()), progress, limiter=limiter)
        )
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await http.close()

    asyncio.run(scenario())
    assert progress.provider_trouble is not None
    assert "rejected some as too many" in progress.provider_trouble


def test_a_refused_call_teaches_its_connector_and_the_conversations():  # N19
    pacing = RunPacing()
    limit = pacing.limit_conversations(100, is_fixed=False)
    limiter = ConnectorLimits(Connector(name="c"), pace=pacing.get_pace("c"))

    async def scenario() -> None:
        http = HttpTransport()
        await send_request(http, Request(server.url), retry(Pauses()), CallProgress(), limiter=limiter)
        await http.close()

    due = iter([StubResponse(), StubResponse(status=429), StubResponse(status=503), StubResponse()])
    with HttpServer(lambda r: next(due)) as server:
        asyncio.run(scenario())
        assert limit.limit == 9, "one more after a success"
        asyncio.run(scenario())
    assert limiter.pace.rejected == 2
    assert limiter.pace.window < 2
    assert limit.limit == 7


def stream(script, pauses: Pauses) -> tuple[bytes | Response, HttpServer]:
    due = iter(script)

    async def joined(chunks) -> bytes:
        return b"".join([chunk async for chunk in chunks])

    async def scenario() -> bytes | Response:
        http = HttpTransport()
        try:
            return await read_stream(partial(http.stream, Request(server.url)), joined, retry(pauses), CallProgress())
        finally:
            await http.close()

    with HttpServer(lambda r: next(due)) as server:
        return asyncio.run(scenario()), server


def test_a_stream_is_tried_again_like_any_call():
    pauses = Pauses()
    script = [
        StubResponse(status=503),
        StubResponse(chunks=(b"a", b"b"), cut="amid_body"),
        StubResponse(chunks=(b"a", b"b")),
    ]
    got, server = stream(script, pauses)
    assert got == b"ab"
    assert (len(server.requests), pauses) == (3, [0.5, 1.0])


def test_a_stream_that_is_refused_is_an_answer():
    got, _ = stream([StubResponse(status=401, body=b"no")], Pauses())
    assert isinstance(got, Response)
    assert (got.status, got.body) == (401, b"no")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error":{"message":"bad key","type":"x"}}', "bad key"),
        (b'{"error":"flat"}', "flat"),
        (b'{"message":"top"}', "top"),
        (b'{"detail":"fast"}', "fast"),
        (b'{"detail":[{"loc":1}]}', '{"detail":[{"loc":1}]}'),
        (b"<html><body><h1>502</h1>\n<p>Bad Gateway</p></body></html>", "502 Bad Gateway"),
        (b"", ""),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"x" * 1000, "x" * 299 + "…"),
    ],
)
def test_an_error_is_reported_in_one_short_line(body, text):
    assert extract_error_message(body) == text


def test_our_own_keys_are_struck_out_of_what_a_server_says():
    secrets = find_header_secrets(
        {
            "Authorization": "Bearer sk-12345678",
            "X-Api-Key": "k-abcdef",
            "Content-Type": "application/json",
            "X-Token": "a",
        }
    )
    assert extract_error_message(
        b"key sk-12345678 or Bearer sk-12345678 or k-abcdef is wrong for application/json", secrets
    ) == ("key *** or Bearer *** or *** is wrong for application/json")
