"""Script tests: Python functions `test_*(t, ctx)` or `Test*(t, ctx)` as cases of a suite, `-i scripts:tests.expense`.

what the function does                outcome of the trial
some assertions fail                  failed, the agent's fault
raises AssertionError, or t.fatal     failed, the agent's fault
a fault of a call is not caught       as with any other case: AgentFailed is failed, Unreachable is error, infra
raises anything else                  error, undetermined: the test or the reply may be wrong
t.skip                                skipped
records nothing with `t`              skipped, nothing was checked: plain asserts that hold cannot be counted
Failures stay, however the function ends. An `async def` runs on its own loop and awaits `ctx.call`.
"""

import ast
import asyncio
import inspect
import textwrap
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import FunctionType
from typing import Any

from msgspec import Struct

from viva.catalog import find_script
from viva.errors import BadInput, Problem, RunStopped, Skipped, TrialFault, Undetermined
from viva.formats.load_options import LoadOptions
from viva.formats.sources import GeneratedCases
from viva.model.case import Case, Hints, Limits, Origin, Suite, UserMessage
from viva.model.tracebacks import build_tracebacks, format_error, format_error_place
from viva.session.loop import LoopBridge, run_user_function
from viva.session.messages import AgentReply
from viva.session.scripts.context import create_context
from viva.session.scripts.tester import FailTest, SkipTest, T, TestReplies, add_failure
from viva.state.trial_state import TrialState
from viva.users.code_user import CodeUser, SendMessage

UNCHECKED_TEST_HINT = "Use t.assert_ in the test: plain asserts that hold cannot be counted"
SCRIPT_TEST_PARAMETERS = ("t", "ctx")
_UNCHECKED_NODES = (ast.Try, ast.With, ast.AsyncWith, ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.If)
"""Names of agents in calls inside these nodes are not checked: the calls may be expected to fail, or may never run."""


class ScriptTest(Struct, frozen=True):
    """A test function, and which of the parameters `t` and `ctx` it has."""

    name: str
    function: Callable[..., Any]
    parameters: tuple[str, ...]

    async def run(self, state: TrialState, send_message: SendMessage) -> None:
        """Run the function in a thread; each `ctx.call` is a turn of the trial."""
        bridge = LoopBridge(asyncio.get_running_loop())
        replies = TestReplies()

        async def send(message: UserMessage) -> AgentReply:
            try:
                turn = await send_message(message)
            except TrialFault:  # the test may catch it and go on
                _wait_for_script(state)
                raise
            _wait_for_script(state)
            return replies.add(turn)

        values: dict[str, Any] = {
            "t": T(state, bridge.run_blocking, replies),
            "ctx": create_context(self.function, send, bridge, state.variables),
        }
        state.waiting_for = "script"
        try:
            await run_user_function(partial(self.function, **{name: values[name] for name in self.parameters}))
        except FailTest:
            return  # recorded already
        except SkipTest as skip:
            raise Skipped(skip.reason) from skip
        except AssertionError as error:
            add_failure(state, "assert", str(error) or f"{_find_last_frame(error).line} ({format_error_place(error)})")
        except (TrialFault, RunStopped):
            raise
        except Exception as error:  # user code may raise anything; the test or the reply may be wrong
            state.tracebacks += build_tracebacks(error, self.name)
            raise Undetermined(f"{self.name} raised {format_error(error)} ({format_error_place(error)})") from error
        finally:
            bridge.close()


def _wait_for_script(state: TrialState) -> None:
    """Charges a timeout to the test's own code from now on, unless the next of several concurrent calls is running already."""
    last = state.last_turn
    if last is None or last.reply is not None or last.error is not None:
        state.waiting_for = "script"


def _find_last_frame(error: BaseException) -> traceback.FrameSummary:
    """The innermost frame of a traceback that is not in Viva's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    package = str(Path(__file__).parents[1])
    return next((frame for frame in reversed(frames) if not frame.filename.startswith(package)), frames[-1])


def find_script_tests(reference: str, roots: Sequence[str]) -> list[ScriptTest] | None:
    """The tests of the module, or the one test function, that `scripts:reference` names. None for a generator.

    Raises BadInput if the script does not exist, or if a test takes other parameters than `t` and `ctx`.
    """
    try:
        module, function = find_script(reference, roots)
    except ValueError as error:
        raise BadInput.of(str(error)) from error
    if function is None:  # in the order of the module; classes belong to pytest
        named = {name: value for name, value in vars(module).items() if isinstance(value, FunctionType)}
    else:
        named = {getattr(function, "__name__", ""): function}
    tests = {name: value for name, value in named.items() if is_test_name(name)}
    if not tests:
        return None
    if problems := [problem for test in tests.values() if (problem := _find_parameter_problem(test)) is not None]:
        raise BadInput(*problems)
    return [ScriptTest(name, test, _list_test_parameters(test)) for name, test in tests.items()]


def is_test_name(name: str) -> bool:
    return name.startswith(("test_", "Test")) and name != "Test"


def _list_test_parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(name for name in inspect.signature(function).parameters if name in SCRIPT_TEST_PARAMETERS)


def _find_parameter_problem(function: Callable[..., Any]) -> Problem | None:
    for name, parameter in inspect.signature(function).parameters.items():
        is_variadic = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if name not in SCRIPT_TEST_PARAMETERS and parameter.default is parameter.empty and not is_variadic:
            file, line = _find_source_place(function)
            what = f"{function.__name__} needs {name!r}; a script test takes t and ctx (fixtures work only in pytest)"
            return Problem(file, line, "", what)
    return None


def _find_source_place(function: Callable[..., Any]) -> tuple[str, int]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)


def load_script_suite(source: GeneratedCases, folder: Path, load_options: LoadOptions) -> Suite | None:
    """The script tests of an input as a suite: one case per test function. None for a generator."""
    tests = find_script_tests(source.reference, (*load_options.roots, str(folder)))
    if tests is None:
        return None
    name = f"scripts:{source.reference}"
    if source.query:
        raise BadInput.of(f"{name}: script tests take no values; remove ?{'&'.join(source.query)}")
    find_problems = load_options.find_helper_problems
    if problems := [problem for test in tests for problem in _find_named_agent_problems(test.function, find_problems)]:
        raise BadInput(*problems)
    cases = [_create_script_case(test, name, folder, load_options.timeout_s) for test in tests]

    async def iterate_cases() -> AsyncIterator[Case]:
        for case in cases:
            yield case

    return Suite(
        id=name,
        kind="scripts",
        cases=iterate_cases,
        count=len(cases),
        origin=Origin(name),
        digest=_compute_digest("".join(case.digest for case in cases)),
        is_agent_optional=True,
    )


def _create_script_case(test: ScriptTest, suite: str, folder: Path, timeout_s: float) -> Case:
    file, line = _find_source_place(test.function)
    path = Path(file).resolve()
    shown = path.relative_to(folder.resolve()) if path.is_relative_to(folder.resolve()) else path
    description = inspect.getdoc(test.function) or ""
    try:
        source = inspect.getsource(test.function)
    except (OSError, TypeError):
        source = test.function.__qualname__
    return Case(
        id=test.name,
        name=description.partition("\n")[0],
        description=description,
        user=CodeUser(test.run),
        suite=suite,
        origin=Origin(str(shown), line),
        limits=Limits(timeout_s=timeout_s, max_turns=None),
        sessions="each_message",
        hints=Hints(unchecked=UNCHECKED_TEST_HINT),
        definition={"id": test.name, "script": suite},
        digest=_compute_digest(source),
    )


def _compute_digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _find_named_agent_problems(
    function: Callable[..., Any], find_problems: Callable[[str], Sequence[Problem]]
) -> Iterator[Problem]:
    """Problems of the agents that a test names by literal strings.

    The names are in `ctx.call("name", …)`, `t.assert_.agent(reply, "name")` and `t.assert_.judge(reply, …, use="name")`.
    """
    try:
        lines, first_line = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        file = inspect.getsourcefile(function) or ""
    except (OSError, TypeError, SyntaxError):  # the source is not available
        return
    for test in tree.body:
        for call in _iterate_unconditional_calls(getattr(test, "body", ())):
            if (name := _read_agent_name(call)) is not None:
                for problem in find_problems(name.removeprefix("agents:")):
                    line = first_line + call.lineno - 1
                    yield problem if problem.file else Problem(file, line, "", problem.message)


def _iterate_unconditional_calls(nodes: Sequence[ast.AST]) -> Iterator[ast.Call]:
    for node in nodes:
        if isinstance(node, _UNCHECKED_NODES):
            continue
        if isinstance(node, ast.Call):
            yield node
        yield from _iterate_unconditional_calls(list(ast.iter_child_nodes(node)))


def _read_agent_name(call: ast.Call) -> str | None:
    match call:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="ctx"), attr="call"), args=[ast.Constant(value=str(name)), *_]
        ):
            return name
        case ast.Call(
            func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="t")), attr="agent" | "Agent"),
            args=[_, ast.Constant(value=str(name)), *_],
        ):
            return name
        case ast.Call(func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="t")), attr="judge" | "rubric")):
            names = [keyword.value for keyword in call.keywords if keyword.arg == "use"]
            return next((str(name.value) for name in names if isinstance(name, ast.Constant)), None)
        case _:
            return None
