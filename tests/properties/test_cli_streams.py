"""Laws of reading a CLI's stream: nothing crashes it, and only an intact last line of its own ends a turn."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from terminals import CAPTURES, collect_turn
from viva.agents.acp_updates import parse_update
from viva.agents.cli.claude import CLAUDE
from viva.agents.cli.codex import CODEX
from viva.agents.cli.events import CliTurn
from viva.agents.cli.gemini import GEMINI
from viva.agents.cli.opencode import OPENCODE
from viva.agents.cli.qwen import QWEN
from viva.agents.cli.spec import CliSpec, parse_events

DIALECTS = (GEMINI, CLAUDE, CODEX, QWEN, OPENCODE)
STREAMS = {
    dialect.name: [path.read_bytes() for path in sorted((CAPTURES / dialect.name).glob("*.jsonl"))]
    for dialect in DIALECTS
}
each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
noise = st.one_of(
    st.binary(max_size=60),
    st.just(b'{"type":"result"'),
    st.just(b"[" * 5000),
    st.just(b'{"type":' * 3000),
    st.just(b"\xff\xfe\x00"),
    st.just(b"x" * 200_000),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "result", "item", "part", "message", "usage", "stats", "error", "content"]), inner, max_size=4),
        max_leaves=12,
    ).map(lambda value: json.dumps(value).encode()),
)  # fmt: skip


def turn_of(dialect: CliSpec, stream: bytes) -> CliTurn:
    return collect_turn(event for line in stream.split(b"\n") for event in parse_events(dialect, line) or ())


def may_end(name: str, line: bytes) -> bool:
    """Is this a whole line by which the CLI ends a turn? Read by another parser, and by the letter."""
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    if name == "codex":
        return kind in ("turn.completed", "turn.failed")
    if name == "opencode":
        part = value.get("part")
        return kind == "error" or (
            kind == "step_finish" and isinstance(part, dict) and part.get("reason") != "tool-calls"
        )
    return kind == "result"


@each_dialect
@given(st.data())
def test_a_stream_that_is_cut_anywhere_ends_only_by_its_own_last_line(dialect: CliSpec, data):
    stream = data.draw(st.sampled_from(STREAMS[dialect.name]))
    cut = stream[: data.draw(st.integers(0, len(stream)))]
    turn = turn_of(dialect, cut)
    assert (turn.end is not None) == any(may_end(dialect.name, line) for line in cut.split(b"\n"))  # P11
    turn.build_reply()


@each_dialect
@given(st.data())
def test_a_stream_with_noise_between_its_lines_tells_the_same(dialect: CliSpec, data):
    stream = data.draw(st.sampled_from(STREAMS[dialect.name]))
    lines = stream.split(b"\n")
    for _ in range(data.draw(st.integers(1, 5))):
        garbage = data.draw(st.binary(max_size=60).map(lambda b: b.replace(b"\n", b"") + b"!"))
        lines.insert(data.draw(st.integers(0, len(lines))), garbage)
    noisy, clean = turn_of(dialect, b"\n".join(lines)), turn_of(dialect, stream)
    without_times = [structs.replace(turn.build_reply(), steps=(), first_token_ms=None) for turn in (noisy, clean)]
    assert without_times[0] == without_times[1]
    assert (noisy.end, noisy.session) == (clean.end, clean.session)


@each_dialect
@given(st.data())
def test_an_invalid_stream_never_crashes_and_never_counts_as_finished(dialect: CliSpec, data):
    """Bytes are put in, taken out and doubled at random places, lines are joined, torn and repeated."""
    stream = bytearray(data.draw(st.sampled_from(STREAMS[dialect.name])))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(stream)))
        size = data.draw(st.integers(0, 400))
        match data.draw(st.sampled_from(["put", "take", "double", "newline"])):
            case "put":
                stream[at:at] = data.draw(noise)
            case "take":
                del stream[at : at + size]
            case "double":
                stream[at:at] = stream[at : at + size]
            case _:
                stream[at:at] = b"\n"
    turn = turn_of(dialect, bytes(stream))
    turn.build_reply()
    assert turn.end is None or any(may_end(dialect.name, line) for line in bytes(stream).split(b"\n"))  # P11


@each_dialect
@given(st.lists(noise, max_size=6))
def test_rubbish_makes_no_turn(dialect: CliSpec, lines: list[bytes]):
    stream = b"\n".join(lines)
    turn = turn_of(dialect, stream)
    turn.build_reply()
    assert turn.end is None or any(may_end(dialect.name, line) for line in stream.split(b"\n"))


@each_dialect
def test_lines_that_come_twice_change_neither_the_session_nor_the_end(dialect: CliSpec):
    for stream in STREAMS[dialect.name]:
        twice = turn_of(dialect, b"\n".join(line for line in stream.split(b"\n") for _ in range(2)))
        once = turn_of(dialect, stream)
        assert (twice.session, twice.end) == (once.session, once.end)
        assert len(twice.build_reply().tool_calls) == len(once.build_reply().tool_calls)
        assert twice.usage == once.usage


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["toolCallId", "title", "kind", "status", "content", "text", "type", "rawInput", "rawOutput", "locations", "path", "_meta", "toolName"]),
        inner,
        max_size=6,
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.sampled_from(["agent_message_chunk", "tool_call", "tool_call_update", "plan"]), json_values)
def test_no_update_over_acp_crashes(kind: str, value):
    update = {**(value if isinstance(value, dict) else {"content": value}), "sessionUpdate": kind}
    for parsed in (parse_update(update), parse_update(value)):
        assert isinstance(collect_turn(parsed).build_reply().content, str)
