"""Files that Viva wrote itself, recognised by how they begin: reports, summaries, comparisons, cassettes, journals.

They are often beside the suites, with the same file extensions, and must not be loaded as suites.
"""

import re
from pathlib import Path

_STRING = rb'"(?:[^"\\]|\\.)*+"'
_HEAD_BYTES = 64 * 1024
_START = rb"\A(?:\xef\xbb\xbf)?\s*"
_KINDS = (
    ("a JSON report", b'"run"', rb'\{\s*"run"\s*:\s*\{\s*"run"\s*:\s*' + _STRING),
    (
        "a JSONL report",
        b'"status"',
        rb'\{\s*"id"\s*:\s*%s\s*,\s*"name"\s*:\s*%s\s*,\s*"status"\s*:\s*"(?:passed|failed|skipped|error)"\s*,'
        rb'\s*"turns"\s*:' % (_STRING, _STRING),
    ),
    ("an eval summary", b'"suiteVersion"', rb'\{\s*"suiteId"\s*:\s*%s\s*,\s*"suiteVersion"\s*:' % _STRING),
    (
        "a comparison",
        b'"base"',
        rb'\{\s*"base"\s*:\s*%s\s*,\s*"head"\s*:\s*%s\s*,\s*"(?:alpha|cases)"\s*:' % (_STRING, _STRING),
    ),
    ("a cassette", b'"cassette"', rb'\{\s*"line"\s*:\s*"cassette"'),
    ("a journal", b'"event"', rb'\{\s*"event"\s*:\s*"run_(?:started|resumed)"'),
    ("a Markdown report", b" Viva: ", "##(?: ✅| ❌|#) Viva: ".encode()),
    ("a JUnit report", b"<testsuites", rb'<\?xml [^>]*\?>\s*<testsuites name="viva"'),
    (
        "an HTML report",
        b"viva-overview",
        rb'<!doctype html>(?s:.*?)<script type="application/json" id="viva-overview">',
    ),
)
"""What it is, bytes that it contains, and how it begins. Most files have none of the bytes, and no pattern is compiled."""


def detect_viva_file(path: Path) -> str | None:
    """What kind of file it is, if Viva wrote it; None for anything else, and for what cannot be read."""
    if not path.is_file():  # to open a pipe is to wait for a writer
        return None
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    return next((kind for kind, part, begin in _KINDS if part in head and re.match(_START + begin, head)), None)
