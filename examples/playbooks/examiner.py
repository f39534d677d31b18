"""Who grades, and who plays the user, without a model. Viva asks for one or the other, and says so in `test_mode`."""

import json
import re
from typing import Any


def evaluate(messages: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
    told = options["metadata"]
    return speak(messages, told["persona"]) if told["test_mode"] == "simulator" else grade(messages, told)


def grade(messages: list[dict[str, Any]], told: dict[str, Any]) -> dict[str, Any]:
    """Every word in quotes has to be in the reply, in a tool call, or among the files that changed."""
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    seen = told["output"] + json.dumps([calls, told["files"]], ensure_ascii=False)
    missing = [words for words in re.findall(r'"(.+?)"', told["criteria"]) if words not in seen]
    return {"passed": not missing, "reason": f"not found: {', '.join(missing)}" if missing else "all of it was found"}


def speak(messages: list[dict[str, Any]], persona: str) -> dict[str, Any]:
    """What the persona's rules say: `When asked for a name, say "Ada".`"""
    last = messages[-1]["content"] if messages else ""
    for asked, answer in re.findall(r'When asked for (?:an? )?(.+?), say "(.+?)"', persona):
        if f"{asked} " in last and last.endswith("?"):
            return {"input": answer}
    if found := re.search(r'ask for (.+?"(.+?)")', persona):
        return {"input": f"Please add {found[1]}."}
    return {"input": "Please go on."}
