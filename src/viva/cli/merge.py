"""`viva merge`: makes one run of the parts of a split run."""

import sys
import tempfile
from pathlib import Path

import click

from viva import config
from viva.cli.history import config_option, find_run, open_history
from viva.cli.run_flags import add_flags
from viva.cli.streams import create_annotation_sinks, create_console, reserve_stdout
from viva.errors import BadInput
from viva.model.event import Note, RunStarted, TrialEnded
from viva.record.journal import Journal, read_events
from viva.reporters.formatting import escape_controls
from viva.session.report_files import check_output_files, check_report_extension
from viva.session.run import create_run_id, report_ended_run
from viva.session.shards.merge import Merger
from viva.session.shards.merge_sources import check_sources, read_merge_sources

EPILOG = """\b
Examples:
  viva merge shards/ -o report.html -o report.xml    all runs below a folder: the artifacts of a CI job
  viva merge shard-1.zip shard-2.zip shard-3.zip     artifacts as they were downloaded
  viva merge latest~1 latest                         two runs that were split by -k
  viva view latest                                   look at the merged run

\b
Exit codes: those of `viva test`, as if all cases had been in one run; 4 if the runs do not belong together.
"""


@click.command(epilog=EPILOG)
@click.argument("runs", nargs=-1, required=True, metavar="RUN|FOLDER|ZIP...")
@add_flags("outputs", "eval_summary", "verbose", "quiet", "as_json")
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    runs: tuple[str, ...],
    outputs: tuple[Path, ...],
    eval_summary: Path | None,
    *,
    verbose: bool,
    quiet: bool,
    as_json: bool,
    config_file: Path | None,
) -> int:
    """Make one run of RUNS that were split by --shard or -k. Each is a run, or a folder or ZIP file with runs.

    The cases keep their order, and thresholds count over all of them. Missing shards count as not run.
    """
    config.load_project(config_file, Path.cwd(), allow_unset=True)  # plugins may write reports
    for path in outputs:
        check_report_extension(path)
    check_output_files(
        [*(("-o", path) for path in outputs), *([("--eval-summary", eval_summary)] if eval_summary else [])]
    )
    history = open_history(config_file)

    def find_journal(name: str) -> Path:
        return history.journal_path(find_run(history, name, config_file).id)

    with tempfile.TemporaryDirectory(prefix="viva-merge-") as scratch:
        sources, notes = read_merge_sources(runs, find_journal, Path(scratch))
        check_sources(sources)
        if eval_summary is not None:
            _check_eval_summary(sources[0].started)
        for note in notes:
            print(escape_controls(note), file=sys.stderr)
        path, end = Merger(sources, create_run_id(), outputs).write(history.home)
    if as_json:
        from viva.reporters.json import JsonEventReporter

        reporter = JsonEventReporter(ctx.with_resource(reserve_stdout()))
    else:
        reporter = create_console(verbose=verbose, quiet=quiet)
    journal = Journal(path)
    events = (event for event in read_events(path) if isinstance(event, RunStarted | TrialEnded | Note))
    return report_ended_run(events, end, journal, outputs, [reporter, *create_annotation_sinks()], eval_summary)


def _check_eval_summary(started: RunStarted) -> None:
    count = [suite.kind for suite in started.suites].count("eval_suite")
    if count != 1:
        raise BadInput.of(f"--eval-summary: needs one eval suite, and the runs have {count}")
    if len(started.agents) > 1:
        raise BadInput.of(f"--eval-summary is for one agent, but the runs have {len(started.agents)}")
