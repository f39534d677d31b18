"""`viva.run`: the command `viva test` as a function, and the one door from sync to async."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from viva.errors import BadInput
from viva.formats.sources import Words, understood
from viva.model import codec
from viva.session.bridge import LoopThread
from viva.session.loop import run_loop
from viva.session.options import RunOptions
from viva.session.prepare import prepare
from viva.session.run import RunResult, examine
from viva.session.spoken import seconds

R = TypeVar("R")
OneInput = str | Path | Mapping[str, Any]
Inputs = OneInput | Sequence[OneInput]
Hooked = str | Callable[..., Any]


def run(
    inputs: Inputs,
    agent: Any = None,
    *,
    config: str | Path | None = None,
    connector: str | None = None,
    parallel: int | None = None,
    runs: int = 1,
    min_pass: float | None = None,
    timeout: str | float | None = None,
    turn_timeout: str | float | None = None,
    max_cost_usd: float | None = None,
    simulator: str | None = None,
    only: str | None = None,
    tags: Sequence[str] = (),
    fail_fast: bool = False,
    on_missing_input: Literal["skip", "fail", "end"] | None = None,
    update_snapshots: bool = False,
    outputs: str | Path | Sequence[str | Path] = (),
    before: Hooked | None = None,
    after: Hooked | None = None,
    record: str | Path | None = None,
    replay: str | Path | None = None,
    history: bool = True,
    folder: str | Path | None = None,
) -> RunResult:
    """Runs cases against an agent, and gives how it went.

        result = viva.run("tests/expense.jsonl", "assistants.expense", parallel=8, outputs="report.xml")
        assert result.passed, result

        result = viva.run([{"id": "hi", "input": "Hello", "assertions": [viva.contains("Hello")]}], my_agent)
        for record in result.records():
            print(record.id, record.status, record.turns[0].output)

    `inputs` is what `-i` takes (a file, a folder, a glob, `scripts:…`, `agents:…?count=5`, a message), a case as a dict
    with the keys of a suite file, a list of messages (`{"role": …, "content": …}`) as one case, or a list of any of these.
    A message has no checks, so its case is skipped; its reply stands in the record. `agent` is a name, a reference, a
    function, an object with `reply`, or an Agent. All else is as the flags of `viva test`: `timeout` for a case,
    `only` for `-k`. Without `history` nothing is left in `.viva`. Raises BadInput before anything runs.
    """
    place = Path(folder) if folder is not None else Path()
    texts, cases = _split(inputs, place)
    options = RunOptions(
        inputs=texts,
        cases=cases,
        agent=agent,
        config=Path(config) if config is not None else None,
        connector=connector,
        parallel=parallel,
        runs=runs,
        min_pass=min_pass,
        timeout_s=seconds(timeout),
        turn_timeout_s=seconds(turn_timeout),
        max_cost_usd=max_cost_usd,
        simulator=simulator,
        only=only,
        tags=tuple(tags),
        fail_fast=fail_fast,
        on_missing_input=on_missing_input,
        update_snapshots=update_snapshots,
        outputs=tuple(Path(path) for path in ([outputs] if isinstance(outputs, str | Path) else outputs)),
        before=before,
        after=after,
        record=Path(record) if record is not None else None,
        replay=Path(replay) if replay is not None else None,
        history=history,
        folder=place,
    )
    return _waited_for(_run(options))


async def _run(options: RunOptions) -> RunResult:
    return await examine(await prepare(options))


def _waited_for(work: Coroutine[Any, Any, R]) -> R:
    """Where a loop runs already (a notebook, an async test) the work is done on another, in a thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_loop(work)
    thread = LoopThread()
    try:
        return thread.wait(work)
    finally:
        thread.close()


def _split(inputs: Inputs, folder: Path) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """What the command line could have named, and cases."""
    given = [inputs] if isinstance(inputs, str | Path | Mapping) else list(inputs)
    if given and all(_is_message(each) for each in given):
        return (), (_written({"id": "message", "input": given}, 0),)
    texts: list[str] = []
    cases: list[Any] = []
    for at, each in enumerate(given):
        if isinstance(each, str | Path):
            text = str(each)
            if isinstance(each, str) and _is_words(each, folder):
                cases.append({"id": f"message-{len(cases) + 1}", "input": text})
            else:
                texts.append(text)
        else:
            cases.append(_written(each, at))
    if not texts and not cases:
        raise BadInput.saying("what shall be run? Give a file, a folder, a message, or cases")
    return tuple(texts), tuple(cases)


def _is_message(given: OneInput) -> bool:
    return isinstance(given, Mapping) and "content" in given and "id" not in given


def _is_words(text: str, folder: Path) -> bool:
    try:
        return isinstance(understood(text, folder), Words)
    except BadInput:
        return False  # what is wrong with it is said when it is loaded


def _written(case: Mapping[str, Any], at: int) -> Any:
    """The case as a file would hold it."""
    try:
        return codec.as_written(cast("Any", case))
    except (TypeError, ValueError, OverflowError, RecursionError) as wrong:
        raise BadInput.saying(f"inputs[{at}] cannot stand in a suite: {wrong}") from wrong
