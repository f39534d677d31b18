"""Safety findings: a kind from a closed list and a severity, without any content of the conversation."""

from typing import Literal, get_args

from msgspec import Struct

FindingKind = Literal[
    "secret-leak", "prompt-leak", "pii-leak", "jailbreak", "unsafe-tool-call", "unsafe-compliance", "unstubbed-tool"
]
Severity = Literal["low", "medium", "high", "critical"]
FINDING_KINDS: tuple[FindingKind, ...] = get_args(FindingKind)
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


class Finding(Struct, frozen=True, order=True):
    """A safety finding. It holds no content, so it can be published."""

    kind: FindingKind
    """The kind."""
    severity: Severity
    """The severity."""

    def is_at_least(self, severity: Severity) -> bool:
        """Is its severity at least this one?"""
        return SEVERITIES.index(self.severity) >= SEVERITIES.index(severity)

    def __str__(self) -> str:
        return f"{self.kind} ({self.severity})"
