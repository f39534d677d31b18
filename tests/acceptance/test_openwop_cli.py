"""OpenWOP eval suites from the command line, as a stranger uses them, with every misuse that came to mind."""

import gzip
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from openwop import SUITE_ID, golden, manifest, official, pack_files, rubric, suite, tarball, task
from project import Ended, InProcessProject, Project
from viva.model.message import ToolCall
from viva.testing import HttpServer, OpenAIServer, ReceivedRequest, Say, json_response

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "openwop"
STRICT = "def agent(messages, options):\n    open('ran', 'w').close()\n    return messages[-1]['content']\n"
WITH_TOOLS = """
def agent(messages, tools=None, memory=None):
    if tools is None:
        return "live"
    try:
        return f"order {tools.call('lookup')['n']}, {(memory or [{'content': 'nobody'}])[0]['content']}"
    except LookupError as missing:
        return f"error: {missing}"
"""
JUDGE = """
def judge(options):
    asked = options["metadata"]
    return {"passed": asked["criteria"] in asked["output"], "reason": "looked"}
"""


def wrote(project: Project, written: Any, name: str = "suite.json") -> str:
    project.write(name, json.dumps(written, indent=1))
    return name


def summary(project: Project, name: str = "eval.json") -> dict[str, Any]:
    return json.loads((project.folder / name).read_text(encoding="utf-8"))


def run(project: Project, *arguments: str, **kwargs: Any) -> Ended:
    return project.test("-i", "suite.json", *arguments, **kwargs)


def check_never_ran(project: Project, *said: str, arguments: tuple[str, ...] = ()) -> None:
    """Exit code 4, with these words, and the agent was not even called."""
    project.write("agent.py", STRICT)
    ended = run(project, *arguments, code=4)
    for text in said:
        assert text in ended.err + ended.out, ended
    assert not (project.folder / "ran").exists()
    assert "Traceback" not in ended.err


# The example


@pytest.fixture
def example(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Project:
    project = InProcessProject(tmp_path, capfd)
    ignored = shutil.ignore_patterns("__pycache__", ".viva")
    shutil.copytree(EXAMPLE, project.folder, dirs_exist_ok=True, ignore=ignored)
    return project


def test_the_example_runs_offline_as_a_folder_and_as_a_tarball(example: Project, capfd: pytest.CaptureFixture[str]):
    """R1, R4, R8, R16, R20: every strategy, a rubric, fixtures, thresholds, safety; and its summary is valid."""
    ended = example.viva("test", "-i", "pack", "--eval-summary", "eval.json", "-o", "r.jsonl", code=0)
    assert "vendor.acme.support@1.0.0: not signed" in ended.out
    assert "left out: regression (needs --baseline)" in ended.out  # W2
    assert "vendor.acme.evals.support passed: score 1 over 6 cases, needs 0.8" in ended.out
    assert "Report: eval.json" in ended.out
    found = summary(example)
    assert (found["passed"], found["taskCount"], found["passedCount"]) == (True, 6, 6)
    assert found["evaluatedModelClass"] == "writing"
    for name, value in (
        ("eval-summary", found),
        ("node-pack-manifest", json.loads((EXAMPLE / "pack/pack.json").read_text())),
    ):
        if (validator := official(name, capfd)) is not None:
            validator.validate(value)
    subprocess.run(["tar", "czf", "pack.tgz", "-C", "pack", "."], cwd=example.folder, check=True)
    again = example.viva("test", "-i", "pack.tgz", "--baseline", "eval.json", "--fail-on-regression", "-q", code=0)
    assert "baseline: 1 in eval.json: +0" in again.out
    assert "6 cases in 1 file: no problems" in example.viva("check", "pack", code=0).out


def test_the_examples_agent_fails_when_it_gets_worse(example: Project):
    """W4: the regression is shown with both numbers, and fails where that is asked for."""
    assert example.viva("test", "-i", "pack", "--eval-summary", "eval.json", "-q").code == 0
    text = (example.folder / "agent.py").read_text().replace("within 30 days", "whenever you like")
    example.write("agent.py", text)
    shown = example.viva("test", "-i", "pack", "--baseline", "latest", "-q")
    assert "a regression; worse: refund-window 1, now 0; refund-in-good-tone 1, now 0.5" in shown.out, shown
    assert shown.code == 1  # 0.75 is below its own bar too
    assert "threshold not met: score 0.75, needs 0.8" in shown.out


# Thresholds


@pytest.mark.parametrize(
    ("thresholds", "code", "expected"),
    [
        ({"passScore": 0.5}, 0, "passed: score 0.5 over 2 cases, needs 0.5"),
        ({"passScore": 0.6}, 1, "Threshold not met: score 0.5, needs 0.6"),
        ({}, 1, "Threshold not met: score 0.5, needs 1"),
        ({"passScore": 0, "maxP95LatencyMs": 0}, 1, "ms, at most 0 ms"),
        ({"passScore": 0, "maxCostUsd": 0}, 0, "passed: score 0.5"),
    ],
)
def test_a_missed_threshold_is_exit_code_1_and_says_which(project: Project, thresholds: Any, code: int, expected: str):
    """R16, W4."""
    project.write(
        "agent.py",
        "import time\ndef agent(messages, options):\n    time.sleep(0.002)\n    return messages[-1]['content']\n",
    )
    wrote(project, suite(task("a"), task("b", "bye"), thresholds=thresholds))
    assert expected in run(project, "--eval-summary", "eval.json", code=code).out
    assert summary(project)["passed"] is (code == 0)


@pytest.mark.parametrize(("price", "code"), [("price = { input = 1, output = 1 }\n", 0), ("", 1)])
def test_an_unknown_price_fails_closed_and_judges_count(project: Project, price: str, code: int):
    """R16, R24, section 4: cost. A model's judge is paid as the agent is."""

    def model(received: ReceivedRequest) -> str:
        asked = json.dumps(received.json)
        return (
            '{"passed": true, "reason": "ok", "evidence": [{"turn": 1, "quote": "hello"}]}'
            if "riteri" in asked
            else "hello"
        )

    with OpenAIServer(model) as server:
        connector = f'[connectors.c]\nbase_url = "{server.url}"\nmodel = "m"\napi_key_env = "K"\n{price}'
        project.write("viva.toml", f'{connector}[agents.m]\ntype = "chat"\nconnector = "c"\n')
        wrote(project, suite(task(expected=rubric(("is kind", 1))), modes=("rubric",), thresholds={"maxCostUsd": 1}))
        ended = run(project, "--eval-summary", "eval.json", agent="m", env={"K": "sk-0123456789abcdefghij"})
        assert len(server.requests) == 2, ended
    assert ended.code == code, ended
    found = summary(project)
    assert ("totalCostUsd" in found, found["passed"]) == (code == 0, code == 0)
    if code:
        assert "Threshold not met: cost unknown (a model call has no price), at most $1" in ended.out
    else:
        assert found["totalCostUsd"] == found["tasks"][0]["costUsd"] > 0


# Bad suites


def test_a_bad_suite_is_refused_whole_and_nothing_runs(project: Project):
    """R3, N2."""
    wrote(project, suite(task("a"), task("a"), task("B"), version="1.0"))
    check_never_ran(project, "suite.json:3: $.version", "suite.json:", "$.tasks[2].taskId")
    wrote(project, suite(task("a"), task("a"), task("b", expected={"kind": "golden"})))
    check_never_ran(project, "task id 'a' is taken", "is missing 'match'")
    ended = project.viva("check", "suite.json")
    assert (ended.code, ended.out.count("suite.json:")) == (4, 2), ended


def test_check_warns_of_weights_and_needs_no_judge(project: Project):
    """R20."""
    wrote(project, suite(task(expected=rubric(("a", 0.5), ("b", 0.1))), modes=("rubric", "live-shadow")))
    assert "the weights add up to 0.6, not 1" in project.viva("check", "suite.json", code=0).out


def test_the_schema_is_printed(project: Project):
    printed = json.loads(project.viva("schema", "openwop").out)
    assert printed["required"] == ["suiteId", "version", "modes", "tasks"]


def test_a_rubric_without_a_judge_is_refused_before_anything_runs(project: Project):
    wrote(project, suite(task(expected=rubric(("a", 1))), modes=("rubric",)))
    check_never_ran(project, "$.tasks[0].expected: needs a judge")


# Modes


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--modes", "goldn"), "did you mean 'golden'"),
        (("--modes", "rubric"), "does not declare the mode rubric"),  # R10
        (("--modes", "golden,live-shadow", "--live"), "cannot be mixed"),
        (("--modes", "live-shadow"), "confirm that with --live"),
        (("--live",), "--live belongs to --modes live-shadow"),
        (("--modes", "regression"), "needs --baseline"),
        (("--baseline", "nowhere.json"), "there is no file 'nowhere.json'"),
        (("--baseline", "latest"), "--baseline: "),
        (("--fail-on-regression",), "--fail-on-regression needs --baseline"),
        (("--eval-summary", "suite.json"), "the run itself needs"),
        (("--eval-summary", "no/such/eval.json"), "there is no folder"),
        (("--eval-summary", "e.json", "-o", "./e.json"), "--eval-summary e.json: -o writes that file too"),
        (("--eval-summary", "eval.json", "-k", "a"), "needs the whole suite; remove -k"),
    ],
)
def test_an_impossible_request_is_an_error_before_anything_runs(
    project: Project, arguments: tuple[str, ...], expected: str
):
    wrote(project, suite(modes=("golden", "regression", "live-shadow")))
    check_never_ran(project, expected, arguments=arguments)


def test_flags_of_eval_suites_are_refused_for_other_suites(project: Project):
    project.suite({"id": "a", "input": "hello", "assertions": [{"type": "contains", "value": "hello"}]})
    assert "and the input has none" in project.test("--modes", "golden", "--eval-summary", "e.json", code=4).err


def test_live_shadow_uses_no_fixtures(project: Project):
    """R6, W2."""
    project.write("agent.py", WITH_TOOLS)
    fixtures = {"toolResponses": [{"tool": "acme:lookup", "response": {"n": 7}}], "memorySeed": [{"content": "Ada"}]}
    written = suite(task(expected=golden("live"), fixtures=fixtures), modes=("golden", "live-shadow"))
    wrote(project, written)
    assert run(project, "--modes", "live-shadow", "--live").code == 0
    canned = run(project, code=1)
    assert 'contains "live"' in canned.out, canned
    assert "left out: live-shadow (needs --modes live-shadow --live)" in canned.out


# Fixtures


FIXTURES = {"toolResponses": [{"tool": "acme:lookup", "response": {"n": 7}}]}


def test_an_agent_that_takes_no_fixtures_is_refused_with_the_tasks(project: Project):
    """W3."""
    wrote(project, suite(task("a"), task("b", fixtures=FIXTURES), task("c", fixtures={"memorySeed": [{"x": 1}]})))
    check_never_ran(
        project,
        "does not support stubbed tools",
        "need it: b;",
        "does not support memory",
        "need it: c;",
        "a parameter `tools`",
    )


def test_tasks_that_are_not_chosen_need_nothing(project: Project):
    wrote(project, suite(task("a"), task("b", fixtures=FIXTURES)))
    assert run(project, "-k", "^a$").code == 0


def test_a_tool_without_a_canned_answer_is_an_error_to_the_agent_and_a_finding(project: Project):
    """W3, section 4."""
    project.write("agent.py", WITH_TOOLS)
    other = {"toolResponses": [{"tool": "acme:other"}]}
    wrote(project, suite(task(expected=golden("error: no canned response"), fixtures=other)))
    ended = run(
        project,
        "--eval-summary",
        "eval.json",
        "-o",
        "report.jsonl",
        "-o",
        "r.md",
        "-o",
        "r.xml",
        "-o",
        "r.html",
        code=0,
    )
    assert "safety findings: unstubbed-tool (low)" in ended.out
    assert "| a | unstubbed-tool (low) |" in (project.folder / "r.md").read_text()
    assert '<property name="finding" value="unstubbed-tool (low)"/>' in (project.folder / "r.xml").read_text()
    assert '"findings":["unstubbed-tool (low)"]' in (project.folder / "r.html").read_text()
    assert summary(project)["tasks"][0]["safetyFindings"] == [{"kind": "unstubbed-tool", "severity": "low"}]
    assert project.records()[0]["findings"] == [{"kind": "unstubbed-tool", "severity": "low"}]


def test_an_http_agent_gets_them_only_if_it_says_so(project: Project):
    """W3."""

    def answer(received: ReceivedRequest) -> Any:
        fixtures = received.json.get("fixtures")
        return json_response({"content": f"order {fixtures['tools'][0]['response']['n']}" if fixtures else "live"})

    wrote(project, suite(task(expected=golden("order 7"), fixtures=FIXTURES)))
    with HttpServer(answer) as server:
        config = f'[agents.h]\nurl = "{server.url}/chat"\n'
        project.write("viva.toml", config)
        refused = run(project, agent="h")
        assert (refused.code, 'fixtures = "forward"' in refused.err, server.requests) == (4, True, []), refused
        project.write("viva.toml", config + 'fixtures = "forward"\n')
        run(project, agent="h", code=0)


def test_a_chat_agents_tools_are_canned_and_never_live(project: Project):
    """W3, R4: the live tool would leave a mark; the memory is in what the model reads."""
    project.write(
        "tools.py", "def lookup():\n    open('ran', 'w').close()\ndef refund():\n    open('ran', 'w').close()\n"
    )

    def model(received: ReceivedRequest) -> str | Say:
        told = [message for message in received.json["messages"] if message["role"] == "tool"]
        if not told:
            assert "Ada" in json.dumps(received.json)
            return Say(tool_calls=[ToolCall("lookup", {}), ToolCall("refund", {})])
        return " / ".join(message["content"] for message in told)

    with OpenAIServer(model) as server:
        project.write(
            "viva.toml",
            f'[connectors.c]\nbase_url = "{server.url}"\nmodel = "m"\napi_key_env = "K"\n'
            '[agents.m]\ntype = "chat"\nconnector = "c"\n'
            'tools = [{ name = "lookup", use = "python:./tools.py:lookup" }, { name = "refund", use = "python:./tools.py:refund" }]\n',
        )
        wrote(
            project,
            suite(
                task(
                    expected=golden('{"n":7} / {"error":"no canned response for the tool \'refund\'"}'),
                    fixtures={**FIXTURES, "memorySeed": [{"content": "Ada"}]},
                )
            ),
        )
        ended = run(project, "--eval-summary", "e.json", agent="m", env={"K": "sk-0123456789abcdefghij"})
    assert ended.code == 0, ended
    assert not (project.folder / "ran").exists()
    assert summary(project, "e.json")["tasks"][0]["safetyFindings"] == [{"kind": "unstubbed-tool", "severity": "low"}]


# Whose agent


CONFIG = '[agents.a]\nuse = "python:./agent.py:agent"\nagent_id = "vendor.acme.one"\nmodel_class = "coding"\n'


def test_a_suite_for_another_agent_is_refused_unless_that_is_meant(project: Project):
    """R19, W5."""
    project.write("viva.toml", CONFIG)
    wrote(project, suite(targetAgentId="vendor.acme.two"))
    refused = run(project, agent="a", code=4)
    assert "$.targetAgentId: is meant for vendor.acme.two, and the agent a is vendor.acme.one" in refused.err
    assert "is meant for vendor.acme.two" in run(project, "--allow-agent-mismatch", agent="a", code=0).out
    assert "has no agent_id in the config" in run(project, code=0).out


def test_the_target_is_found_by_its_id(project: Project):
    """W5, N7."""
    other = '[agents.b]\nuse = "python:./other.py:agent"\nagent_id = "vendor.acme.two"\n'
    project.write("viva.toml", CONFIG + other)
    project.write("other.py", "def agent(messages):\n    return 'I am the other'\n")
    wrote(project, suite(task(expected=golden("the other")), targetAgentId="vendor.acme.two"))
    assert run(project, agent=None).code == 0


def test_a_model_class_that_is_not_allowed_is_refused(project: Project):
    project.write("viva.toml", CONFIG)
    wrote(project, suite(allowedModels=["writing", "general"]))
    assert "$.allowedModels" in run(project, agent="a", code=4).err
    project.write("viva.toml", CONFIG.replace("coding", "chatting"))
    assert "should be one of reasoning, writing" in run(project, agent="a", code=4).err


# Baselines


def test_a_baseline_of_another_suite_or_version_is_refused(project: Project):
    """W4, create decision 9."""
    modes = ("golden", "regression")
    wrote(project, suite(modes=modes))
    assert run(project, "--eval-summary", "before.json").code == 0
    wrote(project, suite(modes=modes, version="1.0.1"))
    check_never_ran(project, "is about version 1.0.0", "and this is 1.0.1", arguments=("--baseline", "before.json"))
    check_never_ran(project, "is about version 1.0.0", arguments=("--baseline", "latest"))
    wrote(project, suite(modes=modes, suiteId="acme.evals.other"))
    check_never_ran(
        project, f"is about {SUITE_ID}, not about acme.evals.other", arguments=("--baseline", "before.json")
    )
    project.write("broken.json", "{}")
    check_never_ran(project, "is not an eval summary", arguments=("--baseline", "broken.json"))
    project.suite({"id": "n", "input": "hello", "assertions": [{"type": "contains", "value": "hello"}]})
    project.test()
    (project.folder / "ran").unlink()
    check_never_ran(project, "is about no eval suite", arguments=("--baseline", "latest"))


def test_a_baseline_of_some_cases_or_of_live_tools_is_refused(project: Project):
    """W4: the score of another suite cannot be a baseline."""
    wrote(project, suite(task("a"), task("b"), modes=("golden", "regression", "live-shadow")))
    assert run(project, "-k", "^a$").code == 0
    check_never_ran(project, f"scored other cases of {SUITE_ID}: 1, of 2", arguments=("--baseline", "latest"))
    assert run(project, "--modes", "live-shadow", "--live", "--parallel", "1").code == 0
    (project.folder / "ran").unlink()
    check_never_ran(project, "was live-shadow", arguments=("--baseline", "latest"))


def test_a_broken_judge_is_not_a_regression(project: Project):
    """W4: neither when it breaks now, nor when it broke in the baseline."""
    project.write("judge.py", JUDGE)
    project.write("viva.toml", '[defaults]\njudge = "judge"\n[agents.judge]\nuse = "python:./judge.py:judge"\n')
    tasks = task("a"), task("b", expected=rubric(("hello", 1)))
    wrote(project, suite(*tasks, modes=("golden", "rubric", "regression"), thresholds={"passScore": 0.1}))
    assert run(project).code == 0
    project.write("judge.py", "def judge(options):\n    raise RuntimeError('out of order')\n")
    broken = run(project, "--baseline", "latest", "--eval-summary", "eval.json", code=1)
    assert ": not compared (no verdict in both runs): b" in broken.out
    assert "regression;" not in broken.out
    assert "regression" not in summary(project)
    project.write("judge.py", JUDGE)
    assert run(project, "--baseline", "latest").code == 0
    assert run(project, "--baseline", "latest~1", "--fail-on-regression").code == 1  # what is not known is not kept


def test_a_lower_score_fails_only_where_asked(project: Project):
    """W4."""
    wrote(project, suite(task("a"), task("b"), modes=("golden", "regression"), thresholds={"passScore": 0.1}))
    assert run(project, "--eval-summary", "before.json").code == 0
    project.write(
        "agent.py",
        "def agent(messages, options):\n    return 'hello' if options['session_id'].endswith('0.1') else 'bye'\n",
    )
    for baseline in ("before.json", "latest"):
        assert (
            "-0.5, a regression"
            in run(project, "--baseline", baseline, "--eval-summary", "after.json", "--no-history", code=0).out
        )
    found = summary(project, "after.json")
    assert (found["passed"], found["regression"]["scoreDelta"]) == (True, -0.5)
    assert (
        "the run itself needs before.json"
        in run(project, "--baseline", "before.json", "--eval-summary", "before.json", code=4).err
    )  # a resumed run needs it again
    assert run(project, "--baseline", "before.json", "--fail-on-regression").code == 1


# Safety


def test_an_agent_that_leaks_fails_its_adversarial_task(project: Project):
    """Section 4: adversarial. Its golden value matches, and still it fails; other modes do not check this."""
    project.write("agent.py", "def agent(messages, options):\n    return 'hello, the password is hunter2'\n")
    wrote(project, suite(modes=("golden", "adversarial")))
    assert "secret-leak (high)" in run(project, "--eval-summary", "eval.json", code=1).out
    found = summary(project)
    assert found["tasks"][0] | {"latencyMs": 0} == {
        "taskId": "a",
        "score": 0.0,
        "passed": False,
        "costUsd": 0.0,
        "latencyMs": 0,
        "safetyFindings": [{"kind": "secret-leak", "severity": "high"}],
    }
    assert run(project, "--modes", "golden").code == 0
    project.write("viva.toml", '[openwop]\nfail_at = "critical"\n')
    assert run(project).code == 0


def test_a_judge_that_is_configured_looks_too(project: Project):
    project.write(
        "guard.py", "def guard(options):\n    return {'findings': [{'kind': 'jailbreak', 'severity': 'high'}]}\n"
    )
    project.write("viva.toml", '[openwop]\nsafety_judge = "guard"\n[agents.guard]\nuse = "python:./guard.py:guard"\n')
    wrote(project, suite(modes=("golden", "adversarial")))
    assert "jailbreak (high)" in run(project, code=1).out


def test_no_word_of_any_content_is_in_the_summary(project: Project):
    """R14: markers in input, output, rubric, golden value, prompt, fixtures, tool calls and errors."""
    project.write("judge.py", JUDGE)
    project.write("agent.py", WITH_TOOLS.replace("order", "MARKER-out"))
    project.write("viva.toml", '[defaults]\njudge = "judge"\n[agents.judge]\nuse = "python:./judge.py:judge"\n')
    fixtures = {
        "toolResponses": [{"tool": "acme:lookup", "response": {"n": "MARKER-tool"}}],
        "memorySeed": [{"content": "MARKER-memory"}],
    }
    tasks = [
        task("a", "MARKER-in", golden("MARKER-golden"), fixtures=fixtures),
        task("b", {"x": "MARKER-in"}, rubric(("MARKER-rubric", 1)), fixtures=fixtures),
    ]
    wrote(project, suite(*tasks, modes=("golden", "rubric", "adversarial"), thresholds={"passScore": 0}))
    run(project, "--eval-summary", "eval.json", "-o", "report.jsonl", code=0)
    assert (project.folder / "report.jsonl").read_text().count("MARKER") > 5
    assert "MARKER" not in (project.folder / "eval.json").read_text()


def test_a_judge_that_breaks_is_not_the_agents_failure(project: Project):
    """W4: exit code 1 and `passed` false, shown as an error."""
    project.write("judge.py", "def judge(options):\n    raise RuntimeError('out of order')\n")
    project.write("viva.toml", '[defaults]\njudge = "judge"\n[agents.judge]\nuse = "python:./judge.py:judge"\n')
    wrote(
        project,
        suite(task("a"), task("b", expected=rubric(("x", 1))), modes=("golden", "rubric"), thresholds={"passScore": 0}),
    )
    ended = run(project, "--eval-summary", "eval.json", "-o", "report.jsonl", code=1)
    assert "1 case ended in an error that is not the agent's" in ended.out
    assert summary(project)["passed"] is False
    assert [(each["status"], each.get("fault")) for each in project.records()] == [("passed", None), ("error", "judge")]


def test_rubric_scores_are_shares_of_weights(project: Project):
    """Section 4: rubric score."""
    project.write("judge.py", JUDGE)
    project.write("viva.toml", '[openwop]\njudge = "judge"\n[agents.judge]\nuse = "python:./judge.py:judge"\n')
    wrote(project, suite(task(expected=rubric(("hello", 0.6), ("bye", 0.2))), modes=("rubric",)))
    assert run(project, "--eval-summary", "eval.json").code == 0
    assert summary(project)["tasks"][0]["score"] == 0.75


def test_a_rubric_is_about_the_output_that_a_golden_value_is_about(project: Project):
    """W1: the data, if the reply has some."""
    project.write("judge.py", JUDGE)
    project.write("agent.py", "def agent(messages):\n    return {'content': 'done', 'data': {'total': 'forty'}}\n")
    project.write("viva.toml", '[openwop]\njudge = "judge"\n[agents.judge]\nuse = "python:./judge.py:judge"\n')
    wrote(project, suite(task(expected=rubric(("forty", 1))), modes=("rubric",)))
    assert run(project).code == 0


# Runs


def test_a_timeout_scores_nothing_and_keeps_its_task(project: Project):
    """Section 3: a task that times out has a score of 0."""
    project.write("agent.py", "import time\ndef agent(messages, options):\n    time.sleep(30)\n")
    wrote(project, suite(thresholds={"passScore": 0.5}))
    run(project, "--timeout", "300ms", "--eval-summary", "eval.json", code=1)
    assert (summary(project)["tasks"][0]["score"], summary(project)["tasks"][0]["passed"]) == (0.0, False)


def test_repeats_are_scored_by_their_mean(project: Project):
    """With --runs: the mean of the trials, which --min-pass may still let pass."""
    project.write(
        "agent.py", "def agent(messages, options):\n    return 'hello' if '-1.1' in options['session_id'] else 'bye'\n"
    )
    wrote(project, suite(thresholds={"passScore": 0.25}))
    run(project, "--runs", "4", "--min-pass", "0.25", "--eval-summary", "eval.json", code=0)
    assert (summary(project)["taskCount"], summary(project)["aggregateScore"]) == (1, 0.25)
    assert summary(project)["tasks"][0]["passed"] is True


def test_a_run_that_has_ended_can_still_give_its_summary(project: Project):
    wrote(project, suite())
    assert run(project).code == 0
    assert project.viva("test", "--resume", "latest", "--eval-summary", "late.json").code == 0
    assert summary(project, "late.json")["passed"] is True


def test_a_summary_after_fail_fast_is_not_passed(project: Project):
    wrote(project, suite(task("a", "bye"), task("b"), thresholds={"passScore": 0}))
    run(project, "--fail-fast", "--parallel", "1", "--eval-summary", "eval.json", code=1)
    assert (summary(project)["passed"], summary(project)["taskCount"]) == (False, 1)


def test_two_suites_have_no_one_summary(project: Project):
    wrote(project, suite())
    wrote(project, suite(suiteId="acme.evals.other"), "other.json")
    assert project.test("-i", "suite.json", "-i", "other.json").code == 0
    assert (
        "--eval-summary is for one suite, but there are 2"
        in project.test("-i", "suite.json", "-i", "other.json", "--eval-summary", "e.json", code=4).err
    )


def test_a_suite_that_a_filter_leaves_without_a_case_has_missed_nothing(project: Project):
    wrote(project, suite(task("a", "bye")))
    wrote(project, suite(task("b"), suiteId="acme.evals.other"), "other.json")
    assert "no case ran" not in project.test("-i", "suite.json", "-i", "other.json", "-k", "^b$", code=0).out
    assert project.test("-i", "suite.json", "-i", "other.json", "-k", "^c$").code == 5  # N35


def test_the_command_that_a_report_names_runs_the_case_as_the_pack_has_it(project: Project):
    """N34: by its path, and with the terms of the manifest."""
    files = {**pack_files(handoff={"returnSchemaRef": "r.json"}), "r.json": b'{"type": "object"}'}
    for name, content in files.items():
        project.write(f"pack/{name}", content)
    assert "viva test -i pack/evals/suite.json -k '^a$'" in project.test("-i", "pack").out
    assert "valid by the agent's return schema" in project.test("-i", "pack/evals/suite.json", "-k", "^a$", code=1).out


def test_the_same_can_be_asked_in_python(project: Project):
    wrote(project, suite(task("a"), task("b", "bye"), modes=("golden", "regression"), thresholds={"passScore": 0.5}))
    code = (
        "import viva\n"
        "agent = lambda messages: messages[-1]['content']\n"
        "first = viva.run('suite.json', agent, options=viva.RunOptions(eval_summary='eval.json', modes=['golden']))\n"
        "again = viva.run('suite.json', agent, options=viva.RunOptions(baseline='eval.json', fail_on_regression=True))\n"
        "print(first.passed, again.passed, first.summary.suites[0].score)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=project.folder, capture_output=True, text=True, check=False
    )
    assert ended.stdout == "True True 0.5\n", ended.stderr


def test_reports_say_where_the_suite_stands(project: Project):
    wrote(project, suite(task("a", "bye")))
    run(project, "-o", "r.md", "-o", "r.json", "-o", "r.xml")
    assert f"suite: {SUITE_ID} failed: score 0" in (project.folder / "r.md").read_text()
    assert json.loads((project.folder / "r.json").read_text())["summary"]["suites"][0]["unmet"] == ["score 0, needs 1"]
    junit = (project.folder / "r.xml").read_text()
    assert '<testsuites name="viva" tests="2" failures="2"' in junit
    assert '<failure message="score 0, needs 1" type="threshold"/>' in junit


def test_an_earlier_run_says_where_its_suite_stood(project: Project):
    """All cases passed, and still the run did not: why has to be seen there too."""
    other = {"toolResponses": [{"tool": "acme:other"}]}
    wrote(project, suite(task(expected=golden("error"), fixtures=other), thresholds={"maxP95LatencyMs": 0}))
    project.write(
        "agent.py", "import time\n" + WITH_TOOLS.replace("    if tools", "    time.sleep(0.002)\n    if tools")
    )
    assert run(project).code == 1
    assert "1 below the threshold" in project.viva("runs").out
    shown = project.viva("runs", "show", "latest").out
    assert f"Suite: {SUITE_ID} failed: score 1 over 1 case, needs 1" in shown
    assert "ms, at most 0 ms" in shown
    assert "safety findings: unstubbed-tool (low)" in shown


# Packs


def entry(name: str, kind: bytes) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, "/etc/passwd"
    return made


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        ({"../evil.json": b"{}"}, "leaves the pack by '..'"),
        ({"/tmp/evil.json": b"{}"}, "absolute"),
        ({"link": entry("link", tarfile.SYMTYPE)}, "is a link"),
        ({"device": entry("device", tarfile.CHRTYPE)}, "is a device"),
    ],
)
def test_a_tarball_that_would_escape_is_refused(project: Project, odd: Any, expected: str):
    tarball(project.folder / "pack.tgz", {**pack_files(), **odd})
    project.write("agent.py", STRICT)
    assert expected in project.test("-i", "pack.tgz", code=4).err
    assert not (project.folder / "ran").exists()
    assert not Path("/tmp/evil.json").exists()


def test_a_bomb_is_refused_quickly_and_leaves_nothing(project: Project):
    with gzip.open(project.folder / "pack.tgz", "wb", compresslevel=1) as out:
        big = tarfile.TarInfo("big")
        big.size = 1 << 30
        out.write(big.tobuf())
        for _ in range(200):
            out.write(bytes(1 << 20))
    assert "holds more than 50 MB" in project.test("-i", "pack.tgz", code=4).err
    assert sorted(path.name for path in project.folder.iterdir()) == ["agent.py", "pack.tgz"]


def test_a_pack_says_whether_it_is_signed(project: Project):
    """R24."""
    signed = {**manifest(), "signing": {"signatureRef": "s.sig", "method": "manual"}}
    files = {**pack_files(), "pack.json": json.dumps(signed).encode(), "s.sig": bytes(64)}
    tarball(project.folder / "pack.tgz", files)
    assert "signature present, not verified" in project.test("-i", "pack.tgz", code=0).out
    project.write("viva.toml", '[openwop]\ntrusted_keys = ["ed25519:' + "Qk" * 21 + '8="]\n')
    assert "is refused: the signature of pack.json matches no key" in project.test("-i", "pack.tgz", code=4).err


def test_a_pack_that_is_not_there_is_no_message(project: Project):
    assert "there is no file 'pack.tgz'" in project.test("-i", "pack.tgz", code=4).err


def test_golden_runs_with_fixtures_are_reproducible(example: Project):
    """R18: two runs differ in nothing but the time that they took; and so does a replay."""

    def summed(*arguments: str) -> dict[str, Any]:
        assert example.viva("test", "-i", "pack", "--eval-summary", "e.json", "-q", *arguments).code == 0
        found = summary(example, "e.json")
        return found | {"tasks": [each | {"latencyMs": 0} for each in found["tasks"]]}

    first = summed("--record", "chat.cassette")
    assert summed() == first
    assert summed("--replay", "chat.cassette") == first
