"""Executes a RunPlan: builds the journal, event bus, run context and scheduler, and ends with the reports."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

import viva
from viva.concurrency.garbage import collect_less_often
from viva.concurrency.prints import capture_prints
from viva.concurrency.threads import run_in_thread
from viva.config import Settings
from viva.engine.event_bus import EventBus
from viva.engine.scheduler import FailFast, LocalExecutor, Scheduler, SchedulerSettings
from viva.engine.summary import RunTally, exit_code
from viva.engine.thresholds import SuiteTally
from viva.engine.trial import RunContext
from viva.engine.trial_pool import TrialPool, yield_to_others
from viva.engine.until_decided import TrialsUntilDecided
from viva.errors import BadInput, RunStopped, TrialFault
from viva.formats.load_options import DEFAULT_TIMEOUT_S
from viva.history.index import HOSTED_KEY, History, HistorySink
from viva.llm.budget import UNPRICED_WARNING, Budget
from viva.model import codec
from viva.model.event import AGENTS_KEY, CaseGenerated, Event, Note, RunEnded, RunResumed, RunStarted, RunSummary
from viva.model.record import TrialRecord
from viva.protocols import Executor, PlannedTrial, Sink, Workers
from viva.record.journal import Journal, take_next_run_number
from viva.record.private_files import make_data_folder
from viva.session.case_selection import explain_empty_selection
from viva.session.file_limit import raise_file_limit
from viva.session.interrupts import InterruptHandler, RunInterrupted, handle_stop_signals
from viva.session.live_view import LiveViewWriter
from viva.session.options.keyword_values import replace_flags_in_message
from viva.session.options.saved import build_saved_settings
from viva.session.report_files import AgentReporter, ReportFiles
from viva.session.resume import PreviousRun
from viva.session.run_origin import describe_origin
from viva.session.run_plan import RunPlan
from viva.session.run_result import RunDetails, RunResult
from viva.session.scripts.hooks import ProjectHooks, add_hooks
from viva.state.trial_state import format_current_time
from viva.text.credentials import mask_agent_reference, mask_url_credentials
from viva.text.duration import format_duration


class HostedRun(Struct, frozen=True):
    """A run of a host, which also handles signals and the list of runs. Its trials wait for their turn among other runs."""

    run_id: str
    take_turn: Callable[[], AbstractAsyncContextManager[None]]


async def execute(
    plan: RunPlan,
    sinks: Sequence[Sink] = (),
    previous_run: PreviousRun | None = None,
    *,
    journal: Journal | None = None,
    hosted: HostedRun | None = None,
) -> RunResult:
    """Run the plan and send all events to the sinks. Trials of the `previous_run` are reported, not run again.

    A resumed run passes its `journal`, which is locked already.
    """
    run_id = previous_run.run_id if previous_run else hosted.run_id if hosted else create_run_id()
    async with _open_workers(plan, run_id) as workers:
        if journal is None:
            journal = _open_journal(plan.settings, run_id, history=plan.options.history)
        try:
            with collect_less_often(), raise_file_limit(plan.parallel) as limit_warning:
                run = _Run(plan, run_id, journal, previous_run, hosted, workers, limit_warning)
                result = await run.execute(sinks)
        except BaseException:
            journal.abandon()  # without an end event, so the next command says how to resume the run
            raise
        journal.release_lock()
        return result
    raise AssertionError  # no context manager here swallows errors


def _open_workers(plan: RunPlan, run_id: str) -> AbstractAsyncContextManager[Workers | None]:
    """The worker processes of the run; None if it runs in this process."""
    if not plan.options.has_workers:
        return nullcontext()
    from viva.session.workers.executor import open_workers  # most runs need none

    return open_workers(plan, run_id)


class _Run(Struct, frozen=True):
    """One execution of a plan, with its journal and workers."""

    plan: RunPlan
    run_id: str
    journal: Journal
    previous_run: PreviousRun | None
    hosted: HostedRun | None
    workers: Workers | None
    limit_warning: str | None

    async def execute(self, sinks: Sequence[Sink]) -> RunResult:
        plan, options, previous_run = self.plan, self.plan.options, self.previous_run
        number = 0 if previous_run or not options.history else _reserve_run_number(plan.settings)
        if previous_run is not None:
            self.journal.keep_only({event.index for event in previous_run.ended_trials})
        reports = ReportFiles(options.outputs, self.journal, options.eval_summary)
        has_history = options.history and self.hosted is None
        history_sinks = [HistorySink(History(plan.settings.data_folder))] if has_history else []
        tally = self._create_tally()
        # This order: what is journaled can be replayed, and what is counted or shown is never lost.
        stores = [*plan.cassette_mode.event_stores, self.journal, tally]
        pool = TrialPool(plan.conversations, self.hosted.take_turn if self.hosted else yield_to_others)
        bus = EventBus(stores, [*history_sinks, *sinks, reports], pool.stop)
        run_context, hooks = add_hooks(create_run_context(plan, self.run_id, bus), plan.run_hooks)
        trials, on_trial_ended = self._iterate_remaining_trials()
        executor = self._create_executor(run_context, hooks)
        agents = {agent.name: asyncio.Semaphore(agent.parallel) for agent in plan.tested_agents if agent.parallel}
        settings = SchedulerSettings(self._create_fail_fast_rule(), options.retry_faults, agents)
        scheduler = Scheduler(bus, plan.cassette_mode, pool, executor, settings, on_trial_ended)
        interrupts = InterruptHandler(lambda: scheduler.stop("interrupted"), is_hosted=self.hosted is not None)
        stop: RunStopped | None = None
        try:
            with capture_prints(), nullcontext() if self.hosted else handle_stop_signals(interrupts.request_stop):
                self._emit_start(bus, tally, number)
                try:
                    await interrupts.run_interruptibly(hooks.before_run(plan.iterate_cases))
                    async with LiveViewWriter(run_context, self.journal.path, plan, self.workers).run():
                        await interrupts.run_interruptibly(scheduler.run(trials))
                except RunInterrupted:
                    pass
                except RunStopped as error:
                    stop = error
                await executor.charge_cancelled()
                for warning in self.workers.take_warnings() if self.workers else ():
                    self._emit_warning(bus, warning)
                if warning := await self._call_after_run_hook(hooks, interrupts):
                    self._emit_warning(bus, warning)
                for agent, seconds in run_context.loop_lag.blocked_s_by_agent.items():
                    self._emit_warning(bus, _describe_blocked_loop(agent, seconds))
                summary = self._add_unrecorded_costs(tally.summary())
                texts, report_text = await self._ask_reporter(bus, summary, interrupts)
                summary = self._add_unrecorded_costs(summary)
                stop_reason = scheduler.stop_reason if stop is None else "budget" if stop.is_budget else "broken"
                try:
                    plan.cassette_mode.flush()
                except RunStopped as error:
                    stop, stop_reason = stop or error, stop_reason or "broken"
                message = plan.redactor.redact_text(stop.reason) if stop else None
                code = exit_code(summary, stop_reason, may_be_empty=plan.is_empty_shard)
                ended = RunEnded(self.run_id, format_current_time(), code, summary, stop_reason, message)
                stop_signal = interrupts.signal
                if reports.are_requested:  # a large report takes seconds, and the loop may be the caller's
                    writing = run_in_thread(reports.write_files, ended, texts)
                    ended = await interrupts.run_to_end(writing)
                ended = _emit_end(bus, reports, ended, texts)
        finally:
            plan.cassette_mode.close()
        if interrupts.is_cancelled:
            raise asyncio.CancelledError
        return await self._create_result(ended, report_text, stop_signal)

    async def _create_result(self, ended: RunEnded, report_text: str | None, stop_signal: int | None) -> RunResult:
        plan, options = self.plan, self.plan.options
        is_empty = options.is_filtered and not plan.selected_count
        reason = await explain_empty_selection(options, plan.suites) if is_empty else None
        return RunResult(
            ended,
            self.journal,
            rule=options.pass_rule,
            agents=tuple(agent.name for agent in plan.tested_agents),
            has_history=options.history,
            details=RunDetails(
                report_text,
                stop_signal,
                plan.redactor.redact_text(replace_flags_in_message(reason)) if reason else None,
            ),
        )

    def _create_executor(self, run_context: RunContext, hooks: ProjectHooks) -> Executor:
        if self.workers is None:
            return LocalExecutor(run_context)
        from viva.session.workers.executor import WorkerExecutor

        return WorkerExecutor(run_context, self.plan.cassette_mode, self.workers, lambda: hooks.data)

    def _create_fail_fast_rule(self) -> FailFast | None:
        options = self.plan.options
        return FailFast(options.pass_rule, self._earlier_records) if options.fail_fast else None

    @property
    def _earlier_records(self) -> Iterable[TrialRecord]:
        return (event.record for event in self.previous_run.ended_trials) if self.previous_run else ()

    def _create_tally(self) -> RunTally:
        earlier_ms = self.previous_run.earlier_ms if self.previous_run is not None else 0.0
        suites = self._create_suite_tallies()
        return RunTally(self.plan.case_count, self.plan.options.pass_rule, suites, earlier_ms=earlier_ms)

    def _create_suite_tallies(self) -> list[SuiteTally]:
        """A tally for each agent and each suite that has a threshold and, after filters, at least one case."""
        rule, counts = self.plan.options.pass_rule, self.plan.case_counts
        return [
            SuiteTally(suite, counts[suite.suite], rule, agent.name)
            for suite in self.plan.planned_suites
            for agent in self.plan.tested_agents
            if suite.threshold and counts.get(suite.suite)
        ]

    def _iterate_remaining_trials(self) -> tuple[AsyncIterator[PlannedTrial], Callable[[TrialRecord], None]]:
        """The trials to run, and a function to call with the record of each ended trial: a sequential test needs it."""
        plan = self.plan
        if plan.options.sequential is None:
            return _skip_ended_trials(plan.iterate_trials(), self.previous_run), lambda _record: None
        undecided = TrialsUntilDecided(plan.iterate_trials(), plan.options.pass_rule, self._earlier_records)
        return undecided.yield_due_trials(), undecided.on_trial_ended

    def _emit_start(self, bus: EventBus, tally: RunTally, number: int) -> None:
        """Emit the first events. Earlier events of a resumed run go to the sinks only, because the journal has them."""
        plan, previous_run = self.plan, self.previous_run
        if previous_run is None:
            bus.emit(self._create_started_event(number))
        else:
            plan.cassette_mode.resume(previous_run.ended_keys)
            sinks_only = bus.copy_without_stores()
            sinks_only.emit(previous_run.started)
            tally.append(*previous_run.retried_attempts)
            for event in previous_run.ended_trials:
                sinks_only.emit(event)
                sinks_only.flush()  # there may be very many
                tally.append(event)
            bus.emit(RunResumed(previous_run.run_id, format_current_time(), previous_run.discarded))
        for suite, cases in plan.generated_cases.items():
            if previous_run is None or suite not in previous_run.generated_cases:
                for case in cases:
                    bus.emit(plan.redactor.redact(CaseGenerated(suite, case, len(cases))))
        _warn_about_unknown_prices(plan.budget, bus)
        worker_notes, worker_warnings = self._describe_workers()
        for note in (*plan.notes, plan.person_policy.explain_skips(plan.interactive_count), *worker_notes):
            if note:
                bus.emit(Note(plan.redactor.redact_text(note)))
        for warning in filter(None, (self.limit_warning, *plan.cassette_mode.find_drift(), *worker_warnings)):
            bus.emit(Note(plan.redactor.redact_text(warning), "warning"))

    def _describe_workers(self) -> tuple[Sequence[str], Sequence[str]]:
        """Notes and warnings about the workers."""
        if self.workers is None:
            return (), ()
        from viva.session.workers.executor import describe_workers, list_worker_warnings

        return describe_workers(self.plan, self.workers), [
            *list_worker_warnings(self.plan),
            *self.workers.take_warnings(),
        ]

    def _create_started_event(self, number: int) -> RunStarted:
        plan, options = self.plan, self.plan.options
        names = tuple(agent.name for agent in plan.tested_agents if agent.name)
        model_class = plan.tested_agents[0].model_class  # for an eval summary, which has one agent
        return RunStarted(
            run=self.run_id,
            at=format_current_time(),
            viva=viva.__version__,
            agent=", ".join(names) or "as the tests say",
            inputs=tuple(map(mask_url_credentials, options.inputs)),
            cases=plan.case_count,
            trials=plan.trial_count,
            parallel=plan.parallel,
            settings={
                "reports": [str(path) for path in (*options.outputs, options.eval_summary) if path],
                "journal": str(self.journal.path) if options.history else None,
                **options.pass_rule.to_settings(),
                **build_saved_settings(options, plan.redactor),
                "fingerprint": plan.fingerprint,
                AGENTS_KEY: plan.redactor.redact(codec.to_plain(self._describe_agents())),
                **({"model_class": model_class} if model_class else {}),
                **({HOSTED_KEY: True} if self.hosted else {}),
            },
            verified=tuple(suite.verified for suite in plan.suites if suite.verified),
            number=number,
            suites=tuple(plan.planned_suites),
            all_trials=plan.all_trial_count if options.shard else 0,
            agents=names,
            origin=plan.redactor.redact(describe_origin(plan)),
        )

    def _describe_agents(self) -> dict[str, Any]:
        definitions = self.plan.agents.definitions
        return {agent.name: definitions[agent.name] for agent in self.plan.tested_agents if agent.name in definitions}

    async def _call_after_run_hook(self, hooks: ProjectHooks, interrupts: InterruptHandler) -> str | None:
        """Call `--after`, also after an interrupt: it may have to clean up. Returns a warning if it fails."""
        try:
            return await interrupts.run_interruptibly(hooks.after_run(self.journal.records))
        except RunInterrupted:
            return "--after was interrupted"

    async def _ask_reporter(
        self, bus: EventBus, summary: RunSummary, interrupts: InterruptHandler
    ) -> tuple[dict[Path, str], str | None]:
        """Ask the agent of `--reporter` for the text of each output file or, without files, for a text to print.

        If the agent fails or is interrupted, a warning is emitted and the built-in report is used. Each text has the time limit of a case.
        """
        plan, options = self.plan, self.plan.options
        texts: dict[Path, str] = {}
        if options.reporter is None:
            return texts, None
        timeout_s = options.timeout_s or plan.settings.defaults.timeout_s or DEFAULT_TIMEOUT_S
        reporter = AgentReporter(plan.helpers, options.reporter, self.journal, options.pass_rule, timeout_s)
        for path in options.outputs or (None,):
            failure = "not asked: the run was interrupted"
            if not interrupts.is_stop_requested:
                report_format = path.suffix.removeprefix(".") if path else ""
                try:
                    text = await interrupts.run_interruptibly(reporter.write_report(summary, report_format or "text"))
                except (TrialFault, RunStopped) as error:
                    failure = str(error)
                except RunInterrupted:
                    failure = "interrupted"
                else:
                    text = plan.redactor.redact_text(text)
                    if path is None:
                        return texts, text
                    texts[path] = text
                    continue
            fallback = f"{path} is the built-in report" if path else "there is no report from it"
            self._emit_warning(bus, mask_agent_reference(f"reporter {options.reporter}: {failure}; {fallback}"))
        return texts, None

    def _emit_warning(self, bus: EventBus, text: str) -> None:
        """Emit a warning near the end of a run. A journal that cannot be written is ignored here: the end event reports it."""
        with suppress(RunStopped):
            bus.emit(Note(self.plan.redactor.redact_text(text), "warning"))

    def _add_unrecorded_costs(self, summary: RunSummary) -> RunSummary:
        """The summary with the cost of all model calls: attempts that were cut off or retried have no record."""
        spent_usd = self.plan.budget.spent_usd
        if spent_usd <= (summary.cost_usd or 0.0) + 1e-9:
            return summary
        return structs.replace(summary, cost_usd=spent_usd)


def report_ended_run(
    events: Iterator[Event],
    end: RunEnded,
    journal: Journal,
    outputs: Sequence[Path],
    sinks: Sequence[Sink],
    eval_summary: Path | None,
) -> int:
    """Write the reports of an ended run, which may have been killed before it wrote them. Returns the exit code.

    `events` are the start event and those of the trials. They are read one at a time, because there may be very many.
    """
    reports = ReportFiles(outputs, journal, eval_summary)
    bus = EventBus((), [HistorySink(History(journal.path.parents[2])), *sinks, reports])
    for event in events:
        bus.emit(event)
        bus.flush()
    without_losses = end
    if end.summary.lost_reports:
        summary = structs.replace(end.summary, lost_reports=())
        without_losses = structs.replace(end, summary=summary, exit_code=exit_code(summary, end.stopped))
    new_end = _emit_end(bus, reports, reports.write_files(without_losses))
    if new_end != end:
        journal.append(new_end)
    journal.close()
    return new_end.exit_code


def _emit_end(
    bus: EventBus, reports: ReportFiles, ended: RunEnded, texts: Mapping[Path, str] | None = None
) -> RunEnded:
    """Emit the end event, which says which reports were lost.

    If the journal is broken, the sinks still receive the event, and the reports are written again, because they show it.
    """
    notes = [Note(f"report {lost}; not written", "warning") for lost in ended.summary.lost_reports]
    try:
        for event in (*notes, ended):
            bus.emit(event)
    except RunStopped as error:
        if ended.stop_message is None:
            ended = structs.replace(ended, exit_code=ended.exit_code or 1, stopped="broken", stop_message=error.reason)
            ended = reports.write_files(ended, texts)
        for event in (*notes, ended):
            bus.copy_without_stores().emit(event)
    return ended


async def _skip_ended_trials(
    trials: AsyncIterator[PlannedTrial], previous_run: PreviousRun | None
) -> AsyncIterator[PlannedTrial]:
    async for planned in trials:
        if previous_run is None or not previous_run.has_run_ended(planned):
            yield planned


def create_run_context(plan: RunPlan, run_id: str, bus: EventBus) -> RunContext:
    """The RunContext that all trials of a plan share, without hooks."""
    flags = {"connector": plan.options.connector, "model": plan.options.agent_model}
    return RunContext(
        run_id=run_id,
        agents={agent.name: agent for agent in plan.tested_agents},
        http=plan.http,
        helpers=plan.helpers,
        bus=bus,
        options={name: value for name, value in flags.items() if value},
        connectors=plan.settings.connectors,
        meter=plan.budget.spend,
        find_agent=plan.agents.find_agent,
        redactor=plan.redactor,
        cassette=plan.cassette_mode,
        workspaces=plan.workspaces,
        confirmation_tools=frozenset(plan.settings.confirmation_tools),
    )


def _warn_about_unknown_prices(budget: Budget, bus: EventBus) -> None:
    """Warn once, as soon as a call of unknown price makes `--max-cost` incomplete."""

    def warn() -> None:
        bus.emit(Note(f"--max-cost: {UNPRICED_WARNING}", "warning"))

    if budget.max_usd is not None:
        budget.notify_on_unpriced_call(warn)


def _describe_blocked_loop(agent: str, seconds: float) -> str:
    return (
        f"agent {agent} blocked the event loop for {format_duration(round(seconds, 2))} in total; all other conversations waited. "
        "Make it a plain function, or await what takes long"
    )


def create_run_id() -> str:
    """A new run id: the time, and random digits, because machines of a team may start runs in the same second."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.urandom(4).hex()}"


def _open_journal(settings: Settings, run_id: str, *, history: bool) -> Journal:
    """`.viva/runs/<id>/journal.jsonl` beside the config; a temporary file for a run without history."""
    if not history:
        import shutil
        import tempfile

        folder = Path(tempfile.mkdtemp(prefix="viva-"))
        journal = Journal(folder / "journal.jsonl")
        shutil.rmtree(folder)  # the open file exists as long as the run
        return journal
    data_folder = settings.data_folder
    try:
        make_data_folder(data_folder)
        return Journal(data_folder / "runs" / run_id / "journal.jsonl")
    except (OSError, RunStopped) as error:
        raise _create_write_error(data_folder, error) from error


def _reserve_run_number(settings: Settings) -> int:
    try:
        return take_next_run_number(settings.data_folder)
    except OSError as error:
        raise _create_write_error(settings.data_folder, error) from error


def _create_write_error(folder: Path, error: Exception) -> BadInput:
    return BadInput.of(f"cannot write to {folder}: {error}; --no-history writes nothing there")
