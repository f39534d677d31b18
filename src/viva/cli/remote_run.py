"""`viva test -i suite.json --host URL`: runs a suite on an OpenWOP host and shows its events."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import click
from msgspec import UNSET, Struct, field, structs

from viva import config
from viva.agents.json_objects import as_object
from viva.errors import Unreachable
from viva.formats.openwop.modes import LIVE_MODE, EvalOptions, Mode
from viva.formats.openwop.summary import EvalSummary
from viva.llm.transport import HttpTransport
from viva.model import codec
from viva.record.atomic_files import replace_file
from viva.record.redaction import Redactor
from viva.reporters.formatting import escape_controls
from viva.session.interrupts import handle_stop_signals
from viva.session.remote_run import (
    ModesRequired,
    RemoteRun,
    RemoteRunRequest,
    resolve_remote_suite,
    select_remote_modes,
)
from viva.session.report_files import check_output_writable


async def run_remote(flags: dict[str, Any]) -> int:
    """Run one suite on a host, with the exit codes of a local run."""
    if len(flags["inputs"]) != 1:
        raise click.UsageError("--host runs exactly one suite. Pass one -i with a suite file, a pack, or ID@VERSION")
    modes: tuple[Mode, ...] = flags["modes"] or ()
    if (LIVE_MODE in modes) != flags["live"]:
        raise click.UsageError("--modes live-shadow needs --live, and --live needs --modes live-shadow")
    if flags["fail_on_regression"] and flags["baseline"] is None:
        raise click.UsageError("--fail-on-regression needs --baseline")
    options = EvalOptions(modes=modes, is_live=flags["live"], has_baseline=flags["baseline"] is not None)
    settings = config.load_settings(flags["config"], Path.cwd(), flags["env_file"])
    if len(flags["agents"]) > 1:
        raise click.UsageError("--host runs a suite on one agent. Pass -n once")
    suite = resolve_remote_suite(flags["inputs"][0], Path(), next(iter(flags["agents"]), None))
    note = None
    if suite.modes is not None:
        selected, note = select_remote_modes(suite.reference, suite.modes, options)
        modes = selected if note else modes  # the host knows what a suite declares
    if flags["eval_summary"] is not None:
        check_output_writable("--eval-summary", flags["eval_summary"])
    request = RemoteRunRequest(
        suite=suite.reference,
        agent=suite.agent,
        modes=modes,
        baseline=flags["baseline"],
        allow_agent_mismatch=flags["allow_agent_mismatch"],
    )
    http = HttpTransport()
    task = asyncio.current_task()
    try:
        with handle_stop_signals(lambda _number: task and task.cancel()):
            remote, printer = RemoteRun(flags["host"], settings, http), _EventPrinter(flags, settings.redactor)
            if note:
                printer.print_text(note)
            try:
                run = await remote.start(request)
            except ModesRequired as error:
                selected, note = select_remote_modes(suite.reference, error.declared, options)
                printer.print_text(note or f"modes: {', '.join(selected)}")
                request = structs.replace(request, modes=selected)
                run = await remote.start(request)
            printer.print_text(f"{request.suite} on {request.agent} at {flags['host']}: {run}")
            return await _follow_run(remote, printer, flags)
    except asyncio.CancelledError:
        return 2
    except Unreachable as error:
        print(escape_controls(settings.redactor.redact_text(error.message)), file=sys.stderr)
        return 1
    finally:
        await http.close()


async def _follow_run(remote: RemoteRun, printer: "_EventPrinter", flags: dict[str, Any]) -> int:
    last_event: dict[str, Any] = {}
    try:
        async for event in remote.stream_events():
            printer.print_event(event)
            last_event = event
    except asyncio.CancelledError:
        await remote.cancel()
        printer.print_problem(f"{remote.run_id}: asked the host to stop it")
        raise
    if last_event.get("type") != "run.completed":
        error = as_object(as_object(last_event.get("payload")).get("error"))
        printer.print_problem(f"the run did not complete: {error.get('message', last_event.get('type'))}")
        return 1
    summary = await remote.fetch_summary()
    summary_failed = False
    if (path := flags["eval_summary"]) is not None:
        try:
            replace_file(path, codec.pretty_json(codec.encode(summary)) + b"\n")
        except OSError as error:
            summary_failed = True
            printer.print_problem(f"--eval-summary {path}: {error.strerror}; the summary is not written")
    printer.print_summary(summary)
    may_be_worse = summary.regression is UNSET or summary.regression.score_delta < 0
    if flags["fail_on_regression"] and summary.regression is UNSET:  # a task has no verdict here or there
        printer.print_problem(f"the host did not compare the run with the baseline {flags['baseline']}")
    return 0 if summary.passed and not summary_failed and not (may_be_worse and flags["fail_on_regression"]) else 1


class _ScoredTask(Struct, rename="camel"):
    """The part of a scored task that is shown."""

    task_id: str
    passed: bool
    score: float
    latency_ms: int | float | None = None
    findings: int | None = field(default=None, name="safetyFindingCount")


class _EventPrinter:
    """Prints a line per task, or with --json each event. What a host sends controls no terminal, and may echo the token."""

    def __init__(self, flags: dict[str, Any], redactor: Redactor) -> None:
        self._redactor = redactor
        self._out = flags["out"]
        self._json = flags["as_json"]
        self._quiet = flags["quiet"]

    def print_text(self, text: str) -> None:
        if not self._json and not self._quiet:
            print(self._clean(text), file=self._out, flush=True)

    def print_problem(self, text: str) -> None:
        print(self._clean(text), file=sys.stderr)

    def _clean(self, text: str) -> str:
        return escape_controls(self._redactor.redact_text(text))

    def print_event(self, event: dict[str, Any]) -> None:
        if self._json:
            print(codec.compact_json(self._redactor.redact(event)), file=self._out, flush=True)
        elif event["type"] == "eval.scored":
            try:
                task = codec.convert(event.get("payload"), _ScoredTask)
            except codec.ValidationError as error:
                raise Unreachable(f"the host sent an event eval.scored that cannot be read: {error}") from error
            if not (self._quiet and task.passed):
                more = f", {task.findings} findings" if task.findings else ""
                took = "?" if task.latency_ms is None else task.latency_ms
                line = f"{'✓' if task.passed else '✗'} {task.task_id}  {task.score:.4g}  {took} ms{more}"
                print(self._clean(line), file=self._out, flush=True)

    def print_summary(self, summary: EvalSummary) -> None:
        if self._json:
            return
        cost = "" if summary.total_cost_usd is UNSET else f", ${summary.total_cost_usd:.6g}"
        delta = "" if summary.regression is UNSET else f", {summary.regression.score_delta:+.4g} against the baseline"
        verdict = "passed" if summary.passed else "failed"
        counts = f"{summary.passed_count} of {summary.task_count} tasks passed"
        print(f"{verdict}: score {summary.aggregate_score:.4g}, {counts}{cost}{delta}", file=self._out)
