"""Load options: what the command line and the config set for all files of a run."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from viva.errors import Problem
from viva.formats.openwop.modes import EvalOptions
from viva.model.case import Hints

TIMEOUT_S = 300.0
HINTS = Hints(
    unchecked='Add assertions to the case, or send a message by hand with -i "..."',
    awaiting="Add more turns, use --interactive, or configure simulator",
)


class LoadOptions(Struct, frozen=True, kw_only=True):
    """How files are read in this run. `folder` is the working folder, to which playbooks refer.

    Without an `environ` they are only looked at: what a run would need beside them (variables, an evaluator) may be missing.
    """

    roots: tuple[str, ...] = ()
    attachment_roots: tuple[str, ...] = ()
    update_snapshots: bool = False
    has_before_run: bool = False
    """A `before` of the run may set variables that no file names."""
    simulator: str | None = None
    timeout_s: float = TIMEOUT_S
    folder: str = "."
    environ: Mapping[str, str] | None = None
    evaluator: str | None = None
    """Who grades and plays the user in playbooks, whatever they say."""
    default_evaluator: str | None = None
    """Who does where they say nothing."""
    add_secret: Callable[[str, str], None] = lambda _name, _value: None
    """Hears of each variable whose value must not be shown."""
    standard_input: bytes | None = None
    """What `-i -` reads, if it was read before."""
    eval_options: EvalOptions = EvalOptions()
    """What is asked of eval suites."""
    functions: Mapping[str, Any] = {}
    """The functions that Python code has passed, by the text that stands for them."""
    find_helper_problems: Callable[[str], Sequence[Problem]] = lambda _name: ()
    """Why there can be no helper of that name, if there cannot."""
    find_connector_problems: Callable[[str, str | None], Sequence[Problem]] = lambda _name, _helper: ()
    """Why there is no connector of that name for the agent under test, or for a helper."""
    find_evaluator_problems: Callable[[str], Sequence[Problem]] = lambda _name: ()
    """The same for one who grades and plays the user."""
