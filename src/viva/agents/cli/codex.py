"""Codex (`codex exec --json`)."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from msgspec import Struct

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
)
from viva.agents.cli.spec import MCP_SERVER, URL_VARIABLE, CliSpec, TurnRequest
from viva.model import codec
from viva.model.message import TokenCount

_BYPASS = "--dangerously-bypass-approvals-and-sandbox"


class _Item(Struct, gc=False):
    id: str = ""
    type: str = ""
    text: str = ""
    message: str = ""
    status: str = ""
    command: str = ""
    aggregated_output: str = ""
    exit_code: int | None = None
    changes: Any = None
    server: str = ""
    tool: str = ""
    arguments: Any = None
    result: Any = None
    error: Any = None
    query: str = ""


class _Tokens(Struct, gc=False):
    input_tokens: TokenCount = 0
    cached_input_tokens: TokenCount = 0
    output_tokens: TokenCount = 0


class _Error(Struct, gc=False):
    message: str = ""


class _Line(Struct, gc=False):
    type: str
    thread_id: str = ""
    item: _Item | None = None
    usage: _Tokens | None = None
    message: str = ""
    error: _Error | None = None


_lines = codec.Decoder[_Line](_Line)


def parse_line(data: bytes) -> Iterator[CliEvent]:
    """The events of a line. Its usage is that of the whole thread."""
    line: _Line = _lines.decode(data)
    match line.type:
        case "thread.started":
            yield SessionStarted(line.thread_id)
        case "item.started" | "item.updated" | "item.completed" if line.item is not None:
            yield from _parse_item(line.item, done=line.type == "item.completed")
        case "error":
            yield TroubleReported(line.message)
        case "turn.completed":
            if (used := line.usage) is not None:
                call = build_model_call("openai", "", used.input_tokens, used.output_tokens, used.cached_input_tokens)
                yield UsageReported((call,), "session")
            yield CliTurnEnded()
        case "turn.failed":
            yield CliTurnEnded((line.error or _Error()).message)
        case _:
            return


def _parse_item(item: _Item, *, done: bool) -> Iterator[CliEvent]:
    match item.type:
        case "agent_message" if done and item.text:
            yield TextPrinted(item.text, is_new_message=True)
            return
        case "command_execution":
            yield ToolStarted(item.type, {"command": item.command}, item.id)
            output: Any = item.aggregated_output
        case "file_change":
            yield ToolStarted(item.type, {"changes": item.changes}, item.id)
            output = item.changes
        case "mcp_tool_call":
            yield ToolStarted(f"{item.server}.{item.tool}", item.arguments, item.id)
            output = item.result
        case "web_search":
            yield ToolStarted(item.type, {"query": item.query}, item.id)
            output = ""
        case "error" if done:  # a warning: it continues
            yield TroubleReported(item.message, is_warning=True)
            return
        case _:  # reasoning, plans
            return
    if done:
        yield _parse_result(item, output)


def _parse_result(item: _Item, output: Any) -> ToolEnded:
    if item.status == "declined":
        return ToolEnded(item.id, "refused", output)
    failed = item.status == "failed" or item.exit_code not in (None, 0) or item.error is not None
    if not failed:
        return ToolEnded(item.id, "ok", "" if output is None else output)
    text = item.error if isinstance(item.error, str) else codec.compact_json(item.error) if item.error else output
    return ToolEnded(item.id, "error", text or f"exit code {item.exit_code}")


def _build_argv(request: TurnRequest) -> list[str]:
    argv = ["exec", "--json", "--skip-git-repo-check"]
    argv += [_BYPASS] if request.approval == "bypass" else ["--sandbox", request.approval]
    if request.model:
        argv += ["--model", request.model]
    for folder in request.linked_folders:
        argv += ["--add-dir", folder]
    mcp = {f"mcp_servers.{MCP_SERVER}.url": url} if (url := request.env.get(URL_VARIABLE)) else {}
    for key, value in {**_build_provider_config(request.env), **mcp}.items():
        argv += ["-c", f"{key}={codec.compact_json(value)}"]
    if request.session is not None:
        argv += ["resume", request.session]
    return [*argv, "--", "-" if request.on_stdin else request.prompt]


def _build_provider_config(env: Mapping[str, str]) -> dict[str, Any]:
    """Another base URL than OpenAI's has to be configured as a provider."""
    if not (base_url := env.get("OPENAI_BASE_URL")):
        return {}
    key = next((name for name in ("CODEX_API_KEY", "OPENAI_API_KEY") if name in env), None)
    entry = {"name": "viva", "base_url": base_url, "wire_api": "responses"} | ({"env_key": key} if key else {})
    return {"model_provider": "viva"} | {f"model_providers.viva.{name}": value for name, value in entry.items()}


def _build_variables(request: TurnRequest) -> dict[str, str]:
    env = request.env
    # Without a login it reads only this variable.
    return {"CODEX_API_KEY": env["OPENAI_API_KEY"]} if "OPENAI_API_KEY" in env and "CODEX_API_KEY" not in env else {}


CODEX = CliSpec(
    name="codex",
    title="Codex",
    acp_commands=("codex-acp",),
    package="@openai/codex",
    min_version="0.61.0",
    approval_modes=("bypass", "workspace-write", "read-only"),
    key_variables=("CODEX_API_KEY", "OPENAI_API_KEY"),
    keyless_variables=("OPENAI_BASE_URL",),
    passed_variables=("OPENAI_BASE_URL", "OPENAI_ORGANIZATION", "OPENAI_PROJECT"),
    login_files=(".codex/auth.json",),
    build_argv=_build_argv,
    long_prompt_on_stdin=True,
    parse_line=parse_line,
    build_variables=_build_variables,
    no_login_pattern=re.compile(r"not logged in|missing bearer|codex login|invalid api.?key|incorrect api.?key|401 unauthorized", re.IGNORECASE),
)  # fmt: skip


class CodexConfig(CliConfig, frozen=True, kw_only=True):
    """Codex."""

    spec: ClassVar[CliSpec] = CODEX
