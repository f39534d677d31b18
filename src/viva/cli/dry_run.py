"""`--dry-run`: the cases that would run, and nothing is run. With `-o`, they are written as native JSONL that loads again."""

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
from viva.session.run_plan import RunPlan


async def list_cases(prepared: RunPlan) -> int:
    """One line a case; exit code 5 if there is none."""
    written: list[Mapping[str, Any]] = []
    async for planned in prepared.iterate_trials():
        if planned.trial != 1:
            continue
        print(_line(planned.case, planned.total))
        written.append(_whole(planned.case))
    print(f"{prepared.case_count} cases, {prepared.trial_count} trials, agent {prepared.agent.name}; nothing was run")
    for path in prepared.options.outputs:
        _write(path, written, prepared)
        print(f"wrote {path}")
    return 0 if written else 5


def _whole(case: Case) -> Mapping[str, Any]:
    """The case as it was written, with the simulator that the flags or the config gave it."""
    if "checkpoints" not in case.definition or "simulator" in case.definition:
        return case.definition
    return {**case.definition, "simulator": {"use": case.user.simulator}}


def _line(case: Case, runs: int) -> str:
    turns = len(case.user.planned_messages)
    shape = (
        f"up to {case.limits.total_turns} turns"
        if case.goal.checkpoints
        else f"{turns} turn{'s' if turns != 1 else ''}"
    )
    again = f" x {runs}" if runs > 1 else ""
    skipped = f"  (skipped: {case.skip_reason})" if case.skip_reason else ""
    return f"{case.id}  {case.name}  {shape}{again}  {case.origin}{skipped}"


def _write(path: Path, written: list[Mapping[str, Any]], prepared: RunPlan) -> None:
    """Only what loads again is written: ids may meet that came from several files, and attachments lie beside their suite."""
    settings = prepared.settings
    if foreign := [str(case.get("name") or case.get("taskId")) for case in written if "id" not in case]:
        raise BadInput.of(f"-o {path}: {foreign[0]!r} is no native case; only such can be written")
    reading = LoadOptions(
        roots=(str(settings.folder),),
        attachment_roots=settings.attachment_roots,
        has_before_run=prepared.options.before is not None,
    )
    if written:
        native.load(wrap_values(written, str(path)), str(path), path.parent, reading)
    try:
        replace_file(path, b"".join(codec.encode(case) + b"\n" for case in written))
    except OSError as wrong:
        raise BadInput.of(f"-o {path}: {wrong.strerror}") from wrong
