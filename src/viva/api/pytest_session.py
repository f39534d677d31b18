"""The sync side of Viva, for test runners: a loop in a thread, conversations, `t` and `ctx`, and single trials."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

import viva
from viva.api.conversation import Conversation
from viva.api.failure_text import format_failed_assertions
from viva.api.project import Project
from viva.api.run import RunInputs, run
from viva.config import find_config
from viva.engine.conversation import run_turn
from viva.engine.event_bus import EventBus
from viva.engine.outcome import UNCHECKED_MESSAGE, count_checks
from viva.engine.trial import RunContext, run_trial
from viva.model.case import Case, TurnScope, UserMessage
from viva.model.message import Message
from viva.model.record import TrialRecord
from viva.model.turn import Turn, Verdict
from viva.protocols import PlannedTrial
from viva.session.hooks import ProjectHooks
from viva.session.loop_bridge import LoopThread
from viva.session.messages import AgentReply, AttachmentInput, MessageInput, build_agent_reply
from viva.session.options import RunOptions
from viva.session.run import RunResult, create_run_context
from viva.session.run_plan import build_run_plan
from viva.session.script_context import create_context
from viva.session.script_tests import UNCHECKED_HINT
from viva.session.tester import T, collect_results
from viva.users.script import Script

_INTERRUPTED = 2


class PytestSession:
    """What all tests of a session share. `agent` is the one under test where a test names none; `evaluator` grades playbooks."""

    def __init__(self, agent: str | None = None, evaluator: str | None = None) -> None:
        self.agent = agent
        self._evaluator = evaluator
        self.loop = LoopThread()
        self._around: dict[Path, Project] = {}
        self._suites: list[LoadedSuite] = []

    def find_project(self, folder: Path) -> Project:
        if folder not in self._around:
            self._around[folder] = Project.load(None, folder)
        return self._around[folder]

    def load_suite(self, file: Path, folder: Path) -> "LoadedSuite":
        """The cases of a file, checked and ready; paths are shown as seen from `folder`. Raises BadInput."""
        asked = RunOptions(
            inputs=(str(file),),
            agent=self.agent,
            evaluator=self._evaluator,
            config=find_config(file.parent.resolve()),
            folder=folder,
            history=False,
        )
        opened = self.loop.run_blocking(_opened(asked))
        self._suites.append(opened)
        return opened

    def run_trial(self, suite: "LoadedSuite", planned: PlannedTrial) -> TrialRecord:
        return self.loop.run_blocking(run_trial(suite.run_context, planned))

    def close(self) -> None:
        for opened in (*self._around.values(), *(suite.run_context for suite in self._suites)):
            self.loop.run_blocking(opened.http.close())
        self.loop.close()


class LoadedSuite(Struct, frozen=True):
    """The cases of a file, each with its trials, and what they share."""

    run_context: RunContext
    trials: list[list[PlannedTrial]]


async def _opened(asked: RunOptions) -> LoadedSuite:
    prepared = await build_run_plan(asked)
    run_context = create_run_context(prepared, f"pytest-{secrets.token_hex(2)}", EventBus((), ()))
    run_context = structs.replace(run_context, hooks=ProjectHooks(run_context))
    trials: list[list[PlannedTrial]] = []
    async for planned in prepared.iterate_trials():
        if planned.trial == 1:
            trials.append([])
        trials[-1].append(planned)
    return LoadedSuite(run_context, trials)


class TestContext:
    """`t` and `ctx` of one test that a runner other than ours runs."""

    def __init__(self, studio: PytestSession, name: str, folder: Path, function: Callable[..., Any]) -> None:
        around = studio.find_project(folder)
        case = Case(id=name, user=Script(()), sessions="each_message")
        self._state = state = around.create_state(case, f"viva-{secrets.token_hex(4)}")
        self._redact = around.redactor.redact_text
        calls = around.create_calls(state, studio.agent)

        async def ask(line: UserMessage) -> AgentReply:
            turn = Turn(len(state.turns) + 1, line)
            state.turns.append(turn)
            await run_turn(state, turn, calls.send)
            assert turn.reply is not None
            return build_agent_reply(turn.reply, turn.awaiting, turn.latency_ms)

        self.t = T(state, studio.loop.run_blocking)
        self.ctx = create_context(function, ask, studio.loop.bridge, state.variables)

    @property
    def log_text(self) -> str:
        return self._redact("\n".join(self._state.notes))

    @property
    def unchecked_reason(self) -> str | None:
        """What is said of a test that noted nothing: as in a run of ours, it does not pass."""
        return None if count_checks(self._state) else f"{UNCHECKED_MESSAGE}. {UNCHECKED_HINT}"

    def format_failures(self) -> str | None:
        """What does not hold, or could not be evaluated, with the conversation; None if all is well."""
        unmet = [each for each in collect_results(self._state) if not each.verdict.passed]
        return self._redact(format_failed_assertions(unmet, self._state)) if unmet else None


class VivaFixture:
    """The fixture `viva`: runs suites, holds conversations, and has all names of the module `viva` as well.

    def test_refund(viva):
        chat = viva.chat("assistants.support", timeout="30s")
        reply = chat.say("I want my money back")
        chat.expect(viva.contains("order number"), viva.tool_not_called("refund"))
        chat.judge("The assistant stays polite")

    def test_suite(viva):
        assert viva.run("cases/refund.jsonl").passed
    """

    def __init__(self, studio: PytestSession, folder: Path) -> None:
        self._studio = studio
        self._folder = folder
        self._chats: list[SyncConversation] = []

    def run(self, inputs: RunInputs, agent: Any = None, **options: Any) -> RunResult:
        """As `viva.run`, with paths and config as seen from the test's own folder, and nothing left in `.viva`."""
        asked: dict[str, Any] = {"history": False, "folder": self._folder, **options}
        result = run(inputs, agent if agent is not None else self._studio.agent, **asked)
        if result.exit_code == _INTERRUPTED:
            raise KeyboardInterrupt  # the run took it for itself, but all tests were meant
        return result

    def chat(
        self,
        agent: Any = None,
        *,
        options: Mapping[str, Any] | None = None,
        history: MessageInput = (),
        timeout: str | float | None = None,
    ) -> "SyncConversation":
        """Opens a conversation, which ends with the test."""
        asked = agent if agent is not None else self._studio.agent
        held = Conversation(asked, options=options, history=history, timeout=timeout, folder=self._folder)
        chat = SyncConversation(self._studio.loop, held)
        self._chats.append(chat)
        return chat

    def close(self) -> None:
        for chat in self._chats:
            chat.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(viva, name)


class SyncConversation:
    """A `viva.Conversation` for code that cannot await."""

    def __init__(self, loop: LoopThread, conversation: Conversation) -> None:
        self._loop = loop
        self._conversation = conversation
        self._asked: asyncio.Queue[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]] | None] = asyncio.Queue()
        self._holding = self._loop.run_blocking(self._open())

    def say(
        self,
        message: MessageInput,
        *,
        attachments: Sequence[AttachmentInput] = (),
        options: Mapping[str, Any] | None = None,
        timeout: str | float | None = None,
    ) -> AgentReply:
        """Says something, and gives the agent's reply."""
        __tracebackhide__ = True
        say = self._conversation.say
        return self._done(lambda: say(message, attachments=attachments, options=options, timeout=timeout))

    def expect(self, *assertions: Mapping[str, Any], scope: TurnScope = "turn") -> None:
        """Every one of these holds of the last reply: `chat.expect(viva.contains("Hello"))`."""
        __tracebackhide__ = True
        self._conversation.expect(*assertions, scope=scope)

    def judge(self, criteria: str | Mapping[str, Any], **asked: Any) -> Verdict:
        """A judge agrees: `chat.judge("The reply is polite", votes=3)`."""
        __tracebackhide__ = True
        judge = self._conversation.judge
        return self._done(lambda: judge(criteria, **asked))

    @property
    def messages(self) -> list[Message]:
        """All that was said so far, the history included."""
        return self._conversation.messages

    @property
    def transcript(self) -> str:
        """The conversation so far, as text for people."""
        return self._conversation.transcript

    def close(self) -> None:
        self._loop.run_blocking(self._close())

    async def _open(self) -> "asyncio.Future[None]":
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        holding = asyncio.ensure_future(self._hold(opened))
        await asyncio.wait((opened, holding), return_when=asyncio.FIRST_COMPLETED)
        if holding.done():
            await holding  # it could not be opened: raises why
        return holding

    async def _hold(self, opened: "asyncio.Future[None]") -> None:
        """All in one task: a session of an agent may hold what must be left where it was entered."""
        async with self._conversation:
            opened.set_result(None)
            while (asked := await self._asked.get()) is not None:
                work, answered = asked
                try:
                    value, error = await work(), None
                except Exception as raised:  # it belongs to the one who asked
                    value, error = None, raised
                if answered.cancelled():
                    continue  # who asked no longer waits
                if error is not None:
                    answered.set_exception(error)
                else:
                    answered.set_result(value)

    async def _close(self) -> None:
        self._asked.put_nowait(None)
        await self._holding

    def _done(self, work: Callable[[], Awaitable[Any]]) -> Any:
        __tracebackhide__ = True

        async def ask() -> Any:
            answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._asked.put_nowait((work, answered))
            return await answered

        return self._loop.run_blocking(ask())
