"""Hooks of cases and runs."""

import json
import sys
import time

import pytest

import viva
from running import run_cases

_serial = iter(range(1000))


@pytest.fixture
def hooked(folder):
    """Writes hooks and one case that uses them, runs it, and gives the record and what the hooks noted."""

    def run(text, before=None, after=None, expected="{{who}}", **options):
        name = f"vv_hooks_{next(_serial)}"
        (folder / f"{name}.py").write_text(f"seen = []\n{text}")
        case = {"id": "one", "input": "I am {{who}}", "assertions": [viva.check.contains(expected)]}
        hooks = {key: f"{name}:{hook}" for key, hook in (("before", before), ("after", after)) if hook}
        given = {key: f"{name}:{hook}" for key, hook in options.items() if key in ("before_run", "after_run")}
        (folder / "cases.jsonl").write_text("\n" + json.dumps({**case, **hooks}) + "\n")
        result = run_cases(
            "cases.jsonl",
            "assistants.expense",
            folder=folder,
            history=False,
            before=given.get("before_run"),
            after=given.get("after_run"),
        )
        return result, list(result.records()), sys.modules[name].seen

    return run


BEFORE = "def before(ctx, case):\n    seen.append(case.id)\n    return {'who': 'Ada'}\n"
AFTER = "def after(ctx, case, result, data):\n    seen.append((case.id, result.status, data))\n"


def test_what_before_returns_sets_variables_and_reaches_after(hooked):  # N21, N32
    result, (record,), seen = hooked(BEFORE + AFTER, "before", "after")
    assert result.passed
    assert record.turns[0].output == "You said: I am Ada"
    assert seen == ["one", ("one", "passed", {"who": "Ada"})]
    assert record.warnings is None


def test_a_before_that_raises_is_an_error_and_after_is_not_called(hooked):  # N32
    text = "def before(ctx, case):\n    raise OSError('no database')\n" + AFTER
    result, (record,), seen = hooked(text, "before", "after")
    assert result.exit_code == 1
    assert (record.status, record.fault, record.turns) == ("error", "undetermined", [])
    assert ":before: OSError: no database (" in str(record.error)  # and the line, N38
    assert seen == []


def test_a_before_that_names_an_agent_that_does_not_exist_is_not_retried(hooked):  # N21
    _, (record,), _ = hooked("def before(ctx, case):\n    ctx.call('no' + 'where', 'x')\n", "before")
    assert (record.status, record.attempt) == ("error", 1)
    assert ":before: there is no agent 'nowhere'" in str(record.error)


def test_an_after_that_raises_is_a_warning_on_the_result(hooked):  # N32
    text = BEFORE + "def after(ctx, case, result, data):\n    raise OSError('still in use')\n"
    result, (record,), _ = hooked(text, "before", "after")
    assert result.passed
    assert record.warnings
    assert ":after: OSError: still in use (" in record.warnings[0]


def test_after_sees_failures_too(hooked):
    result, _, seen = hooked(BEFORE + AFTER, "before", "after", expected="Grace")
    assert not result.passed
    assert seen[1] == ("one", "failed", {"who": "Ada"})


def test_hooks_may_be_async_and_call_agents(hooked):
    text = (
        "async def before(ctx, case):\n"
        "    reply = await ctx.call('assistants.expense', 'Ada')\n"
        "    seen.append(reply.content)\n"
        "    return {'who': 'Ada'}\n"
        "def after(ctx, case, result, data):\n"
        "    seen.append(ctx.variables['who'])\n"
    )
    result, _, seen = hooked(text, "before", "after")
    assert result.passed
    assert seen == ["You said: Ada", "Ada"]


def test_an_agent_that_breaks_in_a_hook_is_not_charged_with_it(hooked):  # N17
    _, (record,), _ = hooked("def before(ctx, case):\n    ctx.call('broken', 'x')\n", "before")
    assert (record.status, record.fault) == ("error", "undetermined")


def test_hooks_of_the_run_see_all_cases_and_all_results(hooked):  # N32
    text = (
        "def up(ctx, cases):\n    seen.append([case.id for case in cases])\n    return {'who': 'Ada'}\n"
        "def down(ctx, results, data):\n    seen.append(([each.status for each in results], data))\n"
    )
    result, _, seen = hooked(text, before_run="up", after_run="down")
    assert result.passed
    assert seen == [["one"], (["passed"], {"who": "Ada"})]


def test_a_before_of_the_run_that_raises_ends_it(hooked):  # N32
    text = "def up(ctx, cases):\n    raise OSError('no database')\ndef down(ctx, results, data):\n    seen.append(1)\n"
    result, records, seen = hooked(text, before_run="up", after_run="down")
    assert (result.exit_code, records, seen) == (1, [], [])
    assert result.summary.not_run == 1


def test_an_after_of_the_run_that_raises_changes_nothing(hooked):
    text = BEFORE + "def down(ctx, results, data):\n    raise OSError('still in use')\n"
    assert hooked(text, "before", after_run="down")[0].passed


@pytest.mark.parametrize(
    ("reference", "what"),
    [
        ("vv_no_hooks:up", "there is no vv_no_hooks.py"),
        ("vv_agents:upp", "has no function 'upp'"),
        ("vv_agents", "is a module; name the function in it"),
        ("vv_agents:broken", "is called with (ctx, case), but cannot be"),
        ("agents:broken", "is an agent, but a script is needed"),
    ],
)
def test_a_hook_that_cannot_be_called_is_a_problem_of_the_file(folder, reference, what):  # N2, N32
    (folder / "cases.jsonl").write_text("\n" + json.dumps({"id": "one", "input": "x", "before": reference}) + "\n")
    with pytest.raises(viva.errors.BadInput) as raised:
        run_cases("cases.jsonl", "assistants.expense", folder=folder)
    conversation = str(raised.value)
    assert conversation.startswith("cases.jsonl:2: $: ")
    assert what in conversation


def test_a_hook_of_the_run_that_does_not_exist_is_bad_input(folder):
    with pytest.raises(viva.errors.BadInput, match=r"after=.*there is no vv_no_hooks\.py"):
        run_cases("Hello", "assistants.expense", folder=folder, after="vv_no_hooks:down")


def test_a_before_that_hangs_is_cut_off(folder):  # N18
    (folder / "vv_hang.py").write_text("def before(ctx, case):\n    while True:\n        pass\n")
    case = {"id": "one", "input": "x", "before": "vv_hang:before", "timeout": "100ms"}
    (record,) = run_cases(case, "assistants.expense", folder=folder, history=False).records()
    assert (record.status, record.fault) == ("error", "undetermined")
    assert record.error == "timeout after 100ms, in the test's own code"


class SlowToOpen:
    def __init__(self):
        time.sleep(60)

    def reply(self, message):
        return message


def test_an_agent_that_hangs_when_it_is_opened_after_a_before_is_to_blame(folder):  # N17
    (folder / "vv_ready.py").write_text("def before(ctx, case):\n    return {}\n")
    case = {"id": "one", "input": "x", "assertions": [viva.check.contains("x")], "timeout": "1s"}
    for hook in ({}, {"before": "vv_ready:before"}):
        (record,) = run_cases([{**case, **hook}], SlowToOpen, folder=folder, history=False)
        assert (record.status, record.fault, record.error) == ("failed", "agent", "timeout after 1s")
