"""Who takes part in a run beside the agents: cases in which a person speaks, and those that must do without one."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct, structs

from viva.errors import BadInput
from viva.formats.reading import Reading
from viva.formats.saved import save_talk
from viva.model.case import Case, Suite, UserMessage
from viva.model.talk import TrialState
from viva.protocols import PersonPrompt
from viva.users.person import Person

LEFT_OUT = "needs a person, and --skip-interactive leaves such cases out"
NOBODY = "needs a person, and nobody can be asked here"


class People(Struct, frozen=True):
    """Places a person in the cases that want one (`interactive.enabled`) or, with `everywhere`, in all."""

    asking: PersonPrompt | None
    everywhere: bool
    left_out: bool
    keeper: "Keeper"

    def placed(self, case: Case) -> Case:
        wanted = case.interactive.enabled
        if wanted and (self.left_out or self.asking is None):
            return structs.replace(case, skip=case.skip_reason or (LEFT_OUT if self.left_out else NOBODY))
        if self.asking is None or not (wanted or self.everywhere) or not case.one_session:
            return case
        return structs.replace(case, user=Person(case.user, self.asking, self.keeper.save))

    def take_part(self, wanting: int) -> bool:
        """Is anybody asked in a run of which `wanting` cases want a person?"""
        return self.asking is not None and (self.everywhere or (wanting > 0 and not self.left_out))

    def note(self, wanting: int) -> str | None:
        """What has to be said when nobody can be asked; `wanting` cases want a person."""
        if self.asking is not None or self.left_out or not (self.everywhere or wanting):
            return None
        skipped = f"{wanting} case{'s' if wanting != 1 else ''} with interactive.enabled skipped"
        return f"no terminal, so nobody can be asked: as with --skip-interactive, {skipped}"


class Keeper:
    """Saves conversations as cases, but not into a suite that is being run: a changed one is refused."""

    def __init__(self, reading: Reading, folder: Path, suites: Iterable[Suite] = (), agent: str = "") -> None:
        self._reading = reading
        self._folder = folder
        self._agent = agent
        self._running = {(folder / suite.origin.file).resolve() for suite in suites if suite.origin is not None}

    def save(self, name: str, talk: TrialState, said: Sequence[UserMessage]) -> str:
        """What to tell the person who asked for it."""
        path = self._folder / Path(name).expanduser()
        path = path if path.suffix else path.with_suffix(".jsonl")
        if not said:
            return "not saved: nothing has been said yet"
        if path.resolve() in self._running:
            return f"not saved: {name} is being run; choose another file"
        try:
            case_id = save_talk(path, talk, said, self._reading, self._folder)
        except BadInput as wrong:
            return f"not saved: {wrong}"
        agent = f" -n {shlex.quote(self._agent)}" if self._agent else ""
        return f"saved as {case_id!r}; run it with: viva test -i {shlex.quote(str(path))}{agent}"
