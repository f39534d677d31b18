"""The script of a stand-in model server as a file: YAML, JSON or JSON lines, a list of replies.

- Hello!                                   # a text; answers one request
- when: create the file                    # answers every request whose new messages contain this
  tool_calls: [{name: write_file, arguments: {file_path: a.txt, content: hi}}]
- { tool: write_file, text: Done. }        # answers the result of that tool
- { when: overloaded, error: 503, message: try later, times: 2 }
- { model: judge-*, json: { passed: true, reason: it did } }
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from viva.errors import BadInput, Problem
from viva.formats.documents import Document, open_documents
from viva.model import codec
from viva.model.message import ToolCall
from viva.schemas.validation import find_violations
from viva.testing.model_server import Fail, Say, ScriptLine, When
from viva.text.duration import parse_duration

_CONDITION_FIELDS = {"when": "text", "system": "system", "tool": "tool", "model": "model", "times": "times"}


def load_script(path: str | Path) -> list[ScriptLine | When]:
    """Return the replies in a file. Raises BadInput with all problems of the file."""
    file = Path(path)
    problems: list[Problem] = []
    documents = list(open_documents(file, str(path)).read_valid(problems))
    problems += [problem for document in documents for problem in _find_problems(document)]
    if not documents and not problems:
        problems = [Problem(str(path), 0, "", "has no replies")]
    if problems:
        raise BadInput(*problems)
    return [_parse_entry(document.value) for document in documents]


def _find_problems(document: Document) -> Iterator[Problem]:
    violations = find_violations("replies", document.value)
    for violation in violations:
        yield document.make_problem(violation.path, violation.message, key=violation.unknown_key)
    if violations or isinstance(document.value, str):
        return
    for key in ("when", "system"):
        try:
            re.compile(document.value.get(key, ""))
        except re.error as error:
            yield document.make_problem((key,), f"is not a regular expression: {error}")
    try:
        parse_duration(document.value.get("delay", 0))
    except ValueError as error:
        yield document.make_problem(("delay",), str(error))


def _parse_entry(entry: str | Mapping[str, Any]) -> ScriptLine | When:
    if isinstance(entry, str):
        return entry
    conditions = {field: entry[name] for name, field in _CONDITION_FIELDS.items() if name in entry}
    return When(_parse_reply(entry), **conditions) if conditions else _parse_reply(entry)


def _parse_reply(entry: Mapping[str, Any]) -> ScriptLine:
    delay_s = parse_duration(entry.get("delay", 0))
    if "error" in entry:
        details = {key: entry[key] for key in ("message", "headers") if key in entry}
        return Fail(entry["error"], **details, delay_s=delay_s)
    plain = ("thought", "finish_reason", "input_tokens", "output_tokens", "cut")
    return Say(
        content=codec.compact_json(entry["json"]) if "json" in entry else entry.get("text"),
        tool_calls=tuple(codec.convert(call, ToolCall) for call in entry.get("tool_calls", ())),
        delay_s=delay_s,
        hold=entry.get("hang", False),
        **{key: entry[key] for key in plain if key in entry},
    )
