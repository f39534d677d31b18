"""An assistant that files expenses: a rule-based dialogue with real tools. It needs no model and no network."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

from ledger import APPROVAL_ABOVE, RECEIPT_ABOVE, Ledger, LedgerError
from message_parser import ParsedMessage, parse_message

ABILITIES = "I can file an expense for you, or tell you what the policy says."
QUESTIONS = {
    "category": f"What type of expense is it: {', '.join(APPROVAL_ABOVE)}?",
    "amount": "How much was it, in US dollars?",
    "date": "On which day was it?",
    "po_number": "Please provide a PO number, or say cancel.",
    "change": "What is wrong: the type, the amount or the date? You can also say cancel.",
    "confirmation": "Shall I submit it?",
}
HINTS = {
    "amount": "Enter an amount, e.g. $3500",
    "date": "Enter a date, e.g. 2025-03-14 or yesterday",
    "po_number": "Enter a PO number, e.g. PO-12345",
    "confirmation": "Say yes, or what to change",
}


class ExpenseAssistant:
    """One conversation: Viva creates an assistant for each case."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._known: dict[str, Any] = {}
        self._reference: str | None = None
        self._question: str | None = None
        self._expense: dict[str, Any] | None = None
        self._calls: list[dict[str, Any]] = []
        self._message_count = 0
        self._today = datetime.now(UTC).date()

    def reply(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
        """Answers the last message; `options.metadata.today` sets the calendar."""
        if today := options.get("metadata", {}).get("today"):
            self._today = date.fromisoformat(today)
        user_messages = [message for message in messages if message["role"] == "user"]
        content = ABILITIES
        for message in user_messages[self._message_count :]:  # several only if the case has a history
            self._calls = []
            content = self._answer(parse_message(message, self._today))
        self._message_count = len(user_messages)
        return {
            "content": content,
            "data": self._expense and {"expense": self._expense},
            "tool_calls": self._calls,
            "awaiting_input": self._question is not None,
            "input_hint": HINTS.get(self._question or ""),
        }

    def confirms(self, parsed: ParsedMessage) -> bool:
        """Whether the message is only a yes: "Yes, but make it $420" is a correction."""
        return self._question == "confirmation" and "yes" in parsed.intents and not self._changes(parsed)

    def _answer(self, parsed: ParsedMessage) -> str:
        if "cancel" in parsed.intents:
            return self._cancel()
        if "policy" in parsed.intents:
            return self._explain_policy(parsed.details.get("category") or self._known.get("category"))
        if parsed.reference:
            return self._tell_status(parsed.reference)
        if self.confirms(parsed):
            return self._submit()
        changes = self._changes(parsed)
        self._known |= changes
        if parsed.foreign_money:
            return self._ask("amount", "I can only take US dollars.")
        if changes:
            return self._go_on()
        if "no" in parsed.intents and self._question == "confirmation":
            return self._ask("change")
        if "start" in parsed.intents or ("yes" in parsed.intents and self._question == "change"):
            return self._go_on()
        excuse = "Hello!" if "greet" in parsed.intents else "Sorry, I did not understand that."
        return f"{excuse} {QUESTIONS[self._question] if self._question else ABILITIES}"

    def _changes(self, parsed: ParsedMessage) -> dict[str, Any]:
        """The new details in a message. A bare number is an amount if the assistant asked for one."""
        details = dict(parsed.details)
        if self._question == "amount" and parsed.number is not None:
            details.setdefault("amount", parsed.number)
        return {name: value for name, value in details.items() if self._known.get(name) != value}

    def _go_on(self) -> str:
        """Asks for the next missing detail; if none is missing, writes the draft and asks for confirmation."""
        for detail in ("category", "amount"):
            if detail not in self._known:
                return self._ask(detail)
        if self._known.setdefault("date", self._today.isoformat()) > self._today.isoformat():
            del self._known["date"]
            return self._ask("date", "That day is still to come.")
        try:
            if self._reference is None:
                expense = self._use(self._ledger.create_expense, **self._known)
            else:
                expense = self._use(self._ledger.update_expense, reference=self._reference, **self._known)
        except LedgerError as error:
            self._known.pop(error.detail, None)
            return self._ask(error.detail, str(error))
        self._reference = expense["reference"]
        receipt = f" with {expense['receipt']}" if expense["receipt"] else ""
        noted = f"{expense['category']}, ${expense['amount']:,.2f}, {expense['date']}{receipt}"
        return self._ask("confirmation", f"I have noted: {noted}.")

    def _submit(self) -> str:
        expense = self._use(self._ledger.submit_expense, reference=self._reference)
        self._forget()
        late = expense["amount"] > RECEIPT_ABOVE and not expense["receipt"]
        reminder = " Please send the receipt within 30 days." if late else ""
        return f"Expense submitted. Reference: {expense['reference']}.{reminder}"

    def _cancel(self) -> str:
        if self._reference is None and self._question is None:
            return f"There is nothing to cancel. {ABILITIES}"
        if self._reference is not None:
            self._use(self._ledger.cancel_expense, reference=self._reference)
        self._forget()
        return "Cancelled. Nothing was sent."

    def _explain_policy(self, category: str | None) -> str:
        if category is None:
            limits = ", ".join(f"{name} ${limit:,}" for name, limit in APPROVAL_ABOVE.items())
            answer = f"Without a manager's approval you can spend up to: {limits}."
        else:
            policy = self._use(self._ledger.get_policy, category=category)
            limit, receipt = policy["approval_above"], policy["receipt_above"]
            answer = (
                f"For {category} you can spend up to ${limit:,} without approval. A receipt is due above ${receipt}."
            )
        return f"{answer} {QUESTIONS[self._question]}" if self._question else answer

    def _tell_status(self, reference: str) -> str:
        try:
            expense = self._use(self._ledger.get_expense, reference=reference)
        except LedgerError as error:
            return str(error)
        return f"{reference} ({expense['category']}, ${expense['amount']:,.2f}) is {expense['status']}."

    def _ask(self, question: str, because: str = "") -> str:
        self._question = question
        return f"{because} {QUESTIONS[question]}".strip()

    def _forget(self) -> None:
        self._known, self._reference, self._question = {}, None, None

    def _use(self, tool: Callable[..., dict[str, Any]], **arguments: Any) -> dict[str, Any]:
        """Calls a tool and records the call, as an agent framework does."""
        call: dict[str, Any] = {"name": tool.__name__, "arguments": arguments}
        self._calls.append(call)
        try:
            call["result"] = tool(**arguments)
        except LedgerError as error:
            call["error"] = str(error)
            raise
        self._expense = call["result"].get("expense", self._expense)
        return next(iter(call["result"].values()))
