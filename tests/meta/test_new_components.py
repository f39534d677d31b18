"""A new component is one file and its line in a table. Beside these: checks in test_generated.py, flags in test_run_options.py,
agent kinds in tests/unit/agents/test_agent_kinds.py.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EDITED_IMPORT = """
import importlib.util, sys
from pathlib import Path

def import_edited(name, *edits):
    spec = importlib.util.find_spec(name)
    source = Path(spec.origin).read_text()
    for old, new in edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    package, _, last = name.rpartition(".")
    setattr(sys.modules[package], last, module)

def run_command(*arguments):
    from viva.cli.main import main
    try:
        main(arguments)
    except SystemExit as ended:
        return ended.code

def help_of(command):
    import click
    from importlib import import_module
    return import_module("viva.cli." + command).command.get_help(click.Context(click.Command(command)))
"""
REPORT = """
from viva.reporters.report import Report


class CountReport(Report):
    def write(self, out, ended):
        out.write(b"%d passed" % ended.summary.passed)
"""
USE_REPORT = """
import viva.model
import_edited("viva.catalog", ('        ".md": ', '        ".count": "count_report:CountReport",\\n        ".md": '))
code = run_command("test", "-i", "suite.jsonl", "-n", "python:agent.py:agent", "-o", "out.count", "-q")
print(code, Path("out.count").read_text(), ".count" in help_of("test"), ".count" in help_of("merge"))
"""
FORMAT = """
from viva.formats import native


def load(documents, name, folder, options):
    print("loaded by dummy_format")
    return native.load(documents, name, folder, options)
"""
USE_FORMAT = """
import viva.formats
import_edited(
    "viva.formats.sources",
    ('Literal["native", ', 'Literal["dummy", "native", '),
    ('    "native": "viva.formats', '    "dummy": "dummy_format",\\n    "native": "viva.formats'),
)
codes = [
    run_command("check", "suite.jsonl", "--format", "dummy"),
    run_command("test", "-i", "suite.jsonl", "--format", "dummy", "-n", "python:agent.py:agent", "-q"),
]
print(codes, "dummy" in help_of("test"), "dummy" in help_of("check"))
"""


@pytest.mark.parametrize(
    ("file", "source", "use", "expected"),
    [
        ("count_report.py", REPORT, USE_REPORT, "0 1 passed True True"),
        ("dummy_format.py", FORMAT, USE_FORMAT, "[0, 0] True True"),
    ],
    ids=["report", "format"],
)
def test_a_new_report_or_format_is_found_everywhere(tmp_path: Path, file: str, source: str, use: str, expected: str):
    (tmp_path / file).write_text(source, encoding="utf-8")
    (tmp_path / "agent.py").write_text("def agent(message):\n    return message\n", encoding="utf-8")
    (tmp_path / "viva.toml").write_text("", encoding="utf-8")
    case = {"id": "a", "input": "hi", "assertions": [{"type": "contains", "value": "hi"}]}
    (tmp_path / "suite.jsonl").write_text(json.dumps(case), encoding="utf-8")
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, '.')\n{EDITED_IMPORT}\n{use}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == expected
    assert done.stdout.count("loaded by dummy_format") == (2 if file == "dummy_format.py" else 0)
