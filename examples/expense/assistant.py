"""An assistant that files expenses: a small rule-based dialogue around real tools. It needs no model and no network."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

from hearing import Heard, hear
from ledger import APPROVAL_ABOVE, RECEIPT_ABOVE, Ledger, Refused

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
    """One conversation: Viva makes a new assistant for each case."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._known: dict[str, Any] = {}
        self._reference: str | None = None
        self._asked: str | None = None
        self._expense: dict[str, Any] | None = None
        self._calls: list[dict[str, Any]] = []
        self._messages_heard = 0
        self._today = datetime.now(UTC).date()

    def reply(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
        """Answers the last message; `options.metadata.today` sets the calendar."""
        if today := options.get("metadata", {}).get("today"):
            self._today = date.fromisoformat(today)
        said = [message for message in messages if message["role"] == "user"]
        content = ABILITIES
        for message in said[self._messages_heard :]:  # several only where a conversation begins with a history
            self._calls = []
            content = self._answer(hear(message, self._today))
        self._messages_heard = len(said)
        return {
            "content": content,
            "data": self._expense and {"expense": self._expense},
            "tool_calls": self._calls,
            "awaiting_input": self._asked is not None,
            "input_hint": HINTS.get(self._asked or ""),
        }

    def confirms(self, heard: Heard) -> bool:
        """A yes to what was asked, and to nothing else: "Yes, but make it $420" is a correction."""
        return self._asked == "confirmation" and "yes" in heard.wants and not self._changes(heard)

    def _answer(self, heard: Heard) -> str:
        if "cancel" in heard.wants:
            return self._cancel()
        if "policy" in heard.wants:
            return self._explain_policy(heard.details.get("category") or self._known.get("category"))
        if heard.reference:
            return self._tell_status(heard.reference)
        if self.confirms(heard):
            return self._submit()
        changes = self._changes(heard)
        self._known |= changes
        if heard.foreign_money:
            return self._ask("amount", "I can only take US dollars.")
        if changes:
            return self._go_on()
        if "no" in heard.wants and self._asked == "confirmation":
            return self._ask("change")
        if "start" in heard.wants or ("yes" in heard.wants and self._asked == "change"):
            return self._go_on()
        excuse = "Hello!" if "greet" in heard.wants else "Sorry, I did not understand that."
        return f"{excuse} {QUESTIONS[self._asked] if self._asked else ABILITIES}"

    def _changes(self, heard: Heard) -> dict[str, Any]:
        """The details in a message that are news. A bare number is an amount if one was asked for."""
        details = dict(heard.details)
        if self._asked == "amount" and heard.number is not None:
            details.setdefault("amount", heard.number)
        return {name: value for name, value in details.items() if self._known.get(name) != value}

    def _go_on(self) -> str:
        """Asks for what is missing; when nothing is, writes the draft and asks for the confirmation."""
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
        except Refused as refused:
            self._known.pop(refused.about, None)
            return self._ask(refused.about, str(refused))
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
        if self._reference is None and self._asked is None:
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
        return f"{answer} {QUESTIONS[self._asked]}" if self._asked else answer

    def _tell_status(self, reference: str) -> str:
        try:
            expense = self._use(self._ledger.get_expense, reference=reference)
        except Refused as refused:
            return str(refused)
        return f"{reference} ({expense['category']}, ${expense['amount']:,.2f}) is {expense['status']}."

    def _ask(self, question: str, because: str = "") -> str:
        self._asked = question
        return f"{because} {QUESTIONS[question]}".strip()

    def _forget(self) -> None:
        self._known, self._reference, self._asked = {}, None, None

    def _use(self, tool: Callable[..., dict[str, Any]], **arguments: Any) -> dict[str, Any]:
        """Calls a tool and writes down the call, as a framework for agents would."""
        call: dict[str, Any] = {"name": tool.__name__, "arguments": arguments}
        self._calls.append(call)
        try:
            call["result"] = tool(**arguments)
        except Refused as refused:
            call["error"] = str(refused)
            raise
        self._expense = call["result"].get("expense", self._expense)
        return next(iter(call["result"].values()))
