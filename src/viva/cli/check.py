"""`viva check`: everything that is wrong with suite files, and nothing is run."""

import sys
from pathlib import Path

import click

from viva import catalog, config
from viva.errors import BadInput, Problem
from viva.formats.load_options import LoadOptions
from viva.formats.sources import Format, StandardInput, SuiteFiles, load_files, parse_input
from viva.model.case import Suite
from viva.session.agents import AgentFactory
from viva.session.eval_suites import build_eval_options
from viva.session.names import create_connector_check, create_helper_check
from viva.session.options import RunOptions

EPILOG = """\b
Examples:
  viva check tests/expense.jsonl
  viva check tests/ more/*.yaml
  viva check playbooks/                  neither variables of the environment nor an evaluator are needed for this
"""


@click.command(epilog=EPILOG)
@click.argument("files", nargs=-1, required=True)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["native", "playbook", "openwop"]),
    help="The format, if the keys do not tell.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Another config than the nearest viva.toml.",
)
@click.option(
    "--before",
    metavar="MODULE:FUNCTION",
    help="The --before of the run: it may set variables that nothing in the files sets.",
)
def command(files: tuple[str, ...], format_: Format | None, config_file: Path | None, before: str | None) -> int:
    """Check suite files; prints each problem as FILE:LINE: $.path: what is wrong and what would be right."""
    settings = config.load_settings(config_file, Path.cwd(), allow_unset=True)
    catalog.load_plugins(settings.plugins, settings.folder)
    roots, agents = (str(settings.folder),), AgentFactory(settings)
    if before is not None:
        from viva.session.hooks import resolve_run_hook

        resolve_run_hook(before, "--before", (*roots, str(Path.cwd())))
    reading = LoadOptions(
        roots=roots,
        attachment_roots=settings.attachment_roots,
        has_before_run=before is not None,
        simulator=settings.defaults.simulator,
        find_helper_problems=create_helper_check(agents, settings),
        find_connector_problems=create_connector_check(agents, settings, RunOptions(inputs=files)),
        eval_options=build_eval_options(RunOptions(inputs=files), settings, is_check_only=True),
    )
    problems: list[Problem] = []
    suites: list[Suite] = []
    count = 0
    for text in files:
        try:
            named = parse_input(text, Path())
            if not isinstance(named, SuiteFiles | StandardInput):
                raise BadInput.of(f"there is no file {text!r}")
            paths = named.paths if isinstance(named, SuiteFiles) else (named,)
            if isinstance(named, SuiteFiles) and named.note:
                print(named.note)
            suites += load_files(paths, reading, Path(), format_)
            count += len(paths)
        except BadInput as wrong:
            problems += wrong.problems
    for problem in problems:
        print(problem)
    if problems:
        print(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}", file=sys.stderr)
        return 4
    for note in (note for suite in suites for note in suite.notes):
        print(note)
    cases = sum(suite.count for suite in suites)
    print(f"{cases} case{'s' if cases != 1 else ''} in {count} file{'s' if count != 1 else ''}: nothing is wrong")
    return 0
