"""The house keeps its shape: sizes, docstrings, words, and what is exported."""

import ast
from pathlib import Path

import pytest

import viva

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "viva").rglob("*.py"))
MAX_LINES = 500
MAX_FUNCTION_LINES = 60
LONG_FOR_A_REASON = {("api/run.py", "run")}  # its signature is the list of all that can be asked of a run


def short(path: Path) -> str:
    return str(path.relative_to(ROOT / "src" / "viva"))


@pytest.mark.parametrize("path", SOURCES, ids=short)
def test_a_module_is_short_and_says_what_it_is(path: Path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_LINES
    tree = ast.parse(text)
    assert not tree.body or ast.get_docstring(tree), "a module begins with what lives in it"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES or (short(path), node.name) in LONG_FOR_A_REASON, (
                f"{node.name}: {length} lines"
            )


def test_nothing_is_put_off():
    words = ("TO" + "DO", "FIX" + "ME", "X" * 3)
    kept = [path for folder in ("src", "tests", "examples", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    kept += [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    found = [
        (str(path.relative_to(ROOT)), word)
        for path in kept
        for word in words
        if word in path.read_text(encoding="utf-8")
    ]
    assert found == []


def test_no_room_is_a_drawer():
    """A name that says nothing gathers everything."""
    drawers = {"utils", "util", "common", "base", "helpers_misc", "manager", "misc"}
    assert not [short(path) for path in SOURCES if path.stem in drawers or path.parent.name in drawers]


def test_tests_do_not_sleep_mock_or_skip():
    forbidden = (
        "monkeypatch" + ".setattr",
        "unittest" + ".mock",
        "pytest.mark" + ".skip",
        "pytest" + ".skip(",
        "mark" + ".xfail",
    )
    # Chaos shortens the waits between tries and puts a clock back that an agent replaced; it replaces no code of ours.
    allowed = {("tests/acceptance/test_chaos.py", forbidden[0])}
    found = {
        (str(path.relative_to(ROOT)), word)
        for path in (ROOT / "tests").rglob("*.py")
        for word in forbidden
        if word in path.read_text(encoding="utf-8")
    }
    assert found <= allowed


def test_everything_that_is_exported_is_there():
    assert len(set(viva.__all__)) == len(viva.__all__)
    for name in viva.__all__:
        assert getattr(viva, name) is not None
    assert set(viva.__all__) <= set(dir(viva))


def test_what_type_checkers_see_is_what_is_exported():
    tree = ast.parse((ROOT / "src" / "viva" / "__init__.py").read_text(encoding="utf-8"))
    (checking,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname for node in checking.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen | {"__version__"} == set(viva.__all__)


def test_what_is_not_exported_is_an_ordinary_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        viva.nonsense  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
