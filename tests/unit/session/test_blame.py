"""Who is told what, and who is blamed: whole runs with helpers that are plain functions."""

import time
from typing import Any

from running import run_cases


def counter(messages: list[dict[str, Any]]) -> str:
    return f"number {sum(m['role'] == 'user' for m in messages)}: what next?"


def run(folder, config: str, *cases: dict[str, Any], agent: Any = counter, helpers: str = "", **asked: Any):
    (folder / "helpers.py").write_text(helpers)
    (folder / "viva.toml").write_text(config)
    return list(run_cases(list(cases), agent, folder=folder, history=False, retry_faults=0, **asked).records())


JUDGE = "[agents.j]\nuse = 'python:./helpers.py:judge'\n"
BROKEN = "def judge(messages, options):\n    raise RuntimeError('judge down')\n"


def test_a_broken_judge_in_the_way_of_a_required_checkpoint_is_to_blame(tmp_path) -> None:
    sim = "[agents.s]\nuse = 'python:./helpers.py:sim'\n"
    case = {
        "id": "c",
        "simulator": {"use": "s"},
        "checkpoints": [
            {"id": "a", "required": False, "assertion": {"type": "agent", "use": "j", "criteria": "x"}},
            {"id": "b", "after": ["a"], "assertion": {"type": "contains", "value": "number"}},
        ],
        "max_turns": 2,
    }
    message = "def sim(messages, options):\n    return f'line {len(messages)}'\n"
    (record,) = run(tmp_path, JUDGE + sim, case, helpers=BROKEN + message)
    assert (record.status, record.fault) == ("error", "judge")  # N14
    assert record.error == "judge error: checkpoint a: RuntimeError: judge down"


def test_a_helper_gets_its_own_options_and_the_sessions_id(tmp_path) -> None:
    judge = (
        "def judge(messages, options):\n    m = options['metadata']\n"
        "    return {'passed': True, 'reason': f\"{options['mode']} {m['tone']} {m['session_id']} {m['turn_count']}\"}\n"
    )
    config = JUDGE + "options = { mode = 'strict', metadata = { tone = 'warm' } }\n"
    case = {"id": "c", "input": "x", "assertions": [{"type": "agent", "use": "j", "criteria": "y"}]}
    (record,) = run(tmp_path, config, case, helpers=judge)
    assert record.turns[0].assertions[0]["reason"] == f"strict warm {record.session_id} 1"  # N20, N28


def test_an_unset_variable_gives_no_verdict(tmp_path) -> None:
    turn = {"input": "x", "set": {"nobody": "$.nothing"}, "assertions": [{"type": "contains", "value": "{{nobody}}"}]}
    case = {"id": "c", "turns": [turn]}
    (record,) = run(tmp_path, "", case)
    assert (record.status, record.fault) == ("error", "undetermined")  # N21


def test_a_script_check_that_hangs_is_the_judges_fault(tmp_path) -> None:
    (tmp_path / "slow.py").write_text("import time\ndef check(output):\n    time.sleep(600)\n")
    case = {"id": "c", "input": "x", "timeout": "300ms", "assertions": [{"type": "script", "use": "scripts:slow"}]}
    began = time.monotonic()
    (record,) = run(tmp_path, "", case)
    assert (record.status, record.fault) == ("error", "judge")  # N17
    assert time.monotonic() - began < 120


def test_a_turn_that_breaks_says_so_in_the_specifications_words(tmp_path) -> None:
    def broken(messages: list[dict[str, Any]]) -> str:
        raise ValueError("boom")

    (record,) = run(tmp_path, "", {"id": "c", "input": "x", "assertions": []}, agent=broken)
    assert record.turns[0].error == record.error == "agent error: ValueError: boom"  # N16


def test_tools_that_ask_the_user_can_be_named_in_the_config(tmp_path) -> None:
    def agent(messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"content": "", "tool_calls": [{"name": "desk.ask_boss", "arguments": {}}]}

    case = {"id": "c", "input": "x", "assertions": [{"type": "tool_called", "name": "ask_boss"}]}
    (record,) = run(tmp_path, "[awaiting]\nconfirmation_tools = ['ask_boss']\n", case, agent=agent)
    assert record.turns[0].awaiting_input
    assert record.turns[0].awaiting_reason == "tool_requires_confirmation"  # N22
    (plain,) = run(tmp_path, "", case, agent=agent)
    assert not plain.turns[0].awaiting_input
