"""opencode (`opencode run --format json`)."""

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
    UsageReported,
    build_model_call,
)
from viva.agents.cli.spec import MCP_SERVER, URL_VARIABLE, CliSpec, TurnRequest
from viva.model import codec
from viva.model.message import TokenCount


class _State(Struct, gc=False):
    status: str = ""
    input: Any = None
    output: Any = None
    error: Any = None


class _Cache(Struct, gc=False):
    read: TokenCount = 0
    write: TokenCount = 0


class _Tokens(Struct, gc=False):
    input: TokenCount = 0
    output: TokenCount = 0
    reasoning: TokenCount = 0
    cache: _Cache = field(default_factory=_Cache)


class _Part(Struct, gc=False):
    id: str = ""
    text: str = ""
    tool: str = ""
    call: str = field(default="", name="callID")
    state: _State = field(default_factory=_State)
    reason: str = ""
    tokens: _Tokens | None = None
    cost: float | None = None


class _Line(Struct, gc=False):
    type: str
    session: str = field(default="", name="sessionID")
    part: _Part = field(default_factory=_Part)
    error: Any = None


_lines = codec.Decoder[_Line](_Line)
_CONTINUES = frozenset({"tool-calls", "tool_calls", "unknown", ""})
_REFUSED = re.compile(r"rejected permission|permission denied|prevents you from using", re.IGNORECASE)


def parse_line(data: bytes) -> Iterator[CliEvent]:
    """The events of a line. There is no last line: a step that ends for another reason than a tool call ends the turn."""
    line: _Line = _lines.decode(data)
    part = line.part
    if line.session:
        yield SessionStarted(line.session)
    match line.type:
        case "text" if part.text:
            yield TextPrinted(part.text, is_new_message=True)
        case "tool_use":
            yield ToolStarted(part.tool, part.state.input, part.call)
            yield from _parse_result(part)
        case "step_finish":
            if (used := part.tokens) is not None:
                read = used.input + used.cache.read + used.cache.write
                call = build_model_call("", "", read, used.output + used.reasoning, used.cache.read, part.cost or None)
                yield UsageReported((call,), "step", part.id)
            if part.reason not in _CONTINUES:
                yield CliTurnEnded(None, part.reason)
        case "error":
            yield CliTurnEnded(_format_error(line.error))
        case _:
            return


def _parse_result(part: _Part) -> Iterator[ToolEnded]:
    state = part.state
    if state.status == "completed":
        yield ToolEnded(part.call, "ok", "" if state.output is None else state.output)
    elif state.status == "error":
        text = state.error if isinstance(state.error, str) else codec.compact_json(state.error)
        yield ToolEnded(part.call, "refused" if _REFUSED.search(text) else "error", text)


def _format_error(error: Any) -> str:
    """The message of an error `{name, data: {message}}`."""
    if isinstance(error, Mapping):
        data = error.get("data")
        message = data.get("message") if isinstance(data, Mapping) else error.get("message")
        status = data.get("statusCode") if isinstance(data, Mapping) else None
        name = str(error.get("name") or "error")
        text = f"{name}: {message}" if message else name
        return f"{text} (status {status})" if status else text
    return error if isinstance(error, str) else ""


def _build_argv(request: TurnRequest) -> list[str]:
    argv = ["run", "--format", "json"]
    if request.session is not None:
        argv += ["--session", request.session]
    if request.model:
        argv += ["--model", "/".join(_split_model(request))]
    if request.approval == "auto":
        argv.append("--auto")
    elif request.approval == "plan":
        argv += ["--agent", "plan"]
    return argv


def _split_model(request: TurnRequest) -> tuple[str, str]:
    """Provider and model. A bare name belongs to the provider with a key, or with a base URL."""
    provider, slash, model = request.model.partition("/")
    if slash:
        return provider, model
    kinds = {"ANTHROPIC_API_KEY": "anthropic", "OPENAI_API_KEY": "openai", "GEMINI_API_KEY": "google"}
    provider = next((name for key, name in kinds.items() if key in request.env), "opencode")
    return "custom" if provider == "openai" and request.env.get("OPENAI_BASE_URL") else provider, request.model


def _build_variables(request: TurnRequest) -> dict[str, str]:
    """Its config, with other base URLs than the providers' own and the model, which it may not know there."""
    env = request.env
    addresses = {"anthropic": ("ANTHROPIC_BASE_URL", "/v1"), "google": ("GOOGLE_GEMINI_BASE_URL", "/v1beta")}
    providers: dict[str, Any] = {
        name: {"options": {"baseURL": env[variable].rstrip("/") + version}}
        for name, (variable, version) in addresses.items()
        if env.get(variable)
    }
    if base_url := env.get("OPENAI_BASE_URL"):
        options = {"baseURL": base_url, "apiKey": "{env:OPENAI_API_KEY}"}
        providers["custom"] = {"npm": "@ai-sdk/openai-compatible", "name": "custom", "options": options}
    config: dict[str, Any] = {"autoupdate": False, "share": "disabled"}
    if url := env.get(URL_VARIABLE):
        config["mcp"] = {MCP_SERVER: {"type": "remote", "url": url, "enabled": True}}
    if request.model:
        provider, model = _split_model(request)
        config["small_model"] = f"{provider}/{model}"  # for titles of sessions
        if provider in providers:
            providers[provider]["models"] = {model: {}}
    if not providers:
        return {"OPENCODE_CONFIG_CONTENT": codec.compact_json(config)}
    variables = {"OPENCODE_CONFIG_CONTENT": codec.compact_json({**config, "provider": providers})}
    return {**variables, "OPENCODE_DISABLE_MODELS_FETCH": "1"}


OPENCODE = CliSpec(
    name="opencode",
    title="opencode",
    acp_commands=("opencode",),
    package="opencode-ai",
    min_version="1.17.18",
    approval_modes=("auto", "default", "plan"),
    key_variables=("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY", "OPENROUTER_API_KEY"),
    needs_login=False,
    passed_variables=("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL"),
    login_files=(".local/share/opencode/auth.json",),
    log_file=".local/share/opencode/log/opencode.log",
    # Its stream is silent while it retries, without limit. Calls for session titles are `small`.
    log_error_pattern=re.compile(r'level=ERROR .*message="stream error" .*\bsmall=false .*\berror(?:\.error)?="?(AI_(?:APICall|Retry)Error: [^"]*)'),
    build_argv=_build_argv,
    prompt_on_stdin=True,  # it puts quotes around words of its command line
    stdout_to_file=True,
    parse_line=parse_line,
    build_variables=_build_variables,
    no_login_pattern=re.compile(r"opencode auth login|missing api.?key|api key is missing|invalid api.?key|incorrect api.?key|ProviderAuthError", re.IGNORECASE),
)  # fmt: skip


class OpencodeConfig(CliConfig, frozen=True, kw_only=True):
    """opencode."""

    spec: ClassVar[CliSpec] = OPENCODE
