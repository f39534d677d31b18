"""The Gemini CLI (`-o stream-json`)."""

import re
from collections.abc import Iterator, Mapping
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
)
from viva.agents.cli.spec import MCP_SERVER, URL_VARIABLE, CliSpec, TurnRequest, format_settings
from viva.model import codec
from viva.model.message import TokenCount

_KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS")


class _Error(Struct, gc=False):
    type: str = ""
    message: str = ""


class _Tokens(Struct, gc=False):
    input_tokens: TokenCount = 0
    output_tokens: TokenCount = 0
    cached: TokenCount = 0


class _Stats(_Tokens, gc=False):
    models: dict[str, _Tokens] = field(default_factory=dict[str, _Tokens])


class _Line(Struct, gc=False):
    type: str
    session_id: str = ""
    role: str = ""
    content: str = ""
    tool_name: str = ""
    tool_id: str = ""
    parameters: Any = None
    status: str = ""
    output: Any = None
    error: _Error | None = None
    message: str = ""
    stats: _Stats | None = None


_lines = codec.Decoder[_Line](_Line)
_REFUSED = frozenset({"policy_violation", "tool_not_registered", "path_not_in_workspace", "invalid_tool_params"})
"""Error types of tools that were not run. `tool_not_registered`: the approval mode does not offer the tool."""


def parse_line(data: bytes) -> Iterator[CliEvent]:
    """The events of a line. The echo of the user's message is skipped."""
    line: _Line = _lines.decode(data)
    match line.type:
        case "init":
            yield SessionStarted(line.session_id)
        case "message" if line.role == "assistant":
            yield TextPrinted(line.content)
        case "tool_use":
            yield ToolStarted(line.tool_name, line.parameters, line.tool_id)
        case "tool_result":
            yield _parse_result(line)
        case "error":
            yield TroubleReported(line.message, is_warning=True)
        case "result" if line.status in ("success", "error"):
            if line.stats is not None:
                models = line.stats.models or {"": line.stats}  # older versions report only the sum
                yield UsageReported(tuple(_build_model_call(model, tokens) for model, tokens in models.items()))
            error = line.error or _Error()  # without one, an earlier `error` line has the reason
            yield CliTurnEnded(error.message or error.type if line.status == "error" else None)
        case _:
            return


def _parse_result(line: _Line) -> ToolEnded:
    if line.status == "success":
        return ToolEnded(line.tool_id, "ok", "" if line.output is None else line.output)
    error = line.error or _Error()
    return ToolEnded(line.tool_id, "refused" if error.type in _REFUSED else "error", error.message or line.output)


def _build_model_call(model: str, tokens: _Tokens) -> Any:
    return build_model_call("gemini", model, tokens.input_tokens, tokens.output_tokens, tokens.cached)


def build_argv(request: TurnRequest) -> list[str]:
    words = ["--output-format=stream-json", f"--approval-mode={request.approval}"]
    if not request.on_stdin:  # one word for flag and value: a message may start with a dash
        words.append(f"--prompt={request.prompt}")
    if request.session is not None:
        words.append(f"--resume={request.session}")
    if request.model:
        words.append(f"--model={request.model}")
    # It refuses paths outside the workspace, also through links. A comma would end the name.
    return words + [f"--include-directories={folder}" for folder in request.linked_folders if "," not in folder]


def _build_variables(_request: TurnRequest) -> dict[str, str]:
    # In an untrusted folder the approval mode is ignored. The relaunch, for more memory, costs a third of every turn.
    return {"GEMINI_CLI_TRUST_WORKSPACE": "true", "GEMINI_CLI_NO_RELAUNCH": "true"}


def _build_home_files(env: Mapping[str, str]) -> dict[str, str]:
    if env.get("GOOGLE_GENAI_USE_VERTEXAI", "").lower() == "true":
        kind = "vertex-ai"
    elif "GEMINI_API_KEY" in env:
        kind = "gemini-api-key"
    elif "GOOGLE_API_KEY" in env or "GOOGLE_APPLICATION_CREDENTIALS" in env:
        kind = "vertex-ai"
    else:
        kind = "oauth-personal"
    no_updates = {"enableAutoUpdate": False, "enableAutoUpdateNotification": False}
    return {".gemini/settings.json": build_settings(kind, no_updates, env)}


def build_settings(kind: str, general: Mapping[str, bool], env: Mapping[str, str]) -> str:
    """The settings file, with the kind of login and the MCP server of the case."""
    settings: dict[str, Any] = {
        "security": {"auth": {"selectedType": kind}},
        "general": general,
        "privacy": {"usageStatisticsEnabled": False},
    }
    if url := env.get(URL_VARIABLE):
        settings["mcpServers"] = {MCP_SERVER: {"httpUrl": url, "trust": True}}
    return format_settings(settings)


GEMINI = CliSpec(
    name="gemini",
    title="Gemini CLI",
    acp_commands=("gemini",),
    has_acp_model_flag=True,
    package="@google/gemini-cli",
    min_version="0.30.0",
    approval_modes=("yolo", "auto_edit", "default", "plan"),
    key_variables=_KEYS,
    keyless_variables=("GOOGLE_GENAI_USE_VERTEXAI",),
    passed_variables=(
        "GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_CLOUD_PROJECT",
        "GOOGLE_CLOUD_LOCATION", "GEMINI_MODEL",
    ),
    login_files=(".gemini/oauth_creds.json", ".gemini/google_accounts.json"),
    build_argv=build_argv,
    long_prompt_on_stdin=True,
    stdout_to_file=True,
    follows_links=False,  # its file tools refuse linked files, and its glob does not follow links
    parse_line=parse_line,
    build_variables=_build_variables,
    build_home_files=_build_home_files,
    no_login_pattern=re.compile(
        r"set an Auth method|visit the following URL to authorize|manual authorization is required|API key not valid|must specify the \w+ environment"
        r"|please (?:run .*to )?(?:log|sign) ?in|authentication (?:failed|required)|API_KEY_INVALID|not authenticated",
        re.IGNORECASE,
    ),
)  # fmt: skip


class GeminiConfig(CliConfig, frozen=True, kw_only=True):
    """The Gemini CLI."""

    spec: ClassVar[CliSpec] = GEMINI
