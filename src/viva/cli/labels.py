"""`viva labels`: lists and exports the labels that people gave to verdicts."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from viva.cli.history import find_run, open_history, report_crashed_runs
from viva.errors import BadInput
from viva.history.index import History, RunRow
from viva.model import codec
from viva.model.label import Label
from viva.model.record import TrialRecord, TurnRecord
from viva.record.atomic_files import replace_file
from viva.record.journal import read_records
from viva.record.labels import read_labels, select_current_labels
from viva.reporters.formatting import format_count
from viva.reporters.table import Column, format_table, get_output_width
from viva.stats.agreement import measure_agreement

EPILOG = """\b
Examples:
  viva view                                 give labels: open a case, press Agree, Disagree or Unsure at a check
  viva labels                               list the runs with labels, and how often people agree
  viva labels export -o labels.jsonl        write all labels, each with the verdict and the text it is about
  viva labels export latest --judges -o labels.csv
"""
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_COLUMNS = (
    Column("run"),
    Column("agent", is_flexible=True),
    Column("labels", "right"),
    Column("agree", "right"),
    Column("95 % interval", "right", is_optional=True),
    Column("false passes", "right"),
    Column("false failures", "right"),
    Column("judges agree", "right"),
)


@click.group(invoke_without_command=True, epilog=EPILOG)
@click.pass_context
def command(ctx: click.Context) -> int:
    """List the labels that people gave to verdicts in `viva view`, or export them. Labels never change a verdict."""
    history = open_history()
    report_crashed_runs(history)
    if ctx.invoked_subcommand is not None:
        return 0
    rows = [
        _list_run_cells(row, labels)
        for row in history.list_runs()
        if (labels := select_current_labels(read_labels(history.journal_path(row.id))))
    ]
    if not rows:
        print("No labels. Give some with `viva view`: open a case, and say whether you agree with its checks")
    for line in format_table(_COLUMNS, rows, get_output_width()) if rows else ():
        print(line)
    return 0


def _list_run_cells(row: RunRow, labels: Sequence[Label]) -> list[str]:
    total = measure_agreement(labels)
    judges = measure_agreement([label for label in labels if label.is_judge])
    assert total is not None
    interval = total.interval
    return [
        row.id,
        row.agent,
        f"{len(labels):,}",
        f"{total.agreed:,}/{total.decided:,}",
        f"{interval.low * 100:.0f} to {interval.high * 100:.0f} %" if interval else "",
        f"{total.false_passes:,}" if total.false_passes else "",
        f"{total.false_failures:,}" if total.false_failures else "",
        f"{judges.agreed:,}/{judges.decided:,}" if judges else "",
    ]


@command.command(epilog="Example: viva labels export latest -o labels.csv")
@click.argument("runs", nargs=-1)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write to this file, as .jsonl or .csv; without it, lines of JSON are printed.",
)
@click.option("--judges", is_flag=True, help="Only labels on checks that a model decided.")
def export(runs: tuple[str, ...], output: Path | None, judges: bool) -> int:
    """Write the labels of RUNS, by default of all runs.

    Each has the verdict, its reason, and the turn it is about.

    RUN is an id or its start, `latest`, `latest~1` or `remote:ID`. `human` is the verdict that the person would give.
    """
    if output is not None and output.suffix not in (".jsonl", ".csv"):
        raise BadInput.of(f"-o {output}: unknown extension; labels are written as .jsonl or .csv")
    history = open_history()
    rows = [find_run(history, name) for name in runs] if runs else history.list_runs()[::-1]
    exported = [line for row in rows for line in _export_run(history, row.id) if line["is_judge"] or not judges]
    if output is None:
        for line in exported:
            print(codec.compact_json(line))
        return 0
    text = _format_csv(exported) if output.suffix == ".csv" else "".join(f"{codec.compact_json(x)}\n" for x in exported)
    try:
        replace_file(output, text.encode())
    except OSError as error:
        raise BadInput.of(f"-o {output}: {error.strerror}") from error
    print(f"wrote {format_count(len(exported), 'label')} to {output}")
    return 0


def _export_run(history: History, run: str) -> Iterator[dict[str, Any]]:
    labels = select_current_labels(read_labels(history.journal_path(run)))
    trials = {(label.suite, label.case, label.agent, label.trial) for label in labels}
    records: dict[tuple[str, str, str, int], TrialRecord] = {}
    if labels:
        for record in read_records(history.journal_path(run)):
            key = (record.suite, record.id, record.agent or "", record.trial)
            if key in trials:
                records[key] = record
    for label in labels:
        record = records.get((label.suite, label.case, label.agent, label.trial))
        fields = {name: getattr(label, name) for name in Label.__struct_fields__}
        yield {"run": run, **fields, "human": label.human_verdict, **_describe_turn(record, label)}


def _describe_turn(record: TrialRecord | None, label: Label) -> dict[str, Any]:
    """The reason of the verdict, and the messages of its turn (for the verdict on a case: of the last turn)."""
    if record is None:
        return {"reason": None, "input": None, "output": None}
    part, _, position = label.check.partition("-")
    turn: TurnRecord | None = record.turns[-1] if record.turns else None
    checks: Sequence[dict[str, Any]] = record.final_assertions if part == "end" else ()
    if part.isdecimal():
        turn = next((each for each in record.turns if each.turn == int(part)), None)
        checks = turn.assertions if turn else ()
    at = int(position) - 1 if position.isdecimal() else -1
    reason = checks[at].get("reason") if 0 <= at < len(checks) else record.error if not label.check else None
    return {"reason": reason, "input": turn.input if turn else None, "output": turn.output if turn else None}


def _format_csv(lines: Sequence[dict[str, Any]]) -> str:
    """The labels as CSV. A cell that a spreadsheet would read as a formula gets a leading quotation mark."""
    out = io.StringIO()
    names = list(lines[0]) if lines else ["run", *Label.__struct_fields__, "human", "reason", "input", "output"]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({name: _escape_cell(value) for name, value in line.items()})
    return out.getvalue()


def _escape_cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) else value
