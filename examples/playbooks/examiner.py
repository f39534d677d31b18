"""An evaluator without a model: it grades and plays the user. `test_mode` says which of the two Viva asks for."""

import json
import re
from typing import Any


def evaluate(messages: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
    metadata = options["metadata"]
    if metadata["test_mode"] == "simulator":
        return simulate_user(messages, metadata["persona"])
    return grade(messages, metadata)


def grade(messages: list[dict[str, Any]], metadata: dict[str, Any]) -> dict[str, Any]:
    """Every quoted text of the criteria must be in the reply, in a tool call, or in a changed file."""
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    evidence = metadata["output"] + json.dumps([calls, metadata["files"]], ensure_ascii=False)
    missing = [quote for quote in re.findall(r'"(.+?)"', metadata["criteria"]) if quote not in evidence]
    return {"passed": not missing, "reason": f"not found: {', '.join(missing)}" if missing else "all quotes found"}


def simulate_user(messages: list[dict[str, Any]], persona: str) -> dict[str, Any]:
    """Follows the rules in the persona: `When asked for a name, say "Ada".`"""
    last = messages[-1]["content"] if messages else ""
    for subject, answer in re.findall(r'When asked for (?:an? )?(.+?), say "(.+?)"', persona):
        if f"{subject} " in last and last.endswith("?"):
            return {"input": answer}
    if match := re.search(r'ask for (.+?"(.+?)")', persona):
        return {"input": f"Please add {match[1]}."}
    return {"input": "Please go on."}
