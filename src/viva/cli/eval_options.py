"""Flags of `viva test` for OpenWOP eval suites."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from viva.formats.openwop.modes import Mode, parse_modes

F = TypeVar("F", bound=Callable[..., Any])


class ModesType(click.ParamType[tuple[Mode, ...]]):
    """`golden,adversarial`."""

    name = "modes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Mode, ...]:
        return parse_modes(value) if isinstance(value, str) else tuple(value)


_OPTIONS = (
    click.option(
        "--modes",
        type=ModesType(),
        metavar="A,B",
        help="Modes of an eval suite: golden, rubric, adversarial, regression, live-shadow. By default those it declares, "
        "less what needs --baseline or --live.",
    ),
    click.option("--live", is_flag=True, help="With --modes live-shadow: use live tools and memory, not the fixtures."),
    click.option(
        "--baseline",
        metavar="RUN|FILE",
        help="Compare the score of an eval suite with that of an earlier run, or of the file of its summary.",
    ),
    click.option("--fail-on-regression", is_flag=True, help="A score below that of --baseline fails the run."),
    click.option(
        "--allow-agent-mismatch", is_flag=True, help="Run an eval suite although it names another agent as its target."
    ),
    click.option(
        "--eval-summary",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write the EvalSummary of an eval suite: scores, ids and counts, and no word of any content.",
    ),
)


def add_eval_options(command: F) -> F:
    """Adds the flags to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_eval_options(flags: Mapping[str, Any]) -> dict[str, Any]:
    """What they say, as fields of the run's options."""
    return {
        "modes": flags["modes"] or (),
        "live": flags["live"],
        "baseline": flags["baseline"],
        "fail_on_regression": flags["fail_on_regression"],
        "allow_agent_mismatch": flags["allow_agent_mismatch"],
        "eval_summary": flags["eval_summary"],
    }
