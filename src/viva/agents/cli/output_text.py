"""What the texts of a CLI say about why it does not get on: its model's provider, its login, or just its last words."""

import re

TAIL_CHARS = 1500

_STATUS = r"(?:status(?:[ _]?code)?|code|http(?:/[\d.]+)?|api error|error)\W{1,4}"
_BUSY = re.compile(rf"{_STATUS}(?:429|5\d\d)\b|\b(?:429|5\d\d) (?:too many|internal|bad gateway|service unav|gateway)|RESOURCE_EXHAUSTED|overloaded_error|rate.?limit(?:ed|_error| exceeded)|(?:exhausted|exceeded) your (?:\w+ )?(?:quota|capacity)|insufficient_quota|(?<!disk )quota (?:is )?(?:exceeded|exhausted)|hit your usage limit", re.IGNORECASE)  # fmt: skip
_BARRED = re.compile(rf"{_STATUS}40[13]\b|\b401 unauthorized|\b403 forbidden", re.IGNORECASE)
_NETWORK = re.compile(r"\b(?:ECONNREFUSED|ECONNRESET|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|EHOSTUNREACH|CERT_\w+|SELF_SIGNED_CERT\w*|DEPTH_ZERO\w*)\b|fetch failed|connection (?:error|refused|reset)|error sending request|(?:unable|failed) to connect|dns error", re.IGNORECASE)  # fmt: skip
_OF_A_TOOL = re.compile(r"\s*Error executing tool ")
_CHATTER = re.compile(r"Warning: 256-color|YOLO mode is enabled|Ripgrep (?:is )?not available|\[STARTUP\]|Warning: running headless")  # fmt: skip
"""What some print at every start, whatever comes then."""
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_ENCODED = re.compile(r"(?:[A-Za-z0-9+/=_-]{60,}\s+){2,}(?:[A-Za-z0-9+/=_-]{20,})?|[A-Za-z0-9+/=_-]{120,}")
"""Base64 and the like, in one piece or in lines of some length."""
_REPEATED = re.compile(r"(\S)\1{199,}")
_NO_TEXT = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\ufffd]")
_BINARY = 0.2
"""A line of which so much is no text is none."""
_LONGEST = 400


def find_provider_trouble(line: str) -> str | None:
    """The line, if it says that the provider answered 429 or 5xx or not at all; what a tool of the agent met does not count."""
    if _OF_A_TOOL.match(line) or not (_BUSY.search(line) or _NETWORK.search(line)):
        return None
    return to_one_line(line)


def is_provider_error(error: str) -> bool:
    """Is this error of a turn one of the provider (401, 403, 429, 5xx, not to be reached), not of what was asked?"""
    return any(pattern.search(error) for pattern in (_BUSY, _BARRED, _NETWORK))


def clean_output(text: str) -> str:
    """The text without colours; where there are bytes that are no text, or base64, it says how much of them there is."""
    lines: list[str] = []
    binary = 0
    for line in _ESCAPE.sub("", text).split("\n"):
        if line and len(_NO_TEXT.findall(line)) > _BINARY * len(line):
            binary += len(line)
            continue
        if binary:
            lines.append(_amount(binary, "binary"))
        binary = 0
        lines.append(line)
    if binary:
        lines.append(_amount(binary, "binary"))
    text = _REPEATED.sub(lambda found: f"[{found[1]} {len(found[0]):,} times]", "\n".join(lines))
    return _ENCODED.sub(_encoded, text)


def _encoded(found: re.Match[str]) -> str:
    """A rule of dashes is no data."""
    run = found[0]
    kinds = (any(map(is_one, run)) for is_one in (str.isupper, str.islower, str.isdigit))
    return _amount(len(run), "base64") + run[len(run.rstrip()) :] if sum(kinds) > 1 else run


def _amount(size: int, kind: str) -> str:
    return f"[{f'{size / 1000:,.0f} kB' if size > 999 else f'{size} bytes'} of {kind} data]"


def to_one_line(text: str) -> str:
    """A text as one line that can be shown."""
    flat = " ".join(clean_output(text).split())
    return flat if len(flat) <= _LONGEST else flat[:_LONGEST] + "…"


_READ_CHARS = 32_000
"""What stands before is not shown anyway, and looking for data in it takes time."""


def format_tail(text: str) -> str:
    """The end of what was printed, without stack traces, colours and what is always printed."""
    lines = [line.rstrip() for line in clean_output(text[-_READ_CHARS:]).splitlines()]
    telling = [line for line in lines if line and not line.lstrip().startswith("at ") and not _CHATTER.match(line)]
    kept = "\n".join(telling)
    return kept if len(kept) <= TAIL_CHARS else "…" + kept[-TAIL_CHARS:]
