"""Which flags were given, and which of them have a meaning for what is asked. None is ignored in silence."""

from collections.abc import Collection, Mapping

import click
from click.core import ParameterSource

from viva.session.options import AGENT_OPTION_FLAGS

RESUME_FLAGS = frozenset(
    {"resume", "force", "outputs", "eval_summary", "parallel", "max_cost", "verbose", "quiet", "as_json", "config"}
) | frozenset(AGENT_OPTION_FLAGS)
"""What may be said anew when a run goes on: what is shown, how fast, how much more it may cost, and agents that are named
with a secret.
"""
HOST_FLAGS = frozenset(
    {
        "host", "inputs", "paths", "agent", "modes", "live", "baseline", "allow_agent_mismatch", "fail_on_regression",
        "eval_summary", "as_json", "quiet", "verbose", "config", "env_file", "format_",
    }
)  # fmt: skip
"""What another host can be asked for."""
CHAT_FLAGS = frozenset(
    {
        "interactive", "agent", "connector", "config", "env_file", "verbose", "turn_timeout", "max_cost", "agent_model",
        "workspace", "keep_workspace", "sandbox", "no_history",
    }
)  # fmt: skip
"""What a conversation by hand has: an agent, its folder, its limits. Nothing of it is kept."""
MESSAGE_FLAGS = (CHAT_FLAGS - {"interactive"}) | {"inputs", "paths", "dry_run", "quiet", "as_json", "timeout"}
"""The same for messages that are sent as they are."""
_BELONGS = {
    "max_runs": "until_decided", "alpha": "until_decided", "beta": "until_decided", "margin": "until_decided",
    "replay_missing": "replay", "force": "resume",
}  # fmt: skip
"""Flags that only mean something beside another one."""


def reject_other_flags(ctx: click.Context, allowed: Collection[str], why: str) -> None:
    """Refuses flags that have no meaning here."""
    if given := [flag for name, flag in _given(ctx).items() if name not in allowed]:
        raise click.UsageError(f"{why}; leave out {', '.join(given)}")


def reject_dependent_flags(ctx: click.Context) -> None:
    """Refuses flags without the one that they belong to."""
    given = _given(ctx)
    for name, other in _BELONGS.items():
        if name in given and other not in given:
            raise click.UsageError(
                f"{given[name]} belongs to --{other.replace('_', '-')}; give that too, or leave it out"
            )


def _given(ctx: click.Context) -> Mapping[str, str]:
    """The parameters of the command line, each with how it is shown."""
    shown = {str(each.name): each.opts[0] for each in ctx.command.params}
    shown["paths"] = "the inputs"
    return {name: flag for name, flag in shown.items() if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
