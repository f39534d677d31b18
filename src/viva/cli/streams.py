"""Standard streams and console output of a command."""

import os
import shutil
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TextIO

from viva.errors import BadInput
from viva.protocols import Sink


def has_terminal() -> bool:
    """Are standard input and output a terminal?"""
    return sys.stdin.isatty() and sys.stdout.isatty()


def should_use_colour(*, terminal: bool) -> bool:
    """Are colours printed? Yes on a terminal or with FORCE_COLOR; no with NO_COLOR or on a dumb terminal."""
    if "NO_COLOR" in os.environ:
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (terminal and os.environ.get("TERM") != "dumb")


def create_console(
    *,
    verbose: bool,
    quiet: bool,
    parallel: int = 0,
    describe_pace: Callable[[], str] | None = None,
    has_person: bool = False,
) -> Sink:
    """The Sink that prints the events of a run to the console."""
    from viva.reporters.console import Console, ConsoleOptions

    terminal = sys.stdout.isatty()
    options = ConsoleOptions(
        verbose=verbose or has_person,
        quiet=quiet,
        colour=should_use_colour(terminal=terminal),
        is_terminal=terminal and not has_person,
        width=shutil.get_terminal_size((100, 24)).columns,  # COLUMNS without a terminal
        parallel=parallel,
        describe_pace=describe_pace,
        full_replies=has_person,
        is_github_log=is_in_github_actions(),
    )
    return Console(sys.stdout, options)


def is_in_github_actions() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def find_repository() -> Path:
    """The folder that the paths of GitHub's annotations start from."""
    return Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd())


def annotate_bad_input(error: BadInput) -> None:
    """In GitHub Actions, print an annotation for each problem at its file and line."""
    if is_in_github_actions():
        from viva.reporters.github import annotate_problems

        annotate_problems(error.problems, sys.stderr, find_repository())


def create_annotation_sinks() -> list[Sink]:
    """In GitHub Actions, a Sink that prints an annotation for each failure, on standard error; else an empty list."""
    if not is_in_github_actions():
        return []
    from viva.reporters.github import GithubAnnotations

    return [GithubAnnotations(sys.stderr, find_repository())]


@contextmanager
def reserve_stdout() -> Generator[TextIO]:
    """Yields standard output for the command alone. What agents and their programs print goes to standard error."""
    out = sys.stdout
    with redirect_stdout(sys.stderr):
        try:
            number = out.fileno()
        except OSError:  # a stream without a file descriptor: no other process can write to it
            yield out
            return
        out.flush()
        private = os.dup(number)
        os.dup2(sys.stderr.fileno(), number)
        try:
            with open(private, "w", encoding="utf-8", closefd=False) as stream:
                yield stream
        finally:
            out.flush()  # what agents printed to it goes to standard error
            os.dup2(private, number)
            os.close(private)
