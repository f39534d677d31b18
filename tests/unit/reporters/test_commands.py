"""The rerun command of a case."""

import shlex
import subprocess

import pytest

from unit.reporters.samples import trial, turn
from viva.reporters.commands import build_rerun_command, list_rerun_flags, quote_shell, split_source

ODD = [
    "plain",
    "it's",
    'a "b" $HOME `id` \\ ; | & ! # ~ *',
    "-dash",
    "漢字 é 🙂",
    "two\nlines\tand\x1b[31m\x9b",
    "\u202e\u3000'\\",
]


@pytest.mark.parametrize("text", ODD)
def test_quoting_is_one_line_that_the_shell_reads_back(text: str) -> None:
    assert quote_shell(text).isprintable()
    output = subprocess.run(["bash", "-c", f"printf %s {quote_shell(text)}"], capture_output=True, check=True).stdout
    assert output.decode() == text


def test_the_rerun_command_has_the_options_that_the_case_needs() -> None:
    """The journal lists them."""
    flags = [("--config", "my config.toml"), ("--evaluator", "judge"), ("--allow-agent-mismatch", None)]
    record = trial("a", "failed", [turn(1, "x")], source="a.yaml:1", agent="me", tags=("playbook",), simulator="other")
    assert build_rerun_command(record, {"rerun_flags": flags}) == (
        "viva test -i a.yaml -k '^a$' -v -n me --config 'my config.toml' --evaluator judge --allow-agent-mismatch"
    )
    assert shlex.split(build_rerun_command(record, {}) or "")[-2:] == [
        "--evaluator",
        "other",
    ]  # from the record
    assert list(list_rerun_flags({})) == []


def test_a_line_of_any_length_is_no_line() -> None:  # 12.9
    """A journal of another machine may name it."""
    source = f"a.yaml:{'9' * 5000}"
    assert split_source(source) == (source, None)
    assert split_source("a.yaml:12") == ("a.yaml", 12)


def test_a_flag_in_a_journal_of_another_machine_is_one_word_too() -> None:  # 12.1
    command = build_rerun_command(
        trial("a", "failed", [turn(1, "x")], source="a.yaml:1"), {"rerun_flags": [("--x; touch y", None)]}
    )
    assert shlex.split(command or "")[-1] == "--x; touch y"


def test_a_case_without_turns_has_a_rerun_command_unless_it_was_skipped() -> None:
    broken = trial("a", "error", source="a.jsonl:1", error="before hooks:setup: RuntimeError: no database")
    assert build_rerun_command(broken, {}) == "viva test -i a.jsonl -k '^a$' -v"
    assert build_rerun_command(trial("a", "skipped", source="a.jsonl:1"), {}) is None
    assert build_rerun_command(trial("a", "failed", [turn(1, "generated")]), {}) is None  # it is not in a file
