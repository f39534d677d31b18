"""The check of the path."""

from typing import Any

import msgspec
import pytest

from viva.agents.replies import parse_reply
from viva.check import path_contains
from viva.checks.node_path import PathContains
from viva.errors import AgentFailed
from viva.model.message import Reply
from viva.testing.check_context import make_check_context


@pytest.mark.parametrize(
    ("names", "exact", "reason"),
    [
        (["triage"], False, None),
        (["triage", "refunds"], False, None),
        (["triage", "booking", "refunds"], True, None),
        (
            ["refunds", "triage"],
            False,
            '"triage" is not in the path after "refunds"; it was triage → booking → refunds',
        ),
        (["nobody"], False, '"nobody" is not in the path; it was triage → booking → refunds'),
        (["triage"], True, "expected exactly triage, was triage → booking → refunds"),
    ],
)
def test_names_are_looked_for_in_order(names: list[str], exact: bool, reason: str | None):
    reply = Reply("ok", path=("triage", "booking", "refunds"))
    verdict = PathContains(names=tuple(names), exact=exact).check(make_check_context(reply))
    assert (verdict.passed, verdict.reason) == (reason is None, reason or "")


def test_an_agent_without_a_path_fails():
    verdict = PathContains(names=("a",)).check(make_check_context(Reply("ok")))
    assert (verdict.status, verdict.reason) == ("failed", "the agent reports no path")


@pytest.mark.parametrize("names", [[], [""]])
def test_empty_names_are_a_mistake(names: list[str]):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"names": names}, PathContains)
    assert path_contains("a")["type"] == "path_contains"


def test_a_python_agent_can_report_its_path():
    returned: Any = {"content": "ok", "path": ["a", "b"]}
    assert parse_reply(returned).path == ("a", "b")
    with pytest.raises(AgentFailed, match="a path of type a str"):
        parse_reply({"content": "ok", "path": "a"})
