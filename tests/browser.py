"""A real browser for tests of pages: Debian's chromium, driven by Playwright."""

import contextlib
import importlib.util
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

from chromium import found

CHROMIUM = found()
SCREENS = Path(__file__).resolve().parents[1] / ".artifacts" / "screens"
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
ZOOMED = {"width": 320, "height": 256}
"""A window of 1280 by 1024 at 400 %."""
TIMEOUT_MS = 30_000
"""Generous, for a loaded machine."""
WCAG_AA = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


@contextlib.contextmanager
def start_browser() -> Generator[Any]:
    """One browser. It must end with its module: Playwright's loop conflicts with `asyncio.run` of other tests."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


def check_all_sizes(page: Any, name: str) -> list[str]:
    """The violations that axe finds at both sizes and in dark mode, with a screenshot of each."""
    found: list[str] = []
    for shape, size, scheme in (
        ("desktop", DESKTOP, "light"),
        ("desktop", DESKTOP, "dark"),
        ("phone", PHONE, "dark"),
        ("phone", PHONE, "light"),
    ):
        page.set_viewport_size(size)
        page.emulate_media(color_scheme=scheme)
        if (shape, scheme) != ("phone", "dark"):
            found += [f"{shape}, {scheme}: {each}" for each in run_axe(page, colours_only=scheme == "dark")]
        screenshot(page, f"{name}-{shape}-{scheme}")
    page.set_viewport_size(DESKTOP)
    page.emulate_media(color_scheme="light")
    return found


def run_axe(page: Any, *, colours_only: bool = False) -> list[str]:
    """The violations of WCAG AA that axe finds on the current page."""
    spec = importlib.util.find_spec("axe_playwright_python")
    assert spec is not None
    assert spec.origin is not None
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    rules = ["color-contrast"] if colours_only else WCAG_AA
    found = page.evaluate("rules => axe.run(document, {runOnly: rules})", rules)
    assert found["passes"], "axe looked at nothing"
    return [
        f"{each['id']}: {each['help']}: {[node['target'] for node in each['nodes']][:3]} {each['nodes'][0].get('failureSummary', '')}"
        for each in found["violations"]
    ]


def screenshot(page: Any, name: str) -> None:
    SCREENS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENS / f"{name}.png")
