"""Who takes part in a run beside the agents: cases in which a person speaks, and those that must do without one."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct, structs

from viva.errors import BadInput
from viva.formats.case_writer import save_conversation
from viva.formats.load_options import LoadOptions
from viva.model.case import Case, Suite, UserMessage
from viva.protocols import PersonPrompt
from viva.state.trial_state import TrialState
from viva.users.person import Person

SKIPPED_BY_FLAG = "needs a person, and --skip-interactive leaves such cases out"
SKIPPED_WITHOUT_TERMINAL = "needs a person, and nobody can be asked here"


class PersonPolicy(Struct, frozen=True):
    """Places a person in the cases that want one (`interactive.enabled`) or, with `everywhere`, in all."""

    prompt: PersonPrompt | None
    in_all_cases: bool
    skips_interactive: bool
    saver: "ConversationSaver"

    def add_person(self, case: Case) -> Case:
        wanted = case.interactive.enabled
        if wanted and (self.skips_interactive or self.prompt is None):
            return structs.replace(
                case, skip_reason=case.skip_reason or (SKIPPED_BY_FLAG if self.skips_interactive else SKIPPED_WITHOUT_TERMINAL)
            )
        if self.prompt is None or not (wanted or self.in_all_cases) or case.sessions != "one":
            return case
        return structs.replace(case, user=Person(case.user, self.prompt, self.saver.save))

    def is_active(self, interactive_count: int) -> bool:
        """Is anybody asked in a run of which `wanting` cases want a person?"""
        return self.prompt is not None and (self.in_all_cases or (interactive_count > 0 and not self.skips_interactive))

    def explain_skips(self, interactive_count: int) -> str | None:
        """What has to be said when nobody can be asked; `wanting` cases want a person."""
        if self.prompt is not None or self.skips_interactive or not (self.in_all_cases or interactive_count):
            return None
        skipped = f"{interactive_count} case{'s' if interactive_count != 1 else ''} with interactive.enabled skipped"
        return f"no terminal, so nobody can be asked: as with --skip-interactive, {skipped}"


class ConversationSaver:
    """Saves conversations as cases, but not into a suite that is being run: a changed one is refused."""

    def __init__(self, reading: LoadOptions, folder: Path, suites: Iterable[Suite] = (), agent: str = "") -> None:
        self._reading = reading
        self._folder = folder
        self._agent = agent
        self._running = {(folder / suite.origin.file).resolve() for suite in suites if suite.origin is not None}

    def save(self, name: str, state: TrialState, said: Sequence[UserMessage]) -> str:
        """What to tell the person who asked for it."""
        path = self._folder / Path(name).expanduser()
        path = path if path.suffix else path.with_suffix(".jsonl")
        if not said:
            return "not saved: nothing has been said yet"
        if path.resolve() in self._running:
            return f"not saved: {name} is being run; choose another file"
        try:
            case_id = save_conversation(path, state, said, self._reading, self._folder)
        except BadInput as wrong:
            return f"not saved: {wrong}"
        agent = f" -n {shlex.quote(self._agent)}" if self._agent else ""
        return f"saved as {case_id!r}; run it with: viva test -i {shlex.quote(str(path))}{agent}"
