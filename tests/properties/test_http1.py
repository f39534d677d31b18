"""Laws of reading HTTP answers: how the bytes are split does not matter, and invalid bytes raise only ProtocolError."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.llm.response_parser import HeaderFields, ProtocolError, ResponseParser
from viva.protocols import Response

bodies = st.binary(max_size=200)
names = st.sampled_from(["X-A", "Date", "Server", "x-request-id"])
headers = st.lists(
    st.tuples(names, st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=20)), max_size=5
)


@st.composite
def messages(draw) -> tuple[bytes, bytes]:
    """An answer on the wire, and its body."""
    body = draw(bodies)
    lines = [f"{name}: {value}" for name, value in draw(headers)]
    early = draw(
        st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"])
    )
    if draw(st.booleans()):
        lines.append(f"Content-Length: {len(body)}")
        payload = body
    else:
        lines.append("Transfer-Encoding: chunked")
        payload, rest = b"", body
        while rest:
            size = draw(st.integers(1, len(rest)))
            extension = draw(st.sampled_from([b"", b";a=b"]))
            payload += b"%x%b\r\n%b\r\n" % (size, extension, rest[:size])
            rest = rest[size:]
        payload += b"0\r\n" + draw(st.sampled_from([b"", b"Trailer: x\r\n"])) + b"\r\n"
    return early + ("HTTP/1.1 200 OK\r\n" + "\r\n".join(lines) + "\r\n\r\n").encode() + payload, body


def read(pieces: list[bytes]) -> tuple[list[bool], ResponseParser]:
    incoming = ResponseParser("POST", 10_000)
    return [incoming.feed(piece) for piece in pieces], incoming


@given(messages(), st.data())
def test_an_answer_does_not_depend_on_how_its_bytes_are_split(message, data):
    wire, body = message
    cuts = sorted(data.draw(st.sets(st.integers(1, len(wire) - 1), max_size=len(wire) - 1)))
    pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    done, incoming = read(pieces)
    assert done == [False] * (len(pieces) - 1) + [True]
    response = incoming.build_response()
    assert isinstance(response, Response)
    assert (response.status, response.body, incoming.is_reusable) == (200, body, True)


@given(messages(), st.data())
def test_a_truncated_answer_is_never_complete(message, data):
    wire, _ = message
    done, incoming = read([wire[: data.draw(st.integers(0, len(wire) - 1))]])
    assert (done, incoming.feed_eof()) == ([False], False)


@given(messages(), st.binary(min_size=1, max_size=5))
def test_bytes_after_the_answer_spoil_the_connection_but_not_the_answer(message, surplus):
    wire, body = message
    done, incoming = read([wire + surplus])
    assert (done, incoming.build_response().body, incoming.is_reusable) == ([True], body, False)


@given(
    st.lists(st.binary(min_size=1, max_size=50), max_size=10),
    st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]),
)
def test_invalid_bytes_are_an_error_or_unfinished(pieces, start):
    incoming = ResponseParser("POST", 10_000)
    with suppress(ProtocolError):
        for piece in [start, *pieces]:
            if piece and incoming.feed(piece):
                assert 200 <= incoming.build_response().status <= 999
                return
        incoming.feed_eof()


@given(headers)
def test_header_fields_of_one_name_are_joined_in_any_case(fields: list[tuple[str, str]]):
    expected: dict[str, str] = {}
    for name, value in fields:
        key = name.lower()
        expected[key] = f"{expected[key]}, {value}" if key in expected else value
    lines = (f"{name}:  {value} " for name, value in fields)
    found = HeaderFields("\r\n".join(["HTTP/1.1 200 OK", *lines]))
    assert found == expected
    assert len(found) == len(expected)
    assert found.get("not sent") is None


@pytest.mark.parametrize("field", ["Content-Length : 2", "no colon", ": 2", " Content-Length: 2"])
def test_an_invalid_header_that_may_mark_the_end_is_an_error(field: str):
    with pytest.raises(ProtocolError, match="invalid header"):
        read([f"HTTP/1.1 200 OK\r\nDate: today\r\n{field}\r\n\r\nok".encode()])


def test_an_invalid_header_beside_the_one_that_marks_the_end_is_left_out():
    done, incoming = read([b"HTTP/1.1 200 OK\r\nno colon\r\nContent-Length: 2\r\n\r\nok"])
    assert (done, incoming.build_response().body, incoming.is_reusable) == ([True], b"ok", True)
