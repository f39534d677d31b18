"""`viva.Conversation`: Python code talks to an agent turn by turn, with the assertions of suites."""

import secrets
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_args

from msgspec import Struct, structs

from viva.api.failure_text import build_partial_record, format_failed_assertions
from viva.api.project import AgentInput, Project, refuse_during_import
from viva.check import AgentFunction, AssertionInput, build_assertion
from viva.engine.conversation import evaluate_assertion, run_turn
from viva.engine.sending import Send, build_session_options, create_session_sender, merge_options
from viva.errors import BadInput, CheckError
from viva.formats.functions import PassedFunctions
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
from viva.session.options.keyword_values import replace_flags_in_error
from viva.state.evaluation import start_evaluation
from viva.state.trial_state import CheckContext, TrialState
from viva.users.script import Script

_MAX_TEXT = 2000
_SCOPES = get_args(TurnScope)


class _OpenConversation(Struct, frozen=True):
    state: TrialState
    send: Send
    project: Project


def _evaluate_without_await(assertion: Assertion, context: CheckContext) -> AssertionResult:
    """The result of an assertion that calls no model. Raises TypeError for an assertion that needs an await."""
    result = None if assertion.check.costly else start_evaluation(assertion, context)
    if isinstance(result, AssertionResult):
        return result
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the coroutine is never awaited; the error below says so
        del result
    raise TypeError(f"{assertion.check.label}: needs an await; use `await chat.judge(…)`")


class Conversation:
    """One session with an agent, controlled by your code.

        async with viva.Conversation("assistants.expense", timeout="30s") as chat:
            reply = await chat.say("I want to submit an expense")
            chat.expect(viva.check.contains("type of expense"))
            await chat.say("Travel, 3500 dollars")
            chat.expect(viva.check.tool_called("submit_expense", arguments={"amount": 3500}), scope="case")
            chat.expect(lambda turn: "3500" in turn.text)
            await chat.judge("The assistant confirms the amount")

    The agent is a name from the nearest `viva.toml`, a reference (`python:./agent.py:agent`, `http://…`), a function, an
    object with `reply`, or an Agent. The default is the agent of the config. `history` are earlier messages, `options`
    go to the agent, `timeout` is the limit for each reply. Raises AgentFailed if the agent fails, Unreachable if it
    cannot be reached.
    """

    def __init__(
        self,
        agent: AgentInput = None,
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
        self._functions = PassedFunctions()
        self._exits = AsyncExitStack()
        self._conversation: _OpenConversation | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        refuse_during_import("viva.Conversation")
        try:
            project = Project.load(self._config, self._folder, self._connector, self._functions)
            agent = project.agents.find_agent_under_test(self._agent)
        except BadInput as error:
            raise replace_flags_in_error(error) from None
        session_id = f"viva-{secrets.token_hex(4)}"
        limits = Limits(turn_timeout_s=self._timeout_s)
        state = project.create_state(
            Case(id=agent.name, user=Script(()), history=self._history, limits=limits), session_id
        )
        context = SessionContext(
            key=state.key,
            history=self._history,
            options=agent.options,
            meter=state.calls.append,
            http=project.http,
            progress=state.progress,
            connectors=project.settings.connectors,
            empty_workspaces=project.empty_workspaces,
        )
        async with AsyncExitStack() as exits:
            exits.push_async_callback(project.http.close)
            session = await exits.enter_async_context(agent.agent.open(context))
            self._exits = exits.pop_all()
        base = merge_options(build_session_options(session_id), agent.options, self._options)
        overrides = {"connector": self._connector} if self._connector else {}
        send = create_session_sender(session, merge_options(base, overrides), overrides, limits, state.progress)
        self._conversation = _OpenConversation(state, send, project)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        await self._exits.__aexit__(kind, error, trace)

    async def say(
        self,
        message: MessageInput,
        *,
        attachments: Sequence[AttachmentInput] = (),
        options: Mapping[str, Any] | None = None,
        timeout: str | float | None = None,  # noqa: ASYNC109 -- charged to the agent, so asyncio.timeout does not do
    ) -> AgentReply:
        """Send a message and return the reply: `reply = await chat.say("Hello", attachments=["receipt.png"])`."""
        conversation = self._open_state
        if self._is_closed:
            raise RuntimeError("the conversation is closed; expect, judge and transcript still work")
        user_message = build_user_message(message, attachments=attachments, options=options, timeout=timeout)
        if user_message.history:
            raise BadInput.of("one message at a time; pass earlier messages as `history` of the Conversation")
        state = conversation.state
        turn = Turn(len(state.turns) + 1, structs.replace(user_message, history=None))
        state.turns.append(turn)
        await run_turn(state, turn, conversation.send)
        assert turn.reply is not None
        return build_agent_reply(turn.reply, turn.awaiting, turn.latency_ms)

    def expect(self, *assertions: AssertionInput, scope: TurnScope = "turn") -> None:
        """Check assertions on the last reply; with `scope="case"`, on tools and limits of the whole conversation.

        An assertion is made by `viva.check`, or is a function of the turn: `chat.expect(lambda turn: turn.awaiting)`.
        Raises AssertionError with all that failed and the conversation so far, and CheckError if one could not be
        evaluated. Assertions that ask a model need `await chat.judge(…)`.
        """
        __tracebackhide__ = True
        if not assertions:
            raise BadInput.of("expect() checks nothing; pass an assertion, such as viva.check.contains('hello')")
        turn = self._last_turn
        checked = [self._build_assertion(assertion, scope) for assertion in assertions]
        context = CheckContext(self._open_state.state, turn, turn_scope=scope, calls_directly=True)
        if error := self._record_results(turn, [_evaluate_without_await(assertion, context) for assertion in checked]):
            raise error

    async def judge(
        self,
        criteria: str | AssertionInput,
        *,
        use: str | AgentFunction | None = None,
        min_score: float | None = None,
        votes: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        scope: TurnScope = "turn",
    ) -> Verdict:
        """Ask a judge: `await chat.judge("The reply is polite", votes=3)`; or check any assertion, such as a rubric.

        `use` names the judge, or is a function of (messages, options) that returns True or False or `{passed, reason}`.
        Returns the verdict with its reason and evidence. Raises as `expect` does; a judge that fails is a CheckError.
        """
        __tracebackhide__ = True
        turn = self._last_turn
        if isinstance(criteria, str):
            options = {"use": use, "min_score": min_score, "votes": votes, "metadata": metadata}
            set_options = {name: value for name, value in options.items() if value is not None}
            criteria = {"type": "judge", "criteria": criteria, **set_options}
        context = CheckContext(self._open_state.state, turn, turn_scope=scope)
        result = await evaluate_assertion(self._build_assertion(criteria, scope), context)
        if error := self._record_results(turn, [result]):
            raise error
        return result.verdict

    @property
    def messages(self) -> list[Message]:
        """All messages so far, including the history."""
        return self._open_state.state.list_messages()

    @property
    def transcript(self) -> str:
        """The conversation so far, as readable text."""
        conversation = self._open_state
        text = format_transcript(build_partial_record(conversation.state), _MAX_TEXT)
        return conversation.project.redactor.redact_text(text)

    @property
    def _open_state(self) -> _OpenConversation:
        if self._conversation is None:
            raise RuntimeError("the conversation is not open: write `async with viva.Conversation(…) as chat:`")
        return self._conversation

    @property
    def _last_turn(self) -> Turn:
        turn = self._open_state.state.last_turn
        if turn is None or turn.reply is None:
            raise RuntimeError("there is no reply yet: call say() first")
        return turn

    def _build_assertion(self, assertion: AssertionInput, scope: TurnScope) -> Assertion:
        __tracebackhide__ = True
        if scope not in _SCOPES:
            raise BadInput.of(f"scope={scope!r} is not {' or '.join(map(repr, _SCOPES))}")
        folder = str(self._open_state.project.settings.folder)
        return build_assertion(assertion, folder, scope=scope, functions=self._functions)

    def _record_results(self, turn: Turn, results: list[AssertionResult]) -> Exception | None:
        """Add results to the turn. Returns the error if one did not pass: the caller raises it, to keep the traceback short."""
        turn.results += results
        failed = [result for result in results if not result.verdict.passed]
        if not failed:
            return None
        conversation = self._open_state
        text = conversation.project.redactor.redact_text(format_failed_assertions(failed, conversation.state))
        is_failure = any(result.verdict.status == "failed" for result in failed)
        return AssertionError(text) if is_failure else CheckError(text)
