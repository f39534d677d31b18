"""The GitHub Action: its step run as the runner runs it, against a server that speaks GitHub's comments on a socket.

The examples with shards, for GitHub and GitLab, are run by their steps.
"""

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CASE = {"id": "hello", "input": "Hello", "assertions": [{"type": "contains", "value": "Hello"}]}


class Comments(ThreadingHTTPServer):
    """What a pull request was told."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.comments: list[dict[str, Any]] = [{"id": 1, "body": "somebody else's"}]
        self.tokens: set[str | None] = set()
        self.refuses = refuses
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Comments  # pyright: ignore[reportIncompatibleVariableOverride]

    def _answer(self, value: object, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _said(self) -> str:
        self.server.tokens.add(self.headers["Authorization"])
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"]

    def do_GET(self) -> None:
        self._answer(self.server.comments if self.path.endswith("&page=1") else [])

    def do_POST(self) -> None:
        said = self._said()
        if self.server.refuses:
            self._answer({"message": "Resource not accessible by integration"}, 403)
            return
        self.server.comments.append({"id": len(self.server.comments) + 1, "body": said})
        self._answer(self.server.comments[-1], 201)

    def do_PATCH(self) -> None:
        comment = self.server.comments[int(self.path.rpartition("/")[2]) - 1]
        comment["body"] = self._said()
        self._answer(comment)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the library's name
        pass


@pytest.fixture
def comments(request: pytest.FixtureRequest) -> Generator[Comments]:
    server = Comments(refuses=getattr(request, "param", False))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Runner:
    """A job's surroundings: the files and variables that GitHub gives to a step."""

    def __init__(self, folder: Path, comments: Comments) -> None:
        self.folder, self.temp = folder / "repo", folder / "temp"
        self.folder.mkdir()
        self.temp.mkdir()
        (self.folder / "agent.py").write_text("def agent(messages):\n    return messages[-1]['content']\n")
        (self.folder / "viva.toml").write_text('[agents.echo]\nuse = "python:./agent.py:agent"\n')
        self.suite(CASE)
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "GITHUB_ACTION_PATH": str(ROOT),
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_OUTPUT": str(folder / "output"),
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
            "GITHUB_API_URL": f"http://127.0.0.1:{comments.server_address[1]}",
            "GITHUB_REPOSITORY": "me/agents",
            "VIVA_INPUT": "\ncases.jsonl\n",
            "VIVA_AGENT": "echo",
            "VIVA_ARGS": "--parallel 2 -k 'hell.'",
            "VIVA_COMPARE": "true",
            "VIVA_FAIL_ON": "never",
            "VIVA_TOKEN": "t0ken",
            "VIVA_PULL_REQUEST": "7",
            "VIVA_NAME": "viva",
        }

    def suite(self, *cases: dict[str, Any]) -> None:
        (self.folder / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))

    def step(self, **env: str) -> dict[str, str]:
        """Runs the step, which must succeed for any outcome of the run, and returns its outputs."""
        output = Path(self.env["GITHUB_OUTPUT"])
        output.unlink(missing_ok=True)
        script = f"{shlex.quote(sys.executable)} {shlex.quote(str(ROOT / 'ci' / 'github.py'))}"
        ended = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=self.folder,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        self.log = ended.stdout
        return dict(line.split("=", 1) for line in output.read_text().splitlines())


@pytest.fixture
def runner(tmp_path: Path, comments: Comments) -> Runner:
    return Runner(tmp_path, comments)


def test_a_pull_request_gets_reports_a_summary_and_one_comment(runner: Runner, comments: Comments):
    outputs = runner.step()
    assert outputs["exit-code"] == "0"
    written = {path.name for path in Path(outputs["reports"]).iterdir()}
    assert written == {"report.html", "report.xml", "report.jsonl", "report.md", "report.json"}
    assert "1" in Path(runner.env["GITHUB_STEP_SUMMARY"]).read_text()
    runner.step()
    ours = [each for each in comments.comments if each["body"].startswith("<!-- viva: viva -->")]
    assert len(ours) == 1
    assert comments.tokens == {"Bearer t0ken"}
    assert "t0ken" not in runner.log


def test_a_case_that_broke_since_the_base_branch_is_reported_and_fails_the_job_if_asked(
    runner: Runner, comments: Comments
):
    assert runner.step(VIVA_PULL_REQUEST="")["exit-code"] == "0"  # the push to the base branch
    (runner.folder / "agent.py").write_text("def agent(messages):\n    return 'no idea'\n")
    outputs = runner.step(VIVA_FAIL_ON="pass-rate broken")
    assert outputs["exit-code"] == "1"
    assert "broken" in (Path(outputs["reports"]) / "comparison.md").read_text()
    assert "broken" in comments.comments[-1]["body"]


def test_bad_input_is_reported_by_its_exit_code(runner: Runner):
    assert runner.step(VIVA_INPUT="nowhere.jsonl")["exit-code"] == "4"


@pytest.mark.parametrize("comments", [True], indirect=True)
def test_a_token_that_may_not_comment_is_a_warning(runner: Runner):
    assert runner.step()["exit-code"] == "0"
    assert "::warning::Viva could not comment" in runner.log


def test_the_action_hands_every_input_to_its_step():
    """What the step reads is what `action.yml` gives it, and no value is pasted into a shell line."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (step,) = [step for step in action["runs"]["steps"] if step.get("id") == "viva"]
    read = {name for name in step["env"] if name.startswith("VIVA_")}
    script = (ROOT / "ci" / "github.py").read_text()
    assert read == {name for name in read if f'"{name}"' in script or f"'{name}'" in script}
    assert all("${{" not in step.get("run", "") for step in action["runs"]["steps"])
    used = json.dumps(action["runs"])
    assert all(f"inputs.{name}" in used for name in action["inputs"])


BAD = {**CASE, "id": "bad", "assertions": [{"type": "contains", "value": "no such words"}]}
CASES = [{**CASE, "id": f"c{number}"} for number in range(9)]


class Workflow:
    """Runs the jobs of a GitHub workflow that use the action, with artifacts between them."""

    def __init__(self, runner: Runner, workflow: Path) -> None:
        self._runner = runner
        self._jobs = yaml.safe_load(workflow.read_text())["jobs"]
        self._action = yaml.safe_load((ROOT / "action.yml").read_text())
        self.artifacts: dict[str, Path] = {}

    def run(self, job: str, **values: str) -> dict[str, str]:
        """Runs the action as a job uses it. `values` replace expressions such as `matrix.shard`."""
        (step,) = [step for step in self._jobs[job]["steps"] if step["uses"].startswith("./")]
        inputs = {name: value.get("default", "") for name, value in self._action["inputs"].items()}
        inputs |= {name: self._fill(str(value), values) for name, value in step["with"].items()}
        inputs["merge"] = inputs["merge"].lower()  # YAML reads a boolean
        known = {f"inputs.{name}": value for name, value in inputs.items()} | {"github.event.pull_request.number": "7"}
        self._download(inputs, known)
        (action_step,) = [step for step in self._action["runs"]["steps"] if step.get("id") == "viva"]
        env = {name: self._fill(value, known) for name, value in action_step["env"].items() if "token" not in value}
        outputs = self._runner.step(**env)
        self.artifacts[outputs["artifact"]] = Path(
            shutil.copytree(outputs["reports"], self._runner.temp / outputs["artifact"])
        )
        return outputs

    def _fill(self, text: str, values: dict[str, str]) -> str:
        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda match: values[match[1]], text)

    def _download(self, inputs: dict[str, str], known: dict[str, str]) -> None:
        (step,) = [step for step in self._action["runs"]["steps"] if "download-artifact" in step.get("uses", "")]
        assert step["if"] == "inputs.merge == 'true'"
        if inputs["merge"] == "true":
            pattern = self._fill(step["with"]["pattern"], known)
            for name in fnmatch.filter(self.artifacts, pattern):
                shutil.copytree(self.artifacts[name], self._runner.temp / "viva-shards" / name)


@pytest.fixture
def workflow(runner: Runner) -> Workflow:
    (runner.folder / "tests").mkdir()
    (runner.folder / "viva.toml").write_text(
        '[defaults]\nagent = "echo"\n[agents.echo]\nuse = "python:./agent.py:agent"\n'
    )
    return Workflow(runner, ROOT / "ci" / "github-shards.yml")


def write_cases(runner: Runner, *cases: dict[str, Any]) -> None:
    (runner.folder / "tests" / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))


def read_ids(reports: Path | str) -> list[str]:
    return [json.loads(line)["id"] for line in (Path(reports) / "report.jsonl").read_text().splitlines()]


def test_the_shards_of_a_matrix_are_merged_into_one_report_and_one_comment(
    runner: Runner, workflow: Workflow, comments: Comments
):
    write_cases(runner, *CASES, BAD)
    for number in workflow._jobs["shard"]["strategy"]["matrix"]["shard"]:
        assert workflow.run("shard", **{"matrix.shard": str(number)})["exit-code"] == "0"  # the merged run decides
        shutil.rmtree(runner.folder / ".viva")  # each is on a machine of its own
    assert len(comments.comments) == 1
    assert list(workflow.artifacts) == [f"viva-shard-{number}-of-4" for number in range(1, 5)]
    outputs = workflow.run("merge")
    assert (outputs["exit-code"], outputs["artifact"]) == ("1", "viva")
    assert read_ids(outputs["reports"]) == [case["id"] for case in (*CASES, BAD)]
    assert len(comments.comments) == 2
    assert "bad" in comments.comments[-1]["body"]


def test_a_lost_machine_is_named_in_the_merged_report(runner: Runner, workflow: Workflow):
    write_cases(runner, *CASES)
    for number in (1, 2, 4):
        workflow.run("shard", **{"matrix.shard": str(number)})
    assert workflow.run("merge")["exit-code"] == "1"
    assert "missing: shard 3/4" in runner.log


def test_a_shard_that_cannot_run_fails_its_job(runner: Runner, workflow: Workflow):
    (runner.folder / "tests" / "cases.jsonl").write_text("{}\n")
    assert workflow.run("shard", **{"matrix.shard": "1"})["exit-code"] == "4"


def run_gitlab_job(
    job: dict[str, Any], folder: Path, tools: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The script of a job as its runner runs it: one shell that stops at the first line that fails."""
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(folder), **variables}
    script = ["bash", "-eo", "pipefail", "-c", "\n".join(job["script"])]
    return subprocess.run(script, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_the_gitlab_jobs_merge_their_shards(tmp_path: Path):
    jobs = yaml.safe_load((ROOT / "ci" / "gitlab-shards.yml").read_text())
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, command in {"pip": "true", "viva": f'exec {shlex.quote(sys.executable)} -m viva "$@"'}.items():
        (tools / name).write_text(f"#!/bin/sh\n{command}\n")
        (tools / name).chmod(0o755)
    count = jobs["viva"]["parallel"]
    for number in range(1, count + 1):
        machine = tmp_path / f"machine-{number}"
        (machine / "tests").mkdir(parents=True)
        (machine / "agent.py").write_text("def agent(messages):\n    return messages[-1]['content']\n")
        (machine / "viva.toml").write_text('[agents.echo]\nuse = "python:./agent.py:agent"\n')
        (machine / "tests" / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in (*CASES, BAD)))
        ended = run_gitlab_job(jobs["viva"], machine, tools, CI_NODE_INDEX=str(number), CI_NODE_TOTAL=str(count))
        assert ended.returncode == 0, ended.stdout + ended.stderr
        for path in jobs["viva"]["artifacts"]["paths"]:
            shutil.copytree(machine / path, tmp_path / "merge" / path, dirs_exist_ok=True)
    merged = run_gitlab_job(jobs["merge"], tmp_path / "merge", tools)
    assert merged.returncode == 1, merged.stdout + merged.stderr
    report = (tmp_path / "merge" / jobs["merge"]["artifacts"]["reports"]["junit"]).read_text()
    assert re.findall(r'<testcase name="(\w+)"', report) == [case["id"] for case in (*CASES, BAD)]
    assert all((tmp_path / "merge" / path).is_file() for path in jobs["merge"]["artifacts"]["paths"])
