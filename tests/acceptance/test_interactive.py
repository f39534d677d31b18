"""A person takes part, in a real pseudo-terminal: `viva test --interactive`."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 60
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[=>]|\x1b\][^\x07]*\x07")
ENTER, CTRL_C, CTRL_D = "\r", "\x03", "\x04"
NEXT = "Enter to send it"
FREE = "type a message"
# The child has to have the terminal as its own, or Ctrl-C would mean nothing to it.
# A terminal of its own, and Ctrl-C as it is there: a shell's background job would inherit that it is ignored.
LAUNCH = (
    "import fcntl, os, signal, sys, termios; signal.signal(signal.SIGINT, signal.SIG_DFL);"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)

AGENT = """
import asyncio

async def agent(messages, options):
    said = messages[-1]["content"]
    if "think" in said:
        await asyncio.Event().wait()
    if "nothing" in said:
        return ""
    if "bye" in said:
        return {"content": "It is done.", "awaiting_input": False}
    return {"content": f"I heard <{said}>. Which type?", "awaiting_input": True, "input_hint": "travel\\x1b[31m or meals"}

def simulator(messages, options):
    return {"input": "bye, says the simulator", "reasoning": "it is time"}
"""
CONFIG = '[agents.x]\nuse = "python:./agent.py:agent"\n\n[agents.sim]\nuse = "python:./agent.py:simulator"\n'
HEARD = {"type": "contains", "value": "I heard"}
SCRIPT = {"id": "script", "turns": [{"input": "one", "assertions": [HEARD]}, {"input": "bye", "assertions": []}]}
DYNAMIC = {
    "id": "dynamic",
    "input": "hello",
    "simulator": {"use": "sim"},
    "checkpoints": [{"id": "done", "assertion": {"type": "contains", "value": "done"}}],
}
WANTING = {"id": "wanting", "interactive": {"enabled": True}, "turns": [{"input": "one", "assertions": [HEARD]}]}


class Screen:
    """A terminal with `viva` in it: what it shows is read until something appears, never for some time."""

    def __init__(self, terminal: int, process: subprocess.Popen[bytes]) -> None:
        self._terminal = terminal
        self._process = process
        self._seen = 0
        self._raw = b""

    @property
    def text(self) -> str:
        return ESCAPES.sub("", self._raw.decode("utf-8", "replace")).replace("\r\n", "\n")

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def reply(self, *shown: str, typed: str) -> None:
        """Types after these texts have appeared, one after the other."""
        for text in shown:
            self.expect(text)
        self.type(typed)

    def press(self, key: str) -> None:
        """A control key, once the line is being edited: before that, the terminal itself would take it."""
        until = time.monotonic() + DEADLINE_S
        while termios.tcgetattr(self._terminal)[3] & termios.ICANON:
            assert time.monotonic() < until, f"no line is being edited:\n{self.text}"
            select.select([], [], [], 0.01)
        self.type(key)

    def expect(self, text: str) -> str:
        """Reads until the text appears after what was expected before; returns what stood in between."""
        until = time.monotonic() + DEADLINE_S
        while (at := self.text.find(text, self._seen)) < 0:
            assert time.monotonic() < until, f"no {text!r} in:\n{self.text[self._seen :]}"
            assert self._read(), f"ended without {text!r}:\n{self.text[self._seen :]}"
        before, self._seen = self.text[self._seen : at], at + len(text)
        return before

    def end(self) -> int:
        """Reads to the end; the exit code."""
        while self._read():
            pass
        return self._process.wait(DEADLINE_S)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], DEADLINE_S)
        assert ready, f"nothing more came after:\n{self.text}"
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # the other side is closed
            return False
        self._raw += data
        return bool(data)


@contextmanager
def viva(folder: Path, *arguments: str, term: str = "xterm", **environment: str) -> Generator[Screen]:
    """`viva test` at a terminal of 100 columns, which it leaves as it was."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    before = termios.tcgetattr(master)
    command = [sys.executable, "-m", "viva", "test", "-n", "x", *arguments]
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, *command],
        cwd=folder,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**os.environ, "TERM": term, "PROMPT_TOOLKIT_NO_CPR": "1", "NO_COLOR": "1", **environment},
    )
    os.close(slave)
    try:
        yield Screen(master, process)
        assert process.poll() is not None, "still running"
        assert termios.tcgetattr(master) == before
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(master)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    (tmp_path / "viva.toml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


def suite(folder: Path, *cases: dict[str, Any]) -> list[str]:
    """Flags that run these cases and leave a report."""
    (folder / "suite.jsonl").write_text("\n".join(map(json.dumps, cases)), encoding="utf-8")
    return ["-i", "suite.jsonl", "-o", "report.jsonl"]


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "report.jsonl").read_text(encoding="utf-8").splitlines()]


def said(record: dict[str, Any]) -> list[tuple[str, str]]:
    return [(turn["input"], turn["input_source"]) for turn in record["turns"]]


def test_lines_are_accepted_and_replaced(folder: Path) -> None:
    """The person sees the agent's reply, its hint and the line that would be said; Enter says it, other words replace it."""
    with viva(folder, *suite(folder, SCRIPT), "--interactive") as screen:
        screen.reply("Next: one", NEXT, typed="uno" + ENTER)
        screen.reply(
            'Turn 1: [Interactive] "uno"',
            'Agent: "I heard <uno>. Which type?"',
            "Hint: travel␛[31m or meals",
            "Next: bye",
            NEXT,
            typed=ENTER,
        )
        screen.expect('Turn 2: "bye"')
        assert screen.end() == 0
    (record,) = records(folder)
    assert said(record) == [("uno", "interactive"), ("bye", "static")]
    assert record["status"] == "passed"
    assert record["turns"][0]["assertions"][0]["passed"] is True  # the line's claims stay


def test_a_proposed_line_can_be_edited(folder: Path) -> None:
    """`e` puts the line into the prompt; left as it is, it is the script's own line."""
    with viva(folder, *suite(folder, SCRIPT), "--interactive") as screen:
        screen.reply(NEXT, typed="e" + ENTER)
        screen.reply("edit > one", typed=" more" + ENTER)
        screen.reply("Next: bye", NEXT, typed="e" + ENTER)
        screen.reply("edit > bye", typed=ENTER)
        assert screen.end() == 0
    assert said(records(folder)[0]) == [("one more", "interactive"), ("bye", "static")]


def test_pasted_text_keeps_its_lines_and_letters_can_be_said(folder: Path) -> None:
    """A paste of several lines is one message; a command with a space before it is a message too; `?` lists them."""
    with viva(folder, *suite(folder, SCRIPT), "--interactive") as screen:
        screen.reply(NEXT, typed="?" + ENTER)
        screen.reply("q, Ctrl-D", NEXT, typed="\x1b[200~first\nsecond\x1b[201~" + ENTER)
        screen.reply("Next: bye", NEXT, typed=" q" + ENTER)
        screen.reply(FREE, typed="bye" + ENTER)
        assert screen.end() == 0
    assert [text for text, _ in said(records(folder)[0])] == ["first\nsecond", "q", "bye"]


def test_a_simulator_is_asked_only_when_the_person_wants_it(folder: Path) -> None:
    """The first line is the case's own; then the person speaks, or asks the simulator and accepts what it says."""
    with viva(folder, *suite(folder, DYNAMIC), "--interactive") as screen:
        screen.reply("Next: hello", NEXT, typed=ENTER)
        screen.expect("Enter to ask the simulator")
        assert "bye" not in screen.text
        screen.type("still here" + ENTER)
        screen.reply("Enter to ask the simulator", typed="a" + ENTER)
        screen.reply("Next: bye, says the simulator", "(it is time)", NEXT, typed=ENTER)
        assert screen.end() == 0
    (record,) = records(folder)
    assert said(record) == [
        ("hello", "initial"),
        ("still here", "interactive"),
        ("bye, says the simulator", "simulated"),
    ]
    assert record["status"] == "passed"


def test_a_saved_conversation_is_a_case_that_runs(folder: Path) -> None:
    """`s` asks for a file; what was said so far runs again without a person, with the same checks."""
    with viva(folder, *suite(folder, SCRIPT), "--interactive") as screen:
        screen.reply(NEXT, typed="uno" + ENTER)
        screen.reply("Next: bye", NEXT, typed="s" + ENTER)
        screen.reply("save in >", typed="kept" + ENTER)
        screen.reply("saved as 'script'; run it with viva test -i kept.jsonl", NEXT, typed="q" + ENTER)
        screen.expect("the person stopped the conversation")
        assert screen.end() == 0
    assert records(folder)[0]["status"] == "skipped"
    again = run(folder, "-i", "kept.jsonl", "-o", "report.jsonl")
    assert again.returncode == 0, again.stdout + again.stderr
    (record,) = records(folder)
    assert said(record) == [("uno", "static")]
    assert record["turns"][0]["assertions"][0]["passed"] is True


def test_ctrl_d_stops_one_conversation_and_ctrl_c_the_run(folder: Path) -> None:
    """After Ctrl-D the next case comes; after Ctrl-C the report is finished, and the exit code is 2 (N35)."""
    with viva(folder, *suite(folder, SCRIPT, {**SCRIPT, "id": "other"}, WANTING), "--interactive") as screen:
        screen.expect("[script]")
        screen.expect(NEXT)
        screen.press(CTRL_D)
        screen.reply("the person stopped the conversation", "[other]", NEXT, typed=ENTER)
        screen.expect("Next: bye")
        screen.expect(NEXT)
        screen.press(CTRL_C)
        screen.expect("not finished")
        screen.expect("2 not run")
        assert screen.end() == 2
    assert [record["id"] for record in records(folder)] == ["script"]


def test_ctrl_c_stops_an_agent_that_thinks(folder: Path) -> None:
    """The prompts before it have not taken the run's own handler away."""
    with viva(folder, *suite(folder, SCRIPT), "--interactive") as screen:
        screen.reply(NEXT, typed="think about it" + ENTER)
        screen.reply('[Interactive] "think about it"', typed=CTRL_C)
        screen.expect("Stopped: interrupted")
        assert screen.end() == 2


def test_a_reply_without_a_word_leaves_room_for_the_prompt(folder: Path) -> None:
    """Its turn is not shown to the end yet, but the question begins on a line of its own."""
    unchecked = {**SCRIPT, "turns": [{"input": "one"}, {"input": "bye"}]}
    with viva(folder, *suite(folder, unchecked), "--interactive") as screen:
        screen.reply(NEXT, typed="say nothing" + ENTER)
        screen.reply('"say nothing"\n', "Next: bye", NEXT, typed=ENTER)
        screen.expect("→ PASSED")
        assert screen.end() == 5


def test_one_at_a_time_without_a_progress_line(folder: Path) -> None:
    """--interactive means parallel 1, whatever is asked for (N19), and nothing is drawn over the prompt."""
    cases = [{**SCRIPT, "id": f"case-{number}"} for number in range(3)]
    with viva(folder, *suite(folder, *cases), "--interactive", "--parallel", "3") as screen:
        for number in range(3):
            shown = screen.expect(f"[case-{number}]") + screen.expect("Next: one") + screen.expect(NEXT)
            assert "/3" not in shown
            screen.type("q" + ENTER)
        assert screen.end() == 0
    assert [record["status"] for record in records(folder)] == ["skipped"] * 3


def test_a_case_can_want_a_person_by_itself(folder: Path) -> None:
    """With `interactive.enabled` the person is asked in that case alone, here when its lines have run out."""
    with viva(folder, *suite(folder, {**SCRIPT, "id": "alone"}, WANTING)) as screen:
        screen.reply("[alone]", "[wanting]", "Next: one", NEXT, typed=ENTER)
        screen.reply(FREE, typed="bye" + ENTER)
        assert screen.end() == 0
    alone, wanting = records(folder)
    assert said(alone) == [("one", "static"), ("bye", "static")]
    assert said(wanting) == [("one", "static"), ("bye", "interactive")]


def test_a_person_cannot_take_part_in_trials_on_workers(folder: Path) -> None:  # 17
    with viva(folder, *suite(folder, {**SCRIPT, "id": "alone"}, WANTING), "--workers", "2") as screen:
        screen.expect("--workers: a person cannot take part in trials on workers; run interactive cases without it")
        assert screen.end() == 4


def test_a_question_has_its_time(folder: Path) -> None:
    """`interactive.timeout` ends one question; the case is skipped, and the prompt is gone (N18)."""
    hurried = {**WANTING, "interactive": {"enabled": True, "timeout": "200ms"}}
    with viva(folder, *suite(folder, hurried)) as screen:
        screen.expect(NEXT)
        screen.expect("no answer from the person within 200ms")
        assert screen.end() == 0
    assert records(folder)[0]["status"] == "skipped"


@pytest.mark.parametrize("without", ["a capable terminal", "prompt_toolkit"])
def test_plain_lines_are_enough(folder: Path, without: str) -> None:
    """A dumb terminal, or no prompt_toolkit: the same questions, read line by line; Ctrl-D and Ctrl-C as ever."""
    (folder / "empty").mkdir()
    (folder / "empty" / "prompt_toolkit.py").write_text("raise ImportError", encoding="utf-8")
    how = {"term": "dumb"} if without == "a capable terminal" else {"PYTHONPATH": str(folder / "empty")}
    with viva(folder, *suite(folder, SCRIPT, {**SCRIPT, "id": "other"}), "--interactive", **how) as screen:
        screen.expect("Next: one")
        assert "e edit" not in screen.expect("? help\n  > ")
        screen.type("uno\n")
        screen.reply("Next: bye", "? help\n  > ", typed="s\n")
        screen.reply("save in > ", typed="\n")
        screen.reply("viva test -i saved.jsonl", "? help\n  > ", typed=CTRL_D)
        screen.reply("[other]", "? help\n  > ", typed=CTRL_C)
        screen.expect("not finished")
        assert screen.end() == 2
    assert said(records(folder)[0]) == [("uno", "interactive")]
    assert (folder / "saved.jsonl").exists()


def test_lines_typed_ahead_answer_one_question_each(folder: Path) -> None:
    with viva(folder, *suite(folder, SCRIPT), "--interactive", term="dumb") as screen:
        screen.reply("? help\n  > ", typed="uno\nbye now\n")
        assert screen.end() == 0
    assert said(records(folder)[0]) == [("uno", "interactive"), ("bye now", "interactive")]


def test_a_free_conversation_has_no_verdict(folder: Path) -> None:
    """Without -i a person just talks, as long as they like; it can be saved, and the exit code is 0."""
    with viva(folder, "--interactive") as screen:
        screen.reply("Talking with x.", FREE, typed="hello" + ENTER)
        screen.reply(
            "> hello\n",
            "I heard <hello>. Which type?\n",
            "awaiting input: agent_declared, hint: travel␛[31m or meals",
            FREE,
            typed="bye" + ENTER,
        )
        screen.reply("It is done.", FREE, typed="s" + ENTER)
        screen.reply("save in >", typed=ENTER)
        screen.reply("saved as 'conversation'", FREE, typed="q" + ENTER)
        assert screen.end() == 0
    assert "Summary" not in screen.text
    assert run(folder, "-i", "saved.jsonl", "-o", "report.jsonl").returncode == 5  # nothing is checked in it yet
    assert said(records(folder)[0]) == [("hello", "static"), ("bye", "static")]


def test_a_free_conversation_takes_the_flags_of_its_agent(folder: Path) -> None:
    """Another connector and a time limit for each reply."""
    connectors = '[connectors.other]\nmodel = "m"\nbase_url = "http://127.0.0.1:9"\n'
    (folder / "viva.toml").write_text(CONFIG + connectors, encoding="utf-8")
    (folder / "agent.py").write_text(AGENT.replace("<{said}>", "<{said} by {options['connector']}>"), encoding="utf-8")
    with viva(folder, "--interactive", "-c", "other", "--turn-timeout", "5s") as screen:
        screen.reply(FREE, typed="hello" + ENTER)
        screen.expect("I heard <hello by other>. Which type?\n")  # N20
        screen.reply(FREE, typed="think" + ENTER)
        screen.expect("timeout after 5s")  # N18
        assert screen.end() == 1


def test_ctrl_c_ends_a_free_conversation(folder: Path) -> None:
    """It is an interruption: exit code 2, no traceback; Ctrl-D is a good end."""
    for key, code in ((CTRL_C, 2), (CTRL_D, 0)):
        with viva(folder, "--interactive") as screen:
            screen.expect(FREE)
            screen.press(key)
            assert screen.end() == code
        assert "Traceback" not in screen.text


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`viva test` without a terminal."""
    command = [sys.executable, "-m", "viva", "test", "-n", "x", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.parametrize("flags", [[], ["--interactive"]])
def test_without_a_terminal_no_person_is_asked(folder: Path, flags: list[str]) -> None:
    """Cases that want a person are skipped, the others run, and one line says so."""
    ended = run(folder, *suite(folder, SCRIPT, WANTING), *flags)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("no terminal to ask a person on") == 1
    assert "1 case with interactive.enabled skipped" in ended.stdout
    script, wanting = records(folder)
    assert (script["status"], wanting["status"]) == ("passed", "skipped")
    assert wanting["error"] == "needs a person; there is no terminal to ask on"
    assert said(script) == [("one", "static"), ("bye", "static")]


def test_cases_that_want_a_person_can_be_left_out(folder: Path) -> None:
    """--skip-interactive skips them with a reason, at a terminal too, and asks no person."""
    with viva(folder, *suite(folder, SCRIPT, WANTING), "--skip-interactive") as screen:
        assert screen.end() == 0
    assert "no terminal" not in screen.text
    assert NEXT not in screen.text
    script, wanting = records(folder)
    assert script["status"] == "passed"
    assert (wanting["status"], wanting["error"]) == (
        "skipped",
        "needs a person; skipped by --skip-interactive",
    )


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--interactive"], "needs a terminal"),
        (["--interactive", "--json", "-i", "suite.jsonl"], "--interactive and --json"),
        (["--interactive", "-q", "-i", "suite.jsonl"], "--interactive and -q"),
        (["--interactive", "--skip-interactive", "-i", "suite.jsonl"], "--interactive and --skip-interactive"),
        (["--interactive", "-i", "Hello there"], "remove -i"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(folder: Path, flags: list[str], complaint: str) -> None:
    """Before anything runs, with exit code 4."""
    suite(folder, SCRIPT)
    ended = run(folder, *flags)
    assert ended.returncode == 4
    assert complaint in ended.stderr
