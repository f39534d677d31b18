"""Checks that are easier said in Python. A suite names them as `scripts:checks.validate_expense`."""

from typing import Any


def validate_expense(transcript: list[dict[str, Any]], metadata: dict[str, Any]) -> dict[str, Any]:
    """What was submitted is what was noted last, and its amount lies between `min_amount` and `max_amount`."""
    calls = [call for turn in transcript for call in turn["tool_calls"] if call["error"] is None]
    noted = [call["result"]["expense"] for call in calls if call["name"] in ("create_expense", "update_expense")]
    submitted = [call["result"]["expense"] for call in calls if call["name"] == "submit_expense"]
    assert len(submitted) == 1, f"{len(submitted)} expenses were submitted, not one"
    amount = submitted[0]["amount"]
    if amount != noted[-1]["amount"]:
        return {"passed": False, "reason": f"{amount} was submitted, but {noted[-1]['amount']} was noted last"}
    in_range = metadata["min_amount"] <= amount <= metadata["max_amount"]
    return {"passed": in_range, "reason": f"the amount is {amount}"}
