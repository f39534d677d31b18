"""The five modes of an eval suite: which are requested, and which of them a run uses.

A mode never removes tasks. `adversarial` checks for unsafe behaviour, `live-shadow` ignores fixtures, `regression`
compares with a baseline. `golden` and `rubric` only say how tasks may be scored; each task sets its own scoring.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, cast, get_args

from msgspec import Struct

from viva.errors import BadInput
from viva.model.finding import Severity
from viva.text.similar_names import find_similar_names

Mode = Literal["golden", "rubric", "adversarial", "regression", "live-shadow"]
MODES: tuple[Mode, ...] = get_args(Mode)
LIVE_MODE: Mode = "live-shadow"


class EvalOptions(Struct, frozen=True, kw_only=True):
    """How eval suites run: the requested modes, the settings of the config, and the agents that it has.

    `judge` judges rubrics; `safety_judge` looks for unsafe behaviour, in addition to the built-in detectors.
    `agent_names` maps the id of each agent to its name in the config. `secrets` are values that no reply may contain.
    """

    validate_only: bool = False
    """Files are only checked, so no mode has to be chosen."""
    modes: tuple[Mode, ...] = ()
    is_live: bool = False
    has_baseline: bool = False
    pass_score: float | None = None
    fail_at: Severity = "low"
    judge: str | None = None
    safety_judge: str | None = None
    agent_names: Mapping[str, str] = {}
    trusted_keys: tuple[str, ...] = ()
    require_signature: bool = False
    secrets: Sequence[str] = ()
    get_prompts: Callable[[], Sequence[str]] = tuple
    """Returns the instructions of the agent under test. Cases are built after the agent is chosen."""


def parse_modes(text: str) -> tuple[Mode, ...]:
    """Parse `a,b` as modes. BadInput names an unknown mode and suggests a known one."""
    named = [part.strip() for part in text.split(",") if part.strip()]
    for name in named:
        if name not in MODES:
            near = find_similar_names(name, MODES, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known modes are {', '.join(MODES)}"
            raise BadInput.of(f"--modes: unknown mode {name!r}; {hint}")
    if not named:
        raise BadInput.of(f"--modes: no mode given; known modes are {', '.join(MODES)}")
    return cast("tuple[Mode, ...]", tuple(dict.fromkeys(named)))


def select_modes(declared: Sequence[Mode], options: EvalOptions) -> tuple[tuple[Mode, ...], str | None]:
    """The modes of a run and, if some were skipped, a note about them. ValueError if the requested modes cannot be used."""
    if options.validate_only:
        return tuple(declared), None
    if options.modes:
        return _select_modes(declared, options), None
    if options.is_live:
        raise ValueError("--live belongs to --modes live-shadow: without it nothing runs live")
    if options.has_baseline and "regression" not in declared:
        raise ValueError(f"--baseline asks for the mode regression, which it does not declare ({', '.join(declared)})")
    left_out: dict[Mode, str] = {LIVE_MODE: "live-shadow (needs --modes live-shadow --live)"}
    if not options.has_baseline:
        left_out["regression"] = "regression (needs --baseline)"
    modes: tuple[Mode, ...] = tuple(mode for mode in declared if mode not in left_out)
    missing = ", ".join(left_out[mode] for mode in declared if mode in left_out)
    if not modes:
        raise ValueError(f"declares no other mode than {missing}")
    return modes, f"modes: {', '.join(modes)}; left out: {missing}" if missing else None


def _select_modes(declared: Sequence[Mode], options: EvalOptions) -> tuple[Mode, ...]:
    modes = options.modes
    if unknown := [mode for mode in modes if mode not in declared]:
        raise ValueError(f"does not declare the mode {', '.join(unknown)}; it has {', '.join(declared)}")
    if LIVE_MODE in modes and len(modes) > 1:
        raise ValueError("live-shadow cannot be mixed with other modes: a run is either live or with fixtures")
    if LIVE_MODE in modes and not options.is_live:
        raise ValueError("live-shadow uses live tools and memory; confirm that with --live")
    if options.is_live and LIVE_MODE not in modes:
        raise ValueError("--live belongs to --modes live-shadow: without it nothing runs live")
    if "regression" in modes and not options.has_baseline:
        raise ValueError("the mode regression needs --baseline: a run, or the file of an eval summary")
    if options.has_baseline and "regression" not in modes:
        raise ValueError("--baseline asks for the mode regression, which --modes leaves out")
    return modes
