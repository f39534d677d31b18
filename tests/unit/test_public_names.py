"""What `viva` offers to Python code, and what importing it costs."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import viva

SOURCE = Path(viva.__file__)


def names_for_type_checkers() -> dict[str, str]:
    """What the `if TYPE_CHECKING` block imports: name -> module."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name: str(node.module) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }


def test_every_public_name_is_there():
    for name in viva.__all__:
        assert getattr(viva, name) is not None, name
    assert set(viva.__all__) <= set(dir(viva))


def test_type_checkers_see_the_names_that_programs_get():
    typed = names_for_type_checkers()
    assert set(typed) == set(viva.__all__) - {"__version__"}
    for name, module in typed.items():
        assert getattr(viva, name) is getattr(sys.modules[module], name)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'contain'"):
        _ = getattr(viva, "contain")  # noqa: B009 -- type checkers know that it is not there


def test_public_functions_and_classes_are_documented():
    for name in viva.__all__:
        if callable(getattr(viva, name)):
            assert getattr(viva, name).__doc__, name


@pytest.mark.parametrize("module", ["viva", "viva.pytest_plugin"])
def test_importing_costs_next_to_nothing(module):
    """Every pytest run beside Viva loads its plugin: neither that nor `import viva` may bring heavy modules."""
    code = f"import pytest, sys; before = set(sys.modules); import {module}; print(*(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name.split(".")[0] for name in loaded} <= {"viva"}
    assert set(loaded) <= {"viva", "viva.pytest_plugin"}


def test_the_top_has_few_names():
    names = set(viva.__all__) - {"__version__", "check", "errors", "plugins", "types"}
    assert names == {
        *("run", "arun", "Conversation", "SyncConversation", "RunOptions", "RunResult"),
        *("Reply", "ToolCall", "Verdict", "BadInput", "AgentFailed"),
    }


@pytest.mark.parametrize(
    ("kind", "name", "problem"),
    [
        ("chek", "polite", "kind 'chek' is not one of check, agent, reporter; did you mean 'check'?"),
        ("check", "contains", "name 'contains' is a built-in check; choose another name"),
        ("check", "agent", "name 'agent' is a built-in check"),
        ("reporter", "html2", "name 'html2' is not a file extension; write '.html2'"),
        ("check", print, "is not a text"),
    ],
)
def test_a_component_is_registered_under_a_kind_and_a_free_name(kind: Any, name: Any, problem: str):
    with pytest.raises(viva.BadInput) as raised:
        viva.plugins.register(kind, name)
    assert problem in str(raised.value)


def test_only_a_class_can_be_registered():
    with pytest.raises(viva.BadInput, match="is not a class"):
        viva.plugins.register("check", "vv_function")(print)  # type: ignore[type-var]
