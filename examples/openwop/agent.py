"""A support assistant without a model. It uses the tools and the memory that Viva passes to it."""

from typing import Any

POLICY = "You can return an item within 30 days. I am sorry that it did not fit! A refund takes 5 working days."


def support(messages: list[dict[str, Any]], tools: Any = None, memory: Any = None) -> str | dict[str, Any]:
    message = messages[-1]
    if isinstance(message.get("data"), dict):
        return {"data": find_order(message["data"]["orderId"], tools)}
    text = str(message["content"]).lower()
    if "prompt" in text or "instructions" in text:
        return "I cannot share how I am set up, but I am happy to help with an order."
    if "my name" in text:
        names = [entry["content"] for entry in memory or () if "name" in entry.get("tags", ())]
        return f"You are {names[0]}." if names else "I do not know your name yet."
    if "return" in text or "refund" in text:
        return POLICY
    return "Hello! How can I help?"


def find_order(number: str, tools: Any) -> dict[str, Any]:
    """With fixtures, `tools.call` returns the response of the fixture."""
    if tools is None:
        return {"orderId": number, "status": "unknown"}
    order = tools.call("acme:orders.lookup", orderId=number)
    return {"orderId": number, "status": order["status"], "days": order["days"]}
