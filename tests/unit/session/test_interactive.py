"""Which cases a person speaks in, and where a conversation may be saved."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

from viva.formats.load_options import LoadOptions
from viva.model.case import Case, Interactive, Key, Origin, Suite, UserMessage
from viva.model.message import Message
from viva.protocols import PersonChoice, PersonPrompt, PersonQuestion
from viva.session.interactive import SKIPPED_BY_FLAG, SKIPPED_WITHOUT_TERMINAL, ConversationSaver, PersonPolicy
from viva.session.options.run_options import AllRunOptions
from viva.session.run_plan import build_run_plan
from viva.state.trial_state import TrialState
from viva.testing.check_context import FrozenClock, NoHelpers, SilentUser
from viva.users.person import Person


class Somebody:
    """A person who never says anything."""

    async def ask(self, question: PersonQuestion) -> PersonChoice:
        return PersonChoice("stop")

    def show_notice(self, text: str) -> None: ...


PLAIN = Case(id="plain", user=SilentUser())
WANTING = Case(id="wanting", user=SilentUser(), interactive=Interactive(enabled=True))
SKIPPED = Case(id="skipped", user=SilentUser(), interactive=Interactive(enabled=True), skip_reason="not today")


def people(asking: PersonPrompt | None, *, everywhere: bool = False, left_out: bool = False) -> PersonPolicy:
    return PersonPolicy(asking, everywhere, left_out, ConversationSaver(LoadOptions(), Path()))


def test_a_person_speaks_where_one_is_wanted() -> None:
    """In cases with `interactive.enabled`; in all with --interactive; never in a script test, whose code speaks."""
    here, everywhere = people(Somebody()), people(Somebody(), everywhere=True)
    code = Case(id="code", user=SilentUser(), sessions="each_message")
    assert here.add_person(PLAIN) is PLAIN
    assert isinstance(here.add_person(WANTING).user, Person)
    assert isinstance(everywhere.add_person(PLAIN).user, Person)
    assert everywhere.add_person(code) is code
    assert (here.is_active(0), here.is_active(1), everywhere.is_active(0)) == (False, True, True)
    assert here.explain_skips(1) is None


def test_cases_that_want_a_person_are_left_out_when_asked() -> None:
    """--skip-interactive skips them with a reason, without another word, and leaves the others as they are."""
    without = people(Somebody(), left_out=True)
    assert without.add_person(WANTING).skip_reason == SKIPPED_BY_FLAG
    assert without.add_person(SKIPPED).skip_reason == "not today"
    assert without.add_person(PLAIN) is PLAIN
    assert not without.is_active(1)
    assert people(None, left_out=True).explain_skips(1) is None


def test_without_a_terminal_it_is_as_if_they_were_left_out() -> None:
    """They are skipped and one line says so; --interactive changes nothing but that it is said in any case."""
    nobody, everywhere = people(None), people(None, everywhere=True)
    assert nobody.add_person(WANTING).skip_reason == SKIPPED_WITHOUT_TERMINAL
    assert nobody.add_person(PLAIN) is PLAIN
    assert everywhere.add_person(PLAIN) is PLAIN
    assert not everywhere.is_active(1)
    assert nobody.explain_skips(0) is None
    assert "2 cases with interactive.enabled skipped" in (nobody.explain_skips(2) or "")
    assert "no terminal" in (everywhere.explain_skips(0) or "")


def test_a_suite_that_is_being_run_is_not_changed(tmp_path: Path) -> None:
    """It would be refused in the middle of the run; any other file will do, with .jsonl if it has no ending."""

    async def none():
        for case in ():
            yield case

    running = tmp_path / "suite.jsonl"
    running.write_text("", encoding="utf-8")
    suite = Suite(id="suite.jsonl", cases=none, count=0, origin=Origin("suite.jsonl"))
    keeper = ConversationSaver(LoadOptions(), tmp_path, [suite])
    state = TrialState(PLAIN, Key("suite", "plain"), NoHelpers(), FrozenClock())
    output = [UserMessage(Message("user", "Hi"))]
    assert (
        keeper.save("suite.jsonl", state, output)
        == "not saved: suite.jsonl is a suite of this run; choose another file"
    )
    assert keeper.save("suite", state, output).startswith("not saved: ")
    assert keeper.save("other", state, []) == "not saved: the conversation is empty"
    assert running.read_bytes() == b""
    result = keeper.save("other", state, output)
    assert result == f"saved as 'plain'; run it with viva test -i {tmp_path}/other.jsonl"
    assert (tmp_path / "other.jsonl").read_bytes() == b'{"id":"plain","turns":[{"input":"Hi"}]}\n'
    assert keeper.save("other.yaml", state, output).endswith("choose a name that ends in .jsonl")


def test_a_prompt_shows_no_secrets(tmp_path: Path) -> None:
    """It is created with the redactor of the run, which knows the secrets of the config."""
    entry = '[agents.a]\nurl = "http://127.0.0.1:1/"\nheaders = { Authorization = "Bearer tok-123456" }\n'
    (tmp_path / "viva.toml").write_text(entry, encoding="utf-8")
    (tmp_path / "s.yaml").write_text("- {id: a, input: hi}", encoding="utf-8")
    shown: list[str] = []

    def create_prompt(redact: Callable[[str], str]) -> PersonPrompt:
        shown.append(redact("the token is tok-123456"))
        return Somebody()

    async def build() -> bool:
        options = AllRunOptions(
            inputs=("s.yaml",), folder=tmp_path, interactive=True, create_person_prompt=create_prompt
        )
        async with aclosing(await build_run_plan(options)) as plan:
            return plan.has_person

    assert asyncio.run(build())
    assert shown == ["the token is ***"]
