"""A check that holds `{{variables}}`: it is built anew when it is asked, with their values at that moment."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from viva.errors import CheckBroken
from viva.model import codec
from viva.model.case import Claim
from viva.model.talk import Evidence, Verdict, shown
from viva.model.template import fill


class Late(Struct, frozen=True):
    """Stands for a check until its variables have values. `label` shows the template; that of the built claim, the values."""

    written: Mapping[str, Any]
    build: Callable[[Mapping[str, Any]], Claim]
    costly: bool
    label: str
    looks_outside: bool = False

    def resolve(self, evidence: Evidence) -> Claim:
        """The claim with the values of its variables. CheckBroken where they make no sense in it."""
        talk = evidence.talk
        try:
            try:
                return self.build(fill(self.written, talk.variables, why_unset=talk.not_found))
            except codec.ValidationError:  # a number, say, where only a text can stand
                return self.build(fill(self.written, {name: shown(value) for name, value in talk.variables.items()}))
        except (ValueError, codec.ValidationError) as wrong:
            raise CheckBroken(str(wrong), deterministic=True) from wrong

    def check(self, evidence: Evidence) -> Verdict:
        raise CheckBroken(f"{self.label}: its variables have no values yet")
