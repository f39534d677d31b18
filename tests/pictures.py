"""The pictures of the docs: `docs/demo.svg`, the console on the expense example, and `docs/screens`, the pages of the viewer.

Run as a program (`make pictures`), it makes all of them again.
"""

import re
import shutil
import sys
import tempfile
from html import escape
from pathlib import Path

from browser import DESKTOP, start_browser
from project import Project
from running_viewer import run_viewer
from showcase import EVERYTHING, EXAMPLE, expense_project
from viva.reporters.formatting import display_width

DOCS = Path(__file__).resolve().parents[1] / "docs"
COMMAND = ("test", "planted", "-n", "assistants.expense-buggy")
COLUMNS = 96
CHARACTER, LINE, MARGIN = 8.4, 19, 16
COLOURS = {"31": "#ff8d92", "32": "#63c991", "33": "#ecb65c", "36": "#7cc4d4", "2": "#a3a7af"}
STYLE = re.compile(r"\x1b\[(\d+)m")


def draw_terminal(text: str) -> str:
    """An SVG of lines with the colours of Viva's console."""
    lines = text.rstrip("\n").split("\n")
    width, height = COLUMNS * CHARACTER + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    body = "\n".join(_draw_line(line, MARGIN + (at + 0.75) * LINE) for at, line in enumerate(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" font-family="ui-monospace, Menlo, '
        f'Consolas, DejaVu Sans Mono, monospace" font-size="14" fill="#e6e6e3">\n'
        f'<rect width="100%" height="100%" rx="8" fill="#131417"/>\n{body}\n</svg>\n'
    )


def _draw_line(line: str, y: float) -> str:
    """A line as SVG text. Each piece of one colour is stretched to the width of its columns, so that any font fits."""
    parts: list[str] = []
    column, style = 0, ""
    for at, piece in enumerate(STYLE.split(line)):
        if at % 2:
            style = piece
        elif piece:
            width = display_width(piece)
            colour = f' fill="{COLOURS[style]}"' if style in COLOURS else ' font-weight="bold"' if style == "1" else ""
            place = f'x="{MARGIN + column * CHARACTER:.1f}" y="{y:.1f}" textLength="{width * CHARACTER:.1f}"'
            parts.append(
                f"<text {place}{colour}>{escape(piece).replace(' ', '&#160;')}</text>" if piece.strip() else ""
            )
            column += width
    return "".join(parts)


def make_demo(folder: Path) -> None:
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", ".viva"))
    project = Project(folder)
    ended = project.viva(*COMMAND, env={"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}, code=1)
    (DOCS / "demo.svg").write_text(draw_terminal(f"$ viva {' '.join(COMMAND)}\n{ended.out}"), encoding="utf-8")


def make_screens(folder: Path) -> None:
    project = expense_project(folder)
    for mood in ("careful", "hasty", "careful"):
        project.write("mood", mood)
        project.test(*EVERYTHING, "-n", "assistants.moody", "-q")
    project.write("mood", "hasty")
    project.test(*EVERYTHING, "-n", "assistants.moody", "--runs", "3", "-q")
    with run_viewer(project) as viewer, start_browser() as browser:
        viewer.open_link()
        head, base, *_ = [run["id"] for run in viewer.get("/api/runs").json]
        flaky = "suite=planted%2Fcorrections.yaml&case=yes-but"
        screens = {
            "run": (f"#/runs/{head}", "#cases a"),
            "case": (f"#/runs/{head}/case/planted%2Fcorrections.yaml/yes-but?trial=2", "#turn-1"),
            "compare": (f"#/compare/{base}/{head}?{flaky}", "#pair .turn"),
            "history": ("#/history", "#flaky table"),
        }
        context = browser.new_context(viewport=DESKTOP)
        name, _, value = viewer.cookie.partition("=")
        context.add_cookies([{"name": name, "value": value, "url": viewer.origin}])
        for screen, (place, until) in screens.items():
            page = context.new_page()
            page.goto(f"{viewer.origin}/{place}")
            page.wait_for_selector(until)
            page.screenshot(path=DOCS / "screens" / f"{screen}.png")
            page.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="viva-pictures-") as scratch:
        make_demo(Path(scratch) / "demo")
        if "--demo" not in sys.argv:
            make_screens(Path(scratch) / "screens")
