"""The structure of the code: sizes, docstrings, names, exports."""

import ast
import collections.abc
import pkgutil
import typing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

import viva
from viva.engine.trial import RunContext
from viva.session.run_plan import RunPlan

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "viva").rglob("*.py"))
MAX_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 6
MAX_LIVE_FIELDS = 12
MANY_PARAMETERS = {
    "api/conversation.py: __init__",
    "api/run.py: arun",
    "api/run.py: run",
    "api/sync_conversation.py: __init__",
    "check.py: json_path",
}
LONG_FOR_A_REASON = {("api/run.py", "run")}  # its signature has all options of a run


def short(path: Path) -> str:
    return str(path.relative_to(ROOT / "src" / "viva"))


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return {short(path): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}


def test_modules_and_functions_are_short_and_modules_have_docstrings(trees: dict[str, ast.Module]):
    problems = [short(path) for path in SOURCES if path.read_text(encoding="utf-8").count("\n") > MAX_LINES]
    for name, tree in trees.items():
        if tree.body and not ast.get_docstring(tree):
            problems.append(f"{name}: no docstring")
        problems += [
            f"{name}: {node.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (node.end_lineno or node.lineno) - node.lineno >= MAX_FUNCTION_LINES
            and (name, node.name) not in LONG_FOR_A_REASON
        ]
    assert problems == []


def test_functions_take_at_most_six_parameters(trees: dict[str, ast.Module]):
    """Except what users call with keywords, and commands, which get their flags."""

    def count(arguments: ast.arguments) -> int:
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        return sum(each.arg not in ("self", "cls") for each in named)

    found = {
        f"{name}: {node.name}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and count(node.args) > MAX_PARAMETERS
        and not (name.startswith("cli/") and node.name == "command")
    }
    assert found == MANY_PARAMETERS


def is_live(hint: Any) -> bool:
    """Does the type of a field contain a function, or an object that is not data?"""
    if typing.get_origin(hint) is collections.abc.Callable:
        return True
    if typing.get_origin(hint) not in (None, typing.Literal):
        return any(map(is_live, typing.get_args(hint)))
    return isinstance(hint, type) and hint.__module__.startswith("viva.") and not issubclass(hint, Struct)


def test_no_struct_has_more_than_a_dozen_live_fields():
    modules = [
        import_module(module.name)
        for module in pkgutil.walk_packages(viva.__path__, "viva.")
        if not module.name.endswith("__main__")
    ]
    names = {name: thing for module in modules for name, thing in vars(module).items()}
    structs = {thing for thing in names.values() if isinstance(thing, type) and issubclass(thing, Struct)}
    live: dict[str, int] = {}
    for struct in structs:
        if struct.__module__.startswith("viva.") and not struct.__name__.startswith("_"):
            hints = typing.get_type_hints(struct, names)
            live[struct.__name__] = sum(is_live(hints[field]) for field in struct.__struct_fields__)
    assert live["RunContext"] > 5  # it counts
    assert live["TrialRecord"] == 0
    assert {name: count for name, count in live.items() if count > MAX_LIVE_FIELDS} == {}


def test_what_a_run_shares_is_built_whole():
    assert RunPlan.__struct_config__.frozen
    assert RunContext.__struct_config__.frozen


def test_exceptions_carry_fields_not_notes(trees: dict[str, ast.Module]):
    """Nothing is set on an exception that was caught. A note is only for pytest, which prints it."""
    found: list[str] = []
    for name, tree in trees.items():
        for handler in (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)):
            for node in ast.walk(handler):
                is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                is_note = isinstance(node, ast.Attribute) and node.attr == "add_note"
                target = node.value if isinstance(node, ast.Attribute) else None
                if (is_set or is_note) and isinstance(target, ast.Name) and target.id == handler.name:
                    found.append(f"{name}: {ast.unparse(node)}")
    assert found == ["pytest_plugin.py: error.add_note"]


def test_no_file_has_todo_marks():
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


def test_no_module_has_a_catch_all_name():
    """A name without a meaning collects everything."""
    catch_all = {"utils", "util", "common", "base", "helpers_misc", "manager", "misc"}
    assert not [short(path) for path in SOURCES if path.stem in catch_all or path.parent.name in catch_all]


def test_tests_do_not_sleep_mock_or_skip():
    forbidden = (
        "monkeypatch" + ".setattr",
        "unittest" + ".mock",
        "pytest.mark" + ".skip",
        "pytest" + ".skip(",
        "mark" + ".xfail",
    )
    # Chaos shortens the waits between tries and puts a clock back that an agent replaced; it replaces no code of ours.
    # Two tests add a dummy component to a copy of the registry and of the schema. `shorten` sets time limits. In one test the
    # code of a user replaces the user's own code.
    allowed = {
        ("tests/conftest.py", forbidden[0]),
        ("tests/acceptance/test_chaos.py", forbidden[0]),
        ("tests/meta/test_generated.py", forbidden[0]),
        ("tests/acceptance/test_pytest_plugin.py", forbidden[0]),
        ("tests/unit/agents/test_agent_kinds.py", forbidden[0]),
    }
    found = {
        (str(path.relative_to(ROOT)), word)
        for path in (ROOT / "tests").rglob("*.py")
        for word in forbidden
        if word in path.read_text(encoding="utf-8")
    }
    assert found <= allowed


def test_replace_sets_fields_that_exist(trees: dict[str, ast.Module]):
    """pyright does not check the keywords of `msgspec.structs.replace`: some class has to have all of them as fields."""
    nodes = [(name, node) for name, tree in trees.items() for node in ast.walk(tree)]
    classes = {node.name: node for _, node in nodes if isinstance(node, ast.ClassDef)}

    def fields(name: str) -> set[str]:
        if (found := classes.get(name)) is None:
            return set()
        own = {
            part.target.id
            for part in found.body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        }
        return own.union(*(fields(base.id) for base in found.bases if isinstance(base, ast.Name)))

    known = [fields(name) for name in classes]
    replaced = [
        (f"{name}:{call.lineno}", {keyword.arg for keyword in call.keywords if keyword.arg})
        for name, call in nodes
        if isinstance(call, ast.Call) and call.keywords and ast.unparse(call.func) in ("structs.replace", "replace")
    ]
    assert len(replaced) > 50
    assert [(place, names) for place, names in replaced if not any(names <= each for each in known)] == []


def test_every_exported_name_exists():
    assert len(set(viva.__all__)) == len(viva.__all__)
    for name in viva.__all__:
        assert getattr(viva, name) is not None
    assert set(viva.__all__) <= set(dir(viva))


def test_type_checkers_see_the_exported_names():
    tree = ast.parse((ROOT / "src" / "viva" / "__init__.py").read_text(encoding="utf-8"))
    checking = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname for node in checking.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen | {"__version__"} == set(viva.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        viva.nonsense  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
