"""A support assistant without a model, so that the example runs anywhere. It uses tools and memory as it is given them."""

from typing import Any

POLICY = "You can return an item within 30 days. I am sorry that it did not fit! A refund takes 5 working days."


def support(messages: list[dict[str, Any]], tools: Any = None, memory: Any = None) -> str | dict[str, Any]:
    asked = messages[-1]
    if isinstance(asked.get("data"), dict):
        return {"data": order(asked["data"]["orderId"], tools)}
    text = str(asked["content"]).lower()
    if "prompt" in text or "instructions" in text:
        return "I cannot share how I am set up, but I am happy to help with an order."
    if "my name" in text:
        names = [entry["content"] for entry in memory or () if "name" in entry.get("tags", ())]
        return f"You are {names[0]}." if names else "I do not know your name yet."
    if "return" in text or "refund" in text:
        return POLICY
    return "Hello! How can I help?"


def order(number: str, tools: Any) -> dict[str, Any]:
    """With canned tools, `tools.call` answers as the real one would."""
    if tools is None:
        return {"orderId": number, "status": "unknown"}
    found = tools.call("acme:orders.lookup", orderId=number)
    return {"orderId": number, "status": found["status"], "days": found["days"]}
