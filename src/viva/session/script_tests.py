"""Script tests: Python functions `test_*(t, ctx)` or `Test*(t, ctx)` as cases of a suite, `-i scripts:tests.expense`.

what the function does                what becomes of the trial
asserts, and some do not hold         failed, the agent's fault
raises AssertionError, or t.fatal     failed, the agent's fault
lets a call's own fault through       as with any other case: AgentFailed is failed, Unreachable is error, infra
raises anything else                  error, undetermined: it may be the test's mistake, or the reply that it looked at
t.skip                                skipped
notes nothing with `t`                skipped, nothing was checked: plain asserts that hold cannot be counted
What has failed by then stands, however the function ends. An `async def` runs on a loop of its own, and awaits `ctx.call`.
"""

import asyncio
import inspect
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from msgspec import Struct

from viva.catalog import find_script
from viva.errors import BadInput, Problem, RunStopped, Skipped, TrialFault, Undetermined
from viva.formats.load_options import LoadOptions
from viva.formats.sources import GeneratedCases
from viva.model.case import Case, Hints, Limits, Origin, Suite, UserMessage
from viva.model.tracebacks import describe_error, error_place, error_text
from viva.session.calls_in import find_unknown_agents
from viva.session.loop_bridge import LoopBridge, run_user_function
from viva.session.messages import AgentReply, build_agent_reply
from viva.session.script_context import create_context
from viva.session.tester import FailTest, SkipTest, T, add_failure
from viva.state.trial_state import TrialState
from viva.users.code_user import CodeUser, SendMessage

TEST_PARAMETERS = ("t", "ctx")
UNCHECKED_HINT = "Use t.assert_ in the test: plain asserts that hold cannot be counted"


class ScriptTest(Struct, frozen=True):
    """A function that is a test, and which of `t` and `ctx` it takes."""

    name: str
    function: Callable[..., Any]
    parameters: tuple[str, ...]

    async def run(self, state: TrialState, say: SendMessage) -> None:
        """Runs the function in a thread; each `ctx.call` of it is a turn of the talk."""
        bridge = LoopBridge(asyncio.get_running_loop())

        async def ask(line: UserMessage) -> AgentReply:
            turn = await say(line)
            state.waiting_for = "script"
            assert turn.reply is not None
            return build_agent_reply(turn.reply, turn.awaiting, turn.latency_ms)

        given: dict[str, Any] = {
            "t": T(state, bridge.run_blocking),
            "ctx": create_context(self.function, ask, bridge, state.variables),
        }
        state.waiting_for = "script"
        try:
            await run_user_function(partial(self.function, **{name: given[name] for name in self.parameters}))
        except FailTest:
            return  # noted already
        except SkipTest as left:
            raise Skipped(left.reason) from left
        except AssertionError as denied:
            add_failure(state, "assert", str(denied) or f"{_last_line(denied).line} ({error_place(denied)})")
        except (TrialFault, RunStopped):
            raise
        except Exception as raised:  # the test's own code: nobody knows whether it or the reply was wrong
            state.tracebacks += describe_error(raised, self.name)
            said = f"{self.name} raised {error_text(raised)} ({error_place(raised)})"
            raise Undetermined(said) from raised
        finally:
            bridge.close()


def _last_line(raised: BaseException) -> traceback.FrameSummary:
    """Where it was raised or, if that is code of ours, where the test called it."""
    lines = traceback.extract_tb(raised.__traceback__)
    ours = str(Path(__file__).parents[1])
    return next((line for line in reversed(lines) if not line.filename.startswith(ours)), lines[-1])


def find_script_tests(reference: str, roots: Sequence[str]) -> list[ScriptTest] | None:
    """The tests that `scripts:reference` names: of a module all, of a function itself. None if it names a generator.

    Raises BadInput if there is no such script, or if a test wants something else than `t` and `ctx`.
    """
    try:
        module, function = find_script(reference, roots)
    except ValueError as wrong:
        raise BadInput.of(str(wrong)) from wrong
    named = _tests_in(module) if function is None else {getattr(function, "__name__", ""): function}
    functions = {name: each for name, each in named.items() if is_test_name(name)}
    if not functions:
        return None
    problems = [problem for each in functions.values() if (problem := _unfit(each)) is not None]
    if problems:
        raise BadInput(*problems)
    return [ScriptTest(name, each, tuple(_parameters(each))) for name, each in functions.items()]


def is_test_name(name: str) -> bool:
    return name.startswith(("test_", "Test")) and name != "Test"


def _tests_in(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """In the order in which they stand there. Classes are pytest's."""
    return {name: each for name, each in vars(module).items() if isinstance(each, FunctionType)}


def _parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name in TEST_PARAMETERS]


def _unfit(function: Callable[..., Any]) -> Problem | None:
    for name, parameter in inspect.signature(function).parameters.items():
        open_ended = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if name not in TEST_PARAMETERS and parameter.default is parameter.empty and not open_ended:
            file, line = _source(function)
            what = f"{function.__name__} needs {name!r}; a script test is given t and ctx (pytest alone has fixtures)"
            return Problem(file, line, "", what)
    return None


def _source(function: Callable[..., Any]) -> tuple[str, int]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)


def load_script_suite(made: GeneratedCases, folder: Path, reading: LoadOptions) -> Suite | None:
    """The script tests behind an input as a suite, each a case whose user is its function; None if it is a generator."""
    tests = find_script_tests(made.reference, (*reading.roots, str(folder)))
    if tests is None:
        return None
    name = f"scripts:{made.reference}"
    if made.query:
        raise BadInput.of(f"{name}: script tests take no values; leave out ?{'&'.join(made.query)}")
    if problems := [
        problem for test in tests for problem in find_unknown_agents(test.function, reading.find_helper_problems)
    ]:
        raise BadInput(*problems)
    cases = [_case(test, name, folder, reading.timeout_s) for test in tests]

    async def pulled() -> AsyncIterator[Case]:
        for case in cases:
            yield case

    digest = _digest("".join(case.digest for case in cases))
    return Suite(
        id=name,
        kind="scripts",
        cases=pulled,
        count=len(cases),
        origin=Origin(name),
        digest=digest,
        is_agent_optional=True,
    )


def _case(test: ScriptTest, suite: str, folder: Path, timeout_s: float) -> Case:
    file, line = _source(test.function)
    shown = Path(file).resolve()
    place = shown.relative_to(folder.resolve()) if shown.is_relative_to(folder.resolve()) else shown
    described = inspect.getdoc(test.function) or ""
    return Case(
        id=test.name,
        name=described.partition("\n")[0],
        description=described,
        user=CodeUser(test.run),
        suite=suite,
        origin=Origin(str(place), line),
        limits=Limits(timeout_s=timeout_s, max_turns=None),
        sessions="each_message",
        hints=Hints(unchecked=UNCHECKED_HINT),
        definition={"id": test.name, "script": suite},
        digest=_digest(_text_of(test.function)),
    )


def _text_of(function: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return function.__qualname__


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
