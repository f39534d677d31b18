"""Hooks: functions of the project that run before and after a case, and before and after the run.

before(ctx, case)               for a case: a dict that it returns sets `{{variables}}`; if it raises, the case is an error
after(ctx, case, result, data)  `data` is what `before` returned; if it raises, the result has a warning
--before before(ctx, cases)     for the run: a dict that it returns sets variables of all cases; if it raises, the run stops
--after  after(ctx, results, data)
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct, structs

from viva.engine.trial import RunContext
from viva.errors import BadInput, RunStopped, TrialFault, Undetermined, VivaError
from viva.formats.hooks import AFTER_RUN_ARGUMENTS, BEFORE_RUN_ARGUMENTS, create_hook, find_hook
from viva.model.case import Hook, Key, UserMessage
from viva.model.message import ModelCall
from viva.model.record import TrialRecord
from viva.model.tracebacks import build_tracebacks, format_error, format_error_place
from viva.protocols import PlannedTrial
from viva.session.loop import LoopBridge, run_user_function
from viva.session.messages import AgentReply, build_agent_reply
from viva.session.options.run_options import AllRunOptions
from viva.session.scripts.context import create_context
from viva.state.trial_state import TrialState
from viva.text.function_source import describe_function

_NO_TRIAL_KEY = Key("", "")


class RunHooks(Struct, frozen=True):
    """The hooks of `--before` and `--after`."""

    before: Hook | None = None
    after: Hook | None = None


class ProjectHooks:
    """Calls the hooks of a run and of its cases. Hooks call agents through `run_context`; `data` is what `--before` returned."""

    def __init__(self, run_context: RunContext, run_hooks: RunHooks, data: Any) -> None:
        self._run_context = run_context
        self._run_hooks = run_hooks
        self.data = data
        self._is_set_up = False

    async def before_run(self, iterate_cases: Callable[[], AsyncIterator[PlannedTrial]]) -> None:
        """Call `--before` with all cases of the run. They are read only if there is such a hook."""
        hook = self._run_hooks.before
        if hook is not None:
            cases = [planned.case async for planned in iterate_cases()]
            try:
                self.data = await self._call_hook(hook, None, {}, cases)
            except RunStopped:
                raise
            except Exception as error:  # user code may raise anything; without its set-up no case can run
                raise RunStopped(f"--before {_describe_hook_failure(hook, error)}") from error
        self._is_set_up = True

    async def after_run(self, records: Callable[[], Iterable[TrialRecord]]) -> str | None:
        """Call `--after` with all results, if `--before` succeeded. Returns what went wrong, if anything."""
        hook = self._run_hooks.after
        if hook is None or not self._is_set_up:
            return None
        try:
            await self._call_hook(hook, None, _extract_variables(self.data), list(records()), self.data)
        except Exception as error:  # user code may raise anything; the results stand
            return f"--after {_describe_hook_failure(hook, error)}"
        return None

    async def before(self, state: TrialState) -> None:
        state.variables.update(_extract_variables(self.data))
        hook, data = state.case.before, None
        if hook is not None:
            state.waiting_for = "script"
            try:
                data = await self._call_hook(hook, state, state.variables, state.case)
            except RunStopped:
                raise
            except Exception as error:  # user code may raise anything; the conversation has not begun
                state.tracebacks += build_tracebacks(error, f"before hook {hook.reference}")
                is_deterministic = isinstance(error, TrialFault) and error.deterministic
                raise Undetermined(
                    f"before {_describe_hook_failure(hook, error)}", deterministic=is_deterministic
                ) from error
            state.waiting_for = "agent"  # its session is opened next
            state.variables.update(_extract_variables(data))
        state.before_result = data

    async def after(self, state: TrialState, record: TrialRecord) -> str | None:
        hook = state.case.after
        if hook is None:
            return None
        try:
            async with asyncio.timeout(state.case.limits.timeout_s):
                await self._call_hook(hook, state, state.variables, state.case, record, state.before_result)
        except RunStopped:
            raise
        except Exception as error:  # user code may raise anything; the verdict stands
            state.tracebacks += build_tracebacks(error, f"after hook {hook.reference}")
            return f"after {_describe_hook_failure(hook, error)}"
        return None

    async def _call_hook(self, hook: Hook, state: TrialState | None, variables: dict[str, Any], *arguments: Any) -> Any:
        bridge = LoopBridge(asyncio.get_running_loop())
        run_context = self._run_context

        def meter(call: ModelCall) -> None:
            if state is not None:
                state.calls.append(call)
            run_context.meter(call)

        key = state.key if state is not None else _NO_TRIAL_KEY
        caller = run_context.create_agent_caller(key, meter, f"viva-{run_context.run_id}-hook", state)

        async def send(message: UserMessage) -> AgentReply:
            return build_agent_reply(await caller.send(message))

        ctx = create_context(hook.function, send, bridge, variables)
        try:
            return await run_user_function(hook.function, ctx, *arguments)
        finally:
            bridge.close()


def add_hooks(
    run_context: RunContext,
    run_hooks: RunHooks = RunHooks(),  # noqa: B008 -- frozen
    data: Any = None,
) -> tuple[RunContext, ProjectHooks]:
    """A copy of the context with hooks for its trials, and the hooks.

    A worker passes the `data` that `--before` returned in the coordinator.
    """
    hooks = ProjectHooks(run_context, run_hooks, data)
    return structs.replace(run_context, hooks=hooks), hooks


def resolve_run_hooks(options: AllRunOptions, roots: Sequence[str]) -> RunHooks:
    return RunHooks(
        resolve_run_hook(options.before, "--before", roots), resolve_run_hook(options.after, "--after", roots)
    )


def resolve_run_hook(hook: str | Callable[..., Any] | None, flag: str, roots: Sequence[str]) -> Hook | None:
    """The hook of `--before` or `--after`, from a reference or a function. Raises BadInput if it cannot take the arguments."""
    if hook is None:
        return None
    arguments = BEFORE_RUN_ARGUMENTS if flag == "--before" else AFTER_RUN_ARGUMENTS
    try:
        if callable(hook):
            return create_hook(describe_function(hook), hook, arguments)
        return find_hook(hook, roots, arguments)
    except ValueError as error:
        raise BadInput.of(f"{flag} {error}") from error


def _extract_variables(data: Any) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        return {}
    return {str(name): value for name, value in cast("Mapping[Any, Any]", data).items()}


def _describe_hook_failure(hook: Hook, error: Exception) -> str:
    place = format_error_place(error)
    text = str(error) if isinstance(error, VivaError) else format_error(error)
    return f"{hook.reference}: {text}" + (f" ({place})" if place else "")
