"""What Viva knows of a CLI: how it is called, what it prints, what it needs. One struct, one instance for each CLI."""

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
"""How a CLI says that it has no login, in words that all of them share."""


class TurnRequest(Struct, frozen=True, kw_only=True):
    """What one turn asks of a CLI. `session` is None for the first, and `fresh` an id that it may take; `linked` are folders
    beside the workspace that it may use. A prompt that is `piped` comes on standard input.
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


def no_variables(_asked: Any) -> dict[str, str]:
    return {}


class CliSpec(Struct, frozen=True, kw_only=True):
    """A CLI.

    `package` is what npm calls it; `oldest` the first version that does what is needed here. `approvals` are its words
    for how much it may do unasked, the one for everything first. With one of `keys` in its environment, or one of
    `logins` (files in HOME), it can reach its model; with one of the variables `keyless` it may need neither, and one that
    does not `need_login` has models for everybody. `variables` come along too. `argv` is what follows its name;
    `settings` are variables that are set for it, `files` files of its private HOME. `events` reads a line of its stream
    and raises DecodeError for what is none. `log` is a file of its HOME in which it tells of its provider, where its
    stderr does not; `log_trouble` finds in a line of it what the provider answered (group 1), where that has no status.

    One that is `plain` has no stream: all it prints is its reply, and exit code 0 the end. Of those that do not
    `name_sessions` the session is known by our own id; one that does not `resume` is told each time what was said before.
    One that does not `follow_links` gets copies of what a playbook links, unless the user asks for links.
    All messages go to standard input, or with `pipes` those that no command line would hold. One that `prints_to_file` is
    given a file for its standard output: it loses what a pipe does not take at once when it exits.
    """

    name: str
    title: str
    build_argv: Callable[[TurnRequest], list[str]]
    parse_line: Callable[[bytes], Iterable[CliEvent]]
    package: str = ""
    min_version: str = ""
    approval_modes: tuple[str, ...] = ("",)
    key_variables: tuple[str, ...] = ()
    login_files: tuple[str, ...] = ()
    keyless_variables: tuple[str, ...] = ()
    needs_login: bool = True
    passed_variables: tuple[str, ...] = ()
    build_variables: Callable[[TurnRequest], dict[str, str]] = no_variables
    build_home_files: Callable[[Mapping[str, str]], dict[str, str]] = no_variables
    no_login_pattern: re.Pattern[str] = NO_LOGIN_PATTERN
    log_file: str = ""
    log_error_pattern: re.Pattern[str] | None = None
    is_plain_text: bool = False
    prompt_on_stdin: bool = False
    long_prompt_on_stdin: bool = False
    stdout_to_file: bool = False
    can_resume: bool = True
    reports_session: bool = True
    follows_links: bool = True


def parse_events(spec: CliSpec, line: bytes) -> list[CliEvent] | None:
    """The events of a line; None if it is no line of the CLI's stream."""
    try:
        line.decode()  # in what it skips, the decoder does not look for bytes that are no text
        return list(spec.parse_line(line))
    except (codec.DecodeError, UnicodeDecodeError):  # ValidationError is one: JSON, but of another shape
        return None


def format_settings(value: Any) -> str:
    """A settings file."""
    return codec.pretty_json(codec.encode(value)).decode() + "\n"
