"""`python -m viva.testing`: a stand-in model server for those who write no Python."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

REPLIES = "- { when: ping, text: pong }\n- { error: 429 }\n"
ASK = """
import json, os, sys, urllib.request
body = {"model": "m", "messages": [{"role": "user", "content": sys.argv[1]}]}
asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode())
print(json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"])
sys.exit(7)
"""


def stand_in(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "viva.testing", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def test_a_command_runs_against_it_and_its_exit_code_is_passed_on(tmp_path: Path):
    (tmp_path / "replies.yaml").write_text(REPLIES, encoding="utf-8")
    options = ("openai", "--script", "replies.yaml", "--seen", "seen.jsonl", "--")
    code, out, _ = ended(stand_in(tmp_path, *options, sys.executable, "-c", ASK, "ping"))
    assert (code, out) == (7, "pong\n")
    (seen,) = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text(encoding="utf-8").splitlines()]
    assert (seen["path"], seen["status"]) == ("/v1/chat/completions", 200)
    assert seen["body"]["messages"][0]["content"] == "ping"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_started_by_hand_it_says_where_it_is_and_stays_until_it_is_ended(tmp_path: Path, number: int):
    process = stand_in(tmp_path, "gemini")
    assert process.stdout is not None
    told = dict(process.stdout.readline().removeprefix("export ").strip().split("=", 1) for _ in range(2))
    request = urllib.request.Request(
        told["GOOGLE_GEMINI_BASE_URL"] + "/v1beta/models", headers={"x-goog-api-key": told["GEMINI_API_KEY"]}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        assert json.load(answer)["models"]
    process.send_signal(number)
    assert ended(process)[0] == 0


def test_when_it_is_ended_the_command_is_too(tmp_path: Path):
    waiting = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    process = stand_in(tmp_path, "anthropic", "--", sys.executable, "-c", waiting)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.terminate()
    assert ended(process)[0] == 143
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_wrong_file_a_taken_port_and_a_missing_command_are_clear_errors(tmp_path: Path):
    (tmp_path / "replies.yaml").write_text("- { whn: a }", encoding="utf-8")
    code, _, err = ended(stand_in(tmp_path, "openai", "--script", "replies.yaml"))
    assert (code, err) == (4, "replies.yaml:1: $[0]: unknown key 'whn'; did you mean 'when'?\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = ended(stand_in(tmp_path, "openai", "--port", str(taken.getsockname()[1])))
    assert code == 4
    assert "in use" in err
    code, _, err = ended(stand_in(tmp_path, "openai", "--", "no-such-command"))
    assert code == 4
    assert "no-such-command" in err
