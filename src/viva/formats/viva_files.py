"""Recognises files that Viva wrote, by how they begin: reports, summaries, comparisons, cassettes, journals.

They are often in the folder of the suites, with the same file extensions, and must not be loaded as suites.
"""

import re
from pathlib import Path

_STRING = rb'"(?:[^"\\]|\\.)*+"'
_HEAD_BYTES = 64 * 1024
_FILE_START = rb"\A(?:\xef\xbb\xbf)?\s*"
_FILE_KINDS = (
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
"""For each kind: its name, bytes that every such file contains, and a pattern of its beginning. The bytes are searched first, which is fast."""


def detect_viva_file(path: Path) -> str | None:
    """The kind of a file that Viva wrote, such as `a JSON report`; None for other files and files that cannot be read."""
    if not path.is_file():  # opening a pipe would wait for a writer
        return None
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    return next(
        (kind for kind, part, begin in _FILE_KINDS if part in head and re.match(_FILE_START + begin, head)), None
    )
