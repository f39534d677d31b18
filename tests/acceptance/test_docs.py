"""Every snippet of the documentation does what the page says, read from top to bottom in an empty folder."""

import asyncio
import inspect
import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from real_frameworks import EVERY_RUN, find_python
from snippets import ROOT, Block, blocks_of, find_environment, fits, run_page
from viva.schemas.validation import SchemaName, find_violations

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WRITTEN = [page for page in PAGES if page.parent.name != "reference"]
LANGUAGES = {"sh", "text", "python", "toml", "yaml", "json", "jsonl"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def mark_of(page: Path) -> Any:
    """A page with a framework that is not in every run is one of `make soak`."""
    is_soak = find_environment(page.read_text(encoding="utf-8")) not in (None, *EVERY_RUN)
    return pytest.param(page, id=name_of(page), marks=pytest.mark.soak if is_soak else ())


@pytest.mark.parametrize("page", [mark_of(page) for page in WRITTEN])
def test_what_a_page_tells_to_run_runs(page: Path, tmp_path: Path) -> None:
    """Each block of commands ends with the exit code that the page says, and prints what it says."""
    text = page.read_text(encoding="utf-8")
    if (framework := find_environment(text)) is not None and find_python(framework) is None:
        return  # said at the end of the run: NOT RUN
    ran = run_page(text, tmp_path)
    for each in ran:
        place = f"{name_of(page)}:{each.block.line}"
        assert each.code == int(each.block.told.get("exit", "0")), f"{place}: exit {each.code}\n{each.printed}"
        if each.wanted is not None:
            assert fits(each.printed, each.wanted.text), f"{place} prints\n{each.printed}\nnot\n{each.wanted.text}"
    due = [block for block in blocks_of(text) if block.lang == "sh" and "not run" not in block.told]
    assert len(ran) == len(due)


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_what_a_page_shows_can_be_read(page: Path, tmp_path: Path) -> None:
    """Each block is in a known language and is right in it; configs and suites are checked with their schemas."""
    for block in blocks_of(page.read_text(encoding="utf-8")):
        place = f"{name_of(page)}:{block.line}"
        assert block.lang in LANGUAGES, f"{place}: {block.lang!r} is none of {sorted(LANGUAGES)}"
        assert "exit" not in block.told or "not run" not in block.told, place
        problems = [str(each) for each in _problems(block, place, tmp_path)]
        assert not problems, f"{place}: {problems}"


def _problems(block: Block, place: str, folder: Path) -> list[Any]:
    """What is wrong with a block that is not run; what cannot even be read raises."""
    match block.lang:
        case "python":
            return _python(block, place, folder)
        case "toml":
            value = tomllib.loads(block.text)
            return [] if block.title else find_violations("config", value)
        case "yaml":
            values = list(yaml.safe_load_all(block.text))
        case "json":
            values = [json.loads(block.text)]
        case "jsonl":
            values = [json.loads(line) for line in block.text.splitlines()]
        case _:
            return []
    # What has a title is a file of the page, and Viva itself says what is wrong with it.
    return [] if block.title else [each for value in values for each in _suite(value)]


def _suite(value: Any) -> list[Any]:
    kind: SchemaName | None = None
    if isinstance(value, list):
        if all(isinstance(each, dict) and "id" in each for each in value):
            return [each for case in value for each in find_violations("native", case)]
        if all(isinstance(each, str) or {"text", "json", "tool_calls", "error"} & set(each) for each in value):
            return [each for reply in value for each in find_violations("replies", reply)]
    elif isinstance(value, dict):
        kind = "openwop" if "suiteId" in value else "playbook" if {"steps", "persona"} & set(value) else None
        kind = "native" if "id" in value and {"input", "turns", "simulator"} & set(value) else kind
    return find_violations(kind, value) if kind else []


def _python(block: Block, place: str, folder: Path) -> list[Any]:
    """Compiled; and where the page names an example's folder, its tests are run there."""
    code = compile(block.text, place, "exec")
    if block.title is None and "in" in block.told:
        where = folder / f"block-{block.line}"
        shutil.copytree(ROOT / block.told["in"], where, ignore=shutil.ignore_patterns(".viva", "__pycache__"))
        names: dict[str, Any] = {}
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(where)
            exec(code, names)
            for name, test in names.items():
                if name.startswith("test_"):
                    asyncio.run(test()) if inspect.iscoroutinefunction(test) else test()
    return []


def test_every_page_of_the_tutorial_runs_something() -> None:
    """A tutorial that only shows is not one."""
    for page in (ROOT / "docs" / "tutorial").glob("*.md"):
        blocks = blocks_of(page.read_text(encoding="utf-8"))
        assert [block for block in blocks if block.lang == "sh" and "not run" not in block.told], page


def test_output_is_compared_with_room_for_what_differs() -> None:
    """A wrong word is noticed; a time, a line left out and the rest of a line are not."""
    assert fits("one\ntwo  3.1s\nthree\n", "one\ntwo 0.2s\nthree")
    assert fits("one\nx\ny\nthree", "one\n...\nthree")
    assert fits("one\nthree", "one\n...\nthree")
    assert fits("run 2026 ended", "run ... ended")
    assert not fits("one\ntwo", "one\nthree")
    assert not fits("one\ntwo", "one")
