"""Parses a user message into the details of an expense and the user's intents. Rules only, no model."""

import re
from calendar import month_name
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

# From specific to general: a dinner on a trip is a meal.
CATEGORIES = {
    "lodging": r"lodging|hotels?|hostel",
    "meals": r"meals?|lunch|dinner|breakfast|restaurant",
    "equipment": r"equipment|laptops?|monitors?|keyboards?|chairs?",
    "travel": r"travel|trips?|flights?|trains?|taxis?|mileage",
    "other": r"other|supplies|books?|software",
}
INTENTS = {
    "cancel": r"cancel|never ?mind|forget (it|about it)",
    "policy": r"policy|limits?|allowed|maximum|how much (may|can)",
    "no": r"no|not|nope|wrong|don.?t|wait",
    "yes": r"yes|yep|sure|ok|okay|correct|confirm|go ahead|submit",
    "start": r"expenses?|reimburse(ment)?|claim|submit|file|purchase",
    "greet": r"hello|hi|hey|help",
}
MONTHS = list(month_name)
NUMBER = r"\d[\d,]*(?:\.\d+)?"
MONEY = rf"(?P<minus>-)?(?:(?:\$|\bUSD)\s?(?P<after>{NUMBER})|\b(?P<before>{NUMBER})\s?(?:USD|dollars?)\b)"
FOREIGN = r"[€£¥]|\b(?:EUR|GBP|CNY|euros?|pounds?|yuan)\b"
DATES = (
    r"\b(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)\b",
    rf"\b(?P<day>\d\d?) (?P<month>{'|'.join(MONTHS[1:])})(?:,? (?P<year>\d{{4}}))?\b",
    rf"\b(?P<month>{'|'.join(MONTHS[1:])}) (?P<day>\d\d?)(?:,? (?P<year>\d{{4}}))?\b",
)


@dataclass(frozen=True)
class ParsedMessage:
    """A parsed message. `number` may be an amount."""

    details: dict[str, Any] = field(default_factory=dict[str, Any])
    intents: frozenset[str] = frozenset()
    number: float | None = None
    reference: str | None = None
    foreign_money: bool = False


def parse_message(message: dict[str, Any], today: date) -> ParsedMessage:
    """Parses one user message with its attachments."""
    content = message["content"]
    parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    text = " ".join(part["text"] for part in parts if part["type"] == "text")
    reference = re.search(r"\bEXP-\d{4}\b", text)
    po_number = re.search(r"\bPO[-\s#]*(\d{3,})\b", text, re.IGNORECASE)
    day, text_left = _parse_date(text, today)
    text_left = re.sub(r"\b(?:EXP|PO)[-\s#]*\d+", "", text_left, flags=re.IGNORECASE)
    number = re.search(NUMBER, text_left)
    foreign = re.search(FOREIGN, text_left, re.IGNORECASE) is not None
    details = {
        "category": next((name for name, words in CATEGORIES.items() if _contains(words, text)), None),
        "amount": _parse_amount(text_left),
        "date": day and day.isoformat(),
        "po_number": po_number and f"PO-{po_number[1]}",
        # Only an image with its bytes is a receipt.
        "receipt": next((p["name"] for p in parts if str(p.get("url")).startswith("data:image/")), None),
    }
    return ParsedMessage(
        details={name: value for name, value in details.items() if value is not None},
        intents=_parse_intents(text),
        number=_parse_number(number[0]) if number and not foreign else None,
        reference=reference[0] if reference else None,
        foreign_money=foreign,
    )


def _contains(words: str, text: str) -> bool:
    return re.search(rf"\b(?:{words})\b", text, re.IGNORECASE) is not None


def _parse_intents(text: str) -> frozenset[str]:
    intents = {intent for intent, words in INTENTS.items() if _contains(words, text)}
    return frozenset(intents - {"yes"} if "no" in intents else intents)


def _parse_amount(text: str) -> float | None:
    """The first amount that is not negated: "$420, not $500" is 420."""
    match = re.search(MONEY, re.sub(rf"\bnot {MONEY}", "", text, flags=re.IGNORECASE), re.IGNORECASE)
    if match is None:
        return None
    amount = _parse_number(match["after"] or match["before"])
    return -amount if match["minus"] else amount


def _parse_number(text: str) -> float:
    value = float(text.replace(",", ""))
    return int(value) if value.is_integer() else value


def _parse_date(text: str, today: date) -> tuple[date | None, str]:
    """The date in the text, and the text without it."""
    if _contains("yesterday", text):
        return today - timedelta(days=1), text
    for pattern in DATES:
        if match := re.search(pattern, text, re.IGNORECASE):
            month = match["month"]
            number = int(month) if month.isdigit() else MONTHS.index(month.capitalize())
            try:
                return date(int(match["year"] or today.year), number, int(match["day"])), text.replace(match[0], "")
            except ValueError:  # there is no 30 February
                return None, text.replace(match[0], "")
    return (today if _contains("today", text) else None), text
