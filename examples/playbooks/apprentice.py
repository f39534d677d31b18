"""An agent that works in a folder, as a coding CLI does, but needs no model: it knows three small jobs.

Viva tells where its workspace is: `options["workspace"]`.
"""

import re
from pathlib import Path
from typing import Any


def reply(messages: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
    work = Path(options["workspace"])
    said = [message["content"] for message in messages if message["role"] == "user"]
    if "hello.txt" in said[0]:
        return greet(work, said)
    if "notes.txt" in said[0]:
        return note(work, said[-1])
    return release(work, said)


def greet(work: Path, said: list[str]) -> dict[str, Any]:
    pattern = re.findall(r"`(.+)`", (work / "style" / "guide.md").read_text(encoding="utf-8"))[0]
    if len(said) == 1:
        return {"content": "What name shall stand in it?", "awaiting_input": True}
    return written(work, "hello.txt", pattern.replace("NAME", said[-1]) + "\n")


def note(work: Path, said: str) -> dict[str, Any]:
    notes = work / "notes.txt"
    if found := re.search(r'Add "(.+)"', said):
        before = notes.read_text(encoding="utf-8") if notes.exists() else ""
        return written(work, "notes.txt", f"{before}- {found[1]}\n")
    return {"content": "Your notes say:\n" + notes.read_text(encoding="utf-8")}


def release(work: Path, said: list[str]) -> dict[str, Any]:
    log = work / "CHANGELOG.md"
    if found := re.search(r"for the release (.+)\.", said[-1]):
        return written(work, log.name, f"# {found[1]}\n")
    if not said[-1].isdigit():
        return {"content": "What number has the issue?", "awaiting_input": True}
    entry = re.sub(r'^.*"(.+)".*$', r"\1", said[-2])
    return written(work, log.name, f"{log.read_text(encoding='utf-8')}- {entry} ({said[-1]})\n")


def written(work: Path, name: str, text: str) -> dict[str, Any]:
    (work / name).write_text(text, encoding="utf-8")
    call = {"name": "write_file", "arguments": {"file_path": name, "content": text}, "result": "written"}
    return {"content": f"{name} now says:\n{text}", "tool_calls": [call]}
