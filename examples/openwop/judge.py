"""A judge that needs no model: a criterion is met if one of the words is there that stand for it."""

from typing import Any

WORDS = {
    "return window": ("30 days",),
    "apologises": ("sorry", "apologise"),
    "how long a refund takes": ("working days",),
}


def judge(options: dict[str, Any]) -> dict[str, Any]:
    asked = options["metadata"]
    words = next((words for topic, words in WORDS.items() if topic in asked["criteria"]), ())
    found = [word for word in words if word in asked["output"].lower()]
    return {
        "passed": bool(found),
        "reason": f"it says {found[0]!r}" if found else f"none of {', '.join(words)} is there",
    }
