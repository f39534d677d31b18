"""`viva test --dry-run`: lists the cases without running them. With `-o` it writes them as native JSONL."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from viva.errors import BadInput
from viva.formats import native
from viva.formats.documents import wrap_values
from viva.formats.load_options import LoadOptions
from viva.model import codec
from viva.model.case import Case
from viva.record.atomic_files import replace_file
from viva.reporters.formatting import escape_controls
from viva.session.run_plan import RunPlan


async def list_cases(plan: RunPlan) -> int:
    """Print one line per case; exit code 5 if there is none."""
    definitions: list[Mapping[str, Any]] = []
    async for planned in plan.iterate_cases():
        print(_format_case(planned.case, planned.total))
        definitions.append(_add_default_simulator(planned.case))
    agents = ", ".join(agent.name for agent in plan.tested_agents)
    print(f"{len(definitions)} cases, {plan.trial_count} trials, agent {agents}; nothing was run")
    for path in plan.options.outputs:
        _export_cases(path, definitions, plan)
        print(f"wrote {path}")
    return 0 if definitions or plan.is_empty_shard else 5


def _add_default_simulator(case: Case) -> Mapping[str, Any]:
    """Return the definition of a case, with the simulator of the flags or the config."""
    if "checkpoints" not in case.definition or "simulator" in case.definition:
        return case.definition
    return {**case.definition, "simulator": {"use": case.user.simulator}}


def _format_case(case: Case, runs: int) -> str:
    turns = len(case.user.planned_messages)
    shape = (
        f"up to {case.limits.total_turns} turns"
        if case.goal.checkpoints
        else f"{turns} turn{'s' if turns != 1 else ''}"
    )
    repeats = f" x {runs}" if runs > 1 else ""
    skipped = f"  (skipped: {case.skip_reason})" if case.skip_reason else ""
    # Texts of a file, one line for each case: they must not break it or control the terminal.
    return escape_controls(f"{case.id}  {case.name}  {shape}{repeats}  {case.origin}{skipped}")


def _export_cases(path: Path, definitions: list[Mapping[str, Any]], plan: RunPlan) -> None:
    """Writes the cases to the file of `-o`, after a check that they load: ids of several files may collide, attachments may be missing."""
    settings = plan.settings
    if foreign := [str(case.get("name") or case.get("taskId")) for case in definitions if "id" not in case]:
        raise BadInput.of(f"-o {path}: {foreign[0]!r} is not a native case; only native cases can be exported")
    load_options = LoadOptions(
        roots=(str(settings.folder),),
        attachment_roots=settings.attachment_roots,
        has_before_run=plan.options.before is not None,
    )
    if definitions:
        native.load(wrap_values(definitions, str(path)), str(path), path.parent, load_options)
    try:
        replace_file(path, b"".join(codec.encode(case) + b"\n" for case in definitions))
    except OSError as error:
        raise BadInput.of(f"-o {path}: {error.strerror}") from error
