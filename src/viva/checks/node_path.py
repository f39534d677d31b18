"""The check of the path: which graph nodes or agents a reply passed through."""

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from viva.checks.base_check import LocalCheck
from viva.checks.formatting import format_label, quote_value
from viva.model.turn import PASSED, Verdict
from viva.state.trial_state import CheckContext


class PathContains(LocalCheck, frozen=True, kw_only=True):
    """The agent passed through these graph nodes or agents in this order, as its framework reports them."""

    example: ClassVar[dict[str, Any]] = {"names": ["triage", "refunds"]}
    names: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1)]
    """The names of the nodes or agents, in order."""
    exact: bool = False
    """No others before, between or after."""

    @property
    def label(self) -> str:
        return format_label("path_contains", " → ".join(self.names), "(exact)" if self.exact else "")

    def check(self, context: CheckContext) -> Verdict:
        path = [name for turn in context.turns if turn.reply for name in turn.reply.path]
        reason = self._explain_mismatch(path)
        return PASSED if reason is None else Verdict("failed", reason, expected=list(self.names), actual=path)

    def _explain_mismatch(self, path: list[str]) -> str | None:
        if not path:
            return "the agent reports no path"
        if self.exact:
            is_same = path == list(self.names)
            return None if is_same else f"expected exactly {' → '.join(self.names)}, was {' → '.join(path)}"
        rest = iter(path)
        for index, name in enumerate(self.names):
            if name not in rest:
                after = f" after {quote_value(self.names[index - 1])}" if index else ""
                return f"{quote_value(name)} is not in the path{after}; it was {' → '.join(path)}"
        return None
