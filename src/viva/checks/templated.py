"""A check that holds `{{variables}}`: it is built anew when it is asked, with their values at that moment."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from viva.errors import CheckError
from viva.model import codec
from viva.model.case import Assertion
from viva.model.turn import Verdict
from viva.state.trial_state import CheckContext, to_text
from viva.text.template import fill_variables


class TemplatedCheck(Struct, frozen=True):
    """Stands for a check until its variables have values. `label` shows the template; that of the built claim, the values."""

    template: Mapping[str, Any]
    build: Callable[[Mapping[str, Any]], Assertion]
    costly: bool
    label: str
    looks_outside: bool = False

    def resolve(self, context: CheckContext) -> Assertion:
        """The claim with the values of its variables. CheckBroken where they make no sense in it."""
        state = context.state
        try:
            try:
                return self.build(fill_variables(self.template, state.variables, unset_reasons=state.unset_variables))
            except codec.ValidationError:  # a number, say, where only a text can stand
                return self.build(
                    fill_variables(self.template, {name: to_text(value) for name, value in state.variables.items()})
                )
        except (ValueError, codec.ValidationError) as wrong:
            raise CheckError(str(wrong), deterministic=True) from wrong

    def check(self, context: CheckContext) -> Verdict:
        raise CheckError(f"{self.label}: its variables have no values yet")
