"""What Viva knows of a CLI: how it is called, what it prints, what it needs."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from viva.agents.cli.events import CliEvent
from viva.model import codec

NO_LOGIN_PATTERN: Final = re.compile(
    r"not logged in|please (?:run|use) \S*login|log ?in (?:first|again|required)|(?:login|sign.?in|authentication) (?:is )?required"
    r"|please (?:log|sign) ?in|not authenticated|(?:missing|invalid|no|incorrect) api.?key|api.?key (?:is )?(?:not valid|missing|required|invalid)",
    re.IGNORECASE,
)
"""How CLIs say that they have no login."""


MCP_SERVER = "viva"
URL_VARIABLE = "VIVA_MCP_URL"
"""The variable with the address of an MCP server that has the tools of a case."""


class TurnRequest(Struct, frozen=True, kw_only=True):
    """One turn of a CLI. `session` is None in the first, which may use the id `new_session`. `linked_folders` are folders
    outside the workspace that the CLI may use. `on_stdin` says that the prompt comes on standard input.
    """

    prompt: str
    on_stdin: bool = False
    session: str | None = None
    new_session: str = ""
    workspace: str = ""
    model: str = ""
    approval: str = ""
    linked_folders: Sequence[str] = ()
    env: Mapping[str, str] = {}


def no_variables(_request: Any) -> dict[str, str]:
    return {}


class CliSpec(Struct, frozen=True, kw_only=True):
    """What Viva knows of a CLI."""

    name: str
    title: str
    build_argv: Callable[[TurnRequest], list[str]]
    """The arguments of a turn."""
    parse_line: Callable[[bytes], Iterable[CliEvent]]
    """The events of a line of its output. DecodeError if it is not a line of its stream."""
    package: str = ""
    """Its npm package."""
    min_version: str = ""
    approval_modes: tuple[str, ...] = ("",)
    """What it may do without asking, in its own words; everything first."""
    key_variables: tuple[str, ...] = ()
    """With one of these variables, or one of `login_files` in HOME, it can reach its model."""
    login_files: tuple[str, ...] = ()
    keyless_variables: tuple[str, ...] = ()
    """With one of these variables it may need neither key nor login."""
    needs_login: bool = True
    """Without it, some of its models need no login."""
    passed_variables: tuple[str, ...] = ()
    """Other variables that are passed to it."""
    build_variables: Callable[[TurnRequest], dict[str, str]] = no_variables
    """Variables that Viva sets."""
    build_home_files: Callable[[Mapping[str, str]], dict[str, str]] = no_variables
    """Files of its private HOME, by environment."""
    no_login_pattern: re.Pattern[str] = NO_LOGIN_PATTERN
    log_file: str = ""
    """A file in its HOME that has the provider's errors, if stderr has not."""
    log_error_pattern: re.Pattern[str] | None = None
    """Finds the provider's answer (group 1) in a log line without a status."""
    is_plain_text: bool = False
    """It has no stream: its output is the reply, and exit code 0 the end."""
    prompt_on_stdin: bool = False
    long_prompt_on_stdin: bool = False
    """Prompts that are too long for a command line go to standard input."""
    stdout_to_file: bool = False
    """Its standard output is a file: with a pipe it loses output when it exits."""
    can_resume: bool = True
    """Without it, each prompt has the earlier messages before it."""
    reports_session: bool = True
    """Without it, Viva chooses the session id."""
    acp_commands: tuple[str, ...] = ()
    """The commands that speak the Agent Client Protocol for it."""
    has_acp_model_flag: bool = False
    """Do these commands take the model as `--model`, not over the protocol?"""
    follows_links: bool = True
    """Without it, links of a playbook become copies, unless the user asks for links."""


def parse_events(spec: CliSpec, line: bytes) -> list[CliEvent] | None:
    """The events of a line; None if it is not a line of the CLI's stream."""
    try:
        line.decode()  # the decoder does not check text that it skips
        return list(spec.parse_line(line))
    except (codec.DecodeError, UnicodeDecodeError):  # ValidationError is a DecodeError
        return None


def format_settings(value: Any) -> str:
    """The text of a JSON settings file."""
    return codec.pretty_json(codec.encode(value)).decode() + "\n"
