"""The documentation as a site, opened from disk in a real browser, without a network."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import DESKTOP, start_browser
from snippets import ROOT

FIRST = {
    "flaky": "how-to/repeats.html",
    "timeout": "how-to/timeouts.html",
    "cost": "how-to/budgets.html",
    "tool": "how-to/tools.html",
}
"""The page that a search must find first."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with start_browser() as found:
        yield found


def test_search_works_from_disk_and_finds_the_right_page_first(browser: Any, site: Path):
    context = browser.new_context(viewport=DESKTOP, offline=True)
    page = context.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto((site / "index.html").as_uri())
    for word, first in FIRST.items():
        page.fill(".md-search__input", "")
        page.click(".md-search__input")
        page.type(".md-search__input", word)
        result = page.locator(f".md-search-result__item:first-child > a[href*='{first}']")
        result.wait_for(state="attached")
    assert {url.partition(":")[0] for url in requests} == {"file"}
    context.close()
