"""A cassette around agents: what is kept, what comes back, and what is said where nothing fits."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from viva.errors import AgentFailed, BadInput, CallCutOff, NotRecorded, Role, Skipped, TrialFault, Unreachable
from viva.llm.transport import HttpTransport
from viva.model.case import Feature, Key
from viva.model.event import TrialRetried
from viva.model.message import Message, ModelCall, Reply
from viva.model.progress import CallProgress, LoopLag
from viva.protocols import Meter, SessionContext
from viva.record.cassette import (
    CassetteLineCollector,
    CassetteRecorder,
    MissingPolicy,
    RecordedReply,
    TrialDuration,
    iterate_replies,
    read_cassette,
)
from viva.record.cassette_agents import RecordingAgent, ReplayingAgent
from viva.record.player import CassettePlayer
from viva.record.redaction import Redactor

KEY = Key("s", "c")
COST = ModelCall("m", "p", 10, 5, cost_usd=0.25)


class Speaker:
    """Answers by a function of its own; each reply costs something. Counts how often it is asked."""

    provides: frozenset[Feature] = frozenset()
    must_quote = True

    def __init__(self, answer: Callable[[str], Any] = str.upper, opening: TrialFault | None = None) -> None:
        self.answer = answer
        self.opening = opening
        self.asked: list[str] = []

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator["_Session"]:
        if self.opening is not None:
            raise self.opening
        yield _Session(self, context.meter)


class _Session:
    def __init__(self, speaker: Speaker, meter: Meter) -> None:
        self.speaker, self.meter = speaker, meter

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        self.speaker.asked.append(message.text)
        self.meter(COST)
        output = self.speaker.answer(message.text)
        if isinstance(output, TrialFault):
            raise output
        if output is None:
            await asyncio.Event().wait()
        return Reply(str(output), calls=(COST,))


def dumb(text: str) -> str:
    raise AssertionError(f"the real agent was asked: {text}")


def hold_conversation(
    agent: Any,
    *output: str,
    key: Key = KEY,
    role: Role = "agent",
    metered: list[ModelCall] | None = None,
    conversation: list[Message] | None = None,
    options: Mapping[str, Any] | None = None,
    limit_s: float | None = None,
    progress: CallProgress | None = None,
) -> list[Reply]:
    async def scenario() -> list[Reply]:
        context = SessionContext(
            key=key,
            role=role,
            meter=(metered if metered is not None else []).append,
            http=HttpTransport(),
            progress=progress or CallProgress(),
            conversation=None if conversation is None else conversation.copy,
        )
        async with asyncio.timeout(limit_s), agent.open(context) as session:
            return [await session.send(Message("user", line), options or {}) for line in output]

    return asyncio.run(scenario())


LAG = LoopLag()


class Deck:
    """Records on a file and replays from it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def record(
        self,
        agent: Any,
        *output: str,
        definition: Any = "v1",
        name: str = "bot",
        is_cancelled: bool = False,
        **more: Any,
    ) -> list[Reply]:
        recorder = CassetteRecorder(self.path, "1.0", HIDING)
        try:
            return hold_conversation(RecordingAgent(agent, name, definition, recorder), *output, **more)
        finally:
            if not is_cancelled:
                recorder.append(TrialRetried(more.get("key", KEY), 0, 0))
            recorder.close()

    def replay(
        self,
        *output: str,
        definition: Any = "v1",
        name: str = "bot",
        missing: MissingPolicy = "error",
        live: Any = None,
        **more: Any,
    ) -> list[Reply]:
        tape = CassettePlayer(self.path, missing, HIDING)
        return hold_conversation(ReplayingAgent(live or Speaker(dumb), name, definition, tape), *output, **more)

    @property
    def entries(self) -> list[RecordedReply]:
        return [line for line in read_cassette(self.path) if isinstance(line, RecordedReply)]


HIDING = Redactor(["sk-secret"])


@pytest.fixture
def deck(tmp_path: Path) -> Deck:
    return Deck(tmp_path / "chat.cassette")


def test_a_replay_says_the_same_with_the_same_cost_and_latency(deck: Deck):
    spent: list[ModelCall] = []
    output = deck.record(Speaker(), "a", "b")
    assert deck.replay("a", "b", metered=spent) == output
    assert [reply.content for reply in output] == ["A", "B"]
    assert spent == [COST, COST]
    assert all(reply.elapsed_ms is not None for reply in output)


def test_what_the_engine_asks_of_an_agent_is_handed_on(deck: Deck):
    recorded = RecordingAgent(Speaker(), "bot", "v1", CassetteRecorder(deck.path, "1.0", HIDING))
    assert (recorded.must_quote, recorded.may_repeat, recorded.provides) == (True, False, frozenset())


@pytest.mark.parametrize(
    "differs",
    [
        {"key": Key("s", "other")},
        {"key": Key("s", "c", 2)},
        {"key": Key("s", "c", 1, 2)},
        {"role": "judge"},
        {"name": "another"},
        {"definition": "v2"},
        {"options": {"tone": "dry"}},
    ],
)
def test_a_conversation_is_its_agent_role_key_definition_and_all_that_was_sent(deck: Deck, differs: dict[str, Any]):
    deck.record(Speaker(), "a")
    with pytest.raises(NotRecorded, match="not in the cassette"):
        deck.replay("a", **differs)


def test_an_earlier_line_counts_too(deck: Deck):
    deck.record(Speaker(), "a", "b")
    with pytest.raises(NotRecorded, match="turn 1"):
        deck.replay("b")


def test_session_ids_and_folders_do_not_count(deck: Deck):
    deck.record(Speaker(), "a", options={"session_id": "1", "workspace": "/x", "metadata": {"session_id": "1", "k": 2}})
    again = {"session_id": "2", "workspace": "/y", "metadata": {"session_id": "2", "k": 2}}
    assert deck.replay("a", options=again)[0].content == "A"


def test_faults_are_replayed_as_they_were(deck: Deck):
    for fault in (AgentFailed("boom"), Unreachable("refused")):
        then, now = CallProgress(), CallProgress()
        with pytest.raises(type(fault)):
            deck.record(Speaker(lambda _, fault=fault: fault), "a", progress=then)
        with pytest.raises(type(fault), match=fault.message):
            deck.replay("a", progress=now)
        assert now.elapsed_ms == then.elapsed_ms is not None
        with pytest.raises(type(fault)):
            deck.record(Speaker(opening=fault))
        with pytest.raises(type(fault), match=fault.message):
            deck.replay("a")


def test_a_call_that_was_cut_off_is_cut_off_again_without_waiting(deck: Deck):
    then, now = CallProgress("", Reply("so far"), "acme: 503", "bye", loop_lag=LAG), CallProgress(loop_lag=LAG)
    with pytest.raises(TimeoutError):
        deck.record(Speaker(lambda _: None), "a", limit_s=0.05, progress=then)
    with pytest.raises(CallCutOff) as again:
        deck.replay("a", progress=now)
    assert again.value.elapsed_ms >= 40
    assert now == then


def test_a_call_of_a_trial_that_the_end_of_the_run_cancelled_is_not_recorded(deck: Deck):
    """No time limit has cut it off, so a replay must not say so."""
    slow = Speaker(lambda text: None if text == "b" else text)
    with pytest.raises(TimeoutError):
        deck.record(slow, "a", "b", limit_s=0.05, is_cancelled=True)
    assert [line.reply for _, line in iterate_replies(read_cassette(deck.path))] == [Reply("a", calls=(COST,))]
    with pytest.raises(NotRecorded, match="ended after turn 1"):
        deck.replay("a", "b")


def test_a_call_outside_of_trials_that_a_limit_cut_off_is_recorded(deck: Deck):
    nothing = Speaker(lambda _: None)
    with pytest.raises(TimeoutError):
        deck.record(nothing, "a", limit_s=0.05, is_cancelled=True, key=Key("", ""), role="generator")
    with pytest.raises(CallCutOff):
        deck.replay("a", key=Key("", ""), role="generator")


@pytest.mark.parametrize("is_worker", [False, True])
def test_equal_questions_get_their_answers_in_the_order_of_asking(deck: Deck, is_worker: bool):
    """Votes are asked at once; the slowest to answer is the first that was asked."""
    recorder = CassetteRecorder(deck.path, "1.0", HIDING)
    collector = CassetteLineCollector(HIDING) if is_worker else recorder
    done = {"0": asyncio.Event(), "1": asyncio.Event()}

    class Voter:
        count = 0
        provides: frozenset[Feature] = frozenset()

        @asynccontextmanager
        async def open(self, context: SessionContext):
            yield self

        async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
            number = Voter.count
            Voter.count += 1
            if number < 2:
                await done[str(number)].wait()
            if number:
                done[str(number - 1)].set()
            return Reply(str(number))

    async def votes(agent: Any) -> list[str]:
        async def vote() -> str:
            context = SessionContext(key=KEY, role="judge", meter=lambda _: None, http=HttpTransport())
            async with agent.open(context) as session:
                return (await session.send(Message("user", "?"), {})).content

        return await asyncio.gather(*(vote() for _ in range(3)))

    assert asyncio.run(votes(RecordingAgent(Voter(), "judge", "v1", collector))) == ["0", "1", "2"]
    if is_worker:
        recorder.add_trial_lines(collector.pop_trial_lines(KEY))
    recorder.close()
    assert [entry.reply.content for entry in deck.entries if entry.reply] == ["2", "1", "0"]
    assert asyncio.run(
        votes(ReplayingAgent(Speaker(dumb), "judge", "v1", CassettePlayer(deck.path, "error", HIDING)))
    ) == list("012")


def test_a_helper_is_asked_about_a_conversation(deck: Deck):
    """One that has become another is not judged by what was said of the first."""
    first, second = [Message("user", "hi")], [Message("user", "hello")]
    deck.record(Speaker(), "?", role="judge", conversation=first)
    assert deck.replay("?", role="judge", conversation=first)[0].content == "?"
    with pytest.raises(NotRecorded) as found:
        deck.replay("?", role="judge", conversation=second)
    assert (
        'turn 1: the request to the judge \'bot\' has changed: conversation[0].content: "hi" when recorded, "hello" now'
        in (found.value.message)
    )


def test_what_was_sent_otherwise_is_named_with_both_values(deck: Deck):
    deck.record(Speaker(), "a", "b", options={"tone": "dry"})
    with pytest.raises(NotRecorded) as found:
        deck.replay("a", "bee", options={"tone": "dry"})
    assert found.value.message.endswith(
        "case 'c', trial 1, turn 2: the request to the agent 'bot' has changed: "
        'message.content: "b" when recorded, "bee" now'
    )


def test_another_definition_is_named_with_both_values(deck: Deck):
    deck.record(
        Speaker(), "a", definition={"system": "Be kind.", "model": "small", "files": {"a.py": "1", "b.py": "1"}}
    )
    now = {"system": "Be brief.", "temperature": 0.5, "files": {"a.py": "2", "c.py": "1"}}
    with pytest.raises(NotRecorded) as found:
        deck.replay("a", definition=now)
    _, _, changes = found.value.message.partition("the agent 'bot' has changed since the recording: ")
    assert changes.split("; ") == [
        'system: "Be kind." when recorded, "Be brief." now',
        'model: "small" when recorded, not set now',
        "file a.py changed",
        "file b.py is gone",
        "file c.py is new",
        "temperature: not set when recorded, 0.5 now",
    ]


def test_a_conversation_that_continues_longer_than_the_recorded_one_says_so(deck: Deck):
    deck.record(Speaker(), "a")
    with pytest.raises(NotRecorded, match=r"turn 2: the recorded conversation with the agent 'bot' ended after turn 1"):
        deck.replay("a", "b")


def test_an_attempt_is_replayed_only_if_it_was_recorded(deck: Deck):
    """A missing reply stays missing: a retry cannot find it."""
    recorder = CassetteRecorder(deck.path, "1.0", HIDING)
    for attempt in (1, 2):
        hold_conversation(RecordingAgent(Speaker(), "bot", "v1", recorder), "a", key=Key("s", "c", 1, attempt))
    recorder.close()
    tape = CassettePlayer(deck.path, "error", HIDING)
    agent = ReplayingAgent(Speaker(dumb), "bot", "v1", tape)
    assert (tape.may_retry(Key("s", "c", 1, 1)), tape.may_retry(Key("s", "c", 1, 2))) == (True, False)
    with pytest.raises(NotRecorded):
        hold_conversation(agent, "z")
    assert not tape.may_retry(Key("s", "c", 1, 1))
    assert CassettePlayer(deck.path, "live", HIDING).may_retry(Key("s", "c", 1, 2))


def test_what_is_missing_can_be_skipped_or_asked_for(deck: Deck):
    deck.record(Speaker(), "a")
    with pytest.raises(
        Skipped,
        match=r"not in the cassette: case 'c', trial 1, turn 2: the recorded conversation with the agent 'bot' ended after turn 1",
    ):
        deck.replay("a", "b", missing="skip")
    live = Speaker(lambda text: f"live {text}")
    assert [r.content for r in deck.replay("a", "b", "c", missing="live", live=live)] == ["A", "live b", "live c"]
    assert live.asked == ["a", "b", "c"]  # a session keeps its history: what was said before is said to it, too


def test_secrets_are_struck_out_on_the_way_in_and_a_replay_without_them_still_fits(deck: Deck):
    deck.record(Speaker(), "my key is sk-secret", definition={"header": "sk-secret"})
    assert b"sk-secret" not in deck.path.read_bytes()
    assert deck.replay("my key is ***", definition={"header": "***"})[0].content == "MY KEY IS SK-SECRET"


def test_a_replay_where_a_variable_is_not_set_continues_with_its_name(deck: Deck):
    """What was said with its value comes back with its name, and is found again with that."""
    knowing, ignorant = Redactor(variables={"TOKEN": "s3cret-value"}), Redactor()
    recorder = CassetteRecorder(deck.path, "1.0", knowing)
    first, _ = hold_conversation(
        RecordingAgent(Speaker(lambda text: f"{text} s3cret-value"), "bot", "v1", recorder), "a", "a s3cret-value"
    )
    recorder.close()
    assert first.content == "a s3cret-value"
    tape = CassettePlayer(deck.path, "error", ignorant)
    output = hold_conversation(ReplayingAgent(Speaker(dumb), "bot", "v1", tape), "a", "a ***TOKEN***")
    assert [reply.content for reply in output] == ["a ***TOKEN***", "a ***TOKEN*** ***TOKEN***"]


def test_a_run_that_never_starts_destroys_no_cassette(deck: Deck):
    deck.record(Speaker(), "a")
    before = deck.path.read_bytes()
    RecordingAgent(Speaker(), "bot", "v2", CassetteRecorder(deck.path, "1.0", HIDING))
    assert deck.path.read_bytes() == before


def test_a_resumed_run_keeps_what_has_ended(deck: Deck):
    """The trial that was cut off is held again, so what was recorded of it goes; cases made for the run stay."""
    first = CassetteRecorder(deck.path, "1.0", HIDING)
    agent = RecordingAgent(Speaker(), "bot", "v1", first)
    for case in ("done", "cut", ""):
        hold_conversation(agent, "a", key=Key("s", case) if case else Key("", ""))
    first.add_line(TrialDuration(Key("s", "done"), 5.0))
    first.flush()
    with deck.path.open("ab") as file:
        file.write(b'{"line":"reply","ses')
    second = CassetteRecorder(deck.path, "1.0", HIDING)
    second.continue_recording({Key("s", "done")})
    hold_conversation(
        RecordingAgent(Speaker(lambda text: f"again {text}"), "bot", "v1", second), "a", key=Key("s", "cut")
    )
    second.close()
    lines = list(read_cassette(deck.path))
    found = [(session.key.case, entry.reply.content) for session, entry in iterate_replies(lines) if entry.reply]
    assert found == [("done", "A"), ("", "A"), ("cut", "again a")]
    assert TrialDuration(Key("s", "done"), 5.0) in lines
    assert deck.replay("a", key=Key("s", "done"))[0].content == "A"
    assert deck.replay("a", key=Key("s", "cut"))[0].content == "again a"


@pytest.mark.parametrize("left", [b"", b'{"line":"cass'])
def test_a_cassette_without_a_first_line_starts_again(deck: Deck, left: bytes):
    deck.path.write_bytes(left)
    second = CassetteRecorder(deck.path, "1.0", HIDING)
    second.continue_recording(set())
    hold_conversation(RecordingAgent(Speaker(), "bot", "v1", second), "a")
    second.close()
    assert deck.replay("a")[0].content == "A"


SHORT = """
import resource, signal, sys
from pathlib import Path
from viva.errors import RunStopped
from viva.model.case import Key
from viva.model.message import Reply
from viva.record.cassette import RecordedReply, RecordedSession, CassetteRecorder
from viva.record.redaction import Redactor

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))  # files cannot grow beyond that, as on a disk that is full
recorder = CassetteRecorder(Path(sys.argv[1]), "1.0", Redactor())
try:
    for number in range(1, 100):
        recorder.add_line(RecordedReply(number, 1, 0.0, RecordedSession("bot", "agent", Key("s", f"c{number}")), None, Reply("x" * 200)))
        recorder.flush()
except RunStopped as stopped:
    print(stopped.reason)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
recorder.add_line(RecordedReply(100, 1, 0.0, None, None, Reply("of a trial that was cut off meanwhile")))
recorder.close()
"""


def test_a_cassette_on_a_full_disk_ends_with_its_last_whole_entry(deck: Deck):
    """Nothing is written behind a torn line, so all that is there can be read, and appended to."""
    command = [sys.executable, "-c", SHORT, str(deck.path)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    assert output.startswith(f"cassette {deck.path}: ")
    assert deck.path.read_bytes().endswith(b"\n")
    kept = [entry.session for entry in deck.entries]
    assert kept == list(range(1, len(kept) + 1))
    assert len(kept) > 5
    second = CassetteRecorder(deck.path, "1.0", HIDING)
    second.continue_recording({session.key for session, _ in iterate_replies(read_cassette(deck.path))})
    hold_conversation(RecordingAgent(Speaker(), "bot", "v1", second), "a", key=Key("s", "new"))
    second.close()
    assert [entry.session for entry in deck.entries] == [*kept, len(kept) + 1]


def test_what_an_agent_was_when_it_said_something_stays_with_what_it_said(deck: Deck):
    """A run that goes on by force with another agent: each reply belongs to the one that gave it."""
    deck.record(Speaker(), "a", key=Key("s", "done"))
    second = CassetteRecorder(deck.path, "1.0", HIDING)
    agent = RecordingAgent(Speaker(), "bot", "v2", second)
    second.continue_recording({Key("s", "done")})
    hold_conversation(agent, "a", key=Key("s", "late"))
    second.close()
    assert deck.replay("a", key=Key("s", "done"), definition="v1")
    assert deck.replay("a", key=Key("s", "late"), definition="v2")
    for case, definition in (("done", "v2"), ("late", "v1")):
        with pytest.raises(NotRecorded, match=f'definition: "v.*" when recorded, "{definition}" now'):
            deck.replay("a", key=Key("s", case), definition=definition)


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("", "is not a cassette: the file is empty"),
        ("hello\n", "chat.cassette:1: is not a line of a cassette"),
        ('{"line":"trial","key":{"suite":"s","case":"c"},"duration_ms":1}\n', "the first line is not a header"),
        ('{"line":"cassette","version":99,"viva":"9.9"}\n', r"was recorded by a newer Viva \(9.9\)"),
        ('{"line":"cassette","version":2,"viva":"0.1"}\n', r"by an older Viva \(0.1\); record it again"),
        (
            '{"line":"cassette","version":4,"viva":"1"}\n{"line":"song"}\n',
            "chat.cassette:2: is not a line of a cassette",
        ),
        (
            '{"line":"cassette","version":4,"viva":"1"}\n{"line":"reply","session":3,"turn":1}\n',
            "chat.cassette:2: is a reply of session 3, which no earlier line opens",
        ),
        ('{"line":"cassette","version":4,"viva":"1"}\n{"line":"son', None),
    ],
)
def test_a_file_that_is_not_a_cassette_is_refused_with_its_line(deck: Deck, text: str, output: str | None):
    deck.path.write_text(text)
    if output is None:
        assert all(not isinstance(line, RecordedReply) for line in read_cassette(deck.path))
        return
    with pytest.raises(BadInput, match=output):
        list(read_cassette(deck.path))


def test_an_unwritable_cassette_path_is_an_error_before_anything_runs(tmp_path: Path):
    with pytest.raises(BadInput, match=r"--record .*cannot be written"):
        CassetteRecorder(tmp_path / "absent" / "x", "1.0", HIDING)
    with pytest.raises(BadInput, match=r"--record .*cannot be written"):
        CassetteRecorder(tmp_path, "1.0", HIDING)


def test_a_pipe_is_no_cassette(tmp_path: Path):
    """Nobody writes to it: opening it would block the process, which then hears no signal."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match=r"--record .*is a pipe"):
        CassetteRecorder(tmp_path / "pipe", "1.0", HIDING)
    with pytest.raises(BadInput, match="the file is empty"):
        list(read_cassette(tmp_path / "pipe"))


@pytest.mark.parametrize("content", ["- id: a\n  input: hi\n", "def agent(m): ...\n", '{"id": "a", "input": "x"}\n'])
def test_nothing_but_a_cassette_is_recorded_over(tmp_path: Path, content: str):
    path = tmp_path / "mine"
    path.write_text(content)
    with pytest.raises(BadInput, match="would be overwritten"):
        CassetteRecorder(path, "1.0", HIDING)
    assert path.read_text() == content
