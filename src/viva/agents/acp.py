"""Agents that speak the Agent Client Protocol: one process for each conversation, one prompt for each turn.

    -n "acp:gemini --acp"            or in viva.toml: type = "acp", command = "gemini --acp"

Requests for permission are answered by policy. A turn with a denied request awaits input, as the reply's protocol state
says. With `files` the agent reads and writes files of the workspace, and no others, through Viva; otherwise it opens files
itself (the Gemini CLI 0.61 creates no new file through its client).
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from msgspec import UNSET, Meta, Struct, UnsetType

from viva.agents.acp_updates import get_tool_kind, parse_tool_call, parse_update, parse_usage
from viva.agents.agent_config import AgentSetup, AgentStatus, NonEmpty
from viva.agents.cli.cli_agent import (
    Command,
    ProcessConfig,
    add_keys_to_secrets,
    add_mcp_url,
    find_acp_spec,
    inspect_program,
    open_cli_workspace,
    prepare_environment,
    prepend_history,
    split_command,
)
from viva.agents.cli.events import CliEvent, CliTurn, CliTurnEnded, InputRequested, SessionStarted, ToolEnded
from viva.agents.cli.installation import find_executable
from viva.agents.cli.monitor import OutputMonitor
from viva.agents.cli.output_text import to_one_line
from viva.agents.cli.spec import MCP_SERVER, CliSpec, TurnRequest
from viva.agents.json_objects import as_object
from viva.agents.json_rpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    ConnectionClosed,
    JsonRpcConnection,
    RpcError,
)
from viva.agents.mcp_stub import BRIDGE
from viva.errors import AgentFailed, TrialFault, Undetermined, Unreachable
from viva.model.case import Feature
from viva.model.message import Message, Reply
from viva.protocols import SessionContext, Workspace, WorkspaceFactory
from viva.workspace.processes import Process, run_command, run_to_completion
from viva.workspace.safe_open import open_regular_file

_VERSION = 1
_AUTH_REQUIRED = -32000
_CANCEL_S = 1.0
_READ_BYTES = 16 * 1024 * 1024


class AcpConfig(ProcessConfig, frozen=True, kw_only=True):
    """A command that speaks the Agent Client Protocol."""

    use: NonEmpty | UnsetType = UNSET
    """A reference: acp:COMMAND."""
    command: Command | UnsetType = UNSET
    """The command that speaks the Agent Client Protocol on its standard input and output."""
    login: Literal["copy"] | UnsetType = UNSET
    """Copy its login files into the private HOME, instead of passing keys."""
    permissions: Annotated[
        str | tuple[str, ...],
        Meta(extra_json_schema={"$comment": "allow, deny, or an array of kinds and names of tools"}),
    ] = "allow"
    """How its requests for permission are answered: allow, deny, or the kinds and names of tools that are allowed."""
    mode: str = ""
    """The mode of its sessions, in the agent's own words."""
    auth_method: str = ""
    """How it authenticates itself, by the id of one of its own methods."""
    files: bool = False
    """Let it read and write files of the workspace through Viva."""

    @classmethod
    def parse_reference(cls, reference: str) -> dict[str, Any]:
        return {"command": reference.removeprefix("acp:")}

    def build(self, setup: AgentSetup) -> "AcpAgent":
        if not self.command:
            raise setup.error("is missing `command`")
        agent = AcpAgent(
            command=split_command(self.command, setup.folder),
            permissions=self.permissions,
            model=self.model,
            mode=self.mode,
            auth_method=self.auth_method,
            files=self.files,
            args=self.args,
            host=setup.environ,
            env=self.build_env(setup),
            login=self.login or None,
        )
        add_keys_to_secrets(agent.spec, setup)
        return agent


class AcpAgent(Struct, frozen=True, kw_only=True):
    """A command that speaks the protocol. `permissions` is `allow`, `deny`, or the kinds and names of tools to allow.

    A CLI that Viva knows gets its keys, settings and login as when it is run by itself.
    """

    command: tuple[str, ...]
    permissions: str | tuple[str, ...] = "allow"
    model: str = ""
    mode: str = ""
    auth_method: str = ""
    files: bool = False
    args: tuple[str, ...] = ()
    host: Mapping[str, str] = {}
    env: Mapping[str, str] = {}
    login: Literal["copy"] | None = None

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError("`command` is empty: write for example gemini --acp")
        if isinstance(self.permissions, str) and self.permissions not in ("allow", "deny"):
            raise ValueError(
                f"permissions are allow, deny or a list of kinds and names of tools, not {self.permissions!r}"
            )

    @property
    def provides(self) -> frozenset[Feature]:
        return frozenset({"workspace"})

    @property
    def spec(self) -> CliSpec:
        """The description of the CLI: its keys, its login, and the errors that it prints."""
        name = Path(self.command[0]).name
        unknown = CliSpec(name=name, title=name, build_argv=lambda _request: [], parse_line=lambda _line: ())
        return find_acp_spec(name) or unknown

    @property
    def program(self) -> tuple[str, ...]:
        return self.command

    @property
    def auto_approves(self) -> bool:
        return self.permissions == "allow"

    async def inspect(self, workspaces: WorkspaceFactory) -> AgentStatus:
        return await inspect_program(self, workspaces)

    def allows_tool(self, name: str, kind: str) -> bool:
        if isinstance(self.permissions, str):
            return self.permissions == "allow"
        return name in self.permissions or kind in self.permissions

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator["AcpSession"]:
        executable = find_executable(self.command[0], self.host, self.spec)
        async with open_cli_workspace(context) as workspace, AsyncExitStack() as stack:
            yield AcpSession(self, context, workspace, executable, stack)


class AcpSession:
    """One conversation. The process starts with the first message, whose options may name a model."""

    def __init__(
        self, agent: AcpAgent, context: SessionContext, workspace: Workspace, executable: str, stack: AsyncExitStack
    ) -> None:
        self._agent, self._context, self._workspace = agent, context, workspace
        self._executable, self._stack = executable, stack
        self._process: Process | None = None
        self._connection: JsonRpcConnection | None = None
        self._id = ""
        self._model = ""
        self._turn = CliTurn()
        self._monitor = OutputMonitor(agent.spec, self._turn)
        self._is_prompt_running = False

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        if message.attachments:
            names = ", ".join(each.name or each.source for each in message.attachments)
            raise Undetermined(f"an ACP agent takes text only, but this message has attachments: {names}")
        model = str(options.get("model") or self._agent.model)
        self._turn = turn = CliTurn(model=model, started=time.perf_counter())
        self._monitor = OutputMonitor(self._agent.spec, turn)
        text = message.text if self._connection is not None else prepend_history(self._context.history, message.text)
        deadline = asyncio.timeout(None)
        try:
            async with deadline:
                await self._send_prompt(text, model, deadline)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise self._monitor.find_fault(None) or AgentFailed("it waits for a login") from None
        except asyncio.CancelledError:
            await run_to_completion(self._notify_cancel())
            raise
        except (RpcError, ConnectionClosed) as error:
            raise await self._find_fault(error) from error
        finally:
            self._is_prompt_running = False
            for call in turn.usage:
                self._context.meter(call)
            self._report_progress(turn)
        if turn.end is not None and turn.end.finish_reason == "cancelled":
            raise AgentFailed("it ended the turn as cancelled, but it was not cancelled")
        return turn.build_reply()

    def _report_progress(self, turn: CliTurn) -> None:
        """Stores what is known of the turn, in case it ends without a reply."""
        progress = self._context.progress
        progress.partial = turn.build_reply()
        if self._process is not None:
            self._monitor.stderr = self._process.stderr_tail
        self._monitor.report_progress(progress)

    async def _send_prompt(self, text: str, model: str, deadline: asyncio.Timeout) -> None:
        connection = self._connection or await self._start_process(model, deadline)
        self._turn.add_event(SessionStarted(self._id))
        await self._choose_model(connection, model)
        self._is_prompt_running = True  # earlier updates do not belong to this message
        prompt = {"sessionId": self._id, "prompt": [{"type": "text", "text": text}]}
        result = await connection.request("session/prompt", prompt, self._on_prompt_answered)
        for event in parse_usage(result):
            self._turn.add_event(event)
        reason = cast("Mapping[str, Any]", result).get("stopReason") if isinstance(result, Mapping) else None
        if not isinstance(reason, str):
            raise AgentFailed("its answer to the prompt has no stopReason")
        self._turn.add_event(CliTurnEnded(None, reason))

    def _on_prompt_answered(self) -> None:
        self._is_prompt_running = False

    async def _start_process(self, model: str, deadline: asyncio.Timeout) -> JsonRpcConnection:
        agent, workspace = self._agent, self._workspace
        extra_env = add_mcp_url(agent.env, self._context)
        env = prepare_environment(agent.spec, agent.host, workspace, extra_env, agent.login)
        env = {**agent.spec.build_variables(TurnRequest(prompt="", model=model, env=env)), **env}
        flags = [f"--model={model}"] if model and agent.spec.has_acp_model_flag else []
        argv = workspace.sandbox_command([self._executable, *agent.command[1:], *flags, *agent.args])
        process = await self._stack.enter_async_context(run_command(argv, cwd=workspace.path, env=env, stdin=True))
        self._process, self._model = process, model if flags else ""
        self._connection = connection = JsonRpcConnection(
            process, self._on_request, self._on_notification, self._on_unparsed_line
        )
        for task in (connection.listen(), self._monitor.watch_for_login(process, deadline)):
            self._stack.push_async_callback(_cancel_task, asyncio.ensure_future(task))
        files = {"readTextFile": agent.files, "writeTextFile": agent.files}
        initialized = await connection.request(
            "initialize",
            {"protocolVersion": _VERSION, "clientCapabilities": {"fs": files, "terminal": False}},
        )
        if agent.auth_method:
            await connection.request("authenticate", {"methodId": agent.auth_method})
        servers = _list_mcp_servers(self._context.mcp_url, initialized)
        opened = await connection.request("session/new", {"cwd": workspace.path, "mcpServers": servers})
        self._id = str(cast("Mapping[str, Any]", opened).get("sessionId") or "") if isinstance(opened, Mapping) else ""
        if not self._id:
            raise AgentFailed("it opened a session without an id")
        if agent.mode:
            await connection.request("session/set_mode", {"sessionId": self._id, "modeId": agent.mode})
        return connection

    async def _choose_model(self, connection: JsonRpcConnection, model: str) -> None:
        """Sets the model, in one of the two ways that agents support."""
        if not model or model == self._model:
            return
        self._model = model
        session = {"sessionId": self._id}
        try:
            await connection.request("session/set_config_option", {**session, "configId": "model", "value": model})
        except RpcError as error:
            if error.code not in (METHOD_NOT_FOUND, INVALID_PARAMS):
                raise
            await connection.request("session/set_model", {**session, "modelId": model})

    async def _notify_cancel(self) -> None:
        """Tells the agent that the prompt is canceled, with a short time limit."""
        if self._connection is not None and self._id:
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(_CANCEL_S):
                    await self._connection.notify("session/cancel", {"sessionId": self._id})

    async def _find_fault(self, error: RpcError | ConnectionClosed) -> TrialFault:
        title = self._agent.spec.title
        if self._process is not None:
            self._monitor.stderr = self._process.stderr_tail
        if isinstance(error, RpcError):
            detail = _find_error_detail(error.data)
            message = f"{error.message}: {detail}" if detail else error.message
            if error.code == _AUTH_REQUIRED and not self._turn.build_reply().content:
                return Unreachable(f"{title} needs a login: {to_one_line(message)}")
            return self._monitor.find_fault(message) or AgentFailed(message)
        assert self._process is not None
        try:
            code = await self._process.wait()
        except TrialFault as fault:
            return fault
        self._monitor.stderr = self._process.stderr_tail
        if (fault := self._monitor.find_fault(None)) is not None:
            return fault
        output = self._monitor.output_tail()
        exit_text = f"exit code {code}" if code >= 0 else f"ended by signal {-code}"
        return AgentFailed(f"{exit_text}, without an answer" + (f": {output}" if output else ""))

    def _on_notification(self, method: str, params: Any) -> None:
        if method == "session/update" and self._is_prompt_running and isinstance(params, Mapping):
            for event in parse_update(params.get("update")):
                self._add_event(event)

    def _on_unparsed_line(self, line: bytes) -> None:
        self._monitor.add_unparsed_line(line)

    def _add_event(self, event: CliEvent) -> None:
        self._turn.add_event(event)
        if self._process is not None:
            self._monitor.add_event(event, self._process)

    async def _on_request(self, method: str, params: Any) -> Any:
        fields = cast("Mapping[str, Any]", params) if isinstance(params, Mapping) else {}
        match method:
            case "session/request_permission":
                return self._answer_permission(fields)
            case "fs/read_text_file" if self._agent.files:
                return {"content": _read_file(self._resolve_path(fields), fields.get("line"), fields.get("limit"))}
            case "fs/write_text_file" if self._agent.files:
                return _write_file(self._resolve_path(fields), str(fields.get("content") or ""))
            case _:
                raise RpcError(METHOD_NOT_FOUND, f"no method {method}")

    def _answer_permission(self, params: Mapping[str, Any]) -> Any:
        call: Any = params.get("toolCall")
        options: Any = params.get("options")
        if not isinstance(call, Mapping) or not isinstance(options, list):
            raise RpcError(INVALID_PARAMS, "session/request_permission needs `toolCall` and `options`")
        started = parse_tool_call(cast("Mapping[str, Any]", call))
        self._add_event(started)
        allowed = self._agent.allows_tool(self._turn.get_tool_name(started.id), get_tool_kind(call))
        if not allowed:
            self._add_event(ToolEnded(started.id, "refused", "permission denied"))
            self._add_event(InputRequested("permission-request", str(call.get("title") or started.name)))
        option = _choose_permission_option(cast("list[Any]", options), "allow" if allowed else "reject")
        outcome = {"outcome": "cancelled"} if option is None else {"outcome": "selected", "optionId": option}
        return {"outcome": outcome}

    def _resolve_path(self, params: Mapping[str, Any]) -> str:
        path = str(params.get("path") or "")
        is_valid = path and "\0" not in path
        resolved = self._workspace.resolve_inside(os.path.relpath(path, self._workspace.path)) if is_valid else None
        if resolved is None:
            raise RpcError(INVALID_PARAMS, f"{path} is not in the workspace")
        return resolved


async def _cancel_task(task: asyncio.Future[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _choose_permission_option(options: Sequence[Any], word: str) -> str | None:
    """The id of the option that allows or rejects once, else of the one that does so always. `word` is `allow` or `reject`."""
    kinds = {str(each.get("kind")): each.get("optionId") for each in options if isinstance(each, Mapping)}
    return next((str(kinds[kind]) for kind in (f"{word}_once", f"{word}_always") if kind in kinds), None)


def _read_file(path: str, line: Any, limit: Any) -> str:
    try:
        with open(open_regular_file(path), encoding="utf-8", errors="replace") as file:  # noqa: PTH123 -- a file descriptor
            if os.fstat(file.fileno()).st_size > _READ_BYTES:
                raise RpcError(INTERNAL_ERROR, f"{path} is too large")
            text = file.read()
    except FileNotFoundError:
        raise RpcError(RESOURCE_NOT_FOUND, f"Resource not found: {path}") from None
    except OSError as error:
        raise RpcError(INTERNAL_ERROR, f"{path}: {error.strerror}") from None
    if not isinstance(line, int) and not isinstance(limit, int):
        return text
    start = max(0, line - 1) if isinstance(line, int) else 0
    lines = text.splitlines(keepends=True)[start:]
    return "".join(lines[:limit] if isinstance(limit, int) else lines)


def _write_file(path: str, text: str) -> dict[str, Any]:
    try:
        opened = open_regular_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, make_folders=True)
        with open(opened, "wb") as file:  # noqa: PTH123 -- a file descriptor
            file.write(text.encode(errors="replace"))
    except OSError as error:
        raise RpcError(INTERNAL_ERROR, f"{path}: {error.strerror}") from None
    return {}


def _list_mcp_servers(url: str, initialized: Any) -> list[dict[str, Any]]:
    """The MCP server with the tools of the case, over HTTP if the agent can, else over standard input and output."""
    if not url:
        return []
    capabilities = as_object(as_object(as_object(initialized).get("agentCapabilities")).get("mcpCapabilities"))
    if capabilities.get("http") is True:
        return [{"type": "http", "name": MCP_SERVER, "url": url, "headers": []}]
    return [{"name": MCP_SERVER, "command": sys.executable, "args": ["-I", str(BRIDGE), url], "env": []}]


def _find_error_detail(data: Any) -> str:
    if isinstance(data, str):
        return data
    if isinstance(data, Mapping):
        return str(next((data[key] for key in ("details", "message", "detail") if data.get(key)), ""))
    return ""
