"""Every flag is shown, explained, and known by the names of the specification."""

import re
from importlib import import_module
from typing import Any

import click
import pytest

from viva.cli.main import COMMANDS, app

COMMANDS_THAT_ARE = {name: import_module(f"viva.cli.{name}").command for name in COMMANDS}
SPECIFIED = [
    "-i",
    "--input",
    "-n",
    "--name",
    "-o",
    "--output",
    "-c",
    "--connector",
    "-v",
    "--verbose",
    "-q",
    "--timeout",
    "--turn-timeout",
    "--parallel",
    "--fail-fast",
    "--dry-run",
    "--run",
    "-k",
    "--tag",
    "--config",
    "--env-file",
    "--json",
]


def options(command: Any) -> list[click.Option]:
    return [each for each in command.params if isinstance(each, click.Option)]


def help_of(command: Any) -> str:
    with click.Context(command, info_name="viva", terminal_width=200, max_content_width=200) as context:
        return command.get_help(context)


def test_all_flags_of_the_specification_are_there():
    known = {flag for option in options(COMMANDS_THAT_ARE["test"]) for flag in option.opts}
    assert set(SPECIFIED) <= known


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_of_a_command_is_in_its_help(name: str):
    """None is hidden, each has a sentence of its own, and the command has an example."""
    command = COMMANDS_THAT_ARE[name]
    shown = help_of(command)
    for option in options(command):
        assert not option.hidden
        assert option.help
        for flag in (*option.opts, *option.secondary_opts):
            assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", shown), flag
    assert command.help
    assert "Example" in shown


def test_every_command_has_its_line():
    assert set(app.list_commands(click.Context(app))) == set(COMMANDS)
    for name, line in COMMANDS.items():
        assert line.endswith(".")
        assert COMMANDS_THAT_ARE[name].help


@pytest.mark.parametrize("name", [name for name in COMMANDS if isinstance(COMMANDS_THAT_ARE[name], click.Group)])
def test_the_line_of_a_subcommand_is_whole(name: str):
    """click cuts the first sentence of a subcommand if it does not fit into 80 columns."""
    command = COMMANDS_THAT_ARE[name]
    with click.Context(command, info_name="viva", terminal_width=80) as context:
        shown = command.get_help(context)
    assert re.findall(r".*[^]]\.\.\.$", shown, re.MULTILINE) == []


def test_exit_codes_are_documented_where_people_look():
    shown = help_of(COMMANDS_THAT_ARE["test"])
    assert re.search(r"0 passed, 1 failed.*2 interrupted, 3 .*4 bad input.*5 nothing", shown, re.DOTALL)  # N35
