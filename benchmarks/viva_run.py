"""Viva on the benchmark's workloads: through `viva.run` (`--variant api`) or the command line (`--variant cli`).

`kept` is `viva.run` with journal, history and a cassette; `unkept` is the same with all three taken out, so that what
they cost can be told. `lag` is `viva.arun` with a report of each format, beside a task that wakes up every few milliseconds and
notes the longest CPU time of the loop's thread between two wake-ups: how long Viva keeps the event loop from everything else.
CPU time, because on a shared machine the clock also shows the work of others.

Same arguments and the same closing line as the other scripts of `bench/`, so `harness.py` can measure it.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "bench"))

import harness
import workload as w

from viva.record.journal import Journal

KEY = "sk-bench-3f9c1d7a5b2e4680"
"""As long as a real one, so that all that is written is searched for it."""
CONFIG = """
[connectors.fake]
base_url = "{url}"
model = "fake-agent"

[connectors.fake-user]
base_url = "{url}"
model = "fake-user"

[connectors.fake-judge]
base_url = "{url}"
model = "fake-judge-json"

[agents.bench]
type = "chat"
connector = "fake"
system = "{system}"

[agents.user]
type = "chat"
connector = "fake-user"
system = "{user}"

[agents.judge]
type = "prompt"
connector = "fake-judge"
prompt = "judge.md"
"""
JUDGE = (
    "Judge the conversation. Answer as JSON: passed, score, reason.\n\nCriterion: {{criteria}}\n\n{{conversation}}\n"
)


def static(case: int) -> dict[str, Any]:
    turns = [
        {"input": text, "assertions": checks}
        for text, checks in zip(w.case_turns(case), w.case_checks(case), strict=True)
    ]
    return {"id": f"c{case}", "turns": turns}


def dynamic(case: int) -> dict[str, Any]:
    """Five simulated turns (the last checkpoint holds at the fifth), then one judge."""
    return {
        "id": f"c{case}",
        "simulator": {"use": "user", "options": {"metadata": {"goal": w.scenario(case)}}},
        "checkpoints": [{"id": "fifth", "assertion": w.last_check(case)}],
        "final_assertions": [{"type": "agent", "use": "agents:judge", "metadata": {"criteria": w.JUDGE_CRITERION}}],
        "max_turns": w.DYN_TURNS,
    }


def write_project(folder: Path, url: str, cases: Iterable[dict[str, Any]]) -> None:
    """The config of the benchmark's agents, and a suite."""
    (folder / "viva.toml").write_text(CONFIG.format(url=url, system=w.SYSTEM, user=w.USER_SYSTEM))
    (folder / "judge.md").write_text(JUDGE)
    write_suite(folder / "suite.jsonl", cases)


def get_suite_path(workload: str, n: int) -> Path:
    return Path(harness.TMP) / f"{workload}-{n}.jsonl"


def write_workload(workload: str, n: int) -> None:
    """Writes the suite of a workload, in the process that measures: making cases is no work of Viva."""
    write_suite(get_suite_path(workload, n), map(static if workload == "static" else dynamic, range(n)))


def write_suite(path: Path, cases: Iterable[dict[str, Any]]) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps(case) + "\n" for case in cases)


class LagWatch:
    """Ticks on the loop of a run, and notes the longest stretches of CPU time in which the loop served nobody else."""

    def __init__(self) -> None:
        self.trials_ms = self.end_ms = 0.0
        """While conversations run, and from there to the end of the run, when its reports are written."""
        self._have_trials_ended = False
        self._ticking: asyncio.Future[None] | None = None

    def run(self, *arguments: Any, **keywords: Any) -> Any:
        """`viva.arun` on a loop of its own, watched from its first trial on: before that, files are loaded."""
        return asyncio.run(self._run(*arguments, **keywords))

    async def _run(self, *arguments: Any, **keywords: Any) -> Any:
        import viva

        scheduler = import_module("viva.engine.scheduler").Scheduler
        run_trials = scheduler.run

        async def run_and_tick(scheduler: Any, trials: Any) -> None:
            self._ticking = asyncio.ensure_future(self._tick())
            await asyncio.sleep(0)
            await run_trials(scheduler, trials)
            self._have_trials_ended = True

        scheduler.run = run_and_tick
        result = await viva.arun(*arguments, **keywords)
        await asyncio.sleep(0.01)  # the last stretch ends with a wake-up
        assert self._ticking is not None
        self._ticking.cancel()
        return result

    async def _tick(self) -> None:
        while True:
            before, is_end = time.thread_time(), self._have_trials_ended
            await asyncio.sleep(0.002)
            stretch_ms = 1e3 * (time.thread_time() - before)
            if is_end or self._have_trials_ended:
                self.end_ms = max(self.end_ms, stretch_ms)
            else:
                self.trials_ms = max(self.trials_ms, stretch_ms)


def main() -> None:
    a = w.args(("api", "cli", "kept", "unkept", "lag"))
    os.chdir(a.out)
    write_project(Path(), a.base_url, [])
    Path("suite.jsonl").unlink()
    Path("suite.jsonl").symlink_to(get_suite_path(a.workload, a.n))
    os.environ["OPENAI_API_KEY"] = KEY
    timed, lag = w.Timed(), LagWatch()
    if a.variant == "cli":
        command = [
            sys.executable,
            "-m",
            "viva",
            "test",
            "-i",
            "suite.jsonl",
            "-n",
            "bench",
            "--parallel",
            str(a.concurrency),
        ]
        with timed, Path("console.txt").open("w") as out:
            code = subprocess.run(command, stdout=out, check=False).returncode
        passed = Path("console.txt").read_text().count("\n✓ ")
    else:
        import viva

        # What a run imports on its way is no part of the run proper, as for the bare loop.
        for module in ("viva.llm.price_table", "viva.agents.chat", "viva.agents.prompt", "viva.llm.http1_client"):
            import_module(module)
        run = viva.run
        kept: dict[str, Any] = {"record": "talk.cassette"} if a.variant == "kept" else {}
        if a.variant == "unkept":
            kept = {"history": False}
            Journal.append = lambda self, *events: None
        if a.variant == "lag":
            from viva.catalog import list_components

            kept = {"outputs": [f"report{extension}" for extension in list_components("reporter")]}
            run = lag.run
        with timed:
            result = run("suite.jsonl", "bench", parallel=a.concurrency, **kept)
        code, passed = result.exit_code, result.summary.passed
    calls = a.n * (w.TURNS if a.workload == "static" else 2 * w.DYN_TURNS + 1)
    lags = {"lag_ms": lag.trials_ms, "end_lag_ms": lag.end_ms}
    size = w.tree_bytes(".")
    w.report(passed=passed, n=a.n, requests=calls, run_s=timed.wall, run_cpu_s=timed.cpu, out_bytes=size, **lags)
    sys.exit(code)


if __name__ == "__main__":
    main()
