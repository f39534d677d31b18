"""What is written can be read again: records, replies and events through JSON, and records through a journal."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from viva.model import codec
from viva.model.event import Note, RunStarted, TrialEnded
from viva.model.message import Message, ModelCall, Reply, ToolCall, Usage
from viva.model.record import ToolCallRecord, TrialRecord, TurnRecord
from viva.record.journal import Journal

texts = st.text(max_size=12)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
objects = st.dictionaries(texts, values, max_size=3)
counts = st.integers(0, 10**9)
calls = st.builds(ToolCall, texts, values, texts, values | st.just(msgspec.UNSET), st.none() | texts)
models = st.builds(ModelCall, texts, texts, counts, counts, counts, st.none() | st.floats(0, 100))
replies = st.builds(
    Reply,
    content=texts,
    data=values,
    tool_calls=st.lists(calls, max_size=2).map(tuple),
    declared_state=st.sampled_from([None, "awaiting", "done"]),
    input_hint=st.none() | texts,
    finish_reason=st.none() | texts,
    calls=st.lists(models, max_size=2).map(tuple),
)
turns = st.builds(
    TurnRecord,
    turn=st.integers(1, 99),
    input=texts,
    input_source=st.sampled_from(["static", "initial", "simulated", "interactive"]),
    output=texts,
    awaiting_input=st.booleans(),
    tool_calls=st.lists(st.builds(ToolCallRecord, texts, values), max_size=2),
    assertions=st.lists(objects, max_size=2),
    duration_ms=st.floats(0, 1e9),
    data=values,
    error=st.none() | texts,
    usage=st.none() | st.builds(Usage, counts, counts, counts),
)
records = st.builds(
    TrialRecord,
    id=texts,
    name=texts,
    status=st.sampled_from(["passed", "failed", "skipped", "error"]),
    turns=st.lists(turns, max_size=2),
    final_assertions=st.lists(objects, max_size=2),
    total_turns=st.integers(0, 99),
    duration_ms=st.floats(0, 1e9),
    suite=texts,
    trial=st.integers(1, 9),
    attempt=st.integers(1, 9),
    error=st.none() | texts,
    tags=st.lists(texts, max_size=2).map(tuple),
)


@given(replies)
def test_replies_survive(reply: Reply):
    assert codec.decode(codec.encode(reply), type=Reply) == reply


@given(records)
def test_records_survive_and_anybody_can_read_them(record: TrialRecord):
    raw = codec.encode(record)
    assert codec.decode(raw, type=TrialRecord) == record
    assert json.loads(raw)["status"] == record.status
    assert b"\n" not in raw


@given(texts, texts)
def test_events_and_messages_survive(one: str, other: str):
    started = RunStarted(one, other, "1", one, (one, other), 1, 2, 3)
    for event in (Note(one, "warning"), started):
        assert codec.decode(codec.encode(event), type=type(event)) == event
    message = Message("user", one, data={"k": other})
    assert codec.decode(codec.encode(message), type=Message) == message


@given(values)
def test_plain_values_are_plain_already(value: Any):
    assert codec.to_plain(value) == value
    assert json.loads(codec.compact_json(value)) == value


@given(objects)
def test_the_order_of_keys_does_not_change_the_canonical_form(value: dict[str, Any]):
    assert codec.encode_canonically(dict(reversed(value.items()))) == codec.encode_canonically(value)


@settings(max_examples=30)
@given(st.lists(records, max_size=5), st.randoms())
def test_a_journal_gives_back_what_it_got_in_input_order(written: list[TrialRecord], random: Any):
    with TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "j")
        indexed = list(enumerate(written))
        random.shuffle(indexed)
        for index, record in indexed:
            journal.append(TrialEnded(record.key, index, 1, record))
        assert list(journal.records()) == written
        journal.close()
