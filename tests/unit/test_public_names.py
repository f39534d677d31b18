"""What `viva` offers to Python code, and what importing it costs."""

import ast
import subprocess
import sys
from pathlib import Path

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


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'contain'"):
        _ = viva.contain


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
