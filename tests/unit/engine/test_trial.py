"""Whole trials: options, limits, faults, final assertions, fail-fast; in this process, with functions as agents."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import viva
from running import run_cases
from viva.engine.event_bus import EventBus
from viva.engine.sending import Send, create_session_sender, send_with_timeout, wrap_with_file_tracking
from viva.engine.trial import RunContext, run_trial
from viva.errors import AgentFailed, CallCutOff, TrialFault, Unreachable
from viva.llm.transport import HttpTransport
from viva.model import codec
from viva.model.case import Case, Feature, Limits, UserMessage
from viva.model.event import Event, TrialStarted
from viva.model.message import Message, Reply
from viva.model.progress import CallProgress
from viva.model.record import TrialRecord
from viva.protocols import PlannedTrial, SessionContext
from viva.record.redaction import Redactor
from viva.session.agents import ConfiguredAgent
from viva.session.cassette_mode import CassetteMode
from viva.session.options.run_options import AllRunOptions
from viva.testing.check_context import NoHelpers, SilentUser, make_trial_state

HI = [{"type": "contains", "value": "hi"}]


def case(case_id: str = "c", **fields: Any) -> dict[str, Any]:
    return {"id": case_id, **({} if "turns" in fields else {"input": "hi", "assertions": HI}), **fields}


def run(
    *cases: dict[str, Any], agent: Any = lambda messages: messages[-1]["content"], **options: Any
) -> list[TrialRecord]:
    return list(run_cases(list(cases), agent, history=False, **options).records())


def one(*cases: dict[str, Any], agent: Any = lambda messages: messages[-1]["content"], **options: Any) -> TrialRecord:
    (record,) = run(*cases, agent=agent, **options)
    return record


def test_final_assertions_see_the_last_reply_and_the_whole_conversation():
    """Text on the last reply; tools and limits on the conversation; JSON on the last reply, else on tool results, newest first."""

    def agent(messages: list[Any]) -> dict[str, Any]:
        n = len(messages) // 2 + 1
        return {
            "content": f"reply {n}",
            "tool_calls": [{"name": f"t{n}", "arguments": {}, "result": {"n": n, f"only{n}": True}}],
        }

    finals = [
        {"type": "equals", "value": "reply 3"},
        {"type": "tool_sequence", "names": ["t1", "t2", "t3"], "exact": True},
        {"type": "json_path", "path": "$.n", "value": 3},
        {"type": "json_path", "path": "$.only1", "value": True},
        {"type": "max_turns", "value": 3},
    ]
    turns = [{"input": str(i), "assertions": [{"type": "tool_called", "name": f"t{i}"}]} for i in (1, 2, 3)]
    record = one(case(turns=turns, final_assertions=finals), agent=agent)
    assert record.status == "passed", record.assertion_errors  # N12
    assert len(record.final_assertions) == 5
    assert record.checks == 8
    turn_only = [{"input": "1"}, {"input": "2", "assertions": [{"type": "tool_called", "name": "t1"}]}]
    assert one(case(turns=turn_only), agent=agent).status == "failed"


def test_a_case_may_have_only_final_assertions():
    record = one(
        {"id": "c", "turns": [{"input": "Which one?"}], "final_assertions": {"type": "contains", "value": "Which"}}
    )
    assert record.status == "passed"  # N11: something was checked, though the agent waits


def test_a_failed_final_assertion_beats_one_in_error():
    broken = {"type": "max_cost", "value": 1}
    agent = lambda messages: {"content": "hi", "usage": {"input_tokens": 1}}  # noqa: E731
    assert one(case(final_assertions=[broken]), agent=agent).status == "error"
    assert (
        one(case(final_assertions=[broken, {"type": "contains", "value": "bye"}]), agent=agent).status == "failed"
    )  # N17


def test_turns_before_a_timeout_are_kept_and_scored():
    def agent(messages: list[Any]) -> str:
        if messages[-1]["content"] == "hang":
            time.sleep(60)
        return "hi"

    turns = [{"input": "hi", "assertions": HI}, {"input": "hang", "assertions": HI}, {"input": "never"}]
    record = one(case(turns=turns, timeout="300ms"), agent=agent)
    assert (record.status, record.fault, record.error) == ("failed", "agent", "timeout after 300ms")  # N16, N18
    assert [turn.error for turn in record.turns] == [None, "timeout after 300ms"]
    assert record.turns[0].assertions[0]["passed"] is True
    assert record.score == 0.5  # no score is 1 beside a failure
    assert record.turns_not_run == ["never"]


@pytest.mark.parametrize("limit", ["timeout", "turn_timeout"])
def test_an_agent_that_blocks_the_event_loop_cannot_outlast_its_limit(limit: str):  # N18
    async def agent(messages: list[Any]) -> str:
        time.sleep(1.2)
        return "hi"

    turns = [{"input": "hi", "assertions": HI}, {"input": "never"}]
    record = one(case(turns=turns, **{limit: "1s"}), agent=agent)
    assert (record.status, record.fault, record.error) == ("failed", "agent", "timeout after 1s")
    assert [(turn.error, turn.output) for turn in record.turns] == [("timeout after 1s", "")]


class Hung:
    """A session that never replies."""

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        del message, options
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize(
    ("timeout_s", "limits", "message", "latency_ms"),
    [
        (None, Limits(turn_timeout_s=0.06, turn_timeout_text="60s"), "timeout after 60s", 60),
        (0.02, Limits(turn_timeout_s=0.06, turn_timeout_text="60s"), "timeout after 20ms", 20),
        (None, Limits(turn_timeout_s=0.06), "timeout after 60ms", 60),
    ],
)
def test_a_timeout_is_reported_as_its_file_writes_it(
    timeout_s: float | None, limits: Limits, message: str, latency_ms: float
):  # P7, P11
    progress = CallProgress()
    send = create_session_sender(Hung(), {}, {}, limits, progress)
    with pytest.raises(viva.errors.AgentFailed, match=f"^{message}$"):
        asyncio.run(asyncio.wait_for(_sent(send, UserMessage(Message("user", "x"), timeout_s=timeout_s)), 20))
    assert progress.elapsed_ms == pytest.approx(latency_ms)  # the limit, and not when the machine noticed


async def _sent(send: Send, line: UserMessage) -> Reply:
    return await send(line)


class Stuck:
    """An agent whose session opens or closes for ever."""

    provides: frozenset[Feature] = frozenset()

    def __init__(self, part: str) -> None:
        self._part = part

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator["Stuck"]:
        if self._part == "open":
            await asyncio.Event().wait()
        yield self
        await asyncio.Event().wait()

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        return Reply("hi")


@pytest.mark.parametrize(("part", "timeout", "errors"), [("open", "20ms", []), ("close", "1s", [None])])
def test_a_timeout_before_or_after_the_turns_is_no_error_of_a_turn(part: str, timeout: str, errors: list[str | None]):
    record = one(case(timeout=timeout), agent=Stuck(part))
    assert (record.status, record.fault, record.error) == ("failed", "agent", f"timeout after {timeout}")  # N17, N18
    assert [turn.error for turn in record.turns] == errors


class Struggling:
    """An agent and its session: it writes to stderr while its provider may be failing, and then fails."""

    provides: frozenset[Feature] = frozenset()

    def __init__(self, fault: TrialFault, provider_trouble: str | None = None) -> None:
        self._fault = fault
        self._provider_trouble = provider_trouble
        self._progress = CallProgress()

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator["Struggling"]:
        self._progress = context.progress
        yield self

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        self._progress.stderr_tail = "quota exceeded"
        self._progress.provider_trouble = self._provider_trouble
        raise self._fault


@pytest.mark.parametrize(
    ("fault", "trouble", "outcome"),
    [
        (CallCutOff(300_000), None, ("failed", "agent", "timeout after 5m")),
        (CallCutOff(300_000), "HTTP 503", ("error", "infra", "agent error: timeout after 5m: HTTP 503")),
        (AgentFailed("exit code 1"), None, ("failed", "agent", "agent error: exit code 1")),
    ],
)
def test_the_stderr_of_a_failed_agent_is_shown_and_its_failing_provider_is_blamed(
    fault: TrialFault, trouble: str | None, outcome: tuple[str, ...]
):
    record = one(case(timeout="5m"), agent=Struggling(fault, trouble), retry_faults=0)
    assert (record.status, record.fault, record.error) == outcome  # N16, N17, P11
    assert record.warnings == ["stderr: quota exceeded"]


@pytest.mark.parametrize(
    ("elapsed_ms", "raised"),
    [
        (900, AgentFailed),  # within a tenth of the turn's limit of 1 s: it was this limit
        (899, CallCutOff),  # it was that of the case
    ],
)
def test_a_replayed_cut_off_is_charged_to_the_limit_that_it_had_reached(
    elapsed_ms: float, raised: type[TrialFault]
):  # N18
    session = Struggling(CallCutOff(elapsed_ms))
    with pytest.raises(raised):
        asyncio.run(send_with_timeout(session, Message("user", "x"), {}, 1.0, CallProgress()))


@pytest.mark.parametrize("limit", ["timeout", "turn_timeout"])
def test_a_cut_off_that_no_limit_of_the_replay_explains_is_no_timeout(limit: str, tmp_path: Path):
    async def agent(messages: list[Any]) -> str:
        await asyncio.sleep(60)
        return "hi"

    short = {limit: "1s"}
    recorded = one(case(**short), agent=agent, record=tmp_path / "c.cassette")
    assert one(case(**short), agent=agent, replay=tmp_path / "c.cassette").error == recorded.error == "timeout after 1s"
    longer = one(case(), agent=agent, replay=tmp_path / "c.cassette")
    assert (longer.status, longer.fault, longer.attempt) == ("error", "infra", 1)
    assert str(longer.error).startswith("not in the cassette: the end of a call that was cut off after ")


def test_a_replayed_trial_that_called_the_real_agent_says_so(tmp_path: Path):
    recording = tmp_path / "c.cassette"
    assert one(case(), record=recording).warnings is None
    assert one(case(), replay=recording, replay_missing="live").warnings is None
    (warning,) = one(case(input="hi!"), replay=recording, replay_missing="live").warnings or [""]
    assert warning.startswith("called live: ")


class Files:
    """The files of a workspace. It stores when they are read."""

    def __init__(self) -> None:
        self.times: list[float] = []

    async def take_snapshot(self) -> None:
        self.times.append(time.perf_counter())

    async def changes_since(self, since: None) -> tuple[()]:
        self.times.append(time.perf_counter())
        return ()


def test_the_latency_does_not_include_the_comparison_of_files():
    files: Any = Files()

    async def send(message: UserMessage) -> Reply:
        files.times += [time.perf_counter(), time.perf_counter()]
        return Reply("hi")

    tracked = wrap_with_file_tracking(send, make_trial_state("hi"), files)
    found = asyncio.run(_sent(tracked, UserMessage(Message("user", "x")))).elapsed_ms
    before, began, ended, after = files.times
    assert found is not None
    assert (ended - began) * 1e3 <= found <= (after - before) * 1e3


@pytest.mark.parametrize(
    ("attempts", "kept"),
    [
        (["passes"], [False]),
        (["fails"], [True]),
        (["breaks", "breaks"], [False, True]),
        (["breaks", "passes"], [False, False]),
        (["is misused"], [True]),  # a deterministic error has no second attempt
    ],
)
def test_the_workspace_is_kept_if_the_trial_did_not_pass(tmp_path: Path, attempts: list[str], kept: list[bool]):
    """P5: that of an attempt that is tried again is not."""
    folders: list[Path] = []

    def agent(messages: list[Any], options: dict[str, Any]) -> str:
        folders.append(Path(options["workspace"]))
        if (now := attempts[len(folders) - 1]) == "breaks":
            raise Unreachable("connection refused")
        if now == "is misused":
            raise Unreachable("no such command", deterministic=True)
        (folders[-1] / now).touch()
        return "hi"

    written = case(assertions=[{"type": "file_exists", "path": "passes"}])
    record = one(written, agent=agent, folder=tmp_path, workspace="empty", retry_faults=1)
    assert [folder.is_dir() for folder in folders] == kept
    assert record.workspace == (str(folders[-1]) if kept[-1] else None)


def test_an_unreachable_agent_is_an_infra_error():
    def agent(messages: list[Any]) -> str:
        raise Unreachable("connection refused")

    record = one(case(), agent=agent)
    assert (record.status, record.fault, record.error) == ("error", "infra", "agent error: connection refused")  # N17


class Breaking:
    """An agent that raises while a part of it runs."""

    part = ""

    def __init__(self) -> None:
        self._break_in("__init__")

    def reply(self, message: str) -> str:
        self._break_in("reply")
        return message

    def close(self) -> None:
        self._break_in("close")

    def _break_in(self, part: str) -> None:
        if part == self.part:
            raise ValueError(part)


@pytest.mark.parametrize("part", ["__init__", "reply", "close"])
def test_an_error_of_an_agents_code_keeps_its_traceback_also_outside_of_a_turn(part: str, tmp_path: Path):
    """N38: while the session is opened or closed too; and once only."""
    breaking = type("Breaking", (Breaking,), {"part": part})
    record = one(case(), agent=breaking, record=tmp_path / "c.cassette")
    assert (record.status, record.error) == ("failed", f"agent error: ValueError: {part}")
    assert [(each.where, each.error, each.turn) for each in record.tracebacks] == [
        ("agent", f"ValueError: {part}", 1 if part == "reply" else None)
    ]
    if part != "close":  # a cassette holds no error of closing
        assert one(case(), agent=breaking, replay=tmp_path / "c.cassette").tracebacks == record.tracebacks


def test_a_check_that_hangs_is_not_the_agents_failure(tmp_path: Path):
    """The case timed out in a script check, after the agent had replied."""
    (tmp_path / "slow_check.py").write_text("import time\ndef f(output):\n    time.sleep(60)\n", encoding="utf-8")
    record = one(case(assertions=[{"type": "script", "use": "slow_check:f"}], timeout="400ms"), folder=tmp_path)
    assert record.status == "error", record  # N17
    assert record.fault != "agent"
    assert "timeout after 400ms" in (record.error or "")


def test_options_of_the_command_line_override_all_others(tmp_path: Path):
    (tmp_path / "viva.toml").write_text(
        '[connectors.one]\nmodel = "m"\n[connectors.two]\nmodel = "m"\n[agents.a]\nuse = "python:./a.py:agent"\noptions = { connector = "agents own" }\n',
        encoding="utf-8",
    )
    (tmp_path / "a.py").write_text("def agent(messages, options):\n    return {'data': options}\n", encoding="utf-8")
    written = {
        "id": "c",
        "options": {"connector": "cases own"},
        "turns": [{"input": "x"}, {"input": "y", "options": {"connector": "turns own"}}],
    }
    plain = one(written, agent="a", folder=tmp_path)
    assert [turn.data["connector"] for turn in plain.turns] == ["cases own", "turns own"]  # N20
    flagged = one(written, agent="a", folder=tmp_path, connector="two")
    assert [turn.data["connector"] for turn in flagged.turns] == ["two", "two"]


def test_each_trial_has_one_session_of_its_own():
    def agent(messages: list[Any], options: dict[str, Any]) -> dict[str, Any]:
        return {"content": "hi", "data": options["session_id"]}

    turns = [{"input": "hi", "assertions": HI}, {"input": "hi"}]
    records = run(case("a", turns=turns), case("b", turns=turns), agent=agent, runs=2)
    ids = [{turn.data for turn in record.turns} for record in records]
    assert all(len(each) == 1 for each in ids)  # N19
    assert len(set.union(*ids)) == 4
    assert [(record.id, record.trial) for record in records] == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]  # N33


def test_cases_run_in_parallel_and_turns_do_not():
    busy: dict[str, int] = {}
    most = {"turns": 0, "cases": 0}
    both = threading.Barrier(2, timeout=300)

    def agent(messages: list[Any], session_id: str) -> str:
        busy[session_id] = busy.get(session_id, 0) + 1
        most["turns"] = max(most["turns"], busy[session_id])
        if len(messages) == 1:
            both.wait()
            most["cases"] = 2
        busy[session_id] -= 1
        return "hi"

    turns = [{"input": "hi", "assertions": HI}] * 3
    run(case("a", turns=turns), case("b", turns=turns), agent=agent, parallel=2)
    assert most == {"turns": 1, "cases": 2}  # N19


def test_fail_fast_cancels_running_trials():
    cancelled: list[str] = []
    running = 0

    async def agent(messages: list[Any]) -> str:
        nonlocal running
        if messages[-1]["content"] == "fail":
            while running < 2:  # until the others are running
                await asyncio.sleep(0)
            return "no"
        running += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(messages[-1]["content"])
            raise
        return "hi"

    cases = [case("a", input="slow 1"), case("b", input="fail"), case("c", input="slow 2"), case("d", input="later")]
    result = run_cases(cases, agent, parallel=3, fail_fast=True, history=False)
    assert [record.id for record in result.records()] == ["b"]  # N19
    assert sorted(cancelled) == ["slow 1", "slow 2"]
    assert (result.summary.failed, result.summary.not_run, result.exit_code) == (1, 3, 1)


@pytest.mark.parametrize(
    ("action", "status"), [(None, "passed"), ("skip", "skipped"), ("fail", "failed"), ("end", "passed")]
)
def test_on_missing_input_decides_when_the_agent_still_awaits_input(action: str | None, status: str):
    agent = lambda messages: {"content": "hi", "awaiting_input": True}  # noqa: E731
    own = {} if action is None else {"on_missing_input": action}
    record = one(case(**own), agent=agent)
    assert record.status == status  # N11
    assert (record.error is None) == (status == "passed")


def test_a_closing_offer_does_not_count_as_awaiting():
    """The task is done, although the agent offers more help."""
    agent = lambda messages: "Your hi is booked. Is there anything else I can help you with?"  # noqa: E731
    record = one(case(on_missing_input="fail"), agent=agent)
    assert record.turns[0].awaiting_reason == "closing_offer"  # N22
    assert record.status == "passed"


def test_negate_weight_and_message_are_in_the_record():
    written = [
        {"type": "contains", "value": "hi", "weight": 3},
        {"type": "contains", "value": "hi", "negate": True, "weight": 1, "message": "it must not greet"},
    ]
    record = one(case(assertions=written))
    assert record.status == "failed"  # N24
    assert record.score == 0.75
    assert record.assertion_errors is not None
    assert record.assertion_errors[0].startswith("it must not greet: ")


def test_usage_is_summed_and_an_unknown_price_stays_unknown():
    def agent(messages: list[Any]) -> dict[str, Any]:
        priced = {"input_tokens": 10, "output_tokens": 5, "cost_usd": 0.25}
        return {"content": "hi", "usage": priced if len(messages) == 1 else {"input_tokens": 1}}

    first = one(case(), agent=agent)
    assert first.usage is not None
    assert (first.usage.input_tokens, first.usage.output_tokens, first.cost_usd) == (10, 5, 0.25)
    both = one(case(turns=[{"input": "hi", "assertions": HI}, {"input": "hi"}]), agent=agent)
    assert both.usage is not None
    assert (both.usage.calls, both.usage.input_tokens, both.cost_usd) == (2, 11, None)


def test_a_long_conversation_costs_linear_time():
    """Two hundred turns take about ten times as long as twenty, and not a hundred times."""

    async def agent(messages: list[Any]) -> str:
        return "hi"

    def took(turns: int) -> float:
        written = case(turns=[{"input": "hi " * 20, "assertions": HI}] * turns, max_turns=1000)
        began = time.process_time()
        assert one(written, agent=agent).total_turns == turns
        return time.process_time() - began

    took(20)
    base = min(took(100) for _ in range(3))
    assert min(took(800) for _ in range(2)) < 30 * base


def test_a_record_has_the_options_metadata_and_history_of_its_case():
    """As written, so that a case can be built from its record; absent if the case has none."""
    line = {"input": "hi", "options": {"draft": True}, "assertions": HI}
    record = one(case(turns=[line, {"input": "hi"}], options={"locale": "en"}, metadata={"owner": "me"}))
    assert (record.options, record.metadata) == ({"locale": "en"}, {"owner": "me"})
    assert [turn.options for turn in record.turns] == [{"draft": True}, None]
    before = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    assert one(case(input=[*before, {"role": "user", "content": "hi"}])).history == before
    assert not {"options", "metadata", "history"} & codec.to_plain(one(case())).keys()


def test_a_fault_has_evidence():
    """Every trial that did not pass names the checks, turns and checkpoints that caused it."""

    def refuses(messages: list[Any]) -> str:
        raise Unreachable("connection refused")

    def breaks(messages: list[Any]) -> str:
        raise ValueError("no such tool")

    passed = one(case())
    assert passed.fault_evidence is None
    failed = one(case(turns=[{"input": "hi"}, {"input": "bye", "assertions": HI}]))
    assert (failed.fault, failed.fault_evidence) == (
        "agent",
        ['turn 2: contains "hi": "hi" is not in "bye"'],
    )  # N17
    down = one(case(), agent=refuses, retry_faults=0)
    assert (down.fault, down.fault_evidence) == ("infra", ["turn 1: agent error: connection refused"])
    raised = one(case(), agent=breaks)
    assert raised.fault == "agent"
    assert raised.fault_evidence == ["turn 1: agent error: ValueError: no such tool"]
    broken = one(case(final_assertions={"type": "snapshot", "path": "none.txt"}))
    assert broken.fault == "undetermined"
    assert broken.fault_evidence is not None
    assert broken.fault_evidence[0].startswith("in the end: snapshot")


class CancellingAgent:
    """A plugin that raises a stray CancelledError."""

    provides: frozenset[Feature] = frozenset()

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator["CancellingAgent"]:
        yield self

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        if message.text == "hi":
            return Reply("hi")
        raise asyncio.CancelledError


class Live:
    """A live sink that stores the names of the trials that start."""

    live = True

    def __init__(self) -> None:
        self.started: list[str] = []

    def receive(self, events: Sequence[Event]) -> None:
        self.started += [event.name for event in events if isinstance(event, TrialStarted)]


@pytest.mark.parametrize(("name", "shown"), [("", "c"), ("Order a book", "Order a book")])
def test_a_live_view_names_a_case_by_its_id_if_it_has_no_name(name: str, shown: str):
    live, redactor, agent = Live(), Redactor(), ConfiguredAgent(name="", agent=Stuck("open"), kind="object")
    run_context = RunContext(
        run_id="r",
        agents={"": agent},
        http=HttpTransport(),
        helpers=NoHelpers(),
        bus=EventBus((), [live]),
        redactor=redactor,
        cassette=CassetteMode(AllRunOptions(inputs=()), redactor, {}, is_worker=False),
    )
    limits = Limits(timeout_s=0.01)
    asyncio.run(run_trial(run_context, PlannedTrial(Case(id="c", name=name, user=SilentUser(), limits=limits), 0)))
    assert live.started == [shown]


def test_a_stray_cancellation_of_a_plugin_ends_its_own_trial_only():
    broken, fine = run(case(input="go"), case("d"), agent=CancellingAgent(), parallel=1, retry_faults=0)
    assert (broken.status, broken.fault, fine.status) == ("failed", "agent", "passed")  # N17
