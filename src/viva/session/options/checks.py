"""Checks the options of a run before anything is loaded: filters, files that it writes, and runs that it names."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import structs

from viva.config import Settings
from viva.errors import BadInput
from viva.formats.sources import SUITE_SUFFIXES
from viva.history.index import History, read_run_start
from viva.model.record import Cell, Status
from viva.session.case_selection import validate_id_filter
from viva.session.eval_suites import resolve_latest_baseline
from viva.session.options.run_options import AllRunOptions
from viva.session.report_files import check_output_files, check_report_extension
from viva.stats.pass_rule import PassRule


def check_options(options: AllRunOptions, settings: Settings) -> AllRunOptions:
    """The options with `--last-failed` and `--baseline latest` resolved. Raises BadInput for filters and output files."""
    if options.last_failed and options.selected_cases is None:
        options = structs.replace(options, selected_cases=_find_last_failed_cases(settings))
    options = resolve_latest_baseline(options, settings)
    validate_id_filter(options.only)
    if options.update_snapshots and len(options.agents) > 1:
        raise BadInput.of("--update-snapshots: a snapshot is of one agent; pass -n once")
    _check_output_flags(options)
    _refuse_reports_among_suites(options)
    baseline = options.folder / options.baseline if options.baseline else None
    needed_files = (settings.file, options.env_file, options.record, options.replay, baseline)
    refuse_overwriting_inputs(options, [path for path in needed_files if path])
    return options


def _list_output_files(options: AllRunOptions) -> list[tuple[str, Path]]:
    """The flag and path of each file that the run writes."""
    outputs = [("-o", path) for path in options.outputs]
    return outputs if options.eval_summary is None else [*outputs, ("--eval-summary", options.eval_summary)]


def _check_output_flags(options: AllRunOptions) -> None:
    """Raises BadInput for output files that cannot be written. With --reporter any extension is allowed."""
    for path in options.outputs:
        if options.dry_run and path.suffix != ".jsonl":
            raise BadInput.of(f"-o {path}: --dry-run writes cases as .jsonl")
        if options.reporter is None:
            check_report_extension(path)
    check_output_files(_list_output_files(options))


def refuse_overwriting_inputs(options: AllRunOptions, needed: Iterable[Path]) -> None:
    """Raises BadInput for an output that would replace a file the run needs."""
    needed_files = {path.resolve(): path for path in needed}
    for flag, path in _list_output_files(options):
        if (needed_file := needed_files.get(path.resolve())) is not None:
            raise BadInput.of(f"{flag} {path}: the run itself needs {needed_file}; write the report elsewhere")


def _refuse_reports_among_suites(options: AllRunOptions) -> None:
    """Raises BadInput for a report in a folder of suites that the next run of this folder would load as one.

    Viva recognises the reports that it writes itself, but not what the agent of `--reporter` writes.
    """
    if options.reporter is None or options.dry_run:
        return
    for path in options.outputs:
        for folder in _find_suite_folders(options):
            if path.suffix in SUITE_SUFFIXES and path.resolve().is_relative_to(folder.resolve()):
                what = f"the next run of {folder} would load what the reporter writes as a suite; write it elsewhere"
                raise BadInput.of(f"-o {path}: {what}")


def _find_suite_folders(options: AllRunOptions) -> Iterator[Path]:
    """The folders of the inputs. The working folder counts only if it is an input itself: reports usually go there."""
    for text in options.inputs:
        path = options.folder / text
        if path.is_dir():
            yield path
        elif path.parent.is_dir() and not path.parent.samefile(options.folder):
            yield path.parent


def _find_last_failed_cases(settings: Settings) -> tuple[tuple[str, str], ...]:
    """The suite and id of each case that failed or had an error in the latest run, on one of its agents, by the rule of that run."""
    history = History(settings.data_folder)
    run = history.find_run("latest").id
    started = read_run_start(history.journal_path(run))
    rule = PassRule.from_settings(started.settings if started else {})
    trials: dict[Cell, dict[int, Status]] = {}
    for row in history.iter_results(run):
        trials.setdefault((row.suite, row.case, row.agent), {})[row.trial] = row.status
    failed = (
        (suite, case)
        for (suite, case, _), statuses in trials.items()
        if rule.status([status for _, status in sorted(statuses.items())]) in ("failed", "error")
    )
    return tuple(dict.fromkeys(failed))
