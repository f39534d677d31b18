"""Every module can be imported alone, and start-up imports nothing heavy."""

import pkgutil
import subprocess
import sys

import viva

ALONE = """
import importlib, os, sys
# Libraries are imported once; each module of Viva is then imported in a process of its own.
import asyncio, concurrent.futures, difflib, hashlib, importlib.metadata, inspect, json, msgspec, pathlib, tempfile, typing
import aiohttp, click, jsonpath_rfc9535, jsonschema_rs, regex, ssl, yaml, xml.etree.ElementTree

for name in sys.stdin.read().split():
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        try:
            importlib.import_module(name)
        except BaseException as broken:
            print(f"{name}: {type(broken).__name__}: {broken}", flush=True)
            os._exit(1)
        os._exit(0)
    os.waitpid(child, 0)
"""


def modules() -> list[str]:
    found = pkgutil.walk_packages(viva.__path__, "viva.", onerror=lambda name: None)
    return [module.name for module in found if module.name != "viva.__main__"]


def test_every_module_imports_by_itself():
    """No module works only because another was imported before it."""
    names = modules()
    assert len(names) > 60
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ALONE],
        input=" ".join(names),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


HEAVY = {
    "aiohttp",
    "starlette",
    "yaml",
    "regex",
    "jsonschema_rs",
    "jsonpath_rfc9535",
    "uvloop",
    "prompt_toolkit",
}


def loaded_after(code: str, *, whole_names: bool = False) -> set[str]:
    """The modules that a fresh interpreter has loaded after this code; by default only the names of their packages."""
    name = "name" if whole_names else "name.partition('.')[0]"
    script = f"import sys\n{code}\nprint('\\n'.join({{{name} for name in sys.modules}}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    return set(done.stderr.split())


def test_import_viva_loads_nothing_heavy():
    assert not loaded_after("import viva") & {*HEAVY, "msgspec", "click", "asyncio"}


def test_help_and_version_load_nothing_heavy():
    help_ = "from viva.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    assert not loaded_after(help_) & {*HEAVY, "msgspec", "asyncio"}
    assert not loaded_after(help_.replace("--help", "--version")) & HEAVY


def test_a_run_against_python_code_needs_neither_http_nor_tables(tmp_path):
    """A suite of JSON lines and an agent that is a function: no aiohttp, no yaml."""
    (tmp_path / "s.jsonl").write_text('{"id": "a", "input": "x", "assertions": [{"type": "contains", "value": "x"}]}')
    (tmp_path / "a.py").write_text("def a(messages): return 'x'\n")
    arguments = ["test", "-i", str(tmp_path / "s.jsonl"), "-n", f"python:{tmp_path}/a.py:a", "--no-history"]
    run = f"from viva.cli.main import main\ntry: main({arguments!r})\nexcept SystemExit as left: assert not left.code"
    assert not loaded_after(run) & {"aiohttp", "yaml", "starlette", "prompt_toolkit"}


CHAT = """
import http.server, json, threading, viva

class Model(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "The cheapest flight is 80 euros. It leaves at 9."}
        answer = json.dumps({"choices": [{"message": message}], "model": "gpt-4o", "usage": {"prompt_tokens": 9}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *args): pass

server = http.server.HTTPServer(("127.0.0.1", 0), Model)
before = set(sys.modules)
threading.Thread(target=server.serve_forever, daemon=True).start()
open("viva.toml", "w").write(
    '[connectors.c]\\nmodel = "gpt-4o"\\nbase_url = "http://127.0.0.1:%d/v1"\\n[agents.a]\\ntype = "chat"\\nconnector = "c"\\n'
    % server.server_port
)
result = viva.run("s.jsonl", "a")
assert result.exit_code == 0 and result.summary.cost_usd
for name in before: sys.modules.pop(name)
"""


def test_a_run_of_a_chat_agent_imports_only_what_it_needs(tmp_path):
    """Prices come from our own table; the checks of eval suites, plugins and temporary files are not needed."""
    (tmp_path / "s.jsonl").write_text('{"id": "a", "input": "x", "assertions": [{"type": "contains", "value": "80"}]}')
    loaded = loaded_after(f"import os; os.chdir({str(tmp_path)!r})\n{CHAT}", whole_names=True)
    assert "viva.agents.chat" in loaded
    slow = {
        "genai_prices",
        "pydantic",
        "httpx",
        "aiohttp",
        "yaml",
        "regex",
        "importlib.metadata",
        "importlib.resources",
    }
    assert not loaded & slow
    assert not loaded & {"tempfile", "ctypes", "viva.checks.leaks", "viva.checks.judge", "viva.formats.openwop.suite"}
