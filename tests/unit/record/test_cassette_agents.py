"""Cassettes of agents that work on files: each turn's files are kept, and put there again."""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from trial_workspaces import folders, put, tree
from viva.errors import AgentFailed, CallCutOff, NotRecorded
from viva.llm.transport import HttpTransport
from viva.model.case import Feature, Key, WorkspaceSpec
from viva.model.event import TrialRetried
from viva.model.message import Message, Reply, ToolCall
from viva.model.turn import RecordedFile
from viva.protocols import SessionContext
from viva.record.cassette import CassetteRecorder, RecordedReply, RecordedSession, TurnFiles, read_cassette
from viva.record.cassette_agents import RecordingAgent, ReplayingAgent
from viva.record.player import CassettePlayer
from viva.record.redaction import Redactor
from viva.workspace import folders as rooms_of_viva

KEY = Key("s", "c")
SECRET = 'sk-"se\\cret"-ü'


class Worker:
    """Does in its workspace what it is told: `write PATH TEXT`, `remove PATH`, `fail …`, `hang …`."""

    provides: frozenset[Feature] = frozenset()

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator["Worker"]:
        assert context.workspace is not None
        self.root = Path(context.workspace.path)
        yield self

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        word, path, *text = message.text.split(" ", 2)
        if word == "remove":
            (self.root / path).unlink()
        elif word == "write":
            put(self.root, path, text[0])
        else:
            put(self.root, path, "half done")
            if word == "hang":
                await asyncio.Event().wait()
            raise AgentFailed("broke")
        return Reply(f"did {word}")


class NoWorker(Worker):
    """Must not be asked."""

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator[Worker]:
        raise AssertionError("the real agent was opened")
        yield self


HIDING = Redactor([SECRET])


class Deck:
    def __init__(self, top: Path) -> None:
        self.path, self.base = top / "cassette", top / "base"

    def hold_conversation(self, agent: Any, *output: str, replaying: bool = False) -> list[Any]:
        """The reply, or the fault, and the files after each line."""

        async def scenario() -> list[Any]:
            seen: list[Any] = []
            async with folders(self.base, is_replay=replaying)(WorkspaceSpec("empty"), KEY) as workspace:
                context = SessionContext(key=KEY, meter=lambda _: None, http=HttpTransport(), workspace=workspace)
                async with agent.open(context) as session:
                    for line in output:
                        before = await workspace.take_snapshot()
                        try:
                            async with asyncio.timeout(0.3 if line.startswith("hang") else None):
                                answer = (await session.send(Message("user", line), {})).content
                        except (AgentFailed, TimeoutError, CallCutOff) as fault:
                            answer = "cut off" if isinstance(fault, TimeoutError | CallCutOff) else str(fault)
                        seen += [answer, tree(workspace.path), await workspace.changes_since(before)]
            return seen

        return asyncio.run(scenario())

    def record(self, *output: str) -> list[Any]:
        recorder = CassetteRecorder(self.path, "1.0", HIDING)
        try:
            return self.hold_conversation(RecordingAgent(Worker(), "bot", "v1", recorder), *output)
        finally:
            recorder.append(TrialRetried(KEY, 0, 0))
            recorder.close()

    def replay(self, *output: str) -> list[Any]:
        return self.hold_conversation(
            ReplayingAgent(NoWorker(), "bot", "v1", CassettePlayer(self.path, "error", HIDING)), *output, replaying=True
        )

    @property
    def made(self) -> list[TurnFiles]:
        entries = [line for line in read_cassette(self.path) if isinstance(line, RecordedReply)]
        return [entry.turn_files for entry in entries if entry.turn_files is not None]

    @property
    def files(self) -> list[tuple[RecordedFile, ...]]:
        return [made.files for made in self.made]


@pytest.fixture
def deck(tmp_path: Path) -> Deck:
    return Deck(tmp_path)


def test_a_replay_leaves_the_same_files_after_each_turn(deck: Deck):
    lines = ("write a/b.txt one", "write a/b.txt two\nlines", "write größe.txt x", "remove a/b.txt")
    recorded = deck.record(*lines)
    assert recorded[1] == {"a": None, "a/b.txt": b"one"}
    assert deck.replay(*lines) == recorded
    assert deck.files[0] == (RecordedFile("a/", folder=True), RecordedFile("a/b.txt", b"one"))
    assert deck.files[3] == (RecordedFile("a/b.txt"),)


@pytest.mark.parametrize("word", ["fail", "hang"])
def test_files_of_a_turn_that_broke_or_was_cut_off_are_kept_too(deck: Deck, word: str):
    recorded = deck.record(f"{word} half.txt")
    assert recorded[:2] == ["broke" if word == "fail" else "cut off", {"half.txt": b"half done"}]
    assert deck.replay(f"{word} half.txt") == recorded


def test_secrets_in_files_do_not_reach_the_cassette(deck: Deck):
    """As text, and in what is no text."""
    deck.record(f"write text.txt key = {SECRET}!")
    assert deck.files[0][0].content == b"key = ***!"
    recorder = CassetteRecorder(deck.path, "1.0", Redactor(["sk-plain-sécret"]))
    binary = b"\xff\0" + "sk-plain-sécret".encode() + b"\xfe"
    clean = recorder.hide_secrets_in_files((RecordedFile("b", binary), RecordedFile("gone")))
    assert clean == (RecordedFile("b", b"\xff\0***\xfe"), RecordedFile("gone"))


def test_what_left_its_name_is_put_back_with_its_value_in_words_paths_and_files(deck: Deck):
    """A check that looks for the value finds it in a replay, whatever the value is by then."""
    recorder = CassetteRecorder(deck.path, "1.0", Redactor(variables={"A": "value-1"}))
    output = Reply("value-1!", tool_calls=(ToolCall("t", {"a": ["value-1"]}),))
    made = TurnFiles(recorder.hide_secrets_in_files([RecordedFile("value-1.txt", b"is value-1\xff")]))
    recorder.add_line(
        RecordedReply(1, 1, new_session=RecordedSession("bot", "agent", KEY), reply=output, turn_files=made)
    )
    recorder.close()
    assert b"value-1" not in deck.path.read_bytes()
    tape = CassettePlayer(deck.path, "error", Redactor(variables={"A": "number-€2"}))
    entry = tape.pop_reply(tape.start_digest_chain(("agent", "bot", KEY), None, ()))
    assert entry is not None
    assert entry.reply == Reply("number-€2!", tool_calls=(ToolCall("t", {"a": ["number-€2"]}),))
    assert entry.turn_files is not None
    assert entry.turn_files.files == (RecordedFile("number-€2.txt", b"is number-\xe2\x82\xac2\xff"),)


def test_files_without_secrets_are_kept_byte_for_byte(deck: Deck):
    recorder = CassetteRecorder(deck.path, "1.0", HIDING)
    image = RecordedFile("b", bytes(range(256)) + os.urandom(100), executable=True)
    assert recorder.hide_secrets_in_files([image]) == (image,)
    recorder.add_line(
        RecordedReply(1, 1, new_session=RecordedSession("bot", "agent", KEY), turn_files=TurnFiles((image,)))
    )
    recorder.close()
    assert deck.files == [(image,)]


def test_omitted_files_are_reported_when_a_replay_needs_them(deck: Deck):
    """The run itself goes on; only its replay cannot."""
    large = "x" * (rooms_of_viva.MAX_RECORDED_BYTES + 1)
    recorded = deck.record(f"write large.txt {large}")
    assert recorded[0] == "did write"
    assert deck.files == [()]
    assert "the changed files have 33,554,433 bytes, more than the limit of 33,554,432" in deck.made[0].omitted_reason
    assert deck.path.stat().st_size < 2 * len(large) + 1000
    with pytest.raises(NotRecorded, match="not in the cassette: the files of turn 1"):
        deck.replay(f"write large.txt {large}")
