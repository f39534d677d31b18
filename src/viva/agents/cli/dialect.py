"""What Viva knows of a CLI: how it is called, what it prints, what it needs. One struct, one instance for each CLI."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from viva.agents.cli.events import CliEvent
from viva.model import codec

NO_LOGIN: Final = re.compile(
    r"not logged in|please (?:run|use) \S*login|log ?in (?:first|again|required)|(?:login|sign.?in|authentication) (?:is )?required"
    r"|please (?:log|sign) ?in|not authenticated|(?:missing|invalid|no|incorrect) api.?key|api.?key (?:is )?(?:not valid|missing|required|invalid)",
    re.IGNORECASE,
)
"""How a CLI says that it has no login, in words that all of them share."""


class Asked(Struct, frozen=True, kw_only=True):
    """What one turn asks of a CLI. `session` is None for the first, and `fresh` an id that it may take; `linked` are folders
    beside the workspace that it may use. A prompt that is `piped` comes on standard input.
    """

    prompt: str
    piped: bool = False
    session: str | None = None
    fresh: str = ""
    workspace: str = ""
    model: str = ""
    approval: str = ""
    linked: Sequence[str] = ()
    env: Mapping[str, str] = {}


def nothing(_asked: Any) -> dict[str, str]:
    return {}


class Dialect(Struct, frozen=True, kw_only=True):
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
    argv: Callable[[Asked], list[str]]
    events: Callable[[bytes], Iterable[CliEvent]]
    package: str = ""
    oldest: str = ""
    approvals: tuple[str, ...] = ("",)
    keys: tuple[str, ...] = ()
    logins: tuple[str, ...] = ()
    keyless: tuple[str, ...] = ()
    needs_login: bool = True
    variables: tuple[str, ...] = ()
    settings: Callable[[Asked], dict[str, str]] = nothing
    files: Callable[[Mapping[str, str]], dict[str, str]] = nothing
    no_login: re.Pattern[str] = NO_LOGIN
    log: str = ""
    log_trouble: re.Pattern[str] | None = None
    plain: bool = False
    by_stdin: bool = False
    pipes: bool = False
    prints_to_file: bool = False
    resumes: bool = True
    names_sessions: bool = True
    follows_links: bool = True


def read(dialect: Dialect, line: bytes) -> list[CliEvent] | None:
    """The events of a line; None if it is no line of the CLI's stream."""
    try:
        line.decode()  # in what it skips, the decoder does not look for bytes that are no text
        return list(dialect.events(line))
    except (codec.DecodeError, UnicodeDecodeError):  # ValidationError is one: JSON, but of another shape
        return None


def pretty(value: Any) -> str:
    """A settings file."""
    return codec.pretty_json(codec.encode(value)).decode() + "\n"
