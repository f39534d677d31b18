"""Kinds of flags that several commands share, and what stands at the other end of the standard streams."""

import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

import click

from viva.text.duration import parse_duration


class DurationType(click.ParamType[float]):
    """`30s`, `2m30s`, or a number of seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = parse_duration(value)
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)
        if seconds <= 0:
            self.fail("must be more than nothing", param, ctx)
        return seconds


DURATION = DurationType()


def has_terminal() -> bool:
    """Is there a terminal that somebody can sit at?"""
    return sys.stdin.isatty() and sys.stdout.isatty()


def use_colour(*, terminal: bool) -> bool:
    """On a terminal, or where FORCE_COLOR says so (logs of CI services show colours); NO_COLOR and a dumb one mean none."""
    if "NO_COLOR" in os.environ:
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (terminal and os.environ.get("TERM") != "dumb")


@contextmanager
def reserve_stdout() -> Generator[TextIO]:
    """Standard output for us alone: what agents print meanwhile, or programs that they start, goes to standard error."""
    out = sys.stdout
    with redirect_stdout(sys.stderr):
        try:
            number = out.fileno()
        except OSError:  # it is a stream of this process only: nothing else can write to it
            yield out
            return
        out.flush()
        private = os.dup(number)
        os.dup2(sys.stderr.fileno(), number)
        try:
            with open(private, "w", encoding="utf-8", closefd=False) as stream:
                yield stream
        finally:
            out.flush()  # what was printed to it after all is not ours
            os.dup2(private, number)
            os.close(private)


@contextmanager
def handle_sigterm() -> Generator[None]:
    """SIGTERM is as Ctrl-C: what goes on is ended, and the exit code is 2. A run has handlers of its own meanwhile."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread: signals are not ours to handle
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
