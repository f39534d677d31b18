"""`viva.RunResult`: what a program, a console and a notebook see of a run."""

import sys
from typing import Any

import pytest

import viva
from running import run_cases
from viva.api import notebook
from viva.model.event import RunStarted, TrialEnded


def echo(message: str) -> str:
    return f"You said: {message}"


def case(case_id: str, *checks: Any, said: str = "hello") -> dict[str, Any]:
    return {"id": case_id, "input": said, "assertions": list(checks) or [viva.check.contains(said)]}


@pytest.fixture(scope="module")
def mixed() -> viva.RunResult:
    cases = [case("one"), case("two", viva.check.contains("<b>bye</b>")), {"id": "three", "input": "x"}]
    return run_cases(cases, echo, history=False)


def test_a_result_is_true_only_if_the_run_passed(mixed: viva.RunResult):
    """`assert viva.run(...)` must not be green on a failure, nor when nothing was checked."""
    assert run_cases(case("one"), echo, history=False)
    assert not mixed
    nothing = run_cases("Hello there", echo, history=False)
    assert not nothing
    assert "nothing was checked" in str(nothing)


def test_a_result_is_a_sequence_of_records(mixed: viva.RunResult):
    assert [record.id for record in mixed] == ["one", "two", "three"]
    assert (len(mixed), len(mixed.records())) == (3, 3)
    assert (mixed.records()[0].id, mixed[-1].id, [each.id for each in mixed.records()[1:]]) == (
        "one",
        "three",
        ["two", "three"],
    )
    assert [record.id for record in mixed.failures] == ["two"]
    assert [record.id for record in mixed[:2]] == ["one", "two"]
    with pytest.raises(IndexError):
        _ = mixed[3]
    with pytest.raises(TypeError, match=r"by a case id, a number or a slice, not by float"):
        _ = mixed[1.0]  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_a_case_is_found_by_its_id(mixed: viva.RunResult):
    assert mixed["two"].turns[0].output == "You said: hello"
    with pytest.raises(KeyError, match="no case 'tow' ended; did you mean two"):
        _ = mixed["tow"]
    assert "two" in mixed
    assert mixed["two"] in mixed
    assert "tow" not in mixed


def test_of_several_trials_the_one_that_decides_is_returned():
    replies = iter(["hello", "no", "hello"])
    result = run_cases(case("flaky"), lambda messages: next(replies), runs=3, parallel=1, history=False)
    assert (result["flaky"].trial, len(result.trials("flaky"))) == (2, 3)


def test_the_text_says_what_failed_and_why(mixed: viva.RunResult):
    first, *rest = str(mixed).splitlines()
    assert first.startswith("3 tests: 1 passed, 1 failed, 1 skipped · 3 turns")
    assert rest == ["✗ two: failed (agent)", '    turn 1: contains "<b>bye</b>": was "You said: hello"']
    assert "1 of 3 passed" in repr(mixed)


def test_the_repr_begins_with_the_first_reason(mixed: viva.RunResult):
    """pytest shows the beginning of it in the summary, and at most 240 characters."""
    assert repr(mixed).startswith(f"<RunResult {mixed.failures[0].id}: ")
    assert f"exit code 1, run {mixed.run_id}>" in repr(mixed)
    assert len(repr(mixed)) < 240
    passed = run_cases({"input": "hi", "assertions": [viva.check.contains("hi")]}, echo, history=False)
    assert repr(passed) == f"<RunResult 1 of 1 passed, exit code 0, run {passed.run_id}>"


def test_a_function_is_named_once_and_its_source_keeps_its_lines():
    def has_amount(turn):
        if "42" not in turn.text:
            raise AssertionError("no amount")

    case = {"input": "hi", "assertions": [lambda turn: turn.text / 0, has_amount]}
    text = str(run_cases(case, echo, history=False))
    assert text.count("lambda turn: turn.text / 0") == 1
    assert "it raised TypeError" in text
    assert '): no amount\n        def has_amount(turn):\n            if "42"' in text


def test_rows_for_a_table(mixed: viva.RunResult):
    rows = mixed.to_dicts()
    assert [(row["id"], row["status"], row["output"]) for row in rows] == [
        ("one", "passed", "You said: hello"),
        ("two", "failed", "You said: hello"),
        ("three", "skipped", "You said: x"),
    ]
    assert rows[1]["reason"] == 'turn 1: contains "<b>bye</b>": was "You said: hello"'
    frame = mixed.to_dataframe()
    assert list(frame["status"]) == ["passed", "failed", "skipped"]


def test_without_pandas_it_says_what_to_install(mixed: viva.RunResult, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        mixed.to_dataframe()


def test_a_notebook_shows_the_run_with_failures_first_and_nothing_unescaped(mixed: viva.RunResult):
    html = mixed._repr_html_()
    assert html.index("two") < html.index("one")
    assert "&lt;b&gt;bye&lt;/b&gt;" in html
    assert "<b>bye" not in html
    assert "agent: You said: hello" in html


def test_a_run_without_history_has_no_folder(mixed: viva.RunResult):
    assert mixed.folder is None


def test_progress_in_a_notebook_is_one_line(mixed: viva.RunResult):
    shown: list[tuple[str, Any]] = []

    def show(text: str, handle: Any) -> str:
        shown.append((text, handle))
        return "handle"

    line = notebook.NotebookProgress(show)
    started = RunStarted("r", "now", viva.__version__, "echo", ("x",), 3, 3, 1, {})
    ended = [TrialEnded(record.key, index, 1, record) for index, record in enumerate(mixed)]
    for events in ([started], ended[:1], ended[1:]):
        line.receive(events)
    assert shown == [("0 of 3", None), ("1 of 3 · ✓ 1", "handle"), ("3 of 3 · ✓ 1 ✗ 1 ○ 1", "handle")]
    assert notebook.create_notebook_sinks() == []


def test_a_run_that_selected_no_case_says_why():
    """With the keywords of `viva.run`, not with flags."""
    result = run_cases([case("one"), case("two")], echo, only="zz", tags=["x"], history=False)
    assert (result.exit_code, result.empty_reason) == (
        5,
        "only='zz' matches no id; ids: one, two\ntags='x' matches no case; no case has a tag",
    )
    assert str(result).endswith(f"\n{result.empty_reason}")
    assert run_cases(case("one"), echo, only="one", history=False).empty_reason is None
