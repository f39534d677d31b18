"""Lets a person take part in cases; skips interactive cases if there is no person to ask."""

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

SKIPPED_BY_FLAG = "needs a person; skipped by --skip-interactive"
SKIPPED_WITHOUT_TERMINAL = "needs a person; there is no terminal to ask on"


class PersonPolicy(Struct, frozen=True):
    """Adds a person to the cases that ask for one (`interactive.enabled`), or with `in_all_cases` to all."""

    prompt: PersonPrompt | None
    in_all_cases: bool
    skips_interactive: bool
    saver: "ConversationSaver"

    def add_person(self, case: Case) -> Case:
        is_interactive = case.interactive.enabled
        if is_interactive and (self.skips_interactive or self.prompt is None):
            reason = SKIPPED_BY_FLAG if self.skips_interactive else SKIPPED_WITHOUT_TERMINAL
            return structs.replace(case, skip_reason=case.skip_reason or reason)
        if self.prompt is None or not (is_interactive or self.in_all_cases) or case.sessions != "one":
            return case
        return structs.replace(case, user=Person(case.user, self.prompt, self.saver.save))

    def is_active(self, interactive_count: int) -> bool:
        """Does a person take part in a run with this many interactive cases?"""
        return self.prompt is not None and (self.in_all_cases or (interactive_count > 0 and not self.skips_interactive))

    def explain_skips(self, interactive_count: int) -> str | None:
        """The note for a run in which interactive cases are skipped because there is no terminal."""
        if self.prompt is not None or self.skips_interactive or not (self.in_all_cases or interactive_count):
            return None
        skipped = f"{interactive_count} case{'s' if interactive_count != 1 else ''} with interactive.enabled skipped"
        return f"no terminal to ask a person on: as with --skip-interactive, {skipped}"


class ConversationSaver:
    """Saves conversations as cases, but never into a suite of the current run: changing it would stop the run."""

    def __init__(self, load_options: LoadOptions, folder: Path, suites: Iterable[Suite] = (), agent: str = "") -> None:
        self._load_options = load_options
        self._folder = folder
        self._agent = agent
        self._suite_files = {(folder / suite.origin.file).resolve() for suite in suites if suite.origin is not None}

    def save(self, name: str, state: TrialState, messages: Sequence[UserMessage]) -> str:
        """Save the conversation and return what to tell the person."""
        path = self._folder / Path(name).expanduser()
        path = path if path.suffix else path.with_suffix(".jsonl")
        if not messages:
            return "not saved: the conversation is empty"
        if path.resolve() in self._suite_files:
            return f"not saved: {name} is a suite of this run; choose another file"
        try:
            case_id = save_conversation(path, state, messages, self._load_options, self._folder)
        except BadInput as error:
            return f"not saved: {error}"
        agent = f" -n {shlex.quote(self._agent)}" if self._agent else ""
        return f"saved as {case_id!r}; run it with viva test -i {shlex.quote(str(path))}{agent}"
