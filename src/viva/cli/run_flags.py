"""The flags of `viva test`, made from the table of run options, and which of them go together."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from viva.errors import BadInput
from viva.session.options.keyword_values import find_sequential_problems, parse_value
from viva.session.options.run_options import (
    FLAGS,
    GROUPS,
    RUN_OPTIONS,
    Action,
    AllRunOptions,
    Option,
    find_option_conflicts,
)
from viva.stats.sequential import SequentialTest

F = TypeVar("F", bound=Callable[..., Any])


class OptionParamType(click.ParamType[Any]):
    """The click type of an option that is a duration or has its own parser."""

    def __init__(self, option: Option) -> None:
        self.name = "duration" if option.is_duration else option.name
        self._option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        parse = self._option.parse
        try:
            return parse_value(self._option, value) if parse is None else parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class RunCommand(click.Command):
    """The command `viva test`, whose help shows the flags in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {group: [] for group in (*GROUPS, "Other options")}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)) is not None:
                option = FLAGS.get(param.name or "")
                groups[option.group if option else "Other options"].append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)


def add_run_flags(command: F) -> F:
    """A decorator that adds all flags of the table of run options, and inputs without a flag."""
    return click.argument("paths", nargs=-1, metavar="[INPUT]...")(add_flags(*FLAGS)(command))


def add_flags(*names: str) -> Callable[[F], F]:
    """A decorator that adds the flags of these options, in this order."""

    def add(command: F) -> F:
        for name in reversed(names):
            command = create_flag(FLAGS[name])(command)
        return command

    return add


def create_flag(option: Option) -> Callable[[F], F]:
    """A decorator that adds the flag of one option."""
    settings: dict[str, Any] = {"help": option.help, "metavar": option.metavar}
    if option.type is bool:
        settings |= {"is_flag": True, "flag_value": not option.default, "default": option.default}
    else:
        has_default = option.default not in (None, ())
        settings |= {
            "type": _get_flag_type(option),
            "multiple": option.is_list and option.parse is None,
            "default": option.default if has_default else None,
            "show_default": has_default,
        }
    return click.option(*option.flags, option.name, **settings)


def _get_flag_type(option: Option) -> Any:
    if option.is_duration or option.parse is not None:
        return OptionParamType(option)
    if option.choices:
        return click.Choice(option.choices)
    if option.item_type is Path:
        return click.Path(exists=option.is_existing_file, dir_okay=not option.is_existing_file, path_type=Path)
    if option.range is None:
        return option.item_type if option.item_type in (int, float) else str
    low, high, is_open = option.range
    maximum = None if math.isinf(high) else high
    if option.item_type is int:
        return click.IntRange(int(low), maximum if maximum is None else int(maximum))
    return click.FloatRange(low, maximum, min_open=is_open, max_open=is_open and maximum is not None)


def list_flags_of_action(action: Action) -> frozenset[str]:
    """The names of the flags that an action takes."""
    names = {name for name, option in FLAGS.items() if action in option.actions}
    if action == "resume":
        names |= {name for name, option in FLAGS.items() if option.on_resume in ("replace", "reference")}
    return frozenset(names | {"paths"} if "inputs" in names else names)


def reject_other_flags(ctx: click.Context, action: Action, reason: str) -> None:
    """Raises UsageError for flags that the action does not take."""
    allowed = list_flags_of_action(action)
    if others := [label for name, label in _list_given_flags(ctx).items() if name not in allowed]:
        raise click.UsageError(f"{reason}; remove {', '.join(others)}")


def reject_conflicting_flags(ctx: click.Context) -> None:
    """Raises UsageError for flags that need another one or exclude each other."""
    values = {name: ctx.params[name] for name in _list_given_flags(ctx)}
    labels = {name: option.flag for name, option in FLAGS.items()}
    for conflict in find_option_conflicts(values, labels, FLAGS.values()):
        raise click.UsageError(conflict)


def _list_given_flags(ctx: click.Context) -> Mapping[str, str]:
    """The flags on the command line, by name."""
    labels = {name: option.flag for name, option in FLAGS.items()} | {"paths": "the inputs"}
    return {
        name: label for name, label in labels.items() if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def build_options(flags: Mapping[str, Any]) -> AllRunOptions:
    """The options of a run from the values of the flags."""
    values = {name: flags[name] for name in RUN_OPTIONS if name in FLAGS and flags[name] is not None}
    if flags["until_decided"]:
        test = _create_sequential_test(flags)
        values |= {"sequential": test, "runs": test.max_runs}
    return AllRunOptions(**values)


def _create_sequential_test(flags: Mapping[str, Any]) -> SequentialTest:
    """The sequential test of `--until-decided`. Raises BadInput or UsageError if no case could pass it."""
    try:
        test = SequentialTest(
            min_pass=flags["min_pass"],
            max_runs=flags["max_runs"] or 0,
            alpha=flags["alpha"],
            beta=flags["beta"],
            margin=flags["margin"],
        )
    except ValueError as error:
        raise click.UsageError(f"--until-decided: {error}") from error
    for problem in find_sequential_problems(test, "--"):
        raise BadInput.of(problem)
    return test
