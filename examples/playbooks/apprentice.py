"""An agent that works in a folder, as a coding CLI does, without a model: it knows three small tasks.

`options["workspace"]` is the path of its workspace.
"""

import re
from pathlib import Path
from typing import Any


def reply(messages: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
    folder = Path(options["workspace"])
    texts = [message["content"] for message in messages if message["role"] == "user"]
    if "hello.txt" in texts[0]:
        return greet(folder, texts)
    if "notes.txt" in texts[0]:
        return note(folder, texts[-1])
    return release(folder, texts)


def greet(folder: Path, texts: list[str]) -> dict[str, Any]:
    pattern = re.findall(r"`(.+)`", (folder / "style" / "guide.md").read_text(encoding="utf-8"))[0]
    if len(texts) == 1:
        return {"content": "Which name should it contain?", "awaiting_input": True}
    return write_file(folder, "hello.txt", pattern.replace("NAME", texts[-1]) + "\n")


def note(folder: Path, text: str) -> dict[str, Any]:
    notes = folder / "notes.txt"
    if match := re.search(r'Add "(.+)"', text):
        before = notes.read_text(encoding="utf-8") if notes.exists() else ""
        return write_file(folder, "notes.txt", f"{before}- {match[1]}\n")
    return {"content": "Your notes say:\n" + notes.read_text(encoding="utf-8")}


def release(folder: Path, texts: list[str]) -> dict[str, Any]:
    log = folder / "CHANGELOG.md"
    if match := re.search(r"for the release (.+)\.", texts[-1]):
        return write_file(folder, log.name, f"# {match[1]}\n")
    if not texts[-1].isdigit():
        return {"content": "What is the number of the issue?", "awaiting_input": True}
    entry = re.sub(r'^.*"(.+)".*$', r"\1", texts[-2])
    return write_file(folder, log.name, f"{log.read_text(encoding='utf-8')}- {entry} ({texts[-1]})\n")


def write_file(folder: Path, name: str, text: str) -> dict[str, Any]:
    (folder / name).write_text(text, encoding="utf-8")
    call = {"name": "write_file", "arguments": {"file_path": name, "content": text}, "result": "written"}
    return {"content": f"{name} now says:\n{text}", "tool_calls": [call]}
