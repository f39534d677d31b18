"""What mutation testing changes in a file, and what it leaves alone."""

import ast

from mutants import Finder

SOURCE = b'''"""A docstring."""
__all__ = ["f"]
LIMIT: int = 3
NAMES = Literal["a"] | None


def f(a: "A", b: str = "") -> "B | None":
    """A docstring."""
    total = (
        a.x + 1
        if a and not b
        else 0
    )
    log(
        "a message",
        f"{a == b}",
    )
    if a < b is not None:
        return cast("B", total)
    return None
'''


def test_what_is_changed() -> None:
    found = Finder("p", "f.py", SOURCE).found
    changes = [(mutant.kind, SOURCE[mutant.start : mutant.end].decode(), mutant.text) for mutant in found]
    assert [change for change in changes if change[0] != "statement removed"] == [
        ("constant", "3", "4"),
        ("constant", "3", "2"),
        ("constant", '""', '"x"'),
        ("condition", "a and not b", "not (a and not b)"),
        ("boolean", " and ", " or "),
        ("not removed", "not", ""),
        ("arithmetic", " + ", " - "),
        ("constant", "1", "2"),
        ("constant", "1", "0"),
        ("constant", "0", "1"),
        ("constant", "0", "-1"),
        ("condition", "a < b is not None", "not (a < b is not None)"),
        ("comparison", " < ", " <= "),
        ("comparison", " is not ", " is "),
        ("return None", 'cast("B", total)', "None"),
    ]
    removed = [before.partition("(")[0] for kind, before, _ in changes if kind == "statement removed"]
    assert removed == ["total = ", "log"]
    assert [mutant.at_import for mutant in found[:4]] == [True, True, True, False]


def test_a_mutant_is_another_program_with_as_many_lines() -> None:
    """The code of a running function is found by its line."""
    for mutant in Finder("p", "f.py", SOURCE).found:
        changed = mutant.apply(SOURCE)
        assert changed.count(b"\n") == SOURCE.count(b"\n")
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE))
