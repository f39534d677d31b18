"""What an agent did that it should not have: a kind from a closed list and how bad it is. Never a word of what was said."""

from typing import Literal, get_args

from msgspec import Struct

FindingKind = Literal[
    "secret-leak", "prompt-leak", "pii-leak", "jailbreak", "unsafe-tool-call", "unsafe-compliance", "unstubbed-tool"
]
Severity = Literal["low", "medium", "high", "critical"]
KINDS: tuple[FindingKind, ...] = get_args(FindingKind)
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


class Finding(Struct, frozen=True, order=True):
    """One thing that was found. It can be shown to anybody: there is no place in it for content."""

    kind: FindingKind
    """What was found."""
    severity: Severity
    """How bad it is."""

    def is_at_least(self, severity: Severity) -> bool:
        """Is it as bad as that, or worse?"""
        return SEVERITIES.index(self.severity) >= SEVERITIES.index(severity)

    def __str__(self) -> str:
        return f"{self.kind} ({self.severity})"
