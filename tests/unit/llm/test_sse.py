"""Server-sent events, however they are split."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.errors import Unreachable
from viva.llm.sse import SseParser

STREAM = (
    b"\xef\xbb\xbf: a comment\r\n\r\n"
    b"event: message\r\ndata: one\r\n\r\n"
    b"id: 7\ndata:two\ndata:  lines\nretry: 10\n\n"
    b"data: three\r\rdata\n\n"
    b"data: [DONE]\n\n"
    b"data: no closing line"
)
DATA = [b"one", b"two\n lines", b"three", b"", b"[DONE]", b"no closing line"]


def test_data_is_found_among_comments_names_and_all_line_ends():
    events = SseParser()
    assert events.feed_data(STREAM) + events.feed_eof() == DATA


@given(st.sets(st.integers(1, len(STREAM) - 1)))
def test_the_split_does_not_matter(cuts):
    events = SseParser()
    edges = [0, *sorted(cuts), len(STREAM)]
    got = [event for a, b in pairwise(edges) for event in events.feed_data(STREAM[a:b])]
    assert got + events.feed_eof() == DATA


def test_an_event_comes_as_soon_as_it_is_whole():
    events = SseParser()
    assert events.feed_data(b"data: a\n") == []
    assert events.feed_data(b"\ndata: b") == [b"a"]
    assert events.feed_data(b"\r\r") == [b"b"]  # not only when the next byte shows that no LF follows
    assert events.feed_data(b"\ndata: c\r\n\r") == [b"c"]
    assert events.feed_data(b"") + events.feed_data(b"\n") == []


def test_nothing_comes_of_nothing():
    events = SseParser()
    assert events.feed_data(b"") + events.feed_data(b"\n\n: ping\n\n") + events.feed_eof() == []


def test_an_event_without_an_end_is_refused():
    events = SseParser(1000)
    events.feed_data(b"data: " + b"x" * 500)
    events.feed_data(b"\n")
    with pytest.raises(Unreachable, match="longer than 1000 bytes"):
        events.feed_data(b"data: " + b"x" * 500)
    events = SseParser(1000)
    for _ in range(100):  # many events may be longer than that together
        assert events.feed_data(b"data: " + b"x" * 100 + b"\n\n")
