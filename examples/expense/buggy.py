"""The expense assistant with a bug, planted to see it caught: the kind that the happy path never shows."""

from assistant import ExpenseAssistant
from hearing import Heard


class HastyAssistant(ExpenseAssistant):
    """Hears the yes in "Yes, but make it $420", and submits the old amount."""

    def confirms(self, heard: Heard) -> bool:
        return self._asked == "confirmation" and "yes" in heard.wants
