"""Kinds of flags that several commands share."""

import sys
from typing import Any

import click

from viva.model.duration import parse_duration


class Duration(click.ParamType[float]):
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


DURATION = Duration()


def person_here() -> bool:
    """Is there a terminal that somebody can sit at?"""
    return sys.stdin.isatty() and sys.stdout.isatty()
