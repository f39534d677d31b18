"""An agent and a suite that a host has only for conformance runs: they show its rules without any model.

The agent echoes. Asked to, it breaks a rule (a result that its schema forbids, a tool that it may not use), so that one
can see the host hold it to that rule.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from viva.host.inventory import Listed
from viva.host.suites import Offer
from viva.model import codec
from viva.model.message import Message, ModelCall, Reply, ToolCall

SUITE_ID, VERSION = "local.viva.evals.conformance", "1.0.0"
STRICT_RESULT: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}
"""What `conformance-strict-handoff` stands for."""
TOOL = "viva:echo"


def echo(messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Reply:
    """Says again what it was told."""
    asked: Mapping[str, Any] = options.get("metadata") or {}
    said = str(messages[-1].get("content", ""))
    tools = [ToolCall(str(tool), {}, id="attempt") for tool in (asked.get("attempt_tool"),) if tool]
    return Reply(
        content=said,
        data=_result(asked, said),
        tool_calls=tuple(tools),
        calls=(ModelCall("echo", "viva", len(said), len(said), cost_usd=0.0),),
    )


def _result(asked: Mapping[str, Any], said: str) -> Any:
    if "returns" not in asked:
        return None
    return {"answer": said} if asked["returns"] == "valid" else {"wrong": True}


AGENT = Listed(
    agent_id="core.viva.conformance",
    name="conformance",
    persona="Conformance Echo",
    description="Says again what it was told.",
    tools=(TOOL,),
    given=echo,
)


def offer(folder: Path) -> Offer:
    """The suite, written where the host keeps its own things."""
    tasks = [
        ("exact", "hello", "exact", "hello"),
        ("contains", "hello world", "contains", "world"),
        ("json", {"a": [1, 2]}, "json-match", {"a": [1, 2]}),
    ]
    suite = {
        "suiteId": SUITE_ID,
        "version": VERSION,
        "modes": ["golden"],
        "tasks": [
            {
                "taskId": name,
                "input": asked,
                "expected": {"kind": "golden", "match": {"strategy": strategy, "value": value}},
            }
            for name, asked, strategy, value in tasks
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "conformance.json"
    path.write_bytes(codec.encode(suite))
    return Offer(path=path, ref=path.name)


def message(source: Mapping[str, Any]) -> Message:
    return Message("user", "hello", data=source.get("task"))
