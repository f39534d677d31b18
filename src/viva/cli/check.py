"""`viva check`: everything that is wrong with suite files, and nothing is run."""

import sys
from pathlib import Path

import click

from viva import catalog, config
from viva.errors import BadInput, Problem
from viva.formats.reading import Reading
from viva.formats.sources import Files, Format, Piped, load_files, understood
from viva.model.case import Suite
from viva.session.agents import Agents
from viva.session.evaluating import eval_reading
from viva.session.names import connector_check, helper_check
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
    settings = config.load(config_file, Path.cwd(), only_look=True)
    catalog.load_plugins(settings.plugins, settings.folder)
    roots, agents = (str(settings.folder),), Agents(settings)
    if before is not None:
        from viva.session.hooks import run_hook

        run_hook(before, "--before", (*roots, str(Path.cwd())))
    reading = Reading(
        roots=roots,
        attachment_roots=settings.attachment_roots,
        before_run=before is not None,
        simulator=settings.defaults.simulator,
        wrong_with=helper_check(agents, settings),
        wrong_with_connector=connector_check(agents, settings, RunOptions(inputs=files)),
        evals=eval_reading(RunOptions(inputs=files), settings, checked_only=True),
    )
    problems: list[Problem] = []
    suites: list[Suite] = []
    count = 0
    for text in files:
        try:
            named = understood(text, Path())
            if not isinstance(named, Files | Piped):
                raise BadInput.of(f"there is no file {text!r}")
            paths = named.paths if isinstance(named, Files) else (named,)
            if isinstance(named, Files) and named.note:
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
