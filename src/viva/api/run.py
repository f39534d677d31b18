"""`viva.run`: the command `viva test` as a function."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack, cast

from msgspec import structs

from viva.api.run_keywords import RunKeywords
from viva.errors import BadInput
from viva.formats.sources import PlainMessage, parse_input
from viva.model import codec
from viva.session.loop import LoopThread, run_coroutine
from viva.session.option_values import build_run_options, describe_keywords
from viva.session.run import RunResult, execute
from viva.session.run_options import RunOptions
from viva.session.run_plan import build_run_plan

R = TypeVar("R")
RunInput = str | Path | Mapping[str, Any]
RunInputs = RunInput | Sequence[RunInput]


@describe_keywords
def run(
    inputs: RunInputs,
    agent: Any = None,
    *,
    config: str | Path | None = None,
    connector: str | None = None,
    simulator: str | None = None,
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
    **options: Unpack[RunKeywords],
) -> RunResult:
    """Runs cases against an agent and returns the result.

        result = viva.run("tests/expense.jsonl", "assistants.expense", parallel=8, outputs="report.xml")
        assert result.passed, result

        result = viva.run([{"id": "hi", "input": "Hello", "assertions": [viva.check.contains("Hello")]}], my_agent)
        for record in result.records():
            print(record.id, record.status, record.turns[0].output)

    `inputs` is what `-i` takes (a file, a folder, a glob, `scripts:…`, `agents:…?count=5`, a message), a case as a dict
    with the keys of a suite file, a list of messages (`{"role": …, "content": …}`) as one case, or a list of any of these.
    A message has no checks, so its case is skipped; its reply is in the record. `agent` is a name, a reference, a
    function, an object with `reply`, or an Agent. The keywords are the flags of `viva test`. Raises BadInput before
    anything runs.
    """
    keywords: dict[str, Any] = {
        **options,
        "config": config,
        "connector": connector,
        "simulator": simulator,
        "only": only,
        "tags": tags,
        "parallel": parallel,
        "runs": runs,
        "min_pass": min_pass,
        "timeout": timeout,
        "max_cost": max_cost,
        "outputs": outputs,
        "record": record,
        "replay": replay,
        "agent": agent,
    }
    run_options = build_run_options(keywords)
    texts, cases = _split_inputs(inputs, run_options.folder)
    return _run_blocking(_execute(structs.replace(run_options, inputs=texts, cases=cases)))


async def _execute(options: RunOptions) -> RunResult:
    return await execute(await build_run_plan(options))


def _run_blocking(work: Coroutine[Any, Any, R]) -> R:
    """Run the coroutine; in a thread if this one has a running loop (a notebook, an async test)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_coroutine(work)
    thread = LoopThread()
    try:
        return thread.run_blocking(work)
    finally:
        thread.close()


def _split_inputs(inputs: RunInputs, folder: Path) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """The inputs that `-i` takes, and the cases."""
    items = [inputs] if isinstance(inputs, str | Path | Mapping) else list(inputs)
    if items and all(isinstance(item, Mapping) and "content" in item and "id" not in item for item in items):
        return (), (_to_definition({"id": "message", "input": items}, 0),)
    texts: list[str] = []
    cases: list[Any] = []
    for index, item in enumerate(items):
        if not isinstance(item, str | Path):
            cases.append(_to_definition(item, index))
        elif isinstance(item, str) and _is_plain_message(item, folder):
            cases.append({"id": f"message-{len(cases) + 1}", "input": item})
        else:
            texts.append(str(item))
    if not texts and not cases:
        raise BadInput.of("No input given. Pass a file, a folder, a message or cases")
    return tuple(texts), tuple(cases)


def _is_plain_message(text: str, folder: Path) -> bool:
    try:
        return isinstance(parse_input(text, folder), PlainMessage)
    except BadInput:
        return False  # reported when it is loaded


def _to_definition(case: Mapping[str, Any], index: int) -> Any:
    """The case as a suite file would contain it."""
    try:
        return codec.to_definition(cast("Any", case))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadInput.of(f"inputs[{index}] is not a valid case: {error}") from error
