"""The only way to a simulator, judge, generator or reporter.

A helper is an ordinary agent. Here it gets its metadata, whom we wait for is noted (a time-out is charged to the one
who hung), a reply that cannot be used is asked for once more with the reason, and after that it is the helper's fault.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from msgspec import UNSET, structs

from viva.engine.sending import NamedAgent, merge_options
from viva.errors import CallCutOff, HelperFailed, NotRecorded, Role, TrialEnd, TrialFault
from viva.model.case import Key
from viva.model.connector import Connector
from viva.model.message import Message, ModelCall, Reply
from viva.model.progress import CallProgress, LoopLag
from viva.protocols import AgentSession, Meter, SessionContext, Transport, WorkspaceFactory
from viva.state.trial_state import TrialState, WaitingFor, reply_text
from viva.text.duration import format_duration

T = TypeVar("T")
_MODES: dict[Role, str] = {"judge": "validator"}
_NOT_ITS_FAULT = (HelperFailed, NotRecorded, TrialEnd)
"""Already charged to somebody, or to nobody: what is raised as it is."""


class HelperPool:
    """Opens helpers by name. `find` knows every agent of the config and the built-in ones."""

    def __init__(
        self,
        find: Callable[[str, Role], NamedAgent],
        http: Transport,
        connectors: Mapping[str, Connector],
        meter: Meter | None = None,
        spare_workspaces: WorkspaceFactory | None = None,
    ) -> None:
        self._find = find
        self._http = http
        self._connectors = connectors
        self._meter = meter
        self._spare_workspaces = spare_workspaces

    @asynccontextmanager
    async def open(
        self, role: Role, agent: str, state: TrialState | None = None, options: Mapping[str, Any] | None = None
    ) -> AsyncGenerator["_Asked"]:
        def meter(call: ModelCall) -> None:
            if state is not None:
                state.calls.append(call)
            if self._meter is not None:
                self._meter(call)

        found = self._find(agent, role)
        case = {"metadata": state.case.metadata} if state is not None and state.case.metadata else {}
        given = merge_options({"skip": {"history": True}, "referer": "agent-test"}, found.options, case, options or {})
        metadata = {**given.pop("metadata", {}), "test_mode": _MODES.get(role, role)}
        if state is not None:
            metadata["test_id"] = state.case.id
        progress = CallProgress(agent, lag=state.progress.lag if state else LoopLag())
        context = SessionContext(
            key=state.key if state else Key("", ""),
            role=role,
            options=given,
            meter=meter,
            http=self._http,
            progress=progress,
            connectors=self._connectors,
            empty_workspaces=self._spare_workspaces,
            conversation=state.messages if state else None,
            prior_count=len(state.case.history) if state else 0,
        )
        opened = False
        try:
            helper = found.agent
            async with helper.open(context) as session:
                opened = True
                yield _Asked(
                    role,
                    session,
                    state,
                    progress,
                    context.options,
                    metadata,
                    may_repeat=getattr(helper, "may_repeat", False),
                    must_quote=getattr(helper, "must_quote", False),
                )
        except TrialFault as fault:
            if opened or isinstance(fault, _NOT_ITS_FAULT):
                raise
            raise HelperFailed(role, fault.message, deterministic=fault.deterministic) from fault


@asynccontextmanager
async def helper_time_limit(role: Role, timeout_s: float) -> AsyncGenerator[None]:
    """For a helper outside of any trial: taking longer is its fault. So it is in the replay of a call that was cut off."""
    limit = asyncio.timeout(timeout_s)
    said = f"timeout after {format_duration(timeout_s)}"
    try:
        async with limit:
            yield
    except CallCutOff:
        raise HelperFailed(role, said) from None
    except TimeoutError:
        if not limit.expired():
            raise
        raise HelperFailed(role, said) from None


def _about(state: TrialState | None) -> dict[str, Any]:
    """What every helper is told beside the conversation; the turn is the one that comes next, unless it is told otherwise."""
    if state is None:
        return {}
    number, last = len(state.turns) + 1, state.last_turn
    calls = [call for turn in state.turns if turn.reply for call in turn.reply.tool_calls]
    return {
        "turn_number": number,
        "turn_count": number,
        "max_turns": state.case.limits.total_turns,
        "last_response": reply_text(last.reply) if last and last.reply else "",
        "tool_results": {call.name: call.result for call in calls if call.result is not UNSET},
        "session_id": state.session_id,
    }


class _Asked:
    """One helper in one session."""

    def __init__(
        self,
        role: Role,
        session: AgentSession,
        state: TrialState | None,
        progress: CallProgress,
        options: Mapping[str, Any],
        metadata: Mapping[str, Any],
        *,
        may_repeat: bool,
        must_quote: bool,
    ) -> None:
        self.may_repeat = may_repeat
        self.must_quote = must_quote
        self._role: Role = role
        self._session = session
        self._state = state
        self._progress = progress
        self._options = options
        self.metadata = metadata

    async def ask(self, text: str, parse: Callable[[Reply], T], metadata: Mapping[str, Any] | None = None) -> T:
        options = {**self._options, "metadata": {**_about(self._state), **self.metadata, **(metadata or {})}}
        reply = await self._send(text, options)
        try:
            return parse(reply)
        except ValueError as unusable:
            problem = str(unusable)
        options = {**options, "metadata": {**options["metadata"], "problem": problem}}
        again = f"{text}\n\nYour last answer cannot be used: {problem}. Answer again, in the form that was asked for."
        reply = await self._send(again, options)
        try:
            return parse(reply)
        except ValueError as still:
            raise HelperFailed(self._role, str(still)) from still

    async def _send(self, text: str, options: Mapping[str, Any]) -> Reply:
        self._progress.reset()
        with self._waited_for():
            try:
                return await self._session.send(Message("user", text), options)
            except _NOT_ITS_FAULT:
                raise
            except TrialFault as fault:
                raise HelperFailed(self._role, fault.message, deterministic=fault.deterministic) from fault

    def _keep_remarks(self, state: TrialState) -> None:
        progress, role = self._progress, self._role
        state.tracebacks += (structs.replace(each, where=role) for each in progress.tracebacks)
        state.warnings += (f"{role}: {each}" for each in progress.warnings)

    @contextmanager
    def _waited_for(self) -> Generator[None]:
        """Until the last of those who are asked at the same time has answered, we wait for this role."""
        state = self._state
        if state is None:
            yield
            return
        before: WaitingFor = "agent" if state.waiting_for == self._role else state.waiting_for
        state.waiting_for = self._role
        if not state.active_helpers:
            state.helper_trouble = None
        state.active_helpers += 1
        try:
            yield
        except BaseException:
            state.active_helpers -= 1  # whom we waited for when it went wrong is what a time-out wants to know
            state.helper_trouble = self._progress.provider_trouble or state.helper_trouble
            self._keep_remarks(state)
            raise
        self._keep_remarks(state)
        state.active_helpers -= 1
        if not state.active_helpers:
            state.waiting_for = before
