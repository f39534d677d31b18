"""Checks in Python. A suite names them as `scripts:checks.validate_expense`."""

from typing import Any


def validate_expense(transcript: list[dict[str, Any]], metadata: dict[str, Any]) -> dict[str, Any]:
    """The submitted expense is the last draft, and its amount is between `min_amount` and `max_amount`."""
    calls = [call for turn in transcript for call in turn["tool_calls"] if call["error"] is None]
    drafts = [call["result"]["expense"] for call in calls if call["name"] in ("create_expense", "update_expense")]
    submissions = [call["result"]["expense"] for call in calls if call["name"] == "submit_expense"]
    assert len(submissions) == 1, f"{len(submissions)} expenses were submitted, not one"
    amount = submissions[0]["amount"]
    if amount != drafts[-1]["amount"]:
        return {"passed": False, "reason": f"{amount} was submitted, but the last draft has {drafts[-1]['amount']}"}
    in_range = metadata["min_amount"] <= amount <= metadata["max_amount"]
    return {"passed": in_range, "reason": f"the amount is {amount}"}
