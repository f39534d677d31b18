"""Converts eval sets of Google's ADK: `.evalset.json`, and the older `.test.json`."""

from collections.abc import Iterator
from typing import Any

from viva.formats.convert.foreign_document import (
    ForeignDocument,
    JsonObject,
    build_same_answer_assertion,
    escape_braces,
)
from viva.schemas.positions import KeyPath


def convert_adk(source: ForeignDocument) -> Iterator[dict[str, Any]]:
    """One case per eval case. Tool calls must match exactly, as `tool_trajectory_avg_score: 1.0` wants it."""
    if isinstance(source.value, list):
        turns = [
            _build_case_turn(each["query"], _list_expected_tools_of_old_format(each), each.get("reference"))
            for each in source.value
        ]
        yield escape_braces({"id": source.create_id("", "conversation"), "turns": turns})
        return
    for number, each in enumerate(source.value["eval_cases"]):
        path: KeyPath = ("eval_cases", number)
        case: dict[str, Any] = {"id": source.create_id(each.get("eval_id"), f"case-{number + 1}")}
        if (each.get("session_input") or {}).get("state"):
            source.note((*path, "session_input", "state"), "goes to the agent as `options.metadata.state`")
            case["options"] = {"metadata": {"state": each["session_input"]["state"]}}
        if each.get("conversation_scenario"):
            yield case | _convert_scenario(each["conversation_scenario"])
            continue
        turns = [
            _build_case_turn(
                _join_text(turn["user_content"]), _list_expected_tools(turn), _join_text(turn.get("final_response"))
            )
            for turn in each.get("conversation") or ()
        ]
        if not turns:
            source.note(path, "has no conversation and is left out")
            continue
        yield case | escape_braces({"turns": turns})


def _convert_scenario(scenario: JsonObject) -> dict[str, Any]:
    plan = scenario["conversation_plan"]
    who = scenario.get("user_persona")
    persona = {
        "persona": str(who.get("description") or who.get("id") if isinstance(who, dict) else who or "A user"),
        "goal": plan,
    }
    return escape_braces(
        {
            "input": scenario["starting_prompt"],
            "simulator": {"use": "viva.simulator", "options": {"metadata": persona}},
            "checkpoints": [
                {"id": "plan", "assertion": {"type": "judge", "criteria": f"This plan of the user is done: {plan}"}}
            ],
        }
    )


def _build_case_turn(text: str, tools: list[tuple[str, Any]], expected: str | None) -> dict[str, Any]:
    assertions: list[dict[str, Any]] = []
    if tools:
        assertions.append({"type": "tool_sequence", "names": [name for name, _ in tools], "exact": True})
        assertions += [
            {"type": "tool_called", "name": name, "arguments": arguments} for name, arguments in tools if arguments
        ]
    if expected:
        assertions.append(build_same_answer_assertion(expected))
    return {"input": text, "assertions": assertions}


def _list_expected_tools(turn: JsonObject) -> list[tuple[str, Any]]:
    uses = (turn.get("intermediate_data") or {}).get("tool_uses") or ()
    return [(use["name"], use.get("args")) for use in uses]


def _list_expected_tools_of_old_format(each: JsonObject) -> list[tuple[str, Any]]:
    return [(use["tool_name"], use.get("tool_input")) for use in each.get("expected_tool_use") or ()]


def _join_text(content: JsonObject | None) -> str:
    return "\n".join(part["text"] for part in (content or {}).get("parts") or () if part.get("text"))
