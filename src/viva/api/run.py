"""`viva.run` and `viva.arun`: the command `viva test` as a function."""

from __future__ import annotations  # `help(viva.run)` shows `AgentInput`, not what it stands for

import asyncio
import signal
import threading
from collections.abc import Coroutine, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from msgspec import structs

from viva.api.case_dict import CaseDict
from viva.api.notebook import create_notebook_sinks
from viva.api.project import AgentInput, refuse_during_import
from viva.api.run_options import RunOptions
from viva.check import AgentFunction
from viva.errors import BadInput, with_article
from viva.formats.functions import PassedFunctions, is_function_or_agent
from viva.formats.sources import PlainMessage, parse_input
from viva.session.loop import LoopThread, run_coroutine
from viva.session.options import run_options
from viva.session.options.keyword_values import add_keyword_docs, build_run_options, replace_flags_in_error
from viva.session.options.run_options import KEYWORDS
from viva.session.run import execute
from viva.session.run_plan import build_run_plan
from viva.session.run_result import RunResult

R = TypeVar("R")
RunInput = str | Path | CaseDict | Mapping[str, Any]
RunInputs = RunInput | Sequence[RunInput]


@add_keyword_docs
def run(
    inputs: RunInputs,
    agent: AgentInput = None,
    *,
    config: str | Path | None = None,
    connector: str | None = None,
    simulator: str | AgentFunction | None = None,
    only: str | None = None,
    tags: Sequence[str] = (),
    parallel: int | Literal["auto"] | None = None,
    runs: int = 1,
    min_pass: float | None = None,
    timeout: str | float | None = None,
    max_cost: float | None = None,
    outputs: str | Path | Sequence[str | Path] = (),
    record: str | Path | None = None,
    replay: str | Path | None = None,
    history: bool = True,
    options: RunOptions | None = None,
) -> RunResult:
    """Runs cases against an agent and returns the result, which is true if the run passed.

        result = viva.run("tests/expense.jsonl", "assistants.expense", parallel=8, outputs="report.xml")
        assert result, result

        result = viva.run([{"input": "Hello", "assertions": [viva.check.contains("name?")]}], my_agent)
        for record in result:
            print(record.id, record.status, record.turns[0].output)

    `inputs` is what `-i` takes (a file, a folder, a glob, `scripts:…`, `agents:…?count=5`, a message), a case as a dict
    with the keys of a suite file, a list of messages (`{"role": …, "content": …}`) as one case, or a list of any of these.
    In a case, `id` may be left out, and a function may stand for an assertion, a hook, a simulator or a judge.
    A message has no checks, so its case is skipped; its reply is in the record. `agent` is a name, a reference, a
    function, an object with `reply`, or an Agent. The keywords are the most used flags of `viva test`; `options` has the
    others. Raises BadInput before anything runs. Ctrl-C raises KeyboardInterrupt after the reports are written.

    Where an event loop is running already, use `await viva.arun(…)`: it runs async agents on that loop.
    """
    prepared = _build_options(locals())
    result = _run_blocking(_execute_options(prepared))
    return _raise_signal_again(result)


@add_keyword_docs
async def arun(
    inputs: RunInputs,
    agent: AgentInput = None,
    *,
    config: str | Path | None = None,
    connector: str | None = None,
    simulator: str | AgentFunction | None = None,
    only: str | None = None,
    tags: Sequence[str] = (),
    parallel: int | Literal["auto"] | None = None,
    runs: int = 1,
    min_pass: float | None = None,
    timeout: str | float | None = None,  # noqa: ASYNC109 -- the limit of a case, not of this call
    max_cost: float | None = None,
    outputs: str | Path | Sequence[str | Path] = (),
    record: str | Path | None = None,
    replay: str | Path | None = None,
    history: bool = True,
    options: RunOptions | None = None,
) -> RunResult:
    """Like `viva.run`, on the event loop of the caller: clients that belong to that loop can be used in async agents.

        result = await viva.arun("tests/", my_async_agent)

    The parameters are those of `viva.run`.
    """
    result = await _execute_options(_build_options(locals()))
    return _raise_signal_again(result)


def _build_options(arguments: dict[str, Any]) -> run_options.AllRunOptions:
    """The options of a run from the arguments of `viva.run`. Raises BadInput for bad values."""
    refuse_during_import("viva.run")
    inputs, more = arguments.pop("inputs"), arguments.pop("options")
    if more is not None and not isinstance(more, RunOptions):
        raise BadInput.of(f"options: {more!r} is not a viva.RunOptions")
    functions = PassedFunctions()
    if isinstance(agent := arguments["agent"], Mapping):
        functions.update(cast("Mapping[str, Any]", agent))
        arguments["agent"] = list(functions)
    keywords = {**(vars(more) if more else {}), **arguments}
    for name, value in keywords.items():
        if KEYWORDS[name].takes_function and is_function_or_agent(value):
            keywords[name] = functions.add(value)
    checked = build_run_options(keywords)
    if not checked.folder.is_dir():
        raise BadInput.of(f"folder: there is no folder {str(checked.folder)!r}")
    texts, cases = _split_inputs(inputs, checked.folder, functions)
    return structs.replace(checked, inputs=texts, cases=cases, functions=functions)


async def _execute_options(options: run_options.AllRunOptions) -> RunResult:
    try:
        async with aclosing(await build_run_plan(options)) as plan:
            return await execute(plan, create_notebook_sinks())
    except BadInput as error:
        raise replace_flags_in_error(error) from None


def _run_blocking(work: Coroutine[Any, Any, R]) -> R:
    """Run the coroutine; in a thread if this one has a running loop (a notebook, an async test)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_coroutine(work)
    thread = LoopThread()
    try:
        with _raise_keyboard_interrupt_at_once():
            return thread.bridge.run_until_interrupted(work)
    finally:
        thread.close()


@contextmanager
def _raise_keyboard_interrupt_at_once() -> Generator[None]:
    """Inside the block, Ctrl-C raises KeyboardInterrupt in this thread at once. The handler of `asyncio.run` would wait for
    its loop, which this thread blocks.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _raise_signal_again(result: RunResult) -> RunResult:
    """Raise the signal that stopped the run once more, for the calling program: the run itself has handled it and written reports.

    By default Ctrl-C then raises KeyboardInterrupt here; inside `asyncio.run` it cancels the main task.
    """
    if result.stop_signal is not None:
        signal.raise_signal(result.stop_signal)
    return result


def _split_inputs(inputs: Any, folder: Path, functions: PassedFunctions) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Split the inputs into texts for `-i` and cases."""
    if isinstance(inputs, str | Path | Mapping):
        items: list[Any] = [inputs]
    elif isinstance(inputs, Sequence):
        items = list(cast("Sequence[Any]", inputs))
    else:
        raise BadInput.of(f"inputs is {_describe_bad_input(inputs)}")
    if items and all(isinstance(item, Mapping) and "content" in item and "id" not in item for item in items):
        return (), (_build_case_definition({"id": "message", "input": items}, 0, functions),)
    texts: list[str] = []
    cases: list[Any] = []
    for index, item in enumerate(items):
        if isinstance(item, Mapping):
            cases.append(_build_case_definition(cast("Mapping[str, Any]", item), index, functions))
        elif not isinstance(item, str | Path):
            raise BadInput.of(f"inputs[{index}] is {_describe_bad_input(item)}")
        elif isinstance(item, str) and _is_plain_message(item, folder):
            cases.append({"id": f"message-{len(cases) + 1}", "input": item})
        else:
            texts.append(str(item))
    if not texts and not cases:
        raise BadInput.of("No input given. Pass a file, a folder, a message or cases")
    return tuple(texts), tuple(cases)


def _describe_bad_input(value: object) -> str:
    return f"{with_article(type(value).__name__)}; pass a path, a message, or a case as a dict with the keys of a suite file"


def _is_plain_message(text: str, folder: Path) -> bool:
    try:
        return isinstance(parse_input(text, folder), PlainMessage)
    except BadInput:
        return False  # reported when it is loaded


def _build_case_definition(case: Mapping[str, Any], index: int, functions: PassedFunctions) -> Any:
    """The case as a suite file would contain it. A missing id is made from its index."""
    try:
        return functions.to_definition({"id": f"case-{index + 1}", **case})
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadInput.of(f"inputs[{index}] is not a valid case: {error}") from error
