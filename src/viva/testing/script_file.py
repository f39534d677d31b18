"""The script of a stand-in model server as a file: YAML, JSON or JSON lines, a list of replies.

- Hello!                                   # a text; answers once
- when: create the file                    # answers whenever this is found in what is new
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

_CONDITIONS = {"when": "said", "system": "system", "tool": "tool", "model": "model", "times": "times"}


def load_script(path: str | Path) -> list[ScriptLine | When]:
    """The replies in a file. Raises BadInput with all that is wrong with it."""
    file = Path(path)
    problems: list[Problem] = []
    documents = list(open_documents(file, str(path)).read_valid(problems))
    problems += [problem for document in documents for problem in _problems(document)]
    if not documents and not problems:
        problems = [Problem(str(path), 0, "", "holds no replies")]
    if problems:
        raise BadInput(*problems)
    return [_entry(document.value) for document in documents]


def _problems(document: Document) -> Iterator[Problem]:
    found = find_violations("replies", document.value)
    for complaint in found:
        yield document.make_problem(complaint.path, complaint.message, key=complaint.unknown_key)
    if found or isinstance(document.value, str):
        return
    for key in ("when", "system"):
        try:
            re.compile(document.value.get(key, ""))
        except re.error as wrong:
            yield document.make_problem((key,), f"is no regular expression: {wrong}")
    try:
        parse_duration(document.value.get("delay", 0))
    except ValueError as wrong:
        yield document.make_problem(("delay",), str(wrong))


def _entry(written: str | Mapping[str, Any]) -> ScriptLine | When:
    if isinstance(written, str):
        return written
    conditions = {ours: written[name] for name, ours in _CONDITIONS.items() if name in written}
    return When(_line(written), **conditions) if conditions else _line(written)


def _line(written: Mapping[str, Any]) -> ScriptLine:
    delay_s = parse_duration(written.get("delay", 0))
    if "error" in written:
        told = {key: written[key] for key in ("message", "headers") if key in written}
        return Fail(written["error"], **told, delay_s=delay_s)
    plain = ("thought", "finish_reason", "input_tokens", "output_tokens", "cut")
    return Say(
        content=codec.compact_json(written["json"]) if "json" in written else written.get("text"),
        tool_calls=tuple(codec.convert(call, ToolCall) for call in written.get("tool_calls", ())),
        delay_s=delay_s,
        hold=written.get("hang", False),
        **{key: written[key] for key in plain if key in written},
    )
