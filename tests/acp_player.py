"""A fake agent that speaks the Agent Client Protocol: plays a recorded conversation over its standard streams.

`acp_player.py CAPTURE [SEEN]`: the lines of CAPTURE in order, each at its place; what the client sends goes to SEEN.
"""

import json
import sys
from pathlib import Path
from typing import Any

script = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
SESSION = next((line["r"].get("sessionId") for line in script if line["kind"] == "new_session"), "s-1")
ANSWERS = {"initialize": "initialize", "session/new": "new_session", "session/set_mode": "set_mode"}


def write(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def hear() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    if len(sys.argv) > 2:
        with open(sys.argv[2], "a", encoding="utf-8") as seen:
            seen.write(line)
    return json.loads(line)


def result_of(kind: str) -> Any:
    return next((line["r"] for line in script if line["kind"] == kind), {})


def play(lines: list[dict[str, Any]], asked: dict[str, Any]) -> None:
    """Plays the recorded lines after a prompt, up to its answer."""
    number = 1000
    for line in lines:
        match line["kind"]:
            case "session_update":
                write(method="session/update", params={"sessionId": SESSION, "update": line["update"]})
            case "request_permission" | "fs_read":
                number += 1
                if line["kind"] == "fs_read":
                    write(id=number, method="fs/read_text_file", params={"sessionId": SESSION, "path": line["path"]})
                else:
                    params = {"sessionId": SESSION, "toolCall": line["tool_call"], "options": line["options"]}
                    write(id=number, method="session/request_permission", params=params)
                while hear().get("id") != number:
                    pass
            case "prompt_response":
                write(id=asked["id"], result=line["r"])
                return
            case "prompt_error":
                write(id=asked["id"], error={"code": -32603, "message": line["e"]})
                return
            case _:
                continue


prompts = [at for at, line in enumerate(script) if line["kind"] == "PROMPT"]
while True:
    message = hear()
    method = message.get("method")
    if method == "session/prompt":
        play(script[prompts.pop(0) + 1 :], message)
    elif method in ANSWERS:
        write(id=message["id"], result=result_of(ANSWERS[method]))
        if method == "session/new":  # what is told before the first prompt
            play([line for line in script[: prompts[0]] if line["kind"] == "session_update"], {})
    elif "id" in message:
        write(id=message["id"], error={"code": -32601, "message": f"no method {method}"})
