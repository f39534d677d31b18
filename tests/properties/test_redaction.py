"""Whatever the secrets are and wherever they stand, a record stays a record, and none of them is left in its texts."""

import base64
import html
import json
from typing import Any, get_args
from urllib.parse import quote, quote_plus

from hypothesis import given
from hypothesis import strategies as st

from viva.errors import Fault
from viva.model import codec
from viva.model.case import InputSource
from viva.model.message import ModelCall, Reply, ToolCall
from viva.model.record import CheckpointRecord, Status, ToolCallRecord, TrialRecord, TurnRecord
from viva.record.redaction import MIN_SECRET_LENGTH, Redactor

WORDS = ("passed", "failed", "agent", "simulated", "static", "true", "false", "123456", "1234567.5", "turns", "output",
         "undetermined", "assertions", 'quo"ted', "back\\slash", "ünïcode-€", "two\nlines of it", "a&b<c>'d'", "sp ace/+=?",
         "contains", "completed")  # fmt: skip
secrets = st.lists(
    st.one_of(st.sampled_from(WORDS), st.text(min_size=1, max_size=20).filter(lambda text: "*" not in text)),
    min_size=1,
    max_size=4,
)


def encoded(value: str) -> list[str]:
    """The forms that are listed in the documentation, made by other means than the code's own."""
    raw = value.encode()
    address = [quote(value, safe=""), quote_plus(value), quote(value)]
    lower = [form if "%" not in form else "".join(_lowered(form)) for form in address]
    inner = [json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]]
    return [value, *inner, *address, *lower, html.escape(value), html.escape(value, quote=False), *_in_base64(raw)]


def _lowered(form: str) -> list[str]:
    first, *rest = form.split("%")
    return [first, *(f"%{part[:2].lower()}{part[2:]}" for part in rest)]


def _in_base64(raw: bytes) -> list[str]:
    """What base64 of it has in all surroundings: the characters that do not depend on these."""
    found: list[str] = []
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            one, other = (encode(fill * before + raw + fill * 2).decode() for fill in (b"\0", b"\xff"))
            same = [a == b for a, b in zip(one, other, strict=True)]
            start = -(-before * 4 // 3)
            end = start
            while end < len(same) and same[end]:
                end += 1
            found.append(one[start : min(end, (before + len(raw)) * 4 // 3)])
    return found


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[str], TrialRecord]:
    known = draw(secrets)
    forms = [form for value in known for form in encoded(value)]
    longer = [base64.b64encode(f"user:{value}@x".encode()).decode() for value in known]
    text = st.builds("".join, st.lists(st.one_of(st.sampled_from(forms + longer), st.text(max_size=5)), max_size=4))
    value = st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-(2**40), 2**40), text),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
        max_leaves=5,
    )
    verdict = {"type": "contains", "value": draw(text), "passed": draw(st.booleans()), "reason": draw(text)}
    turn = TurnRecord(
        turn=1,
        input=draw(text),
        input_source=draw(st.sampled_from(get_args(InputSource))),
        output=draw(text),
        awaiting_input=True,
        tool_calls=[ToolCallRecord(draw(text), draw(value), result=draw(value))],
        assertions=[verdict],
        duration_ms=123456.5,
        awaiting_reason="completed",
        data=draw(value),
    )
    record = TrialRecord(
        id="passed-agent-123456",
        name=draw(text),
        status=draw(st.sampled_from(get_args(Status))),
        turns=[turn],
        final_assertions=[verdict],
        total_turns=1,
        duration_ms=1234567.5,
        suite="tests/agent-turns.jsonl",
        trial=1,
        attempt=123456,
        fault=draw(st.sampled_from([None, *get_args(Fault)])),
        error=draw(text),
        checkpoints=[CheckpointRecord("passed", draw(text), required=True, reached=False, assertion=verdict)],
        warnings=[draw(text)],
        model_calls=(ModelCall(draw(text), input_tokens=123456),),
        metadata={"passed": draw(value)},
    )
    return known, record


@given(cases())
def test_a_record_is_read_again_with_its_structure_and_without_secrets(case: tuple[list[str], TrialRecord]):
    known, record = case
    redactor = Redactor(known)
    clean = redactor.redact(record)
    read = codec.decode(codec.encode(clean), type=TrialRecord)
    assert read == codec.decode(codec.encode(clean), type=type(clean))
    had, has = (codec.to_plain(each) for each in (record, clean))
    same_structure(had, has)
    for own in (had, has):  # what the record is known by stays, whatever it holds
        assert (own["id"], own["suite"], own["checkpoints"][0]["id"]) == (
            "passed-agent-123456",
            "tests/agent-turns.jsonl",
            "passed",
        )
    forms = [form for value in known if len(value) >= MIN_SECRET_LENGTH for form in encoded(value)]
    for text in texts_in(clean):
        assert not [form for form in forms if form in text], (text, known)
    assert redactor.redact(clean) is clean or redactor.redact(clean) == clean
    assert codec.encode(redactor.redact(read)) == codec.encode(clean)


def same_structure(had: Any, has: Any) -> None:
    """Only texts differ; names differ only in what came from outside."""
    assert type(had) is type(has)
    if isinstance(had, dict):
        assert len(had) == len(has)
        for (old, before), (new, after) in zip(had.items(), has.items(), strict=True):
            assert old == new or "***" in new
            same_structure(before, after)
    elif isinstance(had, list):
        assert len(had) == len(has)
        for before, after in zip(had, has, strict=True):
            same_structure(before, after)
    elif isinstance(had, str):
        assert had == has or "***" in has
    else:
        assert had == has


def texts_in(record: TrialRecord) -> list[str]:
    """All texts but identifiers and words of a fixed list."""
    turn = record.turns[0]
    verdicts = [*turn.assertions, *record.final_assertions, (record.checkpoints or [])[0].assertion]
    free: list[Any] = [
        [
            {name: value for name, value in verdict.items() if name != "type"}.values()
            for verdict in verdicts
            if verdict
        ],
        [turn.data, [(call.name, call.args, call.result) for call in turn.tool_calls]],
        [record.name, record.error, record.warnings, turn.input, turn.output, record.model_calls[0].model],
        [(record.checkpoints or [])[0].description, list((record.metadata or {}).values())],
    ]
    return list(_texts(free))


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for each in pair for text in _texts(each)]
    if isinstance(value, (list, tuple, type({}.values()))):
        return [text for each in value for text in _texts(each)]
    return []


@given(
    st.sampled_from([word for word in WORDS if len(word) >= MIN_SECRET_LENGTH]),
    st.text(max_size=10),
    st.text(max_size=10),
)
def test_what_a_cassette_keeps_of_a_variable_comes_back_as_it_was(value: str, before: str, after: str):
    redactor = Redactor(variables={"NAME": value})
    said = Reply(
        before + after.join(encoded(value)[:-6]), data={value: [value]}, tool_calls=(ToolCall(value, {value: 123456}),)
    )
    kept = redactor.hide_secrets(said)
    assert value not in kept.content
    assert codec.decode(codec.encode(kept), type=Reply) == kept
    assert redactor.restore_secrets(kept) == said
    assert redactor.hide_secrets(kept) == kept


def test_the_name_of_a_variable_that_holds_a_secret_is_hidden_once():
    redactor = Redactor(variables={"PASSWORD": "PASSWORD", "OTHER_PASSWORD": "hunter-22"})
    said = Reply("PASSWORD, hunter-22 and PASSWORD")
    kept = redactor.hide_secrets(said)
    assert kept.content == "***PASSWORD***, ***OTHER_PASSWORD*** and ***PASSWORD***"
    assert redactor.hide_secrets(kept) == kept
    assert redactor.restore_secrets(kept) == said
