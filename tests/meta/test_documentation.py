"""The reference is made from the code and is up to date, nothing is undocumented, and the site builds without a dead link."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from check_examples import read_examples
from reference import ROOT, Pages, stale
from reference_schemas import Tables
from viva.catalog import BUILT_IN
from viva.formats.convert.files import TOOLS

TITLES = {"adk": "ADK eval", "inspect": "Inspect"}
"""The titles of migration pages that are not the name of the tool in `viva convert --from`."""

LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


@cache
def pages() -> Pages:
    return Pages()


def test_the_reference_is_what_the_code_makes():
    """Stale: `make reference` regenerates it."""
    assert stale(pages().texts) == []


def test_nothing_is_undocumented():
    """Every flag, key, check, event, record, error, route and name of the Python API has words of its own, in the code."""
    assert pages().unexplained == []


def test_what_has_no_words_is_noticed():
    complaints: list[str] = []
    tables = Tables("native", complaints.append)
    tables.table(
        {"properties": {"known": {"description": "Said."}, "new": {"type": "object", "properties": {"key": {}}}}}
    )
    assert complaints == ["native: new", "native: new.key"]


def test_every_check_has_an_example():
    assert set(read_examples()) == set(BUILT_IN["check"])


def test_each_format_that_convert_reads_has_a_page_of_its_own():
    missing = [tool for tool in TOOLS if f"\n# From {TITLES.get(tool, tool)}\n" not in f"\n{read_migration(tool)}"]
    assert missing == []


def read_migration(tool: str) -> str:
    page = ROOT / "docs" / "migrate" / f"{tool}.md"
    return page.read_text(encoding="utf-8") if page.is_file() else ""


def test_a_page_that_differs_is_noticed(tmp_path: Path):
    for name in ("same.md", "changed.md", "old.md"):
        (tmp_path / name).write_text("made")
    assert stale({"same.md": "made", "changed.md": "made anew", "new.md": "made"}, tmp_path) == [
        "changed.md",
        "new.md",
        "old.md",
    ]


def test_the_site_builds_and_asks_nothing_of_other_hosts(tmp_path: Path):
    """Strictly: a dead link, a dead anchor and a page that nothing leads to are errors."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    found = sorted((tmp_path / "site").rglob("*.html"))
    assert len(found) > 40
    for page in found:
        assert not LOADED.findall(page.read_text(encoding="utf-8")), page
    for sheet in (tmp_path / "site").rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()[\s\"']*(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet
