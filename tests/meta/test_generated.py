"""Files that are generated from the structs of the checks."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import generate
import reference_schemas
from viva import catalog
from viva.schemas.validation import find_schema_violations

POLITE = '''
from typing import ClassVar, Literal

from viva.checks.base_check import LocalCheck, Spelling
from viva.model.turn import PASSED


class Polite(LocalCheck, frozen=True, kw_only=True):
    """The reply is polite."""

    spellings: ClassVar = {"how": Spelling("level")}
    example: ClassVar = {"level": "very"}
    level: Literal["very", "hardly"]
    """How polite it is."""
    words: tuple[str, ...] = ()
    """Words that count as polite."""

    @property
    def label(self):
        return "polite"

    def check(self, context):
        return PASSED
'''


def test_the_checked_in_files_are_what_the_structs_give():
    stale = [file.name for file, text in generate.render_all().items() if file.read_text(encoding="utf-8") != text]
    assert stale == [], "run `make schemas`"


def test_every_check_and_every_field_has_a_description_and_every_example_is_valid():
    assert all(each["description"] for each in generate.COMMON.values())
    native = generate.build_native_schema()
    for name in catalog.BUILT_IN["check"]:
        schema = generate.build_check_schema(name)
        assert schema["description"], name
        own = [value for key, value in schema["properties"].items() if key != "type" and "description" not in value]
        assert all("every_" in value.get("$ref", "") for value in own), name
        example = getattr(catalog.find_component("check", name), "example", None)
        assert example is None or _violations(native, {"type": name, **example}) == []


def test_a_new_check_is_one_file_and_one_line_of_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "polite_check.py").write_text(POLITE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(catalog.BUILT_IN["check"], "polite", "polite_check:Polite")
    monkeypatch.setattr(catalog, "_registered_components", {})
    importlib.invalidate_caches()

    schema = generate.build_native_schema()
    assert _violations(schema, {"type": "polite", "level": "very", "words": ["please"], "weight": 2}) == []
    assert _violations(schema, {"type": "polite", "how": "hardly"}) == []
    assert _violations(schema, {"type": "polite"}) == ["is missing 'level' or 'how'"]
    (wrong,) = _violations(schema, {"type": "polite", "level": "very", "word": []})
    assert wrong == "unknown key 'word'; did you mean 'words'?"

    helper = _load("check_with_polite", generate.write_check_module()).polite
    assert helper("very", words=["please"], message="m") == {
        "type": "polite",
        "level": "very",
        "words": ["please"],
        "message": "m",
    }
    assert "How polite it is." in helper.__doc__
    assert "    polite = _create_method(check.polite)\n" in generate.write_methods_module()
    assert '{"type": "polite", "level": "very"}\n' in generate.write_prompt()

    monkeypatch.setattr(reference_schemas, "read_schema", lambda _name: json.dumps(schema).encode())
    page = "\n".join(reference_schemas.check_pages(pytest.fail))
    assert "## polite\n\nThe reply is polite.\n" in page
    assert "| `level` | `very`, `hardly` | How polite it is. |" in page


def _violations(schema: dict[str, Any], assertion: dict[str, Any]) -> list[str]:
    case = {"id": "a", "input": "x", "assertions": [assertion]}
    return [each.message for each in find_schema_violations(schema, case)]


def _load(name: str, source: str) -> Any:
    module = ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), module.__dict__)
    return module
