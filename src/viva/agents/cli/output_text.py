"""Finds errors in the output of a CLI, and cleans it for messages."""

import re

from viva.model.ellipsis import cut_end, cut_start

TAIL_CHARS = 1500

_STATUS = r"(?:status(?:[ _]?code)?|code|http(?:/[\d.]+)?|api error|error)\W{1,4}"
_BUSY = re.compile(rf"{_STATUS}(?:429|5\d\d)\b|\b(?:429|5\d\d) (?:too many|internal|bad gateway|service unav|gateway)|RESOURCE_EXHAUSTED|overloaded_error|rate.?limit(?:ed|_error| exceeded)|(?:exhausted|exceeded) your (?:\w+ )?(?:quota|capacity)|insufficient_quota|(?<!disk )quota (?:is )?(?:exceeded|exhausted)|hit your usage limit", re.IGNORECASE)  # fmt: skip
_REJECTED = re.compile(rf"{_STATUS}40[13]\b|\b401 unauthorized|\b403 forbidden", re.IGNORECASE)
_NETWORK = re.compile(r"\b(?:ECONNREFUSED|ECONNRESET|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|EHOSTUNREACH|CERT_\w+|SELF_SIGNED_CERT\w*|DEPTH_ZERO\w*)\b|fetch failed|connection (?:error|refused|reset)|error sending request|(?:unable|failed) to connect|dns error", re.IGNORECASE)  # fmt: skip
_TOOL_ERROR = re.compile(r"\s*Error executing tool ")
_STARTUP_LINE = re.compile(r"Warning: 256-color|YOLO mode is enabled|Ripgrep (?:is )?not available|\[STARTUP\]|Warning: running headless")  # fmt: skip
"""Lines that some CLIs print at every start."""
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_ENCODED = re.compile(r"(?:[A-Za-z0-9+/=_-]{60,}\s+){2,}(?:[A-Za-z0-9+/=_-]{20,})?|[A-Za-z0-9+/=_-]{120,}")
"""Base64, in one piece or in lines."""
_REPEATED = re.compile(r"(\S)\1{199,}")
_NO_TEXT = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\ufffd]")
_BINARY = 0.2
"""A line with a larger share of control characters is binary."""
_MAX_LINE = 400


def find_provider_trouble(line: str) -> str | None:
    """The line, if it reports 429, 5xx or no answer of the provider. Errors of the agent's tools do not count."""
    if _TOOL_ERROR.match(line) or not (_BUSY.search(line) or _NETWORK.search(line)):
        return None
    return to_one_line(line)


def is_provider_error(error: str) -> bool:
    """Is this error the provider's: 401, 403, 429, 5xx, or no connection?"""
    return any(pattern.search(error) for pattern in (_BUSY, _REJECTED, _NETWORK))


def clean_output(text: str) -> str:
    """The text without colours. Binary and base64 data are replaced by their size."""
    lines: list[str] = []
    binary = 0
    for line in _ESCAPE.sub("", text).split("\n"):
        if line and len(_NO_TEXT.findall(line)) > _BINARY * len(line):
            binary += len(line)
            continue
        if binary:
            lines.append(_format_size(binary, "binary"))
        binary = 0
        lines.append(line)
    if binary:
        lines.append(_format_size(binary, "binary"))
    text = _REPEATED.sub(lambda match: f"[{match[1]} {len(match[0]):,} times]", "\n".join(lines))
    return _ENCODED.sub(_describe_base64, text)


def _describe_base64(match: re.Match[str]) -> str:
    """The text that replaces base64 data: its size. A line of dashes is not data and stays."""
    run = match[0]
    kinds = (any(map(is_kind, run)) for is_kind in (str.isupper, str.islower, str.isdigit))
    return _format_size(len(run), "base64") + run[len(run.rstrip()) :] if sum(kinds) > 1 else run


def _format_size(size: int, kind: str) -> str:
    return f"[{f'{size / 1000:,.0f} kB' if size > 999 else f'{size} bytes'} of {kind} data]"


def to_one_line(text: str) -> str:
    """A text as one short line."""
    flat = " ".join(clean_output(text).split())
    return cut_end(flat, _MAX_LINE)


_READ_CHARS = 32_000
"""Earlier text is not shown; searching it takes time."""


def format_tail(text: str) -> str:
    """The end of the output, without stack traces, colours and start-up lines."""
    lines = [line.rstrip() for line in clean_output(cut_start(text, _READ_CHARS)).splitlines()]
    kept_lines = [
        line for line in lines if line and not line.lstrip().startswith("at ") and not _STARTUP_LINE.match(line)
    ]
    text = "\n".join(kept_lines)
    return cut_start(text, TAIL_CHARS)
