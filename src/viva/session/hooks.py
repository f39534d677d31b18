"""Hooks: functions of the project that are called before and after cases, and before and after the run.

before(ctx, case)               on a case: a dict that it returns sets `{{variables}}`; if it raises, the case is an error
after(ctx, case, result, data)  `data` is what `before` returned; if it raises, the result has a warning
--before before(ctx, cases)     of the run: a dict that it returns sets variables of all cases; if it raises, the run ends
--after  after(ctx, results, data)
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from viva.engine.trial import RunContext
from viva.errors import BadInput, RunStopped, Undetermined
from viva.formats.hooks import AFTER_RUN_ARGUMENTS, BEFORE_RUN_ARGUMENTS, find_hook
from viva.model.case import Hook, Key, UserMessage
from viva.model.message import ModelCall
from viva.model.record import TrialRecord
from viva.model.tracebacks import describe_error, error_place, error_text
from viva.protocols import PlannedTrial
from viva.session.loop_bridge import LoopBridge, run_user_function
from viva.session.messages import AgentReply, build_agent_reply
from viva.session.script_context import create_context
from viva.state.trial_state import TrialState

_NO_KEY = Key("", "")


class ProjectHooks:
    """Calls the hooks of a run and of its cases. `stage` is how they reach agents."""

    def __init__(self, run_context: RunContext, before: Hook | None = None, after: Hook | None = None) -> None:
        self._run_context = run_context
        self._before = before
        self._after = after
        self._data: Any = None
        self._set_up = False

    async def before_run(self, plan: Callable[[], AsyncIterator[PlannedTrial]]) -> None:
        """Hands over all cases that will run. They are held only if somebody wants to see them."""
        if self._before is None:
            self._set_up = True
            return
        cases = [planned.case async for planned in plan() if planned.trial == 1]
        try:
            self._data = await self._called(self._before, None, {}, cases)
        except RunStopped:
            raise
        except Exception as raised:  # the project's own code: without its set-up no case can be held
            raise RunStopped(f"--before {_said(self._before, raised)}") from raised
        self._set_up = True

    async def after_run(self, records: Callable[[], Iterable[TrialRecord]]) -> str | None:
        """Hands over the results of a run whose `before` went well; returns what went wrong with it, if anything did."""
        if self._after is None or not self._set_up:
            return None
        try:
            await self._called(self._after, None, _variables(self._data), list(records()), self._data)
        except Exception as raised:  # the project's own code: what was examined stands
            return f"--after {_said(self._after, raised)}"
        return None

    async def before(self, state: TrialState) -> None:
        state.variables.update(_variables(self._data))
        hook, data = state.case.before, None
        if hook is not None:
            state.waiting_for = "script"
            try:
                data = await self._called(hook, state, state.variables, state.case)
            except RunStopped:
                raise
            except Exception as raised:  # the project's own code: nobody has said anything yet
                state.tracebacks += describe_error(raised, f"before hook {hook.reference}")
                raise Undetermined(f"before {_said(hook, raised)}") from raised
            state.variables.update(_variables(data))
        state.before_result = data

    async def after(self, state: TrialState, record: TrialRecord) -> str | None:
        hook = state.case.after
        if hook is None:
            return None
        try:
            async with asyncio.timeout(state.case.limits.timeout_s):
                await self._called(hook, state, state.variables, state.case, record, state.before_result)
        except RunStopped:
            raise
        except Exception as raised:  # the project's own code: the verdict stands
            state.tracebacks += describe_error(raised, f"after hook {hook.reference}")
            return f"after {_said(hook, raised)}"
        return None

    async def _called(self, hook: Hook, state: TrialState | None, variables: dict[str, Any], *arguments: Any) -> Any:
        bridge = LoopBridge(asyncio.get_running_loop())

        def meter(call: ModelCall) -> None:
            if state is not None:
                state.calls.append(call)
            self._run_context.meter(call)

        key = state.key if state is not None else _NO_KEY
        calls = self._run_context.caller(key, meter, f"viva-{self._run_context.run}-hook", state)

        async def send(line: UserMessage) -> AgentReply:
            return build_agent_reply(await calls.send(line))

        try:
            return await run_user_function(
                hook.function, create_context(hook.function, send, bridge, variables), *arguments
            )
        finally:
            bridge.close()


def resolve_run_hook(given: str | Callable[..., Any] | None, flag: str, roots: Sequence[str]) -> Hook | None:
    """A hook of the run, by reference or as a function. Raises BadInput if it cannot be called as such."""
    if given is None:
        return None
    if callable(given):
        return Hook(getattr(given, "__qualname__", repr(given)), given)
    try:
        return find_hook(given, roots, BEFORE_RUN_ARGUMENTS if flag == "--before" else AFTER_RUN_ARGUMENTS)
    except ValueError as wrong:
        raise BadInput.of(f"{flag} {wrong}") from wrong


def _variables(data: Any) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        return {}
    return {str(name): value for name, value in cast("Mapping[Any, Any]", data).items()}


def _said(hook: Hook, raised: Exception) -> str:
    at = error_place(raised)
    return f"{hook.reference}: {error_text(raised)}" + (f" ({at})" if at else "")
