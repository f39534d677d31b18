"""The tools of the expense assistant: a ledger in SQLite that enforces the policy."""

import sqlite3
from typing import Any

APPROVAL_ABOVE = {"travel": 5000, "lodging": 1500, "meals": 250, "equipment": 2000, "other": 500}
RECEIPT_ABOVE = 75

SCHEMA = """
CREATE TABLE expenses (
    id INTEGER PRIMARY KEY,
    category TEXT NOT NULL,
    amount_cents INTEGER NOT NULL,
    date TEXT NOT NULL,
    po_number TEXT,
    receipt TEXT,
    status TEXT NOT NULL DEFAULT 'draft'
)
"""


class LedgerError(Exception):
    """The ledger refuses an expense; `detail` is the field to change."""

    def __init__(self, detail: str, reason: str) -> None:
        super().__init__(reason)
        self.detail = detail


class Ledger:
    """The ledger of one conversation, so that conversations can run in parallel."""

    def __init__(self) -> None:
        # Turns may run on different threads, but one at a time.
        self._db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.execute(SCHEMA)

    def get_policy(self, category: str) -> dict[str, Any]:
        limits = {"approval_above": APPROVAL_ABOVE[category], "receipt_above": RECEIPT_ABOVE}
        return {"policy": {"category": category, **limits, "currency": "USD"}}

    def create_expense(self, **details: Any) -> dict[str, Any]:
        row = self._db.execute(
            "INSERT INTO expenses (category, amount_cents, date, po_number, receipt)"
            " VALUES (:category, :amount_cents, :date, :po_number, :receipt)",
            _validate(**details),
        )
        return self.get_expense(f"EXP-{row.lastrowid:04}")

    def update_expense(self, reference: str, **details: Any) -> dict[str, Any]:
        self._db.execute(
            "UPDATE expenses SET category = :category, amount_cents = :amount_cents, date = :date,"
            " po_number = :po_number, receipt = :receipt WHERE id = :id AND status = 'draft'",
            {**_validate(**details), "id": _id(reference)},
        )
        return self.get_expense(reference)

    def submit_expense(self, reference: str) -> dict[str, Any]:
        return self._close(reference, "submitted")

    def cancel_expense(self, reference: str) -> dict[str, Any]:
        return self._close(reference, "cancelled")

    def get_expense(self, reference: str) -> dict[str, Any]:
        row = self._db.execute("SELECT * FROM expenses WHERE id = ?", [_id(reference)]).fetchone()
        if row is None:
            raise LedgerError("reference", f"There is no expense {reference}.")
        expense = {**row, "reference": reference, "amount": row["amount_cents"] / 100, "currency": "USD"}
        return {"expense": {key: expense[key] for key in expense if key not in ("id", "amount_cents")}}

    def _close(self, reference: str, status: str) -> dict[str, Any]:
        self._db.execute("UPDATE expenses SET status = ? WHERE id = ? AND status = 'draft'", [status, _id(reference)])
        return self.get_expense(reference)


def _validate(
    category: str, amount: float, date: str, po_number: str | None = None, receipt: str | None = None
) -> dict[str, Any]:
    """The row to store. Raises LedgerError if the policy does not allow it."""
    if amount <= 0:
        raise LedgerError("amount", "The amount has to be more than zero.")
    if amount > APPROVAL_ABOVE[category] and po_number is None:
        raise LedgerError("po_number", f"Above ${APPROVAL_ABOVE[category]:,} {category} requires manager approval.")
    row = {"category": category, "date": date, "po_number": po_number, "receipt": receipt}
    return {**row, "amount_cents": round(amount * 100)}


def _id(reference: str) -> int:
    return int(reference.removeprefix("EXP-"))
