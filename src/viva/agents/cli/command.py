"""Any other command: an argv with places to fill in, and how to read what it prints.

    command = ["mycli", "--json", "{input}"]          # {input} {session} {model} {workspace} {home}; without {input}: on stdin
    resume = ["mycli", "--json", "--resume", "{session}", "{input}"]
    output = "jsonl"                                  # text, jsonl, or a CLI whose stream it prints: gemini, claude …
    events = [
      {session = "$.session_id"},
      {when = {type = "message"}, text = "$.content"},
      {when = {type = "tool"}, tool = "$.name", arguments = "$.input", id = "$.id"},
      {when = {type = "tool_end"}, result = "$.output", id = "$.id", error = "$.error"},
      {when = {type = "done"}, end = true, error = "$.error", usage = "$.usage"},
    ]

Of text the exit code is the end, for there is nothing else; of lines, only a line that says so. `{session}` is the id
that the stream names, else one that Viva makes up. Without `resume` each turn is a process that knows nothing: then what
was said before stands at the top of each message.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal, cast

from msgspec import Struct

from viva.agents.cli.claude import CLAUDE
from viva.agents.cli.cli_agent import CliAgent
from viva.agents.cli.codex import CODEX
from viva.agents.cli.events import (
    CliEvent,
    EndReported,
    InputRequested,
    SessionStarted,
    TextPrinted,
    ToolEnded,
    ToolStarted,
    TroubleReported,
    UsageReported,
)
from viva.agents.cli.gemini import GEMINI
from viva.agents.cli.opencode import OPENCODE
from viva.agents.cli.qwen import QWEN
from viva.agents.cli.spec import CliSpec, TurnRequest
from viva.agents.replies import parse_model_calls
from viva.errors import CheckError
from viva.model import codec
from viva.state.trial_state import to_text
from viva.text.json_path import compile_path, values_at

OutputFormat = Literal["text", "jsonl", "gemini", "claude", "codex", "qwen", "opencode"]
_SPOKEN = {dialect.name: dialect for dialect in (GEMINI, CLAUDE, CODEX, QWEN, OPENCODE)}
_PLACE = re.compile(r"\{(\w+)\}")
_PLACES = ("input", "session", "model", "workspace", "home")


class LineRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a line means that holds all of `when`: paths of its parts, and whether it ends the turn."""

    when: Mapping[str, Any] = {}
    session: str | None = None
    text: str | None = None
    tool: str | None = None
    arguments: str | None = None
    result: str | None = None
    id: str | None = None
    error: str | None = None
    usage: str | None = None
    awaiting: str | None = None
    end: bool = False

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if name not in ("when", "end") and (path := getattr(self, name)) is not None:
                compile_path(path)

    def parse_line(self, line: Mapping[str, Any]) -> Iterator[CliEvent]:
        if not _holds(line, self.when):
            return
        if (session := _one(line, self.session)) is not None:
            yield SessionStarted(str(session))
        if self.text is not None:
            yield TextPrinted("".join(to_text(value) for value in _values(line, self.text)))
        key, error = str(_one(line, self.id) or ""), _one(line, self.error)
        if (tool := _one(line, self.tool)) is not None:
            yield ToolStarted(str(tool), _decoded(_one(line, self.arguments)), key)
        if self.result is not None:
            yield (
                ToolEnded(key, "error", to_text(error))
                if error
                else ToolEnded(key, "ok", _one(line, self.result) or "")
            )
        if isinstance(used := _one(line, self.usage), Mapping | list):
            yield UsageReported(parse_model_calls(used))
        if waits := _one(line, self.awaiting):
            yield InputRequested("input-required", waits if isinstance(waits, str) else "")
        if self.end:
            yield EndReported(to_text(error) if error else None)
        elif error and self.result is None:
            yield TroubleReported(to_text(error))


class CommandAgent(CliAgent, frozen=True, kw_only=True, dict=True):
    """A command that is spelled out. `model_args` are added where a model is asked for."""

    resume: tuple[str, ...] = ()
    model_args: tuple[str, ...] = ()
    output: OutputFormat = "text"
    events: tuple[LineRule, ...] = ()

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError("`command` is empty")
        for word in (*self.command, *self.resume, *self.model_args):
            for name in _PLACE.findall(word):
                if name not in _PLACES:
                    raise ValueError(
                        f"there is no {{{name}}} to fill in; there are {', '.join(f'{{{p}}}' for p in _PLACES)}"
                    )
        if self.output == "jsonl" and not any(rule.end for rule in self.events):
            raise ValueError(
                'output = "jsonl" needs `events`, one of them with `end = true`: the line that ends a turn'
            )
        if self.output != "jsonl" and self.events:
            raise ValueError('`events` say how to read lines: they need output = "jsonl"')

    @property
    def dialect(self) -> CliSpec:
        return self._dialect

    @cached_property
    def _dialect(self) -> CliSpec:
        spoken = _SPOKEN.get(self.output)
        return CliSpec(
            name=self.command[0],
            title=self.command[0],
            build_argv=self._argv,
            parse_line=spoken.parse_line if spoken else self._events,
            is_plain_text=self.output == "text",
            prompt_on_stdin=not any("{input}" in word for word in self.command),
            can_resume=bool(self.resume),
            reports_session=False,
            stdout_to_file=spoken is not None and spoken.stdout_to_file,
        )

    @property
    def called(self) -> tuple[str, ...]:
        return (self.command[0],)

    def _argv(self, asked: TurnRequest) -> list[str]:
        template = self.resume[1:] if asked.session is not None and self.resume else self.command[1:]
        places = {
            "input": asked.prompt,
            "session": asked.session or asked.new_session,
            "model": asked.model,
            "workspace": asked.workspace,
            "home": asked.env.get("HOME", ""),
        }
        words = (*template, *self.model_args) if asked.model else template
        return [_PLACE.sub(lambda place: places[place[1]], word) for word in words]

    def _events(self, data: bytes) -> Iterator[CliEvent]:
        line = codec.decode(data)
        if not isinstance(line, dict):
            raise codec.DecodeError("no object")
        for rule in self.events:
            yield from rule.parse_line(cast("dict[str, Any]", line))


def _holds(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(value, Mapping) and all(key in value and _holds(value[key], wanted[key]) for key in wanted)
    return bool(value == wanted)


def _values(line: Mapping[str, Any], path: str) -> list[Any]:
    try:
        return [value for value in values_at(path, line) if value is not None]
    except CheckError:  # the path and this line do not go together
        return []


def _one(line: Mapping[str, Any], path: str | None) -> Any:
    found = _values(line, path) if path is not None else []
    return found[0] if found else None


def _decoded(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return codec.decode(arguments)
    except codec.DecodeError:
        return arguments
