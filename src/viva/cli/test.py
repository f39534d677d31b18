"""`viva test`: run cases against an agent."""

import asyncio
import sys
from collections.abc import Iterable
from contextlib import aclosing
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import click
from msgspec import Struct, structs

from viva.cli.history import open_history, report_crashed_runs
from viva.cli.run_flags import RunCommand, add_run_flags, build_options, reject_conflicting_flags, reject_other_flags
from viva.cli.streams import create_annotation_sinks, create_console, has_terminal, reserve_stdout
from viva.errors import BadInput
from viva.formats.sources import PlainMessage, parse_input
from viva.protocols import Sink
from viva.record.journal import Journal
from viva.reporters.formatting import escape_multiline
from viva.session.case_selection import explain_empty_selection
from viva.session.interrupts import handle_stop_signals
from viva.session.loop import run_coroutine
from viva.session.options.run_options import AllRunOptions, CommandFlags
from viva.session.options.saved import (
    AGENT_OPTION_FLAGS,
    apply_resume_flags,
    restore_agents_with_secrets,
    restore_options,
)
from viva.session.resume import PreviousRun, check_unchanged, enter_run_folder, keep_unchanged_trials, reopen_run
from viva.session.run import execute, report_ended_run
from viva.session.run_plan import RunPlan, build_run_plan
from viva.session.run_result import RunResult

EPILOG = """\b
Examples:
  viva test tests/expense.jsonl                    run a suite against the default agent; same as -i FILE
  viva test -i tests/ -n assistants.expense -v     run a folder against another agent, show all turns
  viva test -i tests/ -o report.xml -o report.md   write reports; the file extension is the format
  viva test -i tests/ -k '^refund' --fail-fast     run some cases, stop at the first failure
  viva test -i "Hello" -n python:./agent.py:agent  send one message and print the reply
  viva test -n assistants.expense --interactive    chat with the agent; s saves the conversation as a case
  viva test -i tests/ --runs 10 --min-pass 0.8     run each case 10 times; it passes if 8 trials pass
  viva test -i tests/ --until-decided --min-pass 0.9   run only as many trials as needed to decide
  viva test -i playbooks/ --evaluator judge        run playbooks against the Gemini CLI, or the agent of -n
  viva test -i suite.json --eval-summary eval.json --baseline latest   compare an OpenWOP eval suite with the latest run
  viva test --resume latest                        continue a run that stopped early
  viva test -i tests/ --shard 2/8                  run the second of eight parts; viva merge makes one run of them
  viva test -i tests/ --record chat.cassette       record every reply; --replay chat.cassette needs no network
  cat cases.jsonl | viva test -i - -n http://localhost:8000/chat

\b
Exit codes: 0 passed, 1 failed, 2 interrupted, 3 a bug in Viva, 4 bad input, 5 nothing ran or nothing was checked.
"""


class Invocation(Struct, frozen=True):
    """One call of the command: its flags, and the stream that its output goes to."""

    options: AllRunOptions
    flags: CommandFlags
    out: TextIO


@click.command(cls=RunCommand, epilog=EPILOG)
@add_run_flags
@click.pass_context
def command(ctx: click.Context, **values: Any) -> int:
    """Run cases against an agent and report the results."""
    is_reserved = values["as_json"] and not values["dry_run"]
    out = ctx.with_resource(reserve_stdout()) if is_reserved else sys.stdout
    values["inputs"] = _join_inputs(values["inputs"], values["paths"])
    if values["host"]:
        from viva.cli.remote_run import run_remote

        reject_other_flags(ctx, "host", "--host runs the suite on the host")
        return run_coroutine(run_remote({**values, "out": out}))
    if values["resume"]:
        reject_other_flags(ctx, "resume", "A resumed run keeps its settings")
        return run_coroutine(_resume_run(_create_invocation(values, out)))
    reject_conflicting_flags(ctx)
    report_crashed_runs(open_history(values["config"]))
    if not values["inputs"]:
        return _run_chat(ctx, values, out)
    if messages := _find_messages(values["inputs"]):
        if values["interactive"]:
            raise click.UsageError("To chat with the agent, remove -i and type the message")
        reject_other_flags(ctx, "message", "A message is sent without a case: it has no verdict and no report")
        from viva.cli.send_message import send_messages

        invocation = _create_invocation(values, out)
        return run_coroutine(send_messages(messages, invocation.options, invocation.flags, out))
    return run_coroutine(_run_cases(_create_invocation(values, out)))


def _create_invocation(values: dict[str, Any], out: TextIO) -> Invocation:
    flags = CommandFlags(**{name: values[name] for name in CommandFlags.__struct_fields__})
    return Invocation(build_options(values), flags, out)


def _join_inputs(flag_inputs: tuple[str, ...], paths: tuple[str, ...]) -> tuple[str, ...]:
    """All inputs, with and without -i. Raises UsageError for a message of several words without quotes."""
    if len(flag_inputs) + len(paths) > 1:
        for text in paths:
            if text in _find_messages((text,)):
                raise click.UsageError(f"There is no file {text!r}. Put a message in quotes: viva test 'Hello there'")
    return (*flag_inputs, *paths)


def _find_messages(inputs: Iterable[str]) -> list[str]:
    """The texts of the inputs if all of them are messages. Problems of other inputs are reported when they are loaded."""
    messages: list[str] = []
    for text in inputs:
        try:
            source = parse_input(text, Path())
        except BadInput:
            return []
        if not isinstance(source, PlainMessage):
            return []
        messages.append(source.text)
    return messages


def _run_chat(ctx: click.Context, values: dict[str, Any], out: TextIO) -> int:
    if not values["interactive"]:
        raise click.UsageError("No input given. Pass a suite, a folder or a message: viva test -i tests/")
    reject_other_flags(ctx, "chat", "--interactive without an input is a chat, without cases")
    if not has_terminal():
        raise click.UsageError("--interactive without -i is a chat: it needs a terminal")
    from viva.cli.chat import run_chat

    invocation = _create_invocation(values, out)
    return run_coroutine(run_chat(invocation.options, verbose=invocation.flags.verbose))


async def _run_cases(invocation: Invocation) -> int:
    options, flags = invocation.options, invocation.flags
    if has_terminal() and not (flags.as_json or flags.quiet):
        from viva.cli.interactive import TerminalPrompt

        options = structs.replace(options, create_person_prompt=TerminalPrompt)
    async with aclosing(await _build_plan_until_signal(options)) as plan:
        if not plan.selected_count and plan.options.is_filtered:
            print(await explain_empty_selection(plan.options, plan.suites), file=sys.stderr)
            return 5
        if options.dry_run:
            from viva.cli.dry_run import list_cases

            return await list_cases(plan)
        result = await execute(plan, _create_reporters(invocation, plan))
        return _print_report_text(result, flags)


async def _build_plan_until_signal(options: AllRunOptions, previous_run: PreviousRun | None = None) -> RunPlan:
    """Build the plan. Ctrl-C and other stop signals cancel it, because generating cases may take long."""
    task = asyncio.current_task()
    try:
        with handle_stop_signals(lambda _number: task and task.cancel()):
            return await build_run_plan(options, previous_run)
    except asyncio.CancelledError:
        raise click.Abort from None


async def _resume_run(invocation: Invocation) -> int:
    """Continues a run with its own settings, in the folder where it was started."""
    history = open_history(invocation.options.config)
    journal, previous_run = reopen_run(history, invocation.flags.resume or "")
    try:
        report_crashed_runs(history)
        return await _resume_locked_run(journal, previous_run, invocation)
    finally:
        journal.release_lock()  # also if the run cannot be resumed: a later command must not report it as crashed


async def _resume_locked_run(journal: Journal, previous_run: PreviousRun, invocation: Invocation) -> int:
    options = apply_resume_flags(restore_options(previous_run.settings["options"]), invocation.options)
    references = {name: getattr(invocation.options, name) for name in AGENT_OPTION_FLAGS}
    enter_run_folder(options.folder)
    if previous_run.run_ended is not None:
        if flags := [AGENT_OPTION_FLAGS[name] for name, reference in references.items() if reference]:
            raise BadInput.of(f"The run is complete: only its reports are written again; remove {', '.join(flags)}")
        reporters = _create_reporters(invocation)
        events = chain([previous_run.started], previous_run.ended_trials)
        return report_ended_run(
            events, previous_run.run_ended, journal, options.outputs, reporters, options.eval_summary
        )
    options = restore_agents_with_secrets(options, references)
    async with aclosing(await _build_plan_until_signal(structs.replace(options, folder=Path()), previous_run)) as plan:
        if invocation.flags.force:
            previous_run = await keep_unchanged_trials(previous_run, plan.iterate_trials())
        else:
            check_unchanged(previous_run.settings["fingerprint"], plan.fingerprint)
        result = await execute(plan, _create_reporters(invocation, plan), previous_run, journal=journal)
    return _print_report_text(result, invocation.flags)


def _print_report_text(result: RunResult, flags: CommandFlags) -> int:
    """Prints the text of an agent as reporter and returns the exit code. With --json it goes to standard error."""
    if result.report_text is not None:
        print(escape_multiline(result.report_text), file=sys.stderr if flags.as_json else sys.stdout)
    return result.exit_code


def _create_reporters(invocation: Invocation, plan: RunPlan | None = None) -> list[Sink]:
    """The sinks of the command: JSON events or the console, and annotations in GitHub Actions. `plan` is None for a complete run."""
    flags, has_person = invocation.flags, plan is not None and plan.has_person
    if flags.as_json:
        from viva.reporters.json import JsonEventReporter

        return [JsonEventReporter(invocation.out), *create_annotation_sinks()]
    console = create_console(
        verbose=flags.verbose,
        quiet=flags.quiet,
        parallel=plan.parallel if plan else 0,
        describe_pace=plan.describe_pace if plan else None,
        has_person=has_person,
    )
    return [console, *create_annotation_sinks()]
