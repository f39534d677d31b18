"""How well the awaiting detector reads wording: precision, recall, every miss, and what a reply costs.

Lines marked `closing` (a mere "anything else?") are left out of the measure. A reply that the detector calls a closing
offer counts as awaiting all the same: it cannot hide behind that word.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from viva.awaiting.detector import detect_awaiting
from viva.model import codec
from viva.model.message import Reply
from viva.model.turn import AwaitingState

EXAMPLE = """
Each line of a FILE is a JSON object:
  {"text": "Which one do you want?", "awaiting": true}
Optional keys: closing (true: left out of the measure), lang, why.

example:
  python benchmarks/awaiting.py benchmarks/data/awaiting/dev.jsonl benchmarks/data/awaiting/holdout.jsonl
"""

SPECIFICATION = (
    re.compile(r"\?$"),
    re.compile(r"(?i)^(what|how|when|where|which|who|please|could you)"),
    re.compile(r"(?i)(confirm|verify|proceed|continue)\?"),
)


class Line(Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    awaiting: bool
    closing: bool = False
    lang: str = ""
    why: str = ""


class Miss(NamedTuple):
    where: str
    line: Line
    said: AwaitingState


class Measure(NamedTuple):
    """`found` of `expected` were rightly called awaiting; `called` were called so in all."""

    found: int
    called: int
    expected: int
    left_out: int
    misses: tuple[Miss, ...]

    @property
    def precision(self) -> float:
        return self.found / self.called if self.called else 1.0

    @property
    def recall(self) -> float:
        return self.found / self.expected if self.expected else 1.0


def by_wording(text: str) -> AwaitingState:
    return detect_awaiting(Reply(content=text))


def by_specification(text: str) -> AwaitingState:
    """The three patterns of the specification: the floor."""
    asking = any(pattern.search(text) for pattern in SPECIFICATION)
    return AwaitingState(asking, "content_is_question" if asking else "completed")


def read(paths: Iterable[Path]) -> tuple[list[tuple[str, Line]], list[str]]:
    """All lines with their places, and what is wrong with those that cannot be read."""
    lines: list[tuple[str, Line]] = []
    problems: list[str] = []
    for path in paths:
        try:
            raw_lines = path.read_bytes().splitlines()
        except OSError as broken:
            problems.append(f"{path}: {broken.strerror or broken}")
            continue
        for number, raw in enumerate(raw_lines, 1):
            if not raw.strip():
                continue
            where = f"{path}:{number}"
            try:
                lines.append((where, codec.decode(raw, type=Line)))
            except codec.DecodeError as wrong:
                problems.append(f'{where}: {wrong}; a line looks like {{"text": "Which one?", "awaiting": true}}')
    return lines, problems


def measure(lines: Sequence[tuple[str, Line]], detector: Callable[[str], AwaitingState] = by_wording) -> Measure:
    found = called = expected = 0
    misses: list[Miss] = []
    counted = [(where, line) for where, line in lines if not line.closing]
    for where, line in counted:
        said = detector(line.text)
        found += said.is_awaiting and line.awaiting
        called += said.is_awaiting
        expected += line.awaiting
        if said.is_awaiting != line.awaiting:
            misses.append(Miss(where, line, said))
    return Measure(found, called, expected, len(lines) - len(counted), tuple(misses))


def microseconds(lines: Sequence[tuple[str, Line]], rounds: int = 5) -> float:
    """CPU time for one reply, from the best of a few rounds."""
    replies = [Reply(content=line.text) for _, line in lines]
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        for reply in replies:
            detect_awaiting(reply)
        best = min(best, time.process_time() - start)
    return best / max(len(replies), 1) * 1e6


def show(measured: Measure) -> None:
    print(f"precision  {measured.precision:.4f}  ({measured.found} of {measured.called} called awaiting)")
    print(f"recall     {measured.recall:.4f}  ({measured.found} of {measured.expected} that are)")
    print(f"left out   {measured.left_out} closing offers")
    for miss in measured.misses:
        kind = "false positive" if miss.said.is_awaiting else "false negative"
        end = miss.line.text[-120:].replace("\n", "\\n")
        print(f"{miss.where}: {kind}, {miss.said.reason} ({miss.said.confidence:g}): {end}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="labelled replies, one JSON object a line")
    parser.add_argument(
        "--specification", action="store_true", help="measure the specification's three patterns instead"
    )
    chosen = parser.parse_args(arguments)
    lines, problems = read(chosen.files)
    if problems or not lines:
        print("\n".join(problems) or "there are no lines in these files", file=sys.stderr)
        return 4
    show(measure(lines, by_specification if chosen.specification else by_wording))
    if not chosen.specification:
        print(
            f"{microseconds(lines):.1f} µs a reply, {sum(len(line.text) for _, line in lines) / len(lines):.0f} characters on average"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
