"""Files that Viva wrote itself, told by how they begin: reports, summaries, comparisons, cassettes, journals.

They often lie beside the suites that they tell of, with the same endings, and are no suites.
"""

import re
from pathlib import Path

_STRING = rb'"(?:[^"\\]|\\.)*+"'
_HEAD_BYTES = 64 * 1024
_KINDS: tuple[tuple[str, re.Pattern[bytes]], ...] = tuple(
    (kind, re.compile(rb"\A(?:\xef\xbb\xbf)?\s*" + begin))
    for kind, begin in (
        ("a JSON report", rb'\{\s*"run"\s*:\s*\{\s*"run"\s*:\s*' + _STRING),
        (
            "a JSONL report",
            rb'\{\s*"id"\s*:\s*%s\s*,\s*"name"\s*:\s*%s\s*,\s*"status"\s*:\s*"(?:passed|failed|skipped|error)"\s*,'
            rb'\s*"turns"\s*:' % (_STRING, _STRING),
        ),
        ("an eval summary", rb'\{\s*"suiteId"\s*:\s*%s\s*,\s*"suiteVersion"\s*:' % _STRING),
        (
            "a comparison",
            rb'\{\s*"base"\s*:\s*%s\s*,\s*"head"\s*:\s*%s\s*,\s*"(?:alpha|cases)"\s*:' % (_STRING, _STRING),
        ),
        ("a cassette", rb'\{\s*"line"\s*:\s*"cassette"'),
        ("a journal", rb'\{\s*"event"\s*:\s*"run_(?:started|resumed)"'),
        ("a Markdown report", "##(?: ✅| ❌|#) Viva: ".encode()),
        ("a JUnit report", rb'<\?xml [^>]*\?>\s*<testsuites name="viva"'),
        ("an HTML report", rb'<!doctype html>(?s:.*?)<script type="application/json" id="viva-overview">'),
    )
)


def detect_viva_file(path: Path) -> str | None:
    """What kind of file it is, if Viva wrote it; None for anything else, and for what cannot be read."""
    if not path.is_file():  # to open a pipe is to wait for a writer
        return None
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    return next((kind for kind, begin in _KINDS if begin.match(head)), None)
