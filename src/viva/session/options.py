"""What can be asked of a run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from viva.errors import BadInput, Problem
from viva.formats.openwop.modes import Mode
from viva.formats.sources import Format
from viva.model import codec
from viva.model.case import LinkMode, OnMissingInput, Sandbox, WorkspaceKind
from viva.protocols import PersonPrompt
from viva.record.cassette import MissingPolicy
from viva.record.redaction import Redactor
from viva.stats.pass_rule import PassRule
from viva.stats.sequential import SequentialTest
from viva.text.credentials import MASK, mask_reference, mask_text


class RunOptions(Struct, frozen=True, kw_only=True):
    """What can be asked of a run: the flags of `viva test` and the arguments of `viva.run`."""

    inputs: tuple[str, ...]
    cases: tuple[Any, ...] = ()
    """Cases that no file holds, as Python values."""
    before: str | Callable[..., Any] | None = None
    after: str | Callable[..., Any] | None = None
    agent: Any = None
    connector: str | None = None
    outputs: tuple[Path, ...] = ()
    folder: Path = Path()
    config: Path | None = None
    env_file: Path | None = None
    format: Format | None = None
    timeout_s: float | None = None
    turn_timeout_s: float | None = None
    parallel: int | None = None
    runs: int = 1
    fail_fast: bool = False
    only: str | None = None
    tags: tuple[str, ...] = ()
    on_missing_input: OnMissingInput | None = None
    update_snapshots: bool = False
    history: bool = True
    dry_run: bool = False
    simulator: str | None = None
    evaluator: str | None = None
    """Who grades playbooks and plays the user in them, whatever they say."""
    agent_model: str | None = None
    workspace: WorkspaceKind | None = None
    link_mode: LinkMode | None = None
    keep_workspace: bool = False
    sandbox: Sandbox | None = None
    reporter: str | None = None
    max_cost_usd: float | None = None
    min_pass: float | None = None
    sequential: SequentialTest | None = None
    """Run each case only until this test has decided on it."""
    retry_faults: int = 1
    record: Path | None = None
    replay: Path | None = None
    replay_missing: MissingPolicy = "error"
    last_failed: bool = False
    selected_cases: tuple[tuple[str, str], ...] | None = None
    """Only these cases, by suite and id: what `last_failed` came to."""
    interactive: bool = False
    skip_interactive: bool = False
    person_prompt: PersonPrompt | None = None
    modes: tuple[Mode, ...] = ()
    """Of an eval suite; without any, those that need nothing else."""
    live: bool = False
    baseline: str | None = None
    fail_on_regression: bool = False
    allow_agent_mismatch: bool = False
    eval_summary: Path | None = None

    @property
    def is_filtered(self) -> bool:
        """Do only some of the cases run?"""
        return self.only is not None or bool(self.tags) or self.selected_cases is not None

    @property
    def pass_rule(self) -> PassRule:
        return PassRule(self.min_pass, self.sequential)


def dump_options(options: RunOptions, redactor: Redactor) -> dict[str, Any]:
    """What the journal keeps of the options, so that the run can go on. Objects of Python code cannot be kept, nor secrets.

    Paths and names stay as they are, whatever they hold: the run could not go on without them.
    """
    said = {name: getattr(options, name) for name in options.__struct_fields__ if name not in _NOT_KEPT}
    said["folder"] = options.folder.resolve()
    said["inputs"] = tuple(map(mask_text, options.inputs))
    said["cases"] = redactor.redact(codec.to_plain(options.cases))
    for name in AGENT_OPTION_FLAGS:
        if isinstance(said[name], str):
            said[name] = mask_reference(said[name])
    return {name: codec.to_builtins(value) for name, value in said.items() if value is None or not callable(value)}


def restore_secrets(options: RunOptions, references: Mapping[str, str | None]) -> RunOptions:
    """The options of a run that goes on, with the references of agents that are `given` anew, because the journal does not
    keep the secrets in them. BadInput says which are missing, and which are others than before.
    """
    again: dict[str, str] = {}
    problems: list[Problem] = []
    for name, flag in AGENT_OPTION_FLAGS.items():
        was, now = getattr(options, name), references.get(name)
        has_secret = isinstance(was, str) and MASK in was
        if now is not None and not has_secret:
            problems.append(Problem("", 0, "", f"the settings that the run had still hold; leave out {flag}"))
        elif now is not None and mask_reference(now) == was:
            again[name] = now
        elif now is not None:
            problems.append(Problem("", 0, "", f"{flag} is not the one that the run had: {was}"))
        elif has_secret:
            what = f"the run had {flag} {was}, and secrets are not kept: give {flag} again"
            problems.append(Problem("", 0, "", what))
    if problems:
        raise BadInput(*problems)
    return structs.replace(options, **again)


def restore_options(saved: Mapping[str, Any]) -> RunOptions:
    """The options of a run that goes on."""
    said = dict(saved)
    for name in _PATHS & said.keys():
        said[name] = Path(said[name]) if said[name] is not None else None
    said["outputs"] = tuple(Path(path) for path in said["outputs"])
    if said["sequential"] is not None:
        said["sequential"] = SequentialTest(**said["sequential"])
    if said["chosen"] is not None:
        said["chosen"] = tuple((suite, case) for suite, case in said["chosen"])
    told: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
    return RunOptions(**told)


AGENT_OPTION_FLAGS = {"agent": "-n", "simulator": "--simulator", "evaluator": "--evaluator", "reporter": "--reporter"}
"""Options that name agents, which may be addresses with secrets in them, and their flags."""
_NOT_KEPT = frozenset({"asking", "interactive"})
_PATHS = frozenset({"folder", "config", "env_file", "record", "replay", "eval_summary"})
