"""`viva check`: reports all problems of suite files without running them."""

import sys
from pathlib import Path
from typing import get_args

import click

from viva import config
from viva.cli.history import config_option
from viva.errors import BadInput, Problem
from viva.formats.load_options import LoadOptions
from viva.formats.sources import Format, StandardInput, SuiteFiles, load_files, parse_input
from viva.model.case import Suite
from viva.reporters.formatting import escape_multiline
from viva.session.agents import AgentFactory
from viva.session.eval_suites import build_eval_options
from viva.session.name_checks import create_connector_check, create_helper_check
from viva.session.options.run_options import AllRunOptions

EPILOG = """\b
Examples:
  viva check tests/expense.jsonl
  viva check tests/ more/*.yaml
  viva check playbooks/             needs no environment variables and no evaluator
"""


@click.command(epilog=EPILOG)
@click.argument("files", nargs=-1, required=True)
@click.option(
    "--format",
    "format_",
    type=click.Choice(get_args(Format)),
    help="The format of the files, if their keys do not show it.",
)
@config_option
@click.option(
    "--before",
    metavar="MODULE:FUNCTION",
    help="The --before hook of the run, which may set variables that the files use.",
)
def command(files: tuple[str, ...], format_: Format | None, config_file: Path | None, before: str | None) -> int:
    """Check suite FILES (or folders) and print each problem as FILE:LINE: $.path: what is wrong, what would be right."""
    settings = config.load_project(config_file, Path.cwd(), allow_unset=True)
    roots, agents = (str(settings.folder),), AgentFactory(settings)
    if before is not None:
        from viva.session.scripts.hooks import resolve_run_hook

        resolve_run_hook(before, "--before", (*roots, str(Path.cwd())))
    load_options = LoadOptions(
        roots=roots,
        attachment_roots=settings.attachment_roots,
        has_before_run=before is not None,
        simulator=settings.defaults.simulator,
        find_helper_problems=create_helper_check(agents, settings),
        find_connector_problems=create_connector_check(agents, settings, AllRunOptions(inputs=files)),
        eval_options=build_eval_options(AllRunOptions(inputs=files), settings, is_check_only=True),
    )
    problems: list[Problem] = []
    suites: list[Suite] = []
    count = 0
    for name in files:
        try:
            source = parse_input(name, Path())
            if not isinstance(source, SuiteFiles | StandardInput):
                raise BadInput.of(f"there is no file or folder {name!r}; pass suite files or folders")
            paths = source.paths if isinstance(source, SuiteFiles) else (source,)
            if isinstance(source, SuiteFiles) and source.note:
                print(source.note)
            suites += load_files(paths, load_options, Path(), format_)
            count += len(paths)
        except BadInput as error:
            problems += error.problems
    for problem in problems:
        print(escape_multiline(str(problem)))
    if problems:
        print(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}", file=sys.stderr)
        return 4
    for note in (note for suite in suites for note in suite.notes):
        print(note)
    cases = sum(suite.count for suite in suites)
    print(f"{cases} case{'s' if cases != 1 else ''} in {count} file{'s' if count != 1 else ''}: no problems")
    return 0
