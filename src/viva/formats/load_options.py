"""The options for loading suite files, from the command line and the config."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from viva.errors import Problem
from viva.formats.openwop.modes import EvalOptions
from viva.model.case import Hints

DEFAULT_TIMEOUT_S = 300.0
DEFAULT_HINTS = Hints(
    unchecked='Add assertions to the case, or send a message by hand with -i "..."',
    awaiting="Add more turns, use --interactive, or configure simulator",
)


class LoadOptions(Struct, frozen=True, kw_only=True):
    """How files are loaded in this run. `folder` is the working folder; paths in playbooks are relative to it.

    Without an `environ` playbooks are only checked: environment variables and an evaluator may be missing.
    """

    roots: tuple[str, ...] = ()
    attachment_roots: tuple[str, ...] = ()
    update_snapshots: bool = False
    has_before_run: bool = False
    """Is there a `--before` hook? It may set variables that no file sets."""
    simulator: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    folder: str = "."
    environ: Mapping[str, str] | None = None
    evaluator: str | None = None
    """The agent that judges playbooks and plays the user in them; it replaces `evaluator_model` of the files."""
    default_evaluator: str | None = None
    """The evaluator of playbooks that name none."""
    add_secret: Callable[[str, str], None] = lambda _name, _value: None
    """Called with the name and value of each environment variable that is a secret."""
    standard_input: bytes | None = None
    """The content of standard input (`-i -`), if it was read before."""
    eval_options: EvalOptions = EvalOptions()
    """The options of OpenWOP eval suites."""
    functions: Mapping[str, Any] = {}
    """The functions that Python code has passed, by the text that stands for them."""
    find_helper_problems: Callable[[str], Sequence[Problem]] = lambda _name: ()
    """Finds the problems that prevent using an agent as a helper, by its name."""
    find_connector_problems: Callable[[str, str | None], Sequence[Problem]] = lambda _name, _helper: ()
    """Finds the problems that prevent using a connector, by its name and the name of the helper (None: the agent under test)."""
    find_evaluator_problems: Callable[[str], Sequence[Problem]] = lambda _name: ()
    """Finds the problems that prevent using an evaluator, by its name."""
