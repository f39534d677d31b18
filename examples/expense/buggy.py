"""The expense assistant with a planted bug that the happy path does not show."""

from assistant import ExpenseAssistant
from message_parser import ParsedMessage


class HastyAssistant(ExpenseAssistant):
    """Takes "Yes, but make it $420" for a yes, and submits the old amount."""

    def confirms(self, parsed: ParsedMessage) -> bool:
        return self._question == "confirmation" and "yes" in parsed.intents
