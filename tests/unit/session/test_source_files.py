"""Which files an agent is made of: found by reading imports, wherever they stand."""

from pathlib import Path
from textwrap import indent

import pytest

from viva.agents.python import import_target
from viva.session.source_files import digest_source_files


def files_of(project: Path, sources: dict[str, str], reference: str = "./agent.py:agent") -> dict[str, str]:
    for name, text in sources.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return digest_source_files([import_target(reference, str(project))], project)


AGENT = "def agent(messages):\n    return ''\n"


@pytest.mark.parametrize(
    ("line", "others", "found"),
    [
        ("import a", {"a.py": ""}, ["a.py"]),
        ("import a.b as c", {"a/__init__.py": "", "a/b.py": ""}, ["a/__init__.py", "a/b.py"]),
        ("from a import b", {"a/b.py": ""}, ["a/b.py"]),
        ("from a.b import c", {"a/b.py": "c = 1"}, ["a/b.py"]),
        ("import a", {"a.py": "import b", "b.py": "import a"}, ["a.py", "b.py"]),
        ("from a.b import c", {"a/b/__init__.py": "from ..d import e as c", "a/d.py": "e = 1"}, ["a/b/__init__.py", "a/d.py"]),
        ("import json, os.path", {}, []),
        ("try:\n    import absent\nexcept ImportError:\n    import a", {"a.py": ""}, ["a.py"]),
        ("def late():\n    import a", {"a.py": "this is no python"}, ["a.py"]),
    ],
)  # fmt: skip
def test_imports_within_the_project_are_followed(tmp_path: Path, line: str, others: dict[str, str], found: list[str]):
    never = "def never():\n" + indent(line, "    ")  # nothing has to be imported to be found
    assert list(files_of(tmp_path, {"agent.py": f"{never}\n{AGENT}", **others})) == sorted(["agent.py", *found])


def test_packages_that_are_installed_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    others = {"a.py": "import inside\n", "lib/site-packages/inside.py": "x = 1\n"}
    monkeypatch.syspath_prepend(tmp_path / "lib" / "site-packages")
    found = files_of(tmp_path, {"agent.py": f"def late():\n    import a\n{AGENT}", **others})
    assert list(found) == ["a.py", "agent.py"]


def test_a_part_of_the_project_that_is_on_the_path_belongs_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path / "src")
    found = files_of(tmp_path, {"agent.py": f"def late():\n    import kept_here\n{AGENT}", "src/kept_here.py": ""})
    assert list(found) == ["agent.py", "src/kept_here.py"]


def test_line_endings_do_not_count_and_everything_else_does(tmp_path: Path):
    (tmp_path / "agent.py").write_bytes(AGENT.encode())
    target = import_target("./agent.py:agent", str(tmp_path))
    before = digest_source_files([target], tmp_path)
    (tmp_path / "agent.py").write_bytes(AGENT.replace("\n", "\r\n").encode())
    assert digest_source_files([target], tmp_path) == before
    (tmp_path / "agent.py").write_bytes(AGENT.encode() + b"# changed\n")
    assert digest_source_files([target], tmp_path) != before


def test_code_without_a_file_has_none(tmp_path: Path):
    assert digest_source_files([print, eval("lambda: 1")], tmp_path) == {}
