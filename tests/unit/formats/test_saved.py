"""A conversation that was held loads again as a static case."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.errors import BadInput
from viva.formats import native
from viva.formats.case_writer import save_conversation
from viva.formats.documents import open_documents
from viva.formats.load_options import LoadOptions
from viva.model.case import Case, Key, UserMessage
from viva.model.message import Message
from viva.state.trial_state import TrialState
from viva.testing.check_context import FrozenClock, NoHelpers, SilentUser


def cases_in(file: Path) -> list[Case]:
    async def read() -> list[Case]:
        suite = native.load(open_documents(file, file.name), file.name, file.parent, LoadOptions())
        return [case async for case in suite.cases()]

    return asyncio.run(read())


def written(folder: Path, *cases: dict[str, Any]) -> list[Case]:
    """Cases as they come from a file, with what they name beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "receipt one.png").write_bytes(b"png")
    file = folder / "suite.jsonl"
    file.write_text("\n".join(map(json.dumps, cases)), encoding="utf-8")
    return cases_in(file)


def save(file: Path, case: Case, *output: UserMessage, root: Path | None = None) -> str:
    state = TrialState(case, Key("suite", case.id), NoHelpers(), FrozenClock())
    return save_conversation(file, state, output, LoadOptions(), root or file.parent)


def free(*texts: str) -> tuple[Case, list[UserMessage]]:
    lines = [UserMessage(Message("user", text), source="interactive") for text in texts]
    return Case(id="conversation", user=SilentUser()), lines


RICH: dict[str, Any] = {
    "id": "T001",
    "name": "Refund",
    "tags": ["money"],
    "timeout": "2m",
    "metadata": {"tenant": "a"},
    "options": {"mode": "chat"},
    "turns": [
        {
            "input": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello"},
                {"role": "user", "content": "Where is my order?"},
            ],
            "attachments": [{"type": "image", "source": "file://receipt%20one.png"}],
            "assertions": [{"type": "contains", "value": "W1", "message": "names it", "negate": True}],
            "options": {"search": True},
            "set": {"order": "$.order"},
            "turn_timeout": "5s",
        },
        {"input": "Cancel {{order}}", "assertions": [{"type": "regex", "value": "cancel+ed"}]},
        {"input": "Never said"},
    ],
    "final_assertions": [{"type": "tool_called", "name": "cancel"}],
}


def test_all_that_a_line_brings_loads_again(tmp_path: Path) -> None:
    """Inputs, history, attachments, assertions, options and variables; turns that were not run are left out."""
    (before,) = written(tmp_path, RICH)
    target = tmp_path / "kept.jsonl"
    assert save(target, before, *before.user.planned_messages[:2]) == "T001"
    (after,) = cases_in(target)
    assert after.history == before.history
    assert len(after.user.planned_messages) == 2
    for old, new in zip(before.user.planned_messages, after.user.planned_messages, strict=False):
        assert new.message == old.message
        assert [assertion.definition for assertion in new.assertions] == [
            assertion.definition for assertion in old.assertions
        ]
        assert (new.options, new.variables, new.timeout_s) == (old.options, old.variables, old.timeout_s)
    assert (after.name, after.tags, after.limits.timeout_s) == ("Refund", ("money",), 120.0)
    assert (after.metadata, after.options) == (before.metadata, before.options)
    assert [assertion.definition for assertion in after.final_assertions] == RICH["final_assertions"]


def test_attachments_are_found_from_where_the_case_is_saved(tmp_path: Path) -> None:
    """One folder up the source names the suite's folder; where it would leave the new folder, nothing is written (N5)."""
    home = tmp_path / "suites"
    (before,) = written(home, RICH)
    save(tmp_path / "kept.jsonl", before, before.user.planned_messages[0], root=home)
    (after,) = cases_in(tmp_path / "kept.jsonl")
    assert after.user.planned_messages[0].message.attachments[0].source == "file://suites/receipt%20one.png"
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(BadInput, match="leaves the suite's folder"):
        save(other / "kept.jsonl", before, before.user.planned_messages[0], root=home)
    assert list(other.iterdir()) == []


def test_cases_are_added_below_each_other(tmp_path: Path) -> None:
    """A name that is taken gets a number, and a last line without an end is not run together with the new one."""
    target = tmp_path / "kept.jsonl"
    target.write_text('// mine\n{"id": "conversation", "input": "Hi"}', encoding="utf-8")
    case, output = free("Hello")
    assert [save(target, case, *output), save(target, case, *output)] == ["conversation-2", "conversation-3"]
    assert [each.id for each in cases_in(target)] == ["conversation", "conversation-2", "conversation-3"]
    assert target.read_text(encoding="utf-8").startswith('// mine\n{"id": "conversation", "input": "Hi"}\n')


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("kept.yaml", None, "conversations are saved in .jsonl files"),
        ("kept.jsonl", "{broken", "kept.jsonl:1"),
        ("missing/kept.jsonl", None, "cannot be written: No such file or directory"),
    ],
)
def test_what_cannot_take_a_case_is_left_alone(tmp_path: Path, name: str, content: str | None, complaint: str) -> None:
    """Another kind of file, one that does not load, or no folder: said, and nothing is written."""
    target = tmp_path / name
    if content is not None:
        target.write_text(content, encoding="utf-8")
    case, output = free("Hello")
    with pytest.raises(BadInput, match=complaint):
        save(target, case, *output)
    assert (target.read_text(encoding="utf-8") if target.exists() else None) == content


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=4))
def test_any_words_load_again(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    """Whatever a person typed is what the saved case says."""
    target = tmp_path_factory.mktemp("saved") / "kept.jsonl"
    case, output = free(*texts)
    save(target, case, *output)
    (after,) = cases_in(target)
    assert [line.message.text for line in after.user.planned_messages] == texts


def test_braces_in_typed_or_simulated_text_are_not_variables(tmp_path: Path):
    """What was typed or simulated is escaped; what the case itself has written keeps its variables."""
    (case,) = written(tmp_path, {"id": "a", "turns": [{"input": "x", "set": {"n": "$.n"}}, {"input": "{{n}}"}]})
    typed = UserMessage(Message("user", r"{{n}} and \{{"), source="interactive")
    save(tmp_path / "saved.jsonl", case, *case.user.planned_messages, typed)
    saved = json.loads((tmp_path / "saved.jsonl").read_text(encoding="utf-8"))
    assert [turn["input"] for turn in saved["turns"]] == ["x", "{{n}}", r"\{{n}} and \\{{"]  # N21
