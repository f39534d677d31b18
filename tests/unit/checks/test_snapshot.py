"""snapshot."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from viva.model.message import Reply, ToolCall
from viva.model.turn import AssertionResult
from viva.state.evaluation import start_evaluation
from viva.testing.check_context import make_check_context

SNAP = {"type": "snapshot", "path": "snaps/hello.txt"}


def approve(bench, text, path="snaps/hello.txt"):
    file = bench.folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("approved", "reply", "status"),
    [
        ("Hello\n", "Hello", "passed"),
        ("Hello", "Hello\n", "passed"),
        ("Hello\r\nyou\r\n", "Hello\nyou", "passed"),
        ("Hello", "Hello ", "failed"),
        ("Hello\n\n", "Hello", "failed"),
        ('{"b": 1,\n "a": [1.0]}', Reply(data={"a": [1], "b": 1}), "passed"),
        ('{"b": true}', Reply(data={"b": 1}), "failed"),
        ("5", Reply(data=5), "passed"),
        ("not json", Reply(data={"b": 1}), "error"),
    ],
)
def test_a_reply_is_compared_with_the_file(bench, approved, reply, status):  # N25
    approve(bench, approved)
    assert bench.evaluate(SNAP, make_check_context(reply)).status == status


def test_a_missing_file_is_an_error(bench):  # N25
    for negate in (False, True):
        verdict = bench.evaluate({**SNAP, "negate": negate}, make_check_context("Hello"))
        assert verdict.status == "error"
        assert "--update-snapshots" in verdict.reason
    assert not (bench.folder / "snaps").exists()


def test_update_writes_missing_and_different_files(bench):  # N25
    bench.update_snapshots = True
    verdict = bench.evaluate(SNAP, make_check_context("Hello\nyou"))
    assert (verdict.status, verdict.reason) == ("passed", "snapshot snaps/hello.txt was written")
    file = bench.folder / "snaps/hello.txt"
    assert file.read_text() == "Hello\nyou\n"
    assert bench.evaluate(SNAP, make_check_context("Other")).passed
    assert file.read_text() == "Other\n"
    bench.update_snapshots = False
    assert bench.evaluate(SNAP, make_check_context("Other")).passed
    assert bench.evaluate(SNAP, make_check_context("Hello")).status == "failed"
    assert os.listdir(file.parent) == ["hello.txt"]


def test_update_replaces_a_file_that_cannot_be_read_as_json(bench):
    file = approve(bench, "not json")
    bench.update_snapshots = True
    assert bench.evaluate(SNAP, make_check_context(Reply(data={"a": 1}))).passed
    assert file.read_text() == '{\n  "a": 1\n}\n'


def test_a_difference_names_the_line(bench):
    approve(bench, "one\ntwo\nthree\n")
    verdict = bench.evaluate(SNAP, make_check_context("one\n2\nthree"))
    assert verdict.reason == 'differs from snaps/hello.txt: line 2 was "two", is "2"'
    assert (verdict.expected, verdict.actual) == ("one\ntwo\nthree", "one\n2\nthree")
    assert bench.evaluate(SNAP, make_check_context("one")).reason.endswith("it had 3 lines, there are 1")


def test_tool_calls_are_compared_by_name_and_arguments(bench):  # N25
    definition = {"type": "snapshot", "path": "calls.json", "of": "tool_calls"}
    reply = Reply("x", tool_calls=(ToolCall("a", '{"n": 1}', id="call-1", result=5), ToolCall("b")))
    bench.update_snapshots = True
    assert bench.evaluate(definition, make_check_context(reply)).passed
    bench.update_snapshots = False
    same = Reply("y", tool_calls=(ToolCall("a", {"n": 1.0}, id="call-2", result=6), ToolCall("b")))
    other = Reply("x", tool_calls=(ToolCall("a", {"n": 2}), ToolCall("b")))
    assert bench.evaluate(definition, make_check_context(same)).passed
    verdict = bench.evaluate(definition, make_check_context(other))
    assert verdict.status == "failed"
    assert '"n": 1' in verdict.reason


def test_a_final_snapshot_has_the_tool_calls_of_all_turns(bench):  # N12
    definition = {"type": "snapshot", "path": "calls.json", "of": "tool_calls"}
    approve(bench, '[{"name": "a", "arguments": null}, {"name": "b", "arguments": null}]', "calls.json")
    turns = Reply(tool_calls=(ToolCall("a"),)), Reply(tool_calls=(ToolCall("b"),))
    assert bench.evaluate(definition, make_check_context(*turns, over="case")).passed
    assert bench.evaluate(definition, make_check_context(*turns)).status == "failed"


def test_a_link_cannot_lead_out_of_the_folder(bench, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (bench.folder / "out").symlink_to(elsewhere)
    with pytest.raises(ValueError, match="must be a file in the suite's folder"):
        bench.assertion({"type": "snapshot", "path": "out/x.txt"})


def test_a_link_made_after_loading_is_an_error(bench, tmp_path_factory):
    bench.update_snapshots = True
    assertion = bench.assertion({"type": "snapshot", "path": "out/x.txt"})
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (bench.folder / "out").symlink_to(elsewhere)
    judged = start_evaluation(assertion, make_check_context("x"))
    assert isinstance(judged, AssertionResult)
    assert judged.verdict.status == "error"
    assert os.listdir(elsewhere) == []


def test_concurrent_writers_leave_a_whole_file(bench):
    bench.update_snapshots = True
    texts = [letter * 50_000 for letter in "abcdefgh"]
    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(lambda text: bench.evaluate(SNAP, make_check_context(text)), texts))
    assert all(verdict.passed for verdict in verdicts)
    assert (bench.folder / "snaps/hello.txt").read_text()[:-1] in texts


def test_labels(bench):
    assert bench.label("snapshot", path="a.txt") == 'snapshot "a.txt"'
    assert bench.label("snapshot", path="a.json", of="tool_calls") == 'snapshot of tool calls "a.json"'
