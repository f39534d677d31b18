"""A validator without a model: it searches the replies for forbidden words."""

from typing import Any


def validate(messages: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
    """Viva calls it like an agent, with the conversation as messages and the assertion's metadata in the options."""
    forbidden: list[str] = options["metadata"].get("forbidden", [])
    turn = 0
    for message in messages:
        turn += message["role"] == "user"
        if message["role"] == "assistant":
            for words in forbidden:
                if words in message["content"].lower():
                    quote = {"turn": turn, "quote": message["content"]}
                    return {"passed": False, "score": 0.0, "reason": f"it says {words!r}", "evidence": [quote]}
    return {"passed": True, "score": 1.0, "reason": "no forbidden words"}
