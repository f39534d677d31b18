"""A replay finds every recorded reply of parallel sessions: in any order, and with any secrets in it."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.errors import NotRecorded
from viva.llm.transport import HttpTransport
from viva.model import codec
from viva.model.case import Feature, Key
from viva.model.message import Message, ModelCall, Reply
from viva.protocols import SessionContext
from viva.record.cassette import CassetteRecorder, RecordedRequest
from viva.record.cassette_agents import RecordingAgent, ReplayingAgent
from viva.record.player import CassettePlayer, describe_changes
from viva.record.redaction import Redactor

VALUE = "§§"
"""Stands for what the variable is by then."""
STRUCTURE = ("assistant", "message", "content", "options", "session", "history", "123456")
"""Secrets that are words of a cassette's own: they stay where they belong to its structure."""
SECRETS = ('s3cr€t "value"\\n', "another-one", "a\nsecret of\nthree lines")

texts = st.one_of(st.text(max_size=12), st.just(f"it is {VALUE}!"))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
options = st.dictionaries(st.sampled_from(["metadata", "tone", "session_id"]), values, max_size=3)
lines = st.lists(st.tuples(texts, values, options), min_size=1, max_size=4)
Said = list[tuple[str, Any, dict[str, Any]]]


class Counting:
    """Says each time something else, and changes all that it is given and has given."""

    provides: frozenset[Feature] = frozenset()

    def __init__(self, secret: str) -> None:
        self.count = 0
        self.secret = secret

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator["_Session"]:
        yield _Session(self, context)


class _Session:
    def __init__(self, agent: Counting, context: SessionContext) -> None:
        self.agent, self.context, self.state = agent, context, dict[str, Any]()

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        self.agent.count += 1
        number = self.agent.count
        await asyncio.sleep(0)
        self.context.meter(ModelCall("m", "p", number, 0))
        for received in (message.data, options):
            if isinstance(received, dict):
                received.clear()
        self.state["number"] = number
        return Reply(f"{number} {self.agent.secret}", data=self.state, finish_reason="stop")


def with_value(value: Any, secret: str) -> Any:
    return codec.decode(codec.encode(value).replace(VALUE.encode(), codec.encode(secret)[1:-1]))


async def hold_conversation(agent: Any, sessions: list[Said], secret: str, spent: list[ModelCall]) -> list[list[Reply]]:
    """All sessions at once; what each was answered, as it was then."""

    async def one(number: int, said: Said) -> list[Reply]:
        history = (Message("user", with_value(said[0][0], secret)),)
        key = Key("s", f"c{number}")
        context = SessionContext(key=key, meter=spent.append, http=HttpTransport(), history=history)
        heard: list[Reply] = []
        async with agent.open(context) as session:
            for line in said:
                text, data, options_ = with_value(line, secret)
                reply = await session.send(Message("user", text, data=data), options_)
                heard.append(codec.decode(codec.encode(reply), type=Reply))
        return heard

    return await asyncio.gather(*(one(number, said) for number, said in enumerate(sessions)))


def hiding_of(secret: str) -> Redactor:
    return Redactor(variables={"KEY": secret})


def definition(secret: str) -> dict[str, str]:
    return {"header": secret}


@given(
    st.lists(lines, min_size=1, max_size=3), st.sampled_from(SECRETS + STRUCTURE), st.sampled_from(SECRETS + STRUCTURE)
)
def test_a_replay_finds_every_reply_after_a_secret_changed(sessions: list[Said], then: str, now: str):
    paid: list[ModelCall] = []
    spent: list[ModelCall] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c"
        recorder = CassetteRecorder(path, "1.0", hiding_of(then))
        recorded = asyncio.run(
            hold_conversation(RecordingAgent(Counting(then), "bot", definition(then), recorder), sessions, then, paid)
        )
        recorder.close()
        assert then in STRUCTURE or codec.encode(then)[1:-1] not in path.read_bytes()
        tape = CassettePlayer(path, "error", hiding_of(now))
        replayed = asyncio.run(
            hold_conversation(ReplayingAgent(Counting(""), "bot", definition(now), tape), sessions, now, spent)
        )
        other = ReplayingAgent(
            Counting(""), "bot", {"header": "changed"}, CassettePlayer(path, "error", hiding_of(now))
        )
        with pytest.raises(NotRecorded, match=r"header: .* when recorded, \"changed\" now"):
            asyncio.run(hold_conversation(other, sessions, now, []))
    assert [[reply.content.replace(now, then) for reply in each] for each in replayed] == [
        [reply.content for reply in each] for each in recorded
    ]
    assert [[(r.data, r.elapsed_ms) for r in each] for each in replayed] == [
        [(r.data, r.elapsed_ms) for r in each] for each in recorded
    ]
    assert sorted(call.input_tokens for call in spent) == sorted(call.input_tokens for call in paid)


def shuffled(value: Any) -> Any:
    """The same value, with its keys the other way round."""
    if isinstance(value, dict):
        return {key: shuffled(item) for key, item in reversed(cast("dict[str, Any]", value).items())}
    return [shuffled(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


@given(values, values)
def test_what_differs_is_named_and_nothing_else_is(had: Any, now: Any):
    had, now = codec.to_plain(had), codec.to_plain(now)
    same = codec.encode_canonically(had) == codec.encode_canonically(now)
    assert (describe_changes({"x": had}, {"x": now}) == []) == same
    assert describe_changes(had, shuffled(had)) == []


@given(st.lists(st.tuples(texts, values), min_size=1, max_size=3), st.lists(st.tuples(texts, values), max_size=3))
def test_a_key_is_that_of_all_that_was_sent_and_of_nothing_else(first: list[Any], second: list[Any]):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c"
        recorder = CassetteRecorder(path, "1.0", Redactor())
        recorder.close()
        tape = CassettePlayer(path, "error", Redactor())

    def chain(sent: list[Any]) -> str:
        key = ""
        for message, options_ in sent:
            key = tape.extend_digest_chain(key, RecordedRequest(message, options_))
        return key

    first, second = codec.to_plain(first), codec.to_plain(second)
    assert chain(first) == chain(shuffled(first))
    assert (chain(first) == chain(second)) == (codec.encode_canonically(first) == codec.encode_canonically(second))
