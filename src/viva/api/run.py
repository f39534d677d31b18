"""`viva.run`: the command `viva test` as a function."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from viva.errors import BadInput
from viva.formats.openwop.modes import Mode
from viva.formats.sources import Format, PlainMessage, parse_input
from viva.model import codec
from viva.model.case import LinkMode, OnMissingInput, Sandbox, WorkspaceKind
from viva.record.cassette import MissingPolicy
from viva.session.loop import LoopThread, run_coroutine
from viva.session.messages import parse_timeout
from viva.session.options import RunOptions
from viva.session.run import RunResult, execute
from viva.session.run_plan import build_run_plan
from viva.stats.sequential import SequentialTest

R = TypeVar("R")
RunInput = str | Path | Mapping[str, Any]
RunInputs = RunInput | Sequence[RunInput]
HookReference = str | Callable[..., Any]


def run(
    inputs: RunInputs,
    agent: Any = None,
    *,
    config: str | Path | None = None,
    env_file: str | Path | None = None,
    format: Format | None = None,  # noqa: A002 -- as the flag is called
    connector: str | None = None,
    parallel: int | None = None,
    runs: int = 1,
    min_pass: float | None = None,
    sequential: SequentialTest | None = None,
    retry_faults: int = 1,
    timeout: str | float | None = None,
    turn_timeout: str | float | None = None,
    max_cost_usd: float | None = None,
    simulator: str | None = None,
    evaluator: str | None = None,
    agent_model: str | None = None,
    workspace: WorkspaceKind | None = None,
    link_mode: LinkMode | None = None,
    keep_workspace: bool = False,
    sandbox: Sandbox | None = None,
    only: str | None = None,
    tags: Sequence[str] = (),
    last_failed: bool = False,
    fail_fast: bool = False,
    on_missing_input: OnMissingInput | None = None,
    skip_interactive: bool = False,
    update_snapshots: bool = False,
    modes: Sequence[Mode] = (),
    live: bool = False,
    baseline: str | None = None,
    fail_on_regression: bool = False,
    allow_agent_mismatch: bool = False,
    eval_summary: str | Path | None = None,
    outputs: str | Path | Sequence[str | Path] = (),
    reporter: str | None = None,
    before: HookReference | None = None,
    after: HookReference | None = None,
    record: str | Path | None = None,
    replay: str | Path | None = None,
    replay_missing: MissingPolicy = "error",
    history: bool = True,
    folder: str | Path | None = None,
) -> RunResult:
    """Runs cases against an agent, and gives how it went.

        result = viva.run("tests/expense.jsonl", "assistants.expense", parallel=8, outputs="report.xml")
        assert result.passed, result

        result = viva.run([{"id": "hi", "input": "Hello", "assertions": [viva.check.contains("Hello")]}], my_agent)
        for record in result.records():
            print(record.id, record.status, record.turns[0].output)

    `inputs` is what `-i` takes (a file, a folder, a glob, `scripts:…`, `agents:…?count=5`, a message), a case as a dict
    with the keys of a suite file, a list of messages (`{"role": …, "content": …}`) as one case, or a list of any of these.
    A message has no checks, so its case is skipped; its reply stands in the record. `agent` is a name, a reference, a
    function, an object with `reply`, or an Agent. All else is as the flags of `viva test`: `timeout` for a case,
    `only` for `-k`, `viva.SequentialTest(min_pass=0.9)` as `sequential` for `--until-decided`. Without
    `history` nothing is left in `.viva`. Raises BadInput before anything runs.
    """
    place = _path(folder) or Path()
    if sequential is not None:
        _check_sequential(sequential, alone=runs == 1 and min_pass is None and not fail_fast)
    texts, cases = _split_inputs(inputs, place)
    options = RunOptions(
        inputs=texts,
        cases=cases,
        agent=agent,
        config=_path(config),
        env_file=_path(env_file),
        format=format,
        connector=connector,
        parallel=parallel,
        runs=sequential.max_runs if sequential else runs,
        min_pass=sequential.min_pass if sequential else min_pass,
        sequential=sequential,
        retry_faults=retry_faults,
        timeout_s=parse_timeout(timeout),
        turn_timeout_s=parse_timeout(turn_timeout),
        max_cost_usd=max_cost_usd,
        simulator=simulator,
        evaluator=evaluator,
        agent_model=agent_model,
        workspace=workspace,
        link_mode=link_mode,
        keep_workspace=keep_workspace,
        sandbox=sandbox,
        only=only,
        tags=tuple(tags),
        last_failed=last_failed,
        fail_fast=fail_fast,
        on_missing_input=on_missing_input,
        skip_interactive=skip_interactive,
        update_snapshots=update_snapshots,
        modes=tuple(modes),
        live=live,
        baseline=baseline,
        fail_on_regression=fail_on_regression,
        allow_agent_mismatch=allow_agent_mismatch,
        eval_summary=_path(eval_summary),
        outputs=tuple(Path(path) for path in ([outputs] if isinstance(outputs, str | Path) else outputs)),
        reporter=reporter,
        before=before,
        after=after,
        record=_path(record),
        replay=_path(replay),
        replay_missing=replay_missing,
        history=history,
        folder=place,
    )
    return _run_blocking(_execute(options))


def _path(given: str | Path | None) -> Path | None:
    return Path(given) if given is not None else None


def _check_sequential(test: SequentialTest, *, alone: bool) -> None:
    if not alone:
        raise BadInput.of("sequential excludes runs, min_pass and fail_fast: the test has its own")
    if test.min_passes > test.max_runs:
        raise BadInput.of(
            f"to tell {test.min_pass:g} from {test.too_low:g} takes {test.min_passes} passes in a row, more than "
            f"max_runs={test.max_runs}; raise max_runs, margin or alpha"
        )


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
