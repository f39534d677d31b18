"""Claude Code (`--output-format stream-json`). qwen-code has the same stream."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from msgspec import Struct, field

from viva.agents.cli.cli_agent import CliConfig
from viva.agents.cli.events import (
    CliEvent,
    CliTurnEnded,
    SessionStarted,
    TextPrinted,
    ToolEnded,
    ToolStarted,
    TroubleReported,
    UsageReported,
    build_model_call,
    join_texts,
)
from viva.agents.cli.spec import MCP_SERVER, URL_VARIABLE, CliSpec, TurnRequest
from viva.model import codec
from viva.model.message import ModelCall, TokenCount


class _Block(Struct, gc=False):
    type: str = ""
    text: str = ""
    id: str = ""
    name: str = ""
    input: Any = None
    tool_use_id: str = ""
    content: Any = None
    is_error: bool | None = None


class ClaudeUsage(Struct, gc=False):
    """Usage of a message. Cached tokens are counted separately."""

    input_tokens: TokenCount = 0
    output_tokens: TokenCount = 0
    cache_read_input_tokens: TokenCount | None = None
    cache_creation_input_tokens: TokenCount | None = None


class _Message(Struct, gc=False):
    id: str = ""
    model: str = ""
    content: str | list[_Block] = ""
    usage: ClaudeUsage | None = None


class _ModelUsage(Struct, gc=False, rename="camel"):
    input_tokens: TokenCount = 0
    output_tokens: TokenCount = 0
    cache_read_input_tokens: TokenCount = 0
    cache_creation_input_tokens: TokenCount = 0
    cost: float | None = field(default=None, name="costUSD")


class _Denial(Struct, gc=False):
    tool_use_id: str = ""


class ClaudeLine(Struct, gc=False):
    """A line of the stream."""

    type: str
    subtype: str = ""
    session_id: str = ""
    message: _Message | None = None
    parent_tool_use_id: str | None = None
    is_error: bool | None = None
    result: Any = None
    errors: list[Any] | None = None
    error: Any = None
    error_status: int | None = None
    stop_reason: str | None = None
    model: str = ""
    usage: ClaudeUsage | None = None
    models: dict[str, _ModelUsage] | None = field(default=None, name="modelUsage")
    permission_denials: list[_Denial] | None = None


_lines = codec.Decoder[ClaudeLine](ClaudeLine)
_REFUSED = re.compile(
    r"(?:<tool_use_error>)?(?:Error: )?(?:No such tool available|InputValidationError|Claude requested permissions?"
    r"|Qwen Code requires permission|The user doesn't want to proceed|Permission to use|Tool \"[^\"]+\" (?:is )?not )"
)
"""How Claude Code and qwen-code say that a tool was not run."""


def parse_stream_line(data: bytes, parse_usage: Callable[[ClaudeLine], Iterator[UsageReported]]) -> Iterator[CliEvent]:
    """The events of a line. `parse_usage` differs between the CLIs with this stream."""
    line: ClaudeLine = _lines.decode(data)
    match line.type:
        case "system" if line.subtype == "init":
            yield SessionStarted(line.session_id, line.model)
        case "system" if line.subtype == "api_retry":
            yield TroubleReported(f"API error {line.error_status or ''}: {line.error or 'no answer'}")
        case "assistant" | "user" if line.message is not None:
            yield from _parse_message(line, line.message)
            yield from parse_usage(line)
        case "result" if line.is_error is not None:
            for denial in line.permission_denials or ():
                yield ToolEnded(denial.tool_use_id, "refused", None)
            yield from parse_usage(line)
            yield CliTurnEnded(_find_failure(line), line.stop_reason, line.result)
        case _:
            return


def _parse_message(line: ClaudeLine, message: _Message) -> Iterator[CliEvent]:
    own = line.type == "assistant" and line.parent_tool_use_id is None  # text of a subagent is not the agent's
    if isinstance(message.content, str):
        if own and message.content:
            yield TextPrinted(message.content, is_new_message=True)
        return
    for block in message.content:
        match block.type:
            case "text" if own and block.text:
                yield TextPrinted(block.text, is_new_message=True)
            case "tool_use":
                yield ToolStarted(block.name, block.input, block.id)
            case "tool_result":
                yield _parse_result(block)
            case _:
                continue


def _parse_result(block: _Block) -> ToolEnded:
    text = join_texts(block.content or "")
    if not block.is_error:
        return ToolEnded(block.tool_use_id, "ok", text)
    refused = isinstance(text, str) and _REFUSED.match(text)
    return ToolEnded(block.tool_use_id, "refused" if refused else "error", text)


def _find_failure(line: ClaudeLine) -> str | None:
    if not line.is_error and line.subtype == "success":
        return None
    if isinstance(line.result, str) and line.result:
        return line.result
    errors = line.errors or ([line.error] if line.error else [])
    return "; ".join(_format_error(error) for error in errors) or line.subtype.replace("_", " ")


def _format_error(error: Any) -> str:
    if isinstance(error, Mapping) and isinstance(error.get("message"), str):
        return error["message"]
    return error if isinstance(error, str) else codec.compact_json(error)


def build_claude_call(provider: str, model: str, tokens: ClaudeUsage) -> ModelCall:
    cache_read, cache_created = tokens.cache_read_input_tokens or 0, tokens.cache_creation_input_tokens or 0
    input_tokens = tokens.input_tokens + cache_read + cache_created
    return build_model_call(provider, model, input_tokens, tokens.output_tokens, cache_read)


def _parse_usage(line: ClaudeLine) -> Iterator[UsageReported]:
    """The usage in a line. The last line has usage and cost by model, of the turn or, in newer versions, of the session;
    an earlier line has the usage of one message.
    """
    if line.type == "result" and line.models:
        turn = build_claude_call("anthropic", "", line.usage) if line.usage else None
        own = turn.input_tokens + turn.output_tokens if turn else None
        yield UsageReported(
            tuple(_parse_model_usage(model, usage) for model, usage in line.models.items()), "session", turn_tokens=own
        )
    elif line.type == "assistant" and line.message is not None and line.message.usage is not None:
        message = line.message
        yield UsageReported(
            (build_claude_call("anthropic", message.model, message.usage or ClaudeUsage()),), "step", message.id
        )


def _parse_model_usage(model: str, usage: _ModelUsage) -> ModelCall:
    cache_read, cache_created = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    return build_model_call(
        "anthropic",
        model,
        usage.input_tokens + cache_read + cache_created,
        usage.output_tokens,
        cache_read,
        usage.cost or None,
    )


def parse_line(data: bytes) -> Iterator[CliEvent]:
    return parse_stream_line(data, _parse_usage)


def _build_argv(request: TurnRequest) -> list[str]:
    argv = ["--print", "--output-format", "stream-json", "--verbose", "--permission-mode", request.approval]
    if request.session is not None:
        argv += ["--resume", request.session]
    if request.model:
        argv += ["--model", request.model]
    for folder in request.linked_folders:
        argv += ["--add-dir", folder]
    if url := request.env.get(URL_VARIABLE):
        servers = {"mcpServers": {MCP_SERVER: {"type": "http", "url": url}}}
        argv += ["--mcp-config", codec.compact_json(servers), "--strict-mcp-config"]
    return argv if request.on_stdin else [*argv, "--", request.prompt]


def _build_variables(_request: TurnRequest) -> dict[str, str]:
    variables = {"DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    if os.geteuid() == 0:  # root may skip permissions only in a declared sandbox
        variables["IS_SANDBOX"] = "1"
    return variables


CLAUDE = CliSpec(
    name="claude",
    title="Claude Code",
    acp_commands=("claude-code-acp", "claude-agent-acp"),
    package="@anthropic-ai/claude-code",
    min_version="2.0.0",
    approval_modes=("bypassPermissions", "acceptEdits", "auto", "default", "dontAsk", "plan"),
    key_variables=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    keyless_variables=("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"),
    passed_variables=(
        "ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL",
        "ANTHROPIC_CUSTOM_HEADERS", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "AWS_REGION",
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK",
    ),
    login_files=(".claude/.credentials.json",),
    build_argv=_build_argv,
    long_prompt_on_stdin=True,
    stdout_to_file=True,
    parse_line=parse_line,
    build_variables=_build_variables,
    no_login_pattern=re.compile(r"not logged in|please run /login|invalid api key|authentication_(?:error|failed)|oauth token (?:has expired|revoked)", re.IGNORECASE),
)  # fmt: skip


class ClaudeConfig(CliConfig, frozen=True, kw_only=True):
    """Claude Code."""

    spec: ClassVar[CliSpec] = CLAUDE
