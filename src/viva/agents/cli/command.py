"""Any command: its words with placeholders, and how to parse its output.

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

With text output the exit code ends a turn; with lines, only a line that says so. `{session}` is the id in the stream,
else one that Viva chooses. Without `resume` each process knows nothing of earlier turns, so that they are put before each
message.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from msgspec import UNSET, Meta, Struct, UnsetType

from viva.agents.agent_config import AgentSetup
from viva.agents.cli.cli_agent import CliAgent, Command, ProcessConfig, find_cli_spec, split_command
from viva.agents.cli.events import (
    CliEvent,
    CliTurnEnded,
    InputRequested,
    SessionStarted,
    TextPrinted,
    ToolEnded,
    ToolStarted,
    TroubleReported,
    UsageReported,
)
from viva.agents.cli.spec import CliSpec, TurnRequest
from viva.agents.replies import parse_model_calls
from viva.errors import CheckError
from viva.model import codec
from viva.state.trial_state import to_text
from viva.text.embedded_json import decode_if_json
from viva.text.json_path import compile_path, find_values_at

OutputFormat = Literal["text", "jsonl", "gemini", "claude", "codex", "qwen", "opencode"]
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_PLACEHOLDERS = ("input", "session", "model", "workspace", "home")


class LineRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a line that holds all of `when` means: JSONPaths of its parts, and whether it ends the turn."""

    when: Mapping[str, Any] = {}
    """Only lines that hold all of this."""
    session: str | UnsetType = UNSET
    """JSONPath of the session's id."""
    text: str | UnsetType = UNSET
    """JSONPath of the agent's text."""
    tool: str | UnsetType = UNSET
    """JSONPath of the name of a tool that is called."""
    arguments: str | UnsetType = UNSET
    """JSONPath of its arguments."""
    id: str | UnsetType = UNSET
    """JSONPath of the call's id."""
    result: str | UnsetType = UNSET
    """JSONPath of what a tool returned."""
    error: str | UnsetType = UNSET
    """JSONPath of the error, if there is one."""
    usage: str | UnsetType = UNSET
    """JSONPath of the tokens that were used."""
    awaiting: str | UnsetType = UNSET
    """JSONPath of what says that the agent waits for the user."""
    end: bool = False
    """This line ends the turn."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if name not in ("when", "end") and (path := getattr(self, name)) is not UNSET:
                compile_path(path)

    def parse_line(self, line: Mapping[str, Any]) -> Iterator[CliEvent]:
        if not _matches(line, self.when):
            return
        if (session := _find_value(line, self.session)) is not None:
            yield SessionStarted(str(session))
        if self.text is not UNSET:
            yield TextPrinted("".join(to_text(value) for value in _find_values(line, self.text)))
        key, error = _find_value(line, self.id), _find_value(line, self.error)
        key = "" if key is None else str(key)
        if (tool := _find_value(line, self.tool)) is not None:
            yield ToolStarted(str(tool), decode_if_json(_find_value(line, self.arguments)), key)
        if self.result is not UNSET:
            result = _find_value(line, self.result)
            yield (
                ToolEnded(key, "error", to_text(error))
                if error
                else ToolEnded(key, "ok", "" if result is None else result)
            )
        if isinstance(usage := _find_value(line, self.usage), Mapping | list):
            yield UsageReported(parse_model_calls(usage))
        if hint := _find_value(line, self.awaiting):
            yield InputRequested("input-required", hint if isinstance(hint, str) else "")
        if self.end:
            yield CliTurnEnded(to_text(error) if error else None)
        elif error and self.result is UNSET:
            yield TroubleReported(to_text(error))


class CommandConfig(ProcessConfig, frozen=True, kw_only=True):
    """Any command."""

    command: Command
    """The command, with {input}, {session}, {model}, {workspace}, {home} filled in; without {input} the message goes to its standard input."""
    resume: Command | UnsetType = UNSET
    """The command of each turn but the first. Without it, the conversation so far is put before each message."""
    model_args: tuple[str, ...] = ()
    """Arguments that are added if a model is chosen, such as --model {model}."""
    output: OutputFormat = "text"
    """What it prints: text, JSON lines that `events` explain, or the stream of a CLI."""
    events: Annotated[tuple[LineRule, ...], Meta(min_length=1)] = ()
    """What the lines of its stream mean."""

    def __post_init__(self) -> None:
        if self.output == "jsonl" and not any(rule.end for rule in self.events):
            raise ValueError(
                'output = "jsonl" needs `events`, one of them with `end = true`: the line that ends a turn'
            )
        if self.output != "jsonl" and self.events:
            raise ValueError('`events` describe lines: they need output = "jsonl"')

    def build(self, setup: AgentSetup) -> CliAgent:
        command = split_command(self.command, setup.folder)
        resume = split_command(self.resume, setup.folder) if self.resume else ()
        if not command:
            raise ValueError("`command` is empty")
        for name in (name for word in (*command, *resume, *self.model_args) for name in _PLACEHOLDER.findall(word)):
            if name not in _PLACEHOLDERS:
                names = ", ".join(f"{{{each}}}" for each in _PLACEHOLDERS)
                raise ValueError(f"there is no {{{name}}} to fill in; there are {names}")
        spec = build_command_spec(command, resume, self.model_args, self.output, self.events)
        return CliAgent(
            spec=spec,
            command=command[:1],
            model=self.model,
            args=self.args,
            host=setup.environ,
            env=self.build_env(setup),
        )


def build_command_spec(
    command: Sequence[str],
    resume: Sequence[str],
    model_args: Sequence[str],
    output: OutputFormat,
    events: Sequence[LineRule],
) -> CliSpec:
    """The spec of a command whose words hold placeholders."""

    def build_argv(request: TurnRequest) -> list[str]:
        values = {
            "input": request.prompt,
            "session": request.session or request.new_session,
            "model": request.model,
            "workspace": request.workspace,
            "home": request.env.get("HOME", ""),
        }
        words = (resume if request.session is not None and resume else command)[1:]
        words = (*words, *model_args) if request.model else words
        return [_PLACEHOLDER.sub(lambda match: values[match[1]], word) for word in words]

    def parse_line(data: bytes) -> Iterator[CliEvent]:
        line = codec.decode(data)
        if not isinstance(line, dict):
            raise codec.DecodeError("not an object")
        for rule in events:
            yield from rule.parse_line(cast("dict[str, Any]", line))

    known_cli = find_cli_spec(output)
    return CliSpec(
        name=command[0],
        title=command[0],
        build_argv=build_argv,
        parse_line=known_cli.parse_line if known_cli else parse_line,
        is_plain_text=output == "text",
        prompt_on_stdin=not any("{input}" in word for word in command),
        can_resume=bool(resume),
        reports_session=False,
        stdout_to_file=known_cli is not None and known_cli.stdout_to_file,
    )


def _matches(value: Any, pattern: Any) -> bool:
    if isinstance(pattern, Mapping):
        return isinstance(value, Mapping) and all(
            key in value and _matches(value[key], pattern[key]) for key in pattern
        )
    return bool(value == pattern)


def _find_values(line: Mapping[str, Any], path: str) -> list[Any]:
    try:
        return [value for value in find_values_at(path, line) if value is not None]
    except CheckError:  # the path does not fit this line
        return []


def _find_value(line: Mapping[str, Any], path: str | UnsetType) -> Any:
    values = _find_values(line, path) if path is not UNSET else []
    return values[0] if values else None
