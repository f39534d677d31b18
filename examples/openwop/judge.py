"""A judge without a model: a criterion is met if the reply contains one of its words."""

from typing import Any

WORDS = {
    "return window": ("30 days",),
    "apologises": ("sorry", "apologise"),
    "how long a refund takes": ("working days",),
}


def judge(options: dict[str, Any]) -> dict[str, Any]:
    metadata = options["metadata"]
    words = next((words for topic, words in WORDS.items() if topic in metadata["criteria"]), ())
    matches = [word for word in words if word in metadata["output"].lower()]
    return {
        "passed": bool(matches),
        "reason": f"the reply contains {matches[0]!r}"
        if matches
        else f"the reply contains none of: {', '.join(words)}",
    }
