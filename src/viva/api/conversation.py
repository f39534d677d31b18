"""A conversation with an agent that Python code holds turn by turn, with the same checks as a suite."""

import secrets
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from msgspec import Struct, structs

from viva.api.failure_text import build_partial_record, format_failed_assertions
from viva.api.project import Project
from viva.check import build_assertion
from viva.check import judge as build_judge
from viva.engine.conversation import evaluate_assertion, run_turn
from viva.engine.sending import Send, merge_options, send_in_session
from viva.errors import BadInput, CheckError
from viva.model.case import Assertion, Case, Limits, TurnScope
from viva.model.message import Message
from viva.model.turn import AssertionResult, Turn, Verdict
from viva.protocols import SessionContext
from viva.reporters.plain_text import format_transcript
from viva.session.messages import (
    AgentReply,
    AttachmentInput,
    MessageInput,
    build_agent_reply,
    build_user_message,
    parse_messages,
    parse_timeout,
)
from viva.state.evaluation import evaluate
from viva.state.trial_state import CheckContext, TrialState
from viva.users.script import Script

_TEXT_ROOM = 2000


class _Held(Struct, frozen=True):
    """A conversation that is open."""

    state: TrialState
    send: Send
    around: Project


def _judged_now(assertion: Assertion, context: CheckContext) -> AssertionResult:
    """The verdict of a check that has it at once; TypeError for one that has to wait for somebody."""
    found = None if assertion.check.costly else evaluate(assertion, context)
    if isinstance(found, AssertionResult):
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # it will never be awaited: that is what is said below
        del found
    raise TypeError(f"{assertion.check.label}: has to wait for somebody; use chat.judge(…) for it")


class Conversation:
    """One session with an agent, held by your own code.

        async with viva.Conversation("assistants.expense", timeout="30s") as chat:
            reply = await chat.say("I want to submit an expense")
            chat.expect(viva.contains("type of expense"))
            await chat.say("Travel, 3500 dollars")
            chat.expect(viva.tool_called("submit_expense", arguments={"amount": 3500}), over="case")
            await chat.judge("The assistant confirms the amount")

    The agent is a name from the nearest `viva.toml`, a reference (`python:./agent.py:agent`, `http://…`), a function, an
    object with `reply`, or an Agent; without one, the config's default. `history` was said before; `options` reach the
    agent; `timeout` is for each reply. An agent that breaks raises AgentFailed, one that cannot be reached Unreachable.
    """

    def __init__(
        self,
        agent: Any = None,
        *,
        options: Mapping[str, Any] | None = None,
        history: MessageInput = (),
        config: str | Path | None = None,
        connector: str | None = None,
        timeout: str | float | None = None,
        folder: str | Path | None = None,
    ) -> None:
        self._agent = agent
        self._options = options or {}
        self._history = tuple(parse_messages(history))
        self._config = Path(config) if config is not None else None
        self._connector = connector
        self._timeout_s = parse_timeout(timeout)
        self._folder = Path(folder) if folder is not None else Path.cwd()
        self._exits = AsyncExitStack()
        self._held: _Held | None = None
        self._over = False

    async def __aenter__(self) -> Self:
        around = Project.load(self._config, self._folder, self._connector)
        named = around.agents.find_agent_under_test(self._agent)
        session_id = f"viva-{secrets.token_hex(4)}"
        case = Case(
            id=named.name, user=Script(()), history=self._history, limits=Limits(turn_timeout_s=self._timeout_s)
        )
        state = around.create_state(case, session_id)
        context = SessionContext(
            key=state.key,
            history=self._history,
            options=named.options,
            meter=state.calls.append,
            http=around.http,
            progress=state.progress,
            connectors=around.settings.connectors,
            empty_workspaces=around.empty_workspaces,
        )
        async with AsyncExitStack() as opening:
            opening.push_async_callback(around.http.close)
            session = await opening.enter_async_context(named.agent.open(context))
            self._exits = opening.pop_all()
        base = merge_options({"session_id": session_id, "referer": "agent-test"}, named.options, self._options)
        chosen = {"connector": self._connector} if self._connector else {}
        send = send_in_session(session, merge_options(base, chosen), chosen, case.limits, state.progress)
        self._held = _Held(state, send, around)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        await self._exits.__aexit__(kind, raised, trace)

    async def say(
        self,
        message: MessageInput,
        *,
        attachments: Sequence[AttachmentInput] = (),
        options: Mapping[str, Any] | None = None,
        timeout: str | float | None = None,  # noqa: ASYNC109 -- whose time it is, the agent's, has to be told
    ) -> AgentReply:
        """Says something, and gives the agent's reply: `reply = await chat.say("Hello", attachments=["receipt.png"])`."""
        state = self._opened.state
        if self._over:
            raise RuntimeError("the conversation is over; it can still be read and judged")
        line = build_user_message(message, attachments=attachments, options=options, timeout=timeout)
        if line.history:
            raise BadInput.of("one message at a time; what was said before belongs into `history`")
        turn = Turn(len(state.turns) + 1, structs.replace(line, history=None))
        state.turns.append(turn)
        await run_turn(state, turn, self._opened.send)
        assert turn.reply is not None
        return build_agent_reply(turn.reply, turn.awaiting, turn.latency_ms)

    def expect(self, *assertions: Mapping[str, Any], scope: TurnScope = "turn") -> None:
        """Every one of these holds of the last reply; with `over="case"`, tools and limits of the whole conversation count.

        Raises AssertionError with all that do not hold and the conversation so far, and CheckBroken where one could not
        be evaluated. What a model has to judge cannot be said at once: that is `await chat.judge(…)`.
        """
        __tracebackhide__ = True
        turn = self._last
        built = [self._assertion(each, scope) for each in assertions]
        context = CheckContext(self._opened.state, turn, turn_scope=scope)
        self._settle(turn, [_judged_now(assertion, context) for assertion in built])

    async def judge(
        self,
        criteria: str | Mapping[str, Any],
        *,
        use: str | None = None,
        min_score: float | None = None,
        votes: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        scope: TurnScope = "turn",
    ) -> Verdict:
        """A judge agrees: `await chat.judge("The reply is polite", votes=3)`; or any assertion, `chat.judge(viva.rubric(…))`.

        Gives the verdict with its reason and evidence. Raises as `expect` does; a judge that breaks is CheckBroken.
        """
        __tracebackhide__ = True
        turn = self._last
        if isinstance(criteria, str):
            criteria = build_judge(criteria, use=use, min_score=min_score, votes=votes, metadata=metadata)
        found = await evaluate_assertion(
            self._assertion(criteria, scope), CheckContext(self._opened.state, turn, turn_scope=scope)
        )
        self._settle(turn, [found])
        return found.verdict

    @property
    def messages(self) -> list[Message]:
        """All that was said so far, the history included."""
        return self._opened.state.messages()

    @property
    def transcript(self) -> str:
        """The conversation so far, as text for people."""
        held = self._opened
        return held.around.redactor.redact_text(format_transcript(build_partial_record(held.state), _TEXT_ROOM))

    @property
    def _opened(self) -> _Held:
        if self._held is None:
            raise RuntimeError("the conversation is not open: write `async with viva.Conversation(…) as chat:`")
        return self._held

    @property
    def _last(self) -> Turn:
        last = self._opened.state.last_turn
        if last is None or last.reply is None:
            raise RuntimeError("there is no reply yet: say something first")
        return last

    def _assertion(self, assertion: Mapping[str, Any], over: TurnScope) -> Assertion:
        return build_assertion(assertion, str(self._opened.around.settings.folder), scope=over)

    def _settle(self, turn: Turn, found: list[AssertionResult]) -> None:
        __tracebackhide__ = True
        turn.results += found
        unmet = [each for each in found if not each.verdict.passed]
        if not unmet:
            return
        held = self._opened
        text = held.around.redactor.redact_text(format_failed_assertions(unmet, held.state))
        if any(each.verdict.status == "failed" for each in unmet):
            raise AssertionError(text)
        raise CheckError(text)
