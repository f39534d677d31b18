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
        timeout=120,
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


def loaded_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after this code."""
    script = (
        f"import sys\n{code}\nprint('\\n'.join({{name.partition('.')[0] for name in sys.modules}}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
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
