"""Errors, prints and blocking in the user's own Python: what the record says of them."""

import asyncio
import re
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from running import run_cases
from viva.model.message import ToolCall
from viva.model.record import TrialRecord
from viva.model.tracebacks import PrintedOutput
from viva.model.turn import Traceback
from viva.testing import OpenAIServer, Say

CHECK = [{"type": "contains", "value": "x"}]


def run(
    folder: Path, *cases: dict[str, Any], agent: Any = "python:./agent.py:reply", **asked: Any
) -> list[TrialRecord]:
    options: dict[str, Any] = {"retry_faults": 0, "history": False, **asked}
    return list(run_cases(list(cases), agent, folder=folder, **options).records())


def lines(traceback: Traceback) -> list[tuple[str, int, str]]:
    return [(Path(frame.file).name, frame.line, frame.source) for frame in traceback.frames]


def case(**fields: Any) -> dict[str, Any]:
    return {"id": "c", "input": "x", "assertions": CHECK, **fields}


def test_an_agent_that_raises_shows_its_own_lines_and_what_it_printed(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("import json\n\n\ndef look(data):\n    return data['missing']\n")
    (tmp_path / "agent.py").write_text(
        "import sys\nfrom helper import look\n\n\ndef reply(messages):\n"
        "    print('looking')\n    print('hm', file=sys.stderr)\n    return look({})\n"
    )
    (record,) = run(tmp_path, case())
    (traceback,) = record.tracebacks
    assert record.error == "agent error: KeyError: 'missing'"
    assert lines(traceback) == [("agent.py", 8, "return look({})"), ("helper.py", 5, "return data['missing']")]  # N38
    assert (traceback.where, traceback.turn, traceback.printed) == ("agent", 1, "looking\nhm\n")


def test_the_frames_of_installed_packages_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("import json\n\ndef reply(messages):\n    return json.loads('{')\n")
    (record,) = run(tmp_path, case())
    assert lines(record.tracebacks[0]) == [("agent.py", 4, "return json.loads('{')")]


def test_a_cause_is_shown_before_what_it_caused_and_a_cycle_ends(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "def reply(messages):\n    try:\n        {}['a']\n    except KeyError as e:\n        f = ValueError('b')\n"
        "        e.__cause__ = f\n        raise f from e\n"
    )
    (record,) = run(tmp_path, case())
    assert [each.error for each in record.tracebacks] == ["KeyError: 'a'", "ValueError: b"]


def test_an_error_in_a_task_of_an_agent_keeps_its_line_and_its_text(tmp_path: Path) -> None:
    """`asyncio.TaskGroup` raises a group, whose own frame is not where the error was."""
    (tmp_path / "agent.py").write_text(
        "import asyncio\n\nasync def look():\n    return {}['missing']\n\n"
        "async def reply(messages):\n    async with asyncio.TaskGroup() as group:\n        group.create_task(look())\n"
    )
    (record,) = run(tmp_path, case())
    assert (record.status, record.fault) == ("failed", "agent")
    assert (record.error or "").endswith("(1 sub-exception): KeyError: 'missing'")
    member, _group = record.tracebacks
    assert lines(member) == [("agent.py", 4, "return {}['missing']")]  # N38


def test_a_provider_error_behind_another_error_is_named(tmp_path: Path) -> None:
    """Otherwise nothing says why a KeyError is `infra`."""
    (tmp_path / "agent.py").write_text(
        "class Limited(Exception):\n    __module__ = 'openai'\n    status_code = 429\n\n"
        "def reply(messages):\n    try:\n        raise Limited('slow down')\n    except Limited:\n        {}['reply']\n"
    )
    (record,) = run(tmp_path, case())
    assert (record.status, record.fault) == ("error", "infra")  # N17
    assert record.error == "agent error: KeyError: 'reply' (caused by Limited: slow down)"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_error_that_is_its_own_cause_ends_the_trial_and_not_the_run(tmp_path: Path, asynchronous: bool) -> None:
    head = "async def" if asynchronous else "def"
    (tmp_path / "agent.py").write_text(
        f"{head} reply(messages):\n    if 'ok' in messages[-1]['content']:\n        return 'x'\n"
        "    e = RuntimeError('loop')\n    raise e from e\n"
    )
    broken, fine = run(tmp_path, case(timeout="30s"), case(id="d", input="ok"))
    assert (broken.status, broken.fault, fine.status) == ("failed", "agent", "passed")


def test_prints_belong_to_the_turn_that_printed_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "agent.py").write_text(
        "import asyncio\n\nasync def reply(messages):\n    text = messages[-1]['content']\n    print(text)\n"
        "    await asyncio.sleep(0.01)\n    print(text)\n    raise ValueError(text)\n"
    )
    records = run(tmp_path, *(case(id=name, input=name) for name in "abc"))
    assert [each.tracebacks[0].printed for each in records] == ["a\na\n", "b\nb\n", "c\nc\n"]
    assert sorted(capsys.readouterr().out.split()) == list("aabbcc")  # they still go where they would


def test_a_flood_of_prints_keeps_its_end(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "def reply(messages):\n    for n in range(30000):\n        print('line', n)\n    raise ValueError\n"
    )
    (record,) = run(tmp_path, case())
    printed = record.tracebacks[0].printed
    assert len(printed) <= 64_000  # N38
    assert printed.endswith("line 29999\n")


def test_what_a_long_turn_prints_does_not_fill_the_memory() -> None:
    output = PrintedOutput()
    tracemalloc.start()
    try:
        for number in range(20_000):
            output.append_text(f"{number:0500}")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_000_000  # of ten million characters
    assert output.text.endswith("19999")


def test_hooks_checks_and_script_tests_keep_their_lines_too(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text("def set_up(ctx, case):\n    raise KeyError('db')\n")
    (tmp_path / "checks.py").write_text("def check(output):\n    return output['x']\n")
    (tmp_path / "tests_of.py").write_text("def test_it(t, ctx):\n    print('here')\n    1 / 0\n")
    (tmp_path / "agent.py").write_text("def reply(messages):\n    return 'x'\n")
    script = [{"type": "script", "use": "scripts:checks"}]
    hooked, checked = run(tmp_path, case(before="hooks:set_up"), case(id="d", assertions=script))
    assert [(t.where, lines(t)) for t in hooked.tracebacks] == [
        ("before hook hooks:set_up", [("hooks.py", 2, "raise KeyError('db')")])
    ]
    assert [(t.where, t.turn, lines(t)) for t in checked.tracebacks] == [
        ('check script "scripts:checks"', None, [("checks.py", 2, "return output['x']")])
    ]
    result = run_cases("scripts:tests_of", "python:./agent.py:reply", folder=tmp_path, history=False, retry_faults=0)
    (tested,) = result.records()
    assert lines(tested.tracebacks[0]) == [("tests_of.py", 3, "1 / 0")]  # N38


def test_a_tool_of_a_chat_agent_keeps_its_lines_and_the_turn_continues(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("def look():\n    return {}['id']\n")
    with OpenAIServer([Say(tool_calls=[ToolCall("look", {})]), "x marks it"]) as server:
        (tmp_path / "viva.toml").write_text(
            f"[connectors.c]\nbase_url = '{server.url}'\nmodel = 'm'\n"
            "[agents.a]\ntype = 'chat'\nconnector = 'c'\ntools = [{ use = 'python:./tools.py:look', name = 'look' }]\n"
        )
        (record,) = run(tmp_path, case(), agent="a")
    assert record.status == "passed", record.error
    assert [(t.where, t.turn, lines(t)) for t in record.tracebacks] == [
        ("tool look", 1, [("tools.py", 2, "return {}['id']")])
    ]


# Who blocks the loop


def test_an_agent_that_blocks_the_loop_is_named_and_others_do_not_pay(tmp_path: Path) -> None:
    async def agent(messages: list[dict[str, Any]]) -> str:
        if messages[-1]["content"] == "block":
            await asyncio.sleep(0.05)
            time.sleep(1.5)
            return "x"
        await asyncio.sleep(0.1)
        return "x"

    others = [case(id=f"o{n}", turn_timeout="1s") for n in range(3)]
    result = run_cases([case(input="block"), *others], agent, folder=tmp_path, history=False, parallel=4)
    blocker, *rest = result.records()
    assert re.search(r"blocked the event loop for \d+(\.\d\d?)?s, ", " ".join(blocker.warnings or ()))
    assert blocker.turns[0].duration_ms >= 1500
    assert [each.status for each in rest] == ["passed"] * 3
    assert [each.warnings for each in rest] == [None] * 3
    assert all(each.turns[0].duration_ms < 1000 for each in rest), [each.turns[0].duration_ms for each in rest]


# What a cut-off call had done


def test_a_turn_that_raises_keeps_the_canned_tools_it_had_used(tmp_path: Path) -> None:
    def agent(messages: list[dict[str, Any]], tools: Any) -> str:
        tools.call("look", id=7)
        raise ValueError("then this")

    fixtures = {"tools": [{"tool": "look", "response": {"found": True}}]}
    (record,) = run(tmp_path, case(fixtures=fixtures), agent=agent)
    assert [(call.name, call.args) for call in record.turns[0].tool_calls] == [("look", {"id": 7})]
    assert record.turns[0].error == "agent error: ValueError: then this"


def test_a_note_on_a_cancelled_error_excuses_no_failure(tmp_path: Path) -> None:
    async def agent(messages: list[dict[str, Any]]) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as cut:
            cut.add_note("a library's own remark")
            raise
        return ""

    (record,) = run(tmp_path, case(turn_timeout="200ms"), agent=agent)
    assert (record.status, record.fault, record.error) == ("failed", "agent", "timeout after 200ms")  # N17


def test_a_provider_error_of_a_python_agent_is_retried_and_not_charged_to_it(tmp_path: Path) -> None:
    tries: list[int] = []

    def agent(messages: list[dict[str, Any]]) -> str:
        tries.append(1)
        if len(tries) == 1:
            kind = type("RateLimitError", (Exception,), {"__module__": "openai._exceptions", "status_code": 429})
            raise RuntimeError("crew failed") from kind("slow down")
        return "x"

    (record,) = run(tmp_path, case(), agent=agent, retry_faults=1)
    assert (record.status, record.attempt, len(tries)) == ("passed", 2, 2)  # N17
    tries.clear()
    (record,) = run(tmp_path, case(), agent=agent)
    assert (record.status, record.fault) == ("error", "infra")


@pytest.mark.parametrize("kind", ["md", "xml", "jsonl", "json"])
def test_every_report_shows_file_line_source_and_prints(tmp_path: Path, kind: str) -> None:
    (tmp_path / "agent.py").write_text("def reply(messages):\n    print('look here')\n    return {}['missing']\n")
    run(tmp_path, case(), outputs=[tmp_path / f"report.{kind}"])
    text = (tmp_path / f"report.{kind}").read_text()
    for part in ("agent.py", "look here", "['missing']"):  # N38
        assert part in text or part.replace("'", "&#x27;") in text, part


# Errors that are no `Exception`


def test_code_that_cancels_itself_ends_nothing_but_its_own_trial(tmp_path: Path) -> None:
    (tmp_path / "checks.py").write_text(
        "import asyncio\n\nasync def cancels(output):\n    task = asyncio.ensure_future(asyncio.sleep(9))\n"
        "    task.cancel()\n    await task\n\ndef raises(output):\n    raise asyncio.CancelledError\n"
        "\nasync def leaves(output):\n    raise GeneratorExit\n"
    )
    (tmp_path / "hooks.py").write_text(
        "import asyncio\n\ndef up(ctx, case):\n    raise asyncio.CancelledError\n"
        "\nasync def up_async(ctx, case):\n    raise asyncio.CancelledError\n"
    )
    scripts = [{"type": "script", "use": f"scripts:checks.{name}"} for name in ("cancels", "raises", "leaves")]
    cases = [case(id=f"c{n}", assertions=[each]) for n, each in enumerate(scripts)]
    cases += [case(id=name, before=f"hooks:{name}") for name in ("up", "up_async")]
    records = run(tmp_path, *cases, case(id="last"), agent=lambda messages: "x", parallel=1)
    assert [each.status for each in records] == ["error"] * 5 + ["passed"]
    assert [each.fault for each in records] == ["judge"] * 3 + ["undetermined"] * 2 + [None]  # N17: who it was


@pytest.mark.parametrize("name", ["GeneratorExit", "SystemExit", "asyncio.CancelledError"])
def test_an_async_agent_may_raise_anything(tmp_path: Path, name: str) -> None:
    (tmp_path / "agent.py").write_text(
        f"import asyncio\n\nasync def reply(messages):\n    if messages[-1]['content'] == 'ok':\n        return 'x'\n    raise {name}\n"
    )
    bad, good = run(tmp_path, case(), case(id="d", input="ok"), parallel=1)
    assert (bad.status, bad.fault, good.status) == ("failed", "agent", "passed")


def test_an_exception_may_be_as_hostile_as_it_likes(tmp_path: Path) -> None:
    class Odd(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            raise SystemExit

    class HostileError(Exception):
        response = Odd()

        def __str__(self) -> str:
            raise SystemExit

    def agent(messages: list[dict[str, Any]]) -> str:
        raise HostileError

    (record,) = run(tmp_path, case(), agent=agent)
    assert (record.status, record.fault, record.error) == ("failed", "agent", "agent error: HostileError")


def test_a_block_of_another_agent_shortens_no_call_that_waited_for_its_provider(tmp_path: Path) -> None:
    async def agent(messages: list[dict[str, Any]]) -> str:
        if messages[-1]["content"] == "block":
            await asyncio.sleep(0.1)  # so that the other call has begun
            time.sleep(0.6)
            return "x"
        await asyncio.sleep(1.5)
        return "x"

    _, waited = run(tmp_path, case(input="block"), case(id="d"), agent=agent, parallel=2)
    assert waited.turns[0].duration_ms >= 1490


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_hook_that_cancels_itself_after_a_case_leaves_its_verdict(tmp_path: Path, asynchronous: bool) -> None:
    head = "async def" if asynchronous else "def"
    (tmp_path / "hooks.py").write_text(
        f"import asyncio\n\n{head} down(ctx, case, record, data):\n    raise asyncio.CancelledError\n"
    )
    first, last = run(tmp_path, case(after="hooks:down"), case(id="d"), agent=lambda messages: "x", parallel=1)
    assert [first.status, last.status] == ["passed", "passed"]
    assert "after hooks:down" in " ".join(first.warnings or ())
