"""The five modes of an eval suite: what was asked for, and which of them a run has.

Modes never drop tasks. `adversarial` looks for unsafe behaviour, `live-shadow` leaves fixtures aside, `regression`
compares with a baseline; `golden` and `rubric` only name how tasks may be scored, which each task says itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Literal, cast, get_args

from msgspec import Struct, field

from viva.errors import BadInput
from viva.model.finding import Severity

Mode = Literal["golden", "rubric", "adversarial", "regression", "live-shadow"]
MODES: tuple[Mode, ...] = get_args(Mode)
LIVE_MODE: Mode = "live-shadow"


class EvalOptions(Struct, frozen=True, kw_only=True):
    """How eval suites are read in this run: what was asked for, what the config says, and who is known there.

    `judge` is who judges rubrics, `safety_judge` who looks for unsafe behaviour beside the built-in detectors.
    `agent_names` is the name in the config of each agent id. `secrets` are values that no agent may say.
    """

    validate_only: bool = False
    """Nothing shall run, so no mode has to be chosen."""
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
    prompts: list[str] = field(default_factory=list[str])
    """The instructions of the agent under test, known once it has been chosen."""


def parse_modes(text: str) -> tuple[Mode, ...]:
    """`a,b` as modes. BadInput names one that there is not, and what may have been meant."""
    named = [part.strip() for part in text.split(",") if part.strip()]
    for name in named:
        if name not in MODES:
            near = get_close_matches(name, MODES, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(MODES)}"
            raise BadInput.of(f"--modes: unknown mode {name!r}; {hint}")
    if not named:
        raise BadInput.of(f"--modes: names none; there are {', '.join(MODES)}")
    return cast("tuple[Mode, ...]", tuple(dict.fromkeys(named)))


def select_modes(declared: Sequence[Mode], options: EvalOptions) -> tuple[tuple[Mode, ...], str | None]:
    """The modes of a run and, where some were left out, the line that says so. ValueError says what cannot be asked."""
    if options.validate_only:
        return tuple(declared), None
    if options.modes:
        return _as_asked(declared, options), None
    if options.is_live:
        raise ValueError("--live belongs to --modes live-shadow: without it nothing runs live")
    if options.has_baseline and "regression" not in declared:
        raise ValueError(f"--baseline asks for the mode regression, which it does not declare ({', '.join(declared)})")
    left: dict[Mode, str] = {LIVE_MODE: "live-shadow (needs --modes live-shadow --live)"}
    if not options.has_baseline:
        left["regression"] = "regression (needs --baseline)"
    modes: tuple[Mode, ...] = tuple(mode for mode in declared if mode not in left)
    missing = _listed(left[mode] for mode in declared if mode in left)
    if not modes:
        raise ValueError(f"declares no other mode than {missing}")
    return modes, f"modes: {', '.join(modes)}; left out: {missing}" if missing else None


def _as_asked(declared: Sequence[Mode], asked: EvalOptions) -> tuple[Mode, ...]:
    modes = asked.modes
    if unknown := [mode for mode in modes if mode not in declared]:
        raise ValueError(f"does not declare the mode {_listed(unknown)}; it has {', '.join(declared)}")
    if LIVE_MODE in modes and len(modes) > 1:
        raise ValueError("live-shadow cannot be mixed with other modes: a run is either live or with fixtures")
    if LIVE_MODE in modes and not asked.is_live:
        raise ValueError("live-shadow uses live tools and memory; say --live if that is meant")
    if asked.is_live and LIVE_MODE not in modes:
        raise ValueError("--live belongs to --modes live-shadow: without it nothing runs live")
    if "regression" in modes and not asked.has_baseline:
        raise ValueError("the mode regression needs --baseline: a run, or the file of an eval summary")
    if asked.has_baseline and "regression" not in modes:
        raise ValueError("--baseline asks for the mode regression, which --modes leaves out")
    return modes


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
