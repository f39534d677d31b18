"""A check with `{{variables}}`: it is built each time it is evaluated, with their values at that moment."""

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
    """Takes the place of a check until its variables have values. `label` shows the variables, not their values."""

    template: Mapping[str, Any]
    build: Callable[[Mapping[str, Any]], Assertion]
    costly: bool
    label: str
    looks_outside: bool = False

    def resolve(self, context: CheckContext) -> Assertion:
        """The assertion with the values of its variables. CheckError if it cannot be built with them."""
        state = context.state
        try:
            try:
                return self.build(fill_variables(self.template, state.variables, unset_reasons=state.unset_variables))
            except codec.ValidationError:  # such as a number where only a text is allowed
                texts = {name: to_text(value) for name, value in state.variables.items()}
                return self.build(fill_variables(self.template, texts))
        except (ValueError, codec.ValidationError) as error:
            raise CheckError(str(error), deterministic=True) from error

    def check(self, context: CheckContext) -> Verdict:
        raise CheckError(f"{self.label}: its variables have no values yet")
