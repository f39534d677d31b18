"""The code blocks of a Markdown page, and a shell that runs them as a reader would, from top to bottom in an empty folder.

    ```python title="agent.py"      a file, written when its place on the page is reached
    ```sh                           commands for one bash that lasts the whole page; `pip install` lines are left out
    ```text                         right after commands: what they print. `...` stands for anything, times for any time
    ```toml, yaml, json, python     without a title: only read, by the schema where it is a config or a suite

An HTML comment before a block says more: `<!-- exit: 1 -->`, `<!-- not run: why -->`, `<!-- in: examples/expense -->`
(in a copy of that folder), `<!-- before: COMMAND -->` (run first, and not shown), `<!-- output: any -->` (of a text block:
not compared), `<!-- serving: localhost:8000 -->` (an agent answers there). Ports of this machine that a page names
are exchanged for free ones. A page with `<!-- environment: langgraph -->` is run in the environment of that framework.
"""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from real_frameworks import find_python
from viva.testing import HttpServer, json_response

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^(?P<indent> *)```(?P<lang>\w*)(?: title=\"(?P<title>[^\"]+)\")? *$")
COMMENT = re.compile(r"^ *<!-- (?P<key>[a-z ]+): (?P<value>.+?) -->$")
ENVIRONMENT = re.compile(r"^<!-- environment: (\w+) -->$", re.MULTILINE)
TIME = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:ms|s|m)\b")
PORT = re.compile(r"(?:127\.0\.0\.1|localhost):(\d{4,5})\b")
ALONE_S = 100.0


@dataclass
class Block:
    """A fenced block, where it begins, and what the comments above it say."""

    lang: str
    title: str | None
    text: str
    line: int
    told: dict[str, str] = field(default_factory=dict)


def blocks_of(page: str) -> list[Block]:
    """All fenced blocks in order. A fence that is never closed, or whose first line is odd, is an error."""
    found: list[Block] = []
    told: dict[str, str] = {}
    lines = iter(enumerate(page.splitlines(), 1))
    for number, line in lines:
        if comment := COMMENT.match(line):
            told[comment["key"]] = comment["value"]
        elif line.lstrip().startswith("```"):
            opened = FENCE.match(line)
            assert opened is not None, f"line {number}: {line}"
            body: list[str] = []
            for _, inner in lines:
                if inner.strip() == "```":
                    break
                body.append(inner.removeprefix(opened["indent"]))
            else:
                raise AssertionError(f"line {number}: the block is never closed")
            found.append(Block(opened["lang"], opened["title"], "\n".join(body) + "\n", number, told))
            told = {}
        elif line.strip():
            told = {}
    return found


@dataclass
class Ran:
    """A block of commands with its exit code and output."""

    block: Block
    code: int
    printed: str
    wanted: Block | None


def run_page(text: str, folder: Path) -> list[Ran]:
    """Runs the page's commands in one bash. Blocks after one with a wrong exit code are skipped."""
    for port in sorted(set(PORT.findall(text))):
        text = text.replace(port, str(_free_port()))
    blocks = blocks_of(text)
    run_context, here = folder / "stage", folder / "here"
    run_context.mkdir()
    here.mkdir()
    commands = [(at, block) for at, block in enumerate(blocks) if block.lang == "sh" and "not run" not in block.told]
    script = [_PROLOGUE]
    for at, block in enumerate(blocks):
        if block.title:
            (run_context / f"{at}.file").write_text(block.text, encoding="utf-8")
            script.append(_write(run_context / f"{at}.file", block.title))
        elif (at, block) in commands:
            (run_context / f"{at}.sh").write_text(
                f"{block.told.get('before', '')}\n{_without_installing(block.text)}", encoding="utf-8"
            )
            script.append(_run(run_context, at, block))
    with ExitStack() as servers:
        for _, block in commands:
            if "serving" in block.told:
                servers.enter_context(_agent(int(block.told["serving"].rpartition(":")[2])))
        if commands:
            _bash("\n".join(script) + _EPILOGUE, here, _find_python(text).parent)
    return [_ended(run_context, at, block, blocks) for at, block in commands if (run_context / f"{at}.code").exists()]


def find_environment(text: str) -> str | None:
    """The framework whose environment a page needs."""
    found = ENVIRONMENT.search(text)
    return found[1] if found else None


def _find_python(text: str) -> Path:
    name = find_environment(text)
    python = Path(sys.executable) if name is None else find_python(name)
    assert python is not None, f"{name} is not installed"
    return python


def _agent(port: int) -> HttpServer:
    """An agent behind HTTP, which a page of the docs assumes."""
    return HttpServer(lambda _: json_response({"content": "It is on its way."}), port=port)


_PROLOGUE = "trap 'rc=$?; [ $code -ne 0 ] || code=$rc' ERR\ncode=0\n"
_EPILOGUE = "\nkill $(jobs -p) 2>/dev/null; wait 2>/dev/null; exit 0\n"


def _write(staged: Path, title: str) -> str:
    return f"mkdir -p {shlex.quote(os.path.dirname(title) or '.')} && cp {staged} {shlex.quote(title)}"


def _run(run_context: Path, at: int, block: Block) -> str:
    """Runs a block in the same shell, so that `cd` and `export` last. The first command that fails gives the exit code."""
    run = f"code=0; . {run_context}/{at}.sh > {run_context}/{at}.out 2>&1; echo $code > {run_context}/{at}.code"
    if "in" in block.told:
        shutil.copytree(
            ROOT / block.told["in"], run_context / f"{at}.in", ignore=shutil.ignore_patterns(".viva", "__pycache__")
        )
        run = f"pushd {run_context}/{at}.in > /dev/null; {run}; popd > /dev/null"
    return f"{run}\n[ $code -eq {block.told.get('exit', '0')} ] || {{ {_EPILOGUE.strip()}; }}"


def _bash(script: str, here: Path, programs: Path) -> None:
    environ = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(
            ("VIVA", "OPENAI", "OPENWOP", "GEMINI", "ANTHROPIC", "NO_COLOR", "FORCE_COLOR", "PYTEST", "CI")
        )
    }
    environ |= {"PATH": f"{programs}:{environ['PATH']}", "COLUMNS": "100", "HOME": str(here)}
    # pytest loads our plugin alone: the others of this environment take seconds to import.
    environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "viva.pytest_plugin"}
    bash = subprocess.Popen(
        ["bash", "-c", script],
        cwd=here,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        bash.wait(ALONE_S)
    finally:
        if bash.poll() is None:
            os.killpg(bash.pid, signal.SIGKILL)  # the session is ours: no other process is in it
            bash.wait()


def _ended(run_context: Path, at: int, block: Block, blocks: list[Block]) -> Ran:
    after = blocks[at + 1] if at + 1 < len(blocks) else None
    wanted = after if after and after.lang == "text" and "output" not in after.told else None
    printed = (run_context / f"{at}.out").read_text(encoding="utf-8", errors="replace")
    return Ran(block, int((run_context / f"{at}.code").read_text()), printed, wanted)


def _without_installing(text: str) -> str:
    return "".join(
        line for line in text.splitlines(keepends=True) if not line.startswith(("pip install", "npm install"))
    )


def fits(printed: str, wanted: str) -> bool:
    """Is this what the page says is printed? White space at line ends and times do not matter."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(_levelled(line)).replace(re.escape("..."), ".*") + r"\n"
        for line in wanted.strip("\n").splitlines()
    )
    return (
        re.fullmatch(pattern, "".join(_levelled(line) + "\n" for line in printed.strip("\n").splitlines())) is not None
    )


def _levelled(line: str) -> str:
    return re.sub(r"(?<=\S) +", " ", TIME.sub("#", line.rstrip()))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
