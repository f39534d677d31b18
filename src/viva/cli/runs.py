"""`viva runs`: lists, shows and deletes runs, and shares them with a team."""

import heapq
import shutil
import sys
from collections import Counter
from pathlib import Path

import click

from viva.cli.history import find_run, open_history, open_remote_history, report_crashed_runs
from viva.cli.streams import should_use_colour
from viva.errors import BadInput
from viva.history.index import History, RunRow
from viva.model import codec
from viva.model.event import RunSummary
from viva.model.record import STATUS_MARKS, TrialRecord
from viva.record.journal import read_records
from viva.record.locks import find_lock_holder
from viva.reporters.breakdown import RunHighlights
from viva.reporters.console_lines import Palette
from viva.reporters.failures import explain_failure
from viva.reporters.formatting import escape_controls, fit_line, format_count, format_ms, format_rounded_cost
from viva.reporters.summary import describe_details
from viva.reporters.table import Column, Table, format_table, get_output_width
from viva.reporters.tree import CaseTree

_MAX_MESSAGE_LINES = 1000
_COUNT_TITLES = ("passed", "failed", "errors", "undecided", "skipped", "not run")
_COLUMNS = (
    Column("  run"),
    Column("agent", is_flexible=True, is_optional=True),
    *(Column(title, "right", is_optional=title in ("skipped", "not run")) for title in _COUNT_TITLES),
    Column("time", "right"),
    Column("cost", "right", is_optional=True),
    Column("remarks", is_flexible=True, is_text=True, is_optional=True),
    Column("input", is_flexible=True, is_optional=True),
)
_CASE_COLUMNS = (
    Column("  result"),
    Column("case"),
    Column("agent", is_text=True),
    Column("trial", "right"),
    Column("name", is_flexible=True, is_text=True, is_optional=True),
    Column("turns", "right"),
    Column("time", "right"),
    Column("cost", "right", is_optional=True),
    Column("reason", is_flexible=True, is_text=True),
)
EPILOG = """\b
Examples:
  viva runs                        list the newest runs
  viva runs --failed --json        list runs that did not pass, as JSON
  viva runs show latest            list the cases of the newest run
  viva runs show latest~1 T001     show one conversation with its results
  viva runs gc --keep 50           delete all but the newest 50 runs
  viva runs clean                  delete kept workspaces, but no runs
  viva runs push s3://bucket/viva  copy the runs of this machine to the team's history
  viva runs pull                   copy the team's runs to this machine
"""


class GroupWithShowHint(click.Group):
    """The subcommands of `viva runs`. For another word the error names the command that shows a run."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            hint = f"To show a run: viva runs show {' '.join(args)}. Commands: {', '.join(self.commands)}."
            raise click.UsageError(f"{error.message} {hint}", ctx) from error


@click.group(cls=GroupWithShowHint, invoke_without_command=True, epilog=EPILOG)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Maximum number of runs.")
@click.option("--agent", help="Only runs with this agent.")
@click.option("--failed", is_flag=True, help="Only runs that did not pass.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per run.")
@click.pass_context
def command(ctx: click.Context, limit: int, agent: str | None, failed: bool, as_json: bool) -> int:
    """List runs, newest first, or show, delete and share them with a subcommand."""
    history = open_history()
    report_crashed_runs(history)
    if ctx.invoked_subcommand is not None:
        return 0
    rows = history.list_runs(limit=limit, agent=agent, failed=failed)
    if as_json:
        lines = [codec.compact_json(row) for row in rows]
    else:
        table = format_table(_COLUMNS, [_list_run_cells(row, history) for row in rows], get_output_width())
        lines = table if rows else ["No runs. Start one with `viva test -i FILE`"]
    for line in lines:
        print(line)
    return 0


def _list_run_cells(row: RunRow, history: History) -> list[str]:
    """The cells of a run in the list of runs. A count of 0 is an empty cell."""
    remarks = ["pulled"] if history.is_pulled(row.id) else []
    inputs = " ".join(row.inputs)
    if (s := row.summary) is None:
        holder = find_lock_holder(history.journal_path(row.id))
        state = f"running, process {holder.pid}" if holder else "unfinished: --resume continues it"
        return [f"… {row.id}", row.agent, *[""] * 8, ", ".join([state, *remarks]), inputs]
    counts = (s.failed, s.errors, s.undecided, s.skipped, s.not_run)
    return [
        f"{'✓' if row.exit_code == 0 else '✗'} {row.id}",
        row.agent,
        f"{s.passed:,}/{s.total:,}",
        *(f"{number:,}" if number else "" for number in counts),
        format_ms(s.duration_ms),
        _format_run_cost(s),
        ", ".join([*_list_remarks(s), *remarks]),
        inputs,
    ]


def _format_run_cost(summary: RunSummary) -> str:
    """The known cost; with a plus sign if some calls have no price, as in a matrix."""
    if summary.cost_usd is None:
        return ""
    return f"{format_rounded_cost(summary.cost_usd)}{'+' if summary.unpriced_calls else ''}"


def _list_remarks(summary: RunSummary) -> list[str]:
    counts = (
        (sum(bool(suite.failures) for suite in summary.suites), "below the threshold"),
        (len(summary.lost_reports), "reports not written"),
        (summary.retried, "retried"),
    )
    return [f"{number:,} {word}" for number, word in counts if number]


def _format_run(row: RunRow, history: History) -> str:
    """The cells of a run as one line of text."""
    run, agent, *cells, remarks, inputs = _list_run_cells(row, history)
    named = zip((*_COUNT_TITLES, "", ""), cells, strict=True)
    texts = [
        f"{text} {'error' if (text, title) == ('1', 'errors') else title}".rstrip() for title, text in named if text
    ]
    remarks_text = ", ".join([*texts, *filter(None, [remarks])])
    return escape_controls("  ".join(filter(None, (run, agent, remarks_text, inputs))))


@command.command(epilog="Example: viva runs show latest T001")
@click.argument("run")
@click.argument("case", required=False)
@click.option("-n", "--name", "agent", help="Show only the results of this agent, in a run of several.")
@click.option("--json", "as_json", is_flag=True, help="Print the records as lines of JSON.")
def show(run: str, case: str | None, agent: str | None, as_json: bool) -> int:
    """List the cases of RUN, or show the conversation of CASE.

    RUN is an id or its start, `latest`, `latest~1` or `remote:ID`.
    """
    history = open_history()
    row = find_run(history, run)
    journal = history.journal_path(row.id)
    if agent is not None and agent not in row.agents:
        raise BadInput.of(f"run {row.id} has no agent {agent!r}; it has {', '.join(row.agents)}")
    loaded = read_records(journal) if case is None else _load_case_records(journal, row.id, case)
    records = (record for record in loaded if agent in (None, record.agent))
    names_agents = len(row.agents) > 1
    if not as_json:
        print(_format_run(row, history))
        for label, text in describe_details(row.summary) if row.summary else ():
            print(f"  {label}: {escape_controls(text)}")
    if as_json:
        for record in records:
            print(codec.compact_json(record))
    elif case is None:
        highlights, table = RunHighlights(), Table(_CASE_COLUMNS)
        for record in records:
            highlights.add(record)
            table.add_row(_list_case_cells(record, names_agents=names_agents))
        for label, text in highlights.describe():
            print(f"  {label}: {escape_controls(text)}")
        for line in table.format_lines(get_output_width()):
            print(line)
    else:
        palette, width = (
            Palette(should_use_colour(terminal=sys.stdout.isatty())),
            shutil.get_terminal_size((100, 24)).columns,
        )
        for record in records:
            if names_agents:
                print(f"{palette('bold', 'Agent')}: {escape_controls(record.agent or '')}")
            tree = CaseTree(palette, width, _MAX_MESSAGE_LINES)
            print(tree.render(record, trial=record.trial if record.trials > 1 else None))
    return 0


def _list_case_cells(record: TrialRecord, *, names_agents: bool) -> list[str]:
    findings = f"safety findings: {', '.join(map(str, record.findings))}" if record.findings else ""
    reason = explain_failure(record).headline if record.status != "passed" else ""
    return [
        f"{STATUS_MARKS[record.status]} {record.status}",
        record.id,
        (record.agent or "") if names_agents else "",
        f"{record.trial}" if record.trials > 1 else "",
        "" if record.name == record.id else fit_line(record.name, 200),
        f"{record.total_turns:,}" if record.total_turns else "",
        format_ms(record.duration_ms) if record.total_turns else "",
        format_rounded_cost(record.cost_usd) if record.cost_usd is not None else "",
        "; ".join(filter(None, (fit_line(reason, 200), findings))),
    ]


def _load_case_records(journal: Path, run: str, case: str) -> list[TrialRecord]:
    """The records of one case. Raises BadInput with existing ids if the run does not have the case."""
    records = [record for record in read_records(journal) if record.id == case]
    if not records:
        known = ", ".join(heapq.nsmallest(20, {record.id for record in read_records(journal)}))
        raise BadInput.of(f"run {run} has no case {case!r}; it has {known}")
    return records


@command.command(epilog="Example: viva runs rm 20261115-101500-ab12")
@click.argument("runs", nargs=-1, required=True)
def rm(runs: tuple[str, ...]) -> int:
    """Delete RUNS with their journals and kept workspaces."""
    history = open_history()
    ids = dict.fromkeys(history.find_run(name).id for name in runs)
    for run in ids:
        history.refuse_if_in_use(run)
    for run in ids:
        history.remove_run(run)
        print(f"removed {run}")
    return 0


@command.command(epilog="Example: viva runs gc --keep 50")
@click.option("--keep", type=click.IntRange(0), default=50, show_default=True, help="Number of runs to keep.")
def gc(keep: int) -> int:
    """Delete all but the newest runs, with their data. Running runs stay."""
    removed = open_history().remove_old_runs(keep)
    print(f"removed {format_count(len(removed), 'run')}")
    return 0


@command.command(epilog="Example: viva runs clean latest")
@click.argument("runs", nargs=-1)
@click.option(
    "--all",
    "everywhere",
    is_flag=True,
    help="Also workspaces of other projects and of --no-history, in the temp folder.",
)
def clean(runs: tuple[str, ...], everywhere: bool) -> int:
    """Delete the kept workspaces of RUNS, but no runs. The default is all runs of this project."""
    from viva.workspace.folders import find_kept_workspaces, remove_kept_workspace

    history = open_history()
    ids = [history.find_run(name).id for name in runs] or [row.id for row in history.list_runs()]
    removed = [path for run in dict.fromkeys(ids) for path in history.remove_workspaces(run)]
    if everywhere:
        removed += [path for path in find_kept_workspaces() if remove_kept_workspace(path)]
    for path in removed:
        print(f"removed {escape_controls(path)}")
    print(f"removed {format_count(len(removed), 'workspace')}")
    return 0


@command.command(epilog="Example: viva runs reindex")
def reindex() -> int:
    """Rebuild the index of runs, for example after damage. The journals have all that is in it."""
    print(f"indexed {format_count(open_history().rebuild(), 'run')}")
    return 0


@command.command(epilog="Example: viva runs push s3://bucket/viva --run latest")
@click.argument("url", required=False)
@click.option("--run", "runs", metavar="RUN", multiple=True, help="Push only this run. Repeatable.")
@click.option("--without-text", is_flag=True, help="Leave out all texts: push results, times, costs and counts.")
def push(url: str | None, runs: tuple[str, ...], without_text: bool) -> int:
    """Copy runs that have ended to URL, where a team can see them. The default is `remote` of [history].

    Runs that are there already are not copied again.
    """
    history = open_history()
    remote = open_remote_history(url)
    ids = [history.find_run(name).id for name in runs] or [row.id for row in reversed(history.list_runs())]
    results = Counter[str]()
    for run, result in remote.push(history, dict.fromkeys(ids), without_text=without_text):
        results[result] += 1
        if result != "present":
            print(f"{result} {run}", flush=True)
    present = f"; {results['present']} there before" if results["present"] else ""
    unfinished = f"; {results['unfinished']} unfinished, left out" if results["unfinished"] else ""
    print(f"pushed {format_count(results['pushed'], 'run')} to {remote.name}{present}{unfinished}")
    return 0


@command.command(epilog="Example: viva runs pull s3://bucket/viva")
@click.argument("url", required=False)
@click.option("--run", "runs", metavar="RUN", multiple=True, help="Pull only this run: an id or latest. Repeatable.")
def pull(url: str | None, runs: tuple[str, ...]) -> int:
    """Copy the runs of URL that this machine lacks. The default is `remote` of [history].

    `latest` still means a run of this machine, if it has one.
    """
    history = open_history()
    remote = open_remote_history(url)
    names = [remote.find_run(name) for name in runs] if runs else None
    count = 0
    for run in remote.pull(history, names):
        print(f"pulled {run}", flush=True)
        count += 1
    print(f"pulled {format_count(count, 'run')} from {remote.name}")
    return 0
