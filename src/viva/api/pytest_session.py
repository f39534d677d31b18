"""Viva for pytest: a loop in a thread, trials of suites, the fixtures `viva`, `t` and `ctx`."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

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
from viva.session.hooks import add_hooks
from viva.session.loop import LoopThread
from viva.session.messages import AgentReply, AttachmentInput, MessageInput, build_agent_reply
from viva.session.run import RunResult, create_run_context
from viva.session.run_options import RunOptions
from viva.session.run_plan import build_run_plan
from viva.session.script_context import create_context
from viva.session.script_tests import UNCHECKED_HINT
from viva.session.tester import T, collect_results
from viva.users.script import Script

_INTERRUPTED = 2


class PytestSession:
    """Shared by all tests of a pytest session. `agent` is the default agent under test; `evaluator` grades playbooks."""

    def __init__(self, agent: str | None = None, evaluator: str | None = None) -> None:
        self.agent = agent
        self._evaluator = evaluator
        self.loop = LoopThread()
        self._projects: dict[Path, Project] = {}
        self._suites: list[LoadedSuite] = []

    def find_project(self, folder: Path) -> Project:
        if folder not in self._projects:
            self._projects[folder] = Project.load(None, folder)
        return self._projects[folder]

    def load_suite(self, file: Path, folder: Path) -> "LoadedSuite":
        """The cases of a file. Messages show paths relative to `folder`. Raises BadInput."""
        options = RunOptions(
            inputs=(str(file),),
            agent=self.agent,
            evaluator=self._evaluator,
            config=find_config(file.parent.resolve()),
            folder=folder,
            history=False,
        )
        suite = self.loop.run_blocking(_load_suite(options))
        self._suites.append(suite)
        return suite

    def run_trial(self, suite: "LoadedSuite", planned: PlannedTrial) -> TrialRecord:
        return self.loop.run_blocking(run_trial(suite.run_context, planned))

    def close(self) -> None:
        for owner in (*self._projects.values(), *(suite.run_context for suite in self._suites)):
            self.loop.run_blocking(owner.http.close())
        self.loop.close()


class LoadedSuite(Struct, frozen=True):
    """The trials of a file, grouped by case."""

    run_context: RunContext
    trials: list[list[PlannedTrial]]


async def _load_suite(options: RunOptions) -> LoadedSuite:
    plan = await build_run_plan(options)
    run_context = create_run_context(plan, f"pytest-{secrets.token_hex(2)}", EventBus((), ()))
    run_context, _hooks = add_hooks(run_context)
    trials: list[list[PlannedTrial]] = []
    async for planned in plan.iterate_trials():
        if planned.trial == 1:
            trials.append([])
        trials[-1].append(planned)
    return LoadedSuite(run_context, trials)


class TestContext:
    """`t` and `ctx` of one test that pytest runs."""

    def __init__(self, session: PytestSession, name: str, folder: Path, function: Callable[..., Any]) -> None:
        project = session.find_project(folder)
        case = Case(id=name, user=Script(()), sessions="each_message")
        self._state = state = project.create_state(case, f"viva-{secrets.token_hex(4)}")
        self._redact = project.redactor.redact_text
        caller = project.create_caller(state, session.agent)

        async def send(message: UserMessage) -> AgentReply:
            turn = Turn(len(state.turns) + 1, message)
            state.turns.append(turn)
            await run_turn(state, turn, caller.send)
            assert turn.reply is not None
            return build_agent_reply(turn.reply, turn.awaiting, turn.latency_ms)

        self.t = T(state, session.loop.run_blocking)
        self.ctx = create_context(function, send, session.loop.bridge, state.variables)

    @property
    def log_text(self) -> str:
        return self._redact("\n".join(self._state.notes))

    @property
    def unchecked_reason(self) -> str | None:
        """Why a test that recorded nothing does not pass, as in `viva test`."""
        return None if count_checks(self._state) else f"{UNCHECKED_MESSAGE}. {UNCHECKED_HINT}"

    def format_failures(self) -> str | None:
        """The assertions that failed or could not be evaluated, with the conversation; None if there are none."""
        failed = [result for result in collect_results(self._state) if not result.verdict.passed]
        return self._redact(format_failed_assertions(failed, self._state)) if failed else None


class VivaFixture:
    """The fixture `viva`: runs suites, opens conversations, and has all names of the module `viva`.

    def test_refund(viva):
        chat = viva.chat("assistants.support", timeout="30s")
        reply = chat.say("I want my money back")
        chat.expect(viva.check.contains("order number"), viva.check.tool_not_called("refund"))
        chat.judge("The assistant stays polite")

    def test_suite(viva):
        assert viva.run("cases/refund.jsonl").passed
    """

    def __init__(self, session: PytestSession, folder: Path) -> None:
        self._session = session
        self._folder = folder
        self._chats: list[SyncConversation] = []

    def run(self, inputs: RunInputs, agent: Any = None, **options: Any) -> RunResult:
        """As `viva.run`, with paths and config relative to the test's folder, and without history."""
        keywords: dict[str, Any] = {"history": False, "folder": self._folder, **options}
        result = run(inputs, agent if agent is not None else self._session.agent, **keywords)
        if result.exit_code == _INTERRUPTED:
            raise KeyboardInterrupt  # the run has handled the signal, which was meant for pytest
        return result

    def chat(
        self,
        agent: Any = None,
        *,
        options: Mapping[str, Any] | None = None,
        history: MessageInput = (),
        timeout: str | float | None = None,
    ) -> "SyncConversation":
        """Open a conversation, which is closed at the end of the test."""
        agent = agent if agent is not None else self._session.agent
        conversation = Conversation(agent, options=options, history=history, timeout=timeout, folder=self._folder)
        chat = SyncConversation(self._session.loop, conversation)
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
        self._requests: asyncio.Queue[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]] | None] = asyncio.Queue()
        self._task = self._loop.run_blocking(self._open())

    def say(
        self,
        message: MessageInput,
        *,
        attachments: Sequence[AttachmentInput] = (),
        options: Mapping[str, Any] | None = None,
        timeout: str | float | None = None,
    ) -> AgentReply:
        """Send a message and return the reply."""
        __tracebackhide__ = True
        say = self._conversation.say
        return self._run(lambda: say(message, attachments=attachments, options=options, timeout=timeout))

    def expect(self, *assertions: Mapping[str, Any], scope: TurnScope = "turn") -> None:
        """Check assertions on the last reply: `chat.expect(viva.check.contains("Hello"))`."""
        __tracebackhide__ = True
        self._conversation.expect(*assertions, scope=scope)

    def judge(self, criteria: str | Mapping[str, Any], **options: Any) -> Verdict:
        """Ask a judge: `chat.judge("The reply is polite", votes=3)`."""
        __tracebackhide__ = True
        judge = self._conversation.judge
        return self._run(lambda: judge(criteria, **options))

    @property
    def messages(self) -> list[Message]:
        """All messages so far, including the history."""
        return self._conversation.messages

    @property
    def transcript(self) -> str:
        """The conversation so far, as readable text."""
        return self._conversation.transcript

    def close(self) -> None:
        self._loop.run_blocking(self._close())

    async def _open(self) -> "asyncio.Future[None]":
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(self._serve_requests(opened))
        await asyncio.wait((opened, task), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task  # raises why it could not be opened
        return task

    async def _serve_requests(self, opened: "asyncio.Future[None]") -> None:
        """All in one task: an agent session may hold a context that only the task which entered it can exit."""
        async with self._conversation:
            opened.set_result(None)
            while (request := await self._requests.get()) is not None:
                work, future = request
                try:
                    result, error = await work(), None
                except Exception as raised:  # passed on to the caller
                    result, error = None, raised
                if future.cancelled():
                    continue  # the caller no longer waits
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(result)

    async def _close(self) -> None:
        self._requests.put_nowait(None)
        await self._task

    def _run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        __tracebackhide__ = True

        async def request() -> Any:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._requests.put_nowait((work, future))
            return await future

        return self._loop.run_blocking(request())
