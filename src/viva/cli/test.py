"""`viva test`: run cases against an agent."""

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from viva.cli import test_options
from viva.cli.eval_options import add_eval_options, read_eval_options
from viva.cli.flag_rules import (
    CHAT_FLAGS,
    HOST_FLAGS,
    MESSAGE_FLAGS,
    RESUME_FLAGS,
    reject_dependent_flags,
    reject_other_flags,
)
from viva.cli.history import open_history, report_crashed_runs
from viva.cli.options import handle_sigterm, has_terminal, reserve_stdout, use_colour
from viva.errors import BadInput
from viva.formats.sources import PlainMessage, parse_input
from viva.protocols import Sink
from viva.record.journal import Journal
from viva.session.case_selection import explain_empty_selection
from viva.session.interrupts import handle_stop_signals
from viva.session.loop import run_coroutine
from viva.session.options import AGENT_OPTION_FLAGS, RunOptions, restore_options, restore_secrets
from viva.session.resume import PreviousRun, check_unchanged, keep_unchanged_trials, reopen_run
from viva.session.run import RunResult, execute, report_finished_run
from viva.session.run_plan import RunPlan, build_run_plan
from viva.stats.sequential import SequentialTest

EPILOG = """\b
Examples:
  viva test tests/expense.jsonl                    run a suite against the default agent; -i FILE is the same
  viva test -i tests/ -n assistants.expense -v     a folder, another agent, all turns
  viva test -i tests/ -o report.xml -o report.md   reports, by extension
  viva test -i tests/ -k '^refund' --fail-fast     some cases; stop at the first failure
  viva test -i "Hello" -n python:./agent.py:agent  send one message and see the answer
  viva test -n assistants.expense --interactive    talk with it; what was said can be saved as a case
  viva test -i tests/ --runs 10 --min-pass 0.8     repeats: a case passes if 8 of 10 trials do
  viva test -i tests/ --until-decided --min-pass 0.9   only as many trials as it takes to know
  viva test -i playbooks/ --evaluator judge        playbooks, against the Gemini CLI or the agent of -n
  viva test -i suite.json --eval-summary eval.json --baseline latest   an OpenWOP eval suite, and is it worse than before?
  viva test --resume latest                        go on with a run that was cut off
  viva test -i tests/ --record talk.cassette       keep every reply; --replay talk.cassette needs no network
  cat cases.jsonl | viva test -i - -n http://localhost:8000/chat

\b
Exit codes: 0 passed, 1 failed, 2 interrupted, 3 a bug in Viva, 4 bad input, 5 nothing ran or nothing was checked.
"""


@click.command(epilog=EPILOG)
@test_options.input_options
@test_options.output_options
@test_options.limit_options
@test_options.repeat_options
@test_options.participant_options
@test_options.workspace_options
@add_eval_options
@test_options.storage_options
@click.pass_context
def command(ctx: click.Context, **flags: Any) -> int:
    """Run cases against an agent, and say what holds."""
    ctx.with_resource(handle_sigterm())
    for_machines = flags["as_json"] and not flags["dry_run"]
    flags["out"] = ctx.with_resource(reserve_stdout()) if for_machines else sys.stdout
    flags["inputs"] = _all_inputs(flags["inputs"], flags["paths"])
    if flags["host"]:
        from viva.cli.remote import run_remote

        reject_other_flags(ctx, HOST_FLAGS, "--host: the suite runs over there")
        return run_coroutine(run_remote(flags))
    if flags["resume"]:
        reject_other_flags(ctx, RESUME_FLAGS, "--resume goes on with the settings that the run had")
        return run_coroutine(_resume(flags))
    reject_dependent_flags(ctx)
    report_crashed_runs(open_history(flags["config"]))
    if flags["interactive"] and not flags["inputs"]:
        reject_other_flags(ctx, CHAT_FLAGS, "--interactive without an input is a conversation by hand, without cases")
    if flags["interactive"]:
        _check_interactive(flags)
    if not flags["inputs"]:
        if flags["interactive"]:
            from viva.cli.chat import run_chat

            return run_coroutine(run_chat(flags))
        raise click.UsageError("No input given. Pass a suite, a folder or a message: viva test -i tests/")
    if words := _direct_messages(flags["inputs"]):
        if flags["interactive"]:
            raise click.UsageError("to talk with the agent leave out -i, and type the message")
        reject_other_flags(
            ctx,
            MESSAGE_FLAGS,
            "a message is sent as it is: it is no case, has no verdict and no report, and is not kept",
        )
        from viva.cli.send_message import send_messages

        return run_coroutine(send_messages(words, flags))
    return run_coroutine(_run(flags))


def _all_inputs(named: tuple[str, ...], paths: tuple[str, ...]) -> tuple[str, ...]:
    """Those of -i, and those without it. Several words without quotes are no message."""
    if len(named) + len(paths) > 1:
        for text in paths:
            if text in _direct_messages((text,)):
                raise click.UsageError(f"there is no file {text!r}; put a message in quotes: viva test 'Hello there'")
    return (*named, *paths)


def _direct_messages(inputs: tuple[str, ...]) -> list[str]:
    """The inputs, if all of them are messages. What is wrong with the others is said when they are loaded."""
    words: list[str] = []
    for text in inputs:
        try:
            found = parse_input(text, Path())
        except BadInput:
            return []
        if not isinstance(found, PlainMessage):
            return []
        words.append(found.text)
    return words


def _check_interactive(flags: dict[str, Any]) -> None:
    for flag, name in (("skip_interactive", "--skip-interactive"), ("as_json", "--json"), ("quiet", "-q")):
        if flags[flag]:
            raise click.UsageError(f"--interactive and {name} cannot both be meant")
    if not flags["inputs"] and not has_terminal():
        raise click.UsageError("--interactive without -i is a conversation: it needs a terminal")


async def _run(flags: dict[str, Any]) -> int:
    options = build_options(flags)
    asking = None
    if has_terminal() and not (flags["as_json"] or flags["quiet"]):
        from viva.cli.interactive import TerminalPrompt

        asking = TerminalPrompt()
        options = structs.replace(options, person_prompt=asking)
    prepared = await _prepared(options)
    if asking is not None:
        asking.redact = prepared.redactor.redact_text
    if not prepared.case_count and prepared.options.is_filtered:
        print(await explain_empty_selection(prepared.options, prepared.suites), file=sys.stderr)
        return 5
    if flags["dry_run"]:
        from viva.cli.dry_run import list_cases

        return await list_cases(prepared)
    result = await execute(prepared, [_voice(flags, prepared.parallel, person=prepared.has_person)])
    return _ended(result, flags)


async def _prepared(options: RunOptions, past: PreviousRun | None = None) -> RunPlan:
    """A generator may take its time: Ctrl-C and SIGTERM end it too."""
    task = asyncio.current_task()
    try:
        with handle_stop_signals(lambda: task and task.cancel()):
            return await build_run_plan(options, past)
    except asyncio.CancelledError:
        raise click.Abort from None


async def _resume(flags: dict[str, Any]) -> int:
    """A run that was cut off, with the settings that it had, in the folder where it was started."""
    history = open_history(flags["config"])
    journal, past = reopen_run(history, flags["resume"])
    try:
        report_crashed_runs(history)
        return await _resume_locked(journal, past, flags)
    finally:
        journal.release_lock()  # also where it is refused: who reads that needs no reminder


async def _resume_locked(journal: Journal, past: PreviousRun, flags: dict[str, Any]) -> int:
    options = restore_options(past.settings["options"])
    asked = {
        "outputs": tuple(path.absolute() for path in flags["outputs"]),
        "parallel": flags["parallel"],
        "max_cost_usd": flags["max_cost"],
        "eval_summary": flags["eval_summary"] and flags["eval_summary"].absolute(),
    }
    options = structs.replace(options, **{name: value for name, value in asked.items() if value})
    os.chdir(options.folder)
    if past.run_ended is not None:
        if given := [flag for name, flag in AGENT_OPTION_FLAGS.items() if flags[name]]:
            raise BadInput.of(f"the run is complete: only its reports are written again; leave out {', '.join(given)}")
        return report_finished_run(
            past, past.run_ended, journal, options.outputs, [_voice(flags)], options.eval_summary
        )
    options = restore_secrets(options, {name: flags[name] for name in AGENT_OPTION_FLAGS})
    prepared = await _prepared(structs.replace(options, folder=Path()), past)
    if flags["force"]:
        past = await keep_unchanged_trials(past, prepared.iterate_trials())
    else:
        check_unchanged(past.settings["fingerprint"], prepared.fingerprint)
    result = await execute(prepared, [_voice(flags, prepared.parallel)], past, journal=journal)
    return _ended(result, flags)


def _ended(result: RunResult, flags: dict[str, Any]) -> int:
    """The exit code, after what an agent as reporter has to say; machines that read events do not get it among them."""
    if result.report_text is not None:
        from viva.reporters.formatting import escape_multiline

        print(escape_multiline(result.report_text), file=sys.stderr if flags["as_json"] else sys.stdout)
    return result.exit_code


def _sequential(flags: dict[str, Any]) -> SequentialTest | None:
    """The test of --until-decided; a test that no case could ever pass is refused before anything runs."""
    if not flags["until_decided"]:
        return None
    if flags["min_pass"] is None:
        raise click.UsageError("--until-decided needs --min-pass: which share has to pass?")
    for name, flag in (("--runs", flags["runs"] != 1), ("--fail-fast", flags["fail_fast"])):
        if flag:
            raise click.UsageError(f"--until-decided and {name} cannot both be meant")
    least: float = flags["min_pass"]
    try:
        test = SequentialTest(
            min_pass=least,
            max_runs=flags["max_runs"] or 0,
            alpha=flags["alpha"],
            beta=flags["beta"],
            margin=flags["margin"],
        )
    except ValueError as wrong:
        raise click.UsageError(f"--until-decided: {wrong}") from wrong
    if test.min_passes > test.max_runs:
        raise click.UsageError(
            f"to tell {least:g} from {test.too_low:g} takes {test.min_passes} passes in a row, more than --max-runs "
            f"{test.max_runs}; raise --max-runs, --margin or --alpha"
        )
    return test


def build_options(flags: dict[str, Any]) -> RunOptions:
    sequential = _sequential(flags)
    return RunOptions(
        inputs=flags["inputs"],
        before=flags["before"],
        after=flags["after"],
        agent=flags["agent"],
        connector=flags["connector"],
        outputs=flags["outputs"],
        config=flags["config"],
        env_file=flags["env_file"],
        format=flags["format_"],
        timeout_s=flags["timeout"],
        turn_timeout_s=flags["turn_timeout"],
        parallel=flags["parallel"],
        runs=sequential.max_runs if sequential else flags["runs"],
        sequential=sequential,
        fail_fast=flags["fail_fast"],
        only=flags["only"],
        tags=flags["tags"],
        on_missing_input=flags["on_missing_input"],
        update_snapshots=flags["update_snapshots"],
        history=not flags["no_history"],
        dry_run=flags["dry_run"],
        simulator=flags["simulator"],
        evaluator=flags["evaluator"],
        agent_model=flags["agent_model"],
        workspace=flags["workspace"],
        link_mode=flags["link_mode"],
        keep_workspace=flags["keep_workspace"],
        sandbox=flags["sandbox"],
        reporter=flags["reporter"],
        max_cost_usd=flags["max_cost"],
        min_pass=flags["min_pass"],
        retry_faults=flags["retry_faults"],
        record=flags["record"],
        replay=flags["replay"],
        replay_missing=flags["replay_missing"],
        last_failed=flags["last_failed"],
        interactive=flags["interactive"],
        skip_interactive=flags["skip_interactive"],
        **read_eval_options(flags),
    )


def _voice(flags: dict[str, Any], parallel: int = 0, *, person: bool = False) -> Sink:
    """Who speaks on standard output: events for machines, or the console for people."""
    if flags["as_json"]:
        from viva.reporters.json import JsonEventReporter

        return JsonEventReporter(flags["out"])
    from viva.reporters.console import Console, ConsoleOptions

    terminal = sys.stdout.isatty()
    options = ConsoleOptions(
        verbose=flags["verbose"] or person,
        quiet=flags["quiet"],
        colour=use_colour(terminal=terminal),
        is_terminal=terminal and not person,
        width=shutil.get_terminal_size((100, 24)).columns,  # COLUMNS, where there is no terminal
        parallel=parallel,
        full_replies=person,
    )
    return Console(sys.stdout, options)
