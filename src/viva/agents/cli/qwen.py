"""qwen-code, with the flags of the Gemini CLI and the stream of Claude Code."""

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from msgspec import structs

from viva.agents.cli.claude import ClaudeLine, build_claude_call, parse_stream_line
from viva.agents.cli.cli_agent import CliConfig
from viva.agents.cli.events import CliEvent, CliTurnEnded, ToolStarted, UsageReported
from viva.agents.cli.gemini import build_argv, build_settings
from viva.agents.cli.spec import CliSpec, TurnRequest

_API_ERROR = re.compile(r"\[API Error: .*\]", re.DOTALL)


def _parse_usage(line: ClaudeLine) -> Iterator[UsageReported]:
    """The usage in a line. The last line has that of the whole session, with the calls that the CLI makes to keep its memory."""
    if line.type == "result" and line.usage is not None:
        yield UsageReported((build_claude_call("openai", "", line.usage),), "session")
    elif line.type == "assistant" and (message := line.message) is not None and message.usage is not None:
        yield UsageReported((build_claude_call("openai", message.model, message.usage),), "step", message.id)


def parse_line(data: bytes) -> Iterator[CliEvent]:
    """The events of a line. The CLI reports an API error as a success with the error as text; here it is an error."""
    for event in parse_stream_line(data, _parse_usage):
        match event:
            case CliTurnEnded(error=None, result=str(text)) if _API_ERROR.fullmatch(text):
                yield CliTurnEnded(text)
            case ToolStarted(name="tool_call", arguments={"name": str(name), "arguments": arguments}):
                yield structs.replace(event, name=name, arguments=arguments)  # a tool that the model had to search for
            case _:
                yield event


def _build_variables(_request: TurnRequest) -> dict[str, str]:
    return {"QWEN_CODE_SUPPRESS_YOLO_WARNING": "1", "QWEN_DEBUG_LOG_FILE": "1", "QWEN_CODE_NO_RELAUNCH": "true"}


def _build_home_files(env: Mapping[str, str]) -> dict[str, str]:
    kind = next((kind for key, kind in _KINDS.items() if key in env), "qwen-oauth")
    return {".qwen/settings.json": build_settings(kind, {"enableAutoUpdate": False}, env)}


_KINDS = {"OPENAI_API_KEY": "openai", "ANTHROPIC_API_KEY": "anthropic", "GEMINI_API_KEY": "gemini"}

QWEN = CliSpec(
    name="qwen",
    title="qwen-code",
    acp_commands=("qwen",),
    has_acp_model_flag=True,
    package="@qwen-code/qwen-code",
    min_version="0.5.0",
    approval_modes=("yolo", "auto-edit", "default", "plan"),
    key_variables=tuple(_KINDS),
    passed_variables=(
        "OPENAI_BASE_URL",
        "OPENAI_MODEL",
        "ANTHROPIC_BASE_URL",
        "ANTHROPIC_MODEL",
        "QWEN_MODEL",
    ),
    login_files=(".qwen/oauth_creds.json",),
    log_file=".qwen/debug/{session}.txt",
    build_argv=build_argv,
    long_prompt_on_stdin=True,
    stdout_to_file=True,
    parse_line=parse_line,
    build_variables=_build_variables,
    build_home_files=_build_home_files,
    no_login_pattern=re.compile(
        r"no auth type is selected|set an auth method|missing api key|device authorization|please (?:log|sign) ?in|qwen.?oauth.*(?:fail|discontinued|expired)"
        r"|invalid api.?key|incorrect api.?key",
        re.IGNORECASE,
    ),
)


class QwenConfig(CliConfig, frozen=True, kw_only=True):
    """qwen-code."""

    spec: ClassVar[CliSpec] = QWEN
