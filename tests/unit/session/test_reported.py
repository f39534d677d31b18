"""What agents report of themselves, as whole runs see it: usage, tool calls, states, and faults that would come again."""

from pathlib import Path
from typing import Any

import pytest

from running import run_cases
from viva.model.record import TrialRecord
from viva.testing import HttpServer, OpenAIServer, StubResponse, json_response

OK = [{"type": "contains", "value": "x"}]


def run(folder: Path, *cases: dict[str, Any], agent: Any, **asked: Any) -> list[TrialRecord]:
    options: dict[str, Any] = {"retry_faults": 0, "history": False, **asked}
    return list(run_cases(list(cases), agent, folder=folder, **options).records())


def case(**fields: Any) -> dict[str, Any]:
    return {"id": "c", "input": "x", "assertions": OK, **fields}


# Usage


def used(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": "x", "usage": {"model": "gpt-4o-mini", "prompt_tokens": 1_000_000, "completion_tokens": 0}}


def test_usage_that_a_python_agent_reports_is_priced(tmp_path: Path) -> None:
    dear, cheap = ([{"type": "max_cost", "value": value}] for value in (0.01, 1))
    over, under = run(tmp_path, case(assertions=dear), case(id="d", assertions=cheap), agent=used)
    assert (over.status, under.status) == ("failed", "passed")
    assert over.cost_usd == pytest.approx(0.15)


def test_the_budget_sees_what_agents_report(tmp_path: Path) -> None:
    result = run_cases(
        [case(id=str(n)) for n in range(9)], used, folder=tmp_path, history=False, max_cost=0.4, parallel=1
    )
    assert result.exit_code == 1
    assert 1 <= len(list(result.records())) <= 4


def test_usage_of_an_http_agent_is_priced_by_the_model_beside_it(tmp_path: Path) -> None:
    answer = {
        "model": "gpt-4o-mini",
        "choices": [{"message": {"content": "x"}}],
        "usage": {"prompt_tokens": 1_000_000, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}},
    }
    with HttpServer(lambda _: json_response(answer)) as server:
        (record,) = run(tmp_path, case(assertions=[{"type": "max_cost", "value": 0.01}]), agent=server.url)
    assert (record.status, record.cost_usd) == ("failed", pytest.approx(0.15))


@pytest.mark.parametrize("limit", ["max_tokens", "max_cost"])
def test_a_limit_on_unreported_usage_is_not_a_fault_of_a_judge(tmp_path: Path, limit: str) -> None:
    (record,) = run(tmp_path, case(assertions=[{"type": limit, "value": 5}]), agent=lambda messages: "x")
    assert (record.status, record.fault) == ("error", "undetermined")  # N17, N24
    assert "return `usage`" in str(record.error)


# Faults that would come again


def test_mistakes_that_would_come_again_are_not_retried(tmp_path: Path) -> None:
    (tmp_path / "checks.py").write_text("def nothing(output):\n    return None\n")
    (tmp_path / "tests_of.py").write_text("def test_it(t, ctx):\n    ctx.call('no' + 'such', 'hi')\n")
    calls: list[str] = []

    def agent(messages: list[dict[str, Any]]) -> str:
        calls.append(messages[-1]["content"])
        return "x"

    problem = [{"type": "script", "use": "scripts:checks.nothing"}], [{"type": "snapshot", "path": "none.txt"}]
    cases = [case(id=str(n), input=str(n), assertions=each) for n, each in enumerate(problem)]
    records = run(tmp_path, *cases, agent=agent, retry_faults=3)
    assert [(each.status, each.attempt) for each in records] == [("error", 1), ("error", 1)]
    assert sorted(calls) == ["0", "1"]
    (unknown,) = run_cases("scripts:tests_of", agent, folder=tmp_path, history=False, retry_faults=3).records()
    assert (unknown.status, unknown.fault, unknown.attempt) == ("error", "undetermined", 1)


def test_what_may_pass_the_next_time_is_retried(tmp_path: Path) -> None:
    (tmp_path / "checks.py").write_text("def broken(output):\n    raise OSError('validator down')\n")
    (record,) = run(
        tmp_path,
        case(assertions=[{"type": "script", "use": "scripts:checks.broken"}]),
        agent=lambda messages: "x",
        retry_faults=2,
    )
    assert (record.status, record.fault, record.attempt) == ("error", "judge", 3)


# Shapes


def test_arguments_in_a_string_are_an_object_in_the_record(tmp_path: Path) -> None:
    def agent(messages: list[dict[str, Any]]) -> dict[str, Any]:
        functions = [{"name": "a", "arguments": '{"n": 1}'}, {"name": "b", "arguments": "{broken"}]
        return {"content": "x", "tool_calls": [{"type": "function", "function": each} for each in functions]}

    (record,) = run(tmp_path, case(), agent=agent)
    assert [call.args for call in record.turns[0].tool_calls] == [{"n": 1}, "{broken"]


def test_an_unknown_key_is_a_warning_once_with_the_nearest_one(tmp_path: Path) -> None:
    def agent(messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"content": "x", "awaiting": True}

    turns = [{"input": "a", "assertions": OK}, {"input": "b", "assertions": OK}]
    (record,) = run(tmp_path, {"id": "c", "turns": turns}, agent=agent)
    assert record.status == "passed"
    (warning,) = record.warnings or []
    assert "'awaiting'" in warning
    assert "did you mean 'awaiting_input'?" in warning


def test_a_protocol_state_is_taken_from_a_dict_and_by_a_path(tmp_path: Path) -> None:
    (record,) = run(tmp_path, case(), agent=lambda messages: {"content": "x", "protocol_state": "input-required"})
    assert (record.turns[0].awaiting_input, record.turns[0].awaiting_reason) == (True, "protocol_state")  # N22
    with HttpServer(lambda _: json_response({"content": "x", "status": {"state": "input-required"}})) as server:
        (tmp_path / "viva.toml").write_text(
            f"[agents.a]\ntype = 'http'\nurl = '{server.url}'\nprotocol_state = '$.status.state'\n"
        )
        (record,) = run(tmp_path, case(), agent="a")
    assert record.turns[0].awaiting_reason == "protocol_state"


@pytest.mark.parametrize(("format_", "reason"), [("json", "agent_declared"), ("text", "completed")])
def test_json_that_a_model_answers_with_is_a_reply_if_the_config_says_so(
    tmp_path: Path, format_: str, reason: str
) -> None:
    said = '```json\n{"content": "x it is", "awaiting_input": true}\n```'
    with OpenAIServer([said]) as server:
        (tmp_path / "viva.toml").write_text(
            f"[connectors.c]\nbase_url = '{server.url}'\nmodel = 'm'\n"
            f"[agents.a]\ntype = 'chat'\nconnector = 'c'\nreply_format = '{format_}'\n"
        )
        (record,) = run(tmp_path, case(), agent="a")
    assert record.turns[0].awaiting_reason == reason
    assert record.turns[0].output == ("x it is" if format_ == "json" else said)


def test_json_in_the_text_of_an_agent_adds_to_what_its_protocol_says(tmp_path: Path) -> None:
    """Without usage of its own, that in the JSON counts; the tools that it used keep their times."""
    text = '{"content": "x it is", "usage": {"input_tokens": 7, "cost_usd": 0.5}}'
    answers = {
        "/plain": StubResponse(body=text.encode()),
        "/whole": json_response({"content": text, "usage": {"input_tokens": 9}, "awaiting_input": True}),
    }
    with HttpServer(lambda request: answers[request.path]) as server:
        (tmp_path / "viva.toml").write_text(
            f"[agents.plain]\ntype = 'http'\nurl = '{server.url}/plain'\nanswer = 'text'\nreply_format = 'json'\n"
            f"[agents.whole]\ntype = 'http'\nurl = '{server.url}/whole'\nreply_format = 'json'\n"
        )
        (plain,), (whole,) = (run(tmp_path, case(), agent=name) for name in ("plain", "whole"))
    assert [each.turns[0].output for each in (plain, whole)] == ["x it is", "x it is"]
    assert plain.usage is not None
    assert whole.usage is not None
    assert (plain.usage.input_tokens, plain.cost_usd) == (7, 0.5)
    assert (whole.usage.input_tokens, whole.cost_usd) == (9, None)
    assert whole.turns[0].awaiting_reason == "agent_declared"


def test_a_mistyped_key_in_the_json_of_a_model_is_a_warning_too(tmp_path: Path) -> None:
    with OpenAIServer(['{"content": "x it is", "awaiting": true}']) as server:
        (tmp_path / "viva.toml").write_text(
            f"[connectors.c]\nbase_url = '{server.url}'\nmodel = 'm'\n"
            "[agents.a]\ntype = 'chat'\nconnector = 'c'\nreply_format = 'json'\n"
        )
        (record,) = run(tmp_path, case(), agent="a")
    assert record.turns[0].output == "x it is"
    assert "did you mean 'awaiting_input'?" in str(record.warnings)


def test_an_unstubbed_tool_is_found_even_if_its_error_escapes_the_agent(tmp_path: Path) -> None:
    def agent(messages: list[dict[str, Any]], tools: Any) -> str:
        return str(tools.call("refund", id=1))

    (record,) = run(tmp_path, case(fixtures={"tools": [{"tool": "look", "response": 1}]}), agent=agent)
    assert record.status == "failed"
    assert [each.kind for each in record.findings] == ["unstubbed-tool"]  # W3


@pytest.mark.parametrize("problem", [-5, float("nan"), float("-inf"), 10**30, True, "7"])
def test_reported_numbers_that_cannot_be_added_up_are_ignored(tmp_path: Path, problem: Any) -> None:
    usage = {"model": "gpt-4o-mini", "prompt_tokens": problem, "completion_tokens": 3, "cached_tokens": problem}
    agents = [{"usage": usage}, {"usage": [{**usage, "cost_usd": problem}, {"input_tokens": 2, "cost_usd": 0.5}]}]
    one, both = (
        run(tmp_path, case(), agent=lambda messages, more=more: {"content": "x", **more})[0] for more in agents
    )
    assert one.usage is not None
    assert both.usage is not None
    assert (one.status, one.usage.input_tokens, one.usage.output_tokens) == ("passed", 0, 3)
    assert one.usage.cost_usd == pytest.approx(3 * 0.6e-6)
    assert (both.usage.calls, both.usage.total_tokens) == (2, 5)
    assert both.usage.cost_usd == pytest.approx(0.5 + 3 * 0.6e-6)
