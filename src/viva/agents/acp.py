"""An agent that speaks the Agent Client Protocol: one process a conversation, one prompt a turn.

    -n "acp:gemini --acp"            or in viva.toml: type = "acp", command = "gemini --acp"

Its requests for permission are answered by policy. One that was denied means that the agent waits for somebody to allow
it: the reply's protocol state says so. With `files` it may read and write files of the workspace through us, and no
others; without, it does that by itself, as the CLI does (the Gemini CLI 0.61 makes no new file through its client).
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from msgspec import UNSET, Meta, Struct, UnsetType

from viva.agents.acp_updates import get_tool_kind, parse_tool_call, parse_update, parse_usage
from viva.agents.agent_config import AgentSetup, AgentStatus, NonEmpty
from viva.agents.cli.claude import CLAUDE
from viva.agents.cli.cli_agent import (
    Command,
    ProcessConfig,
    add_keys_to_secrets,
    inspect_program,
    prepare_environment,
    prepend_history,
    split_command,
)
from viva.agents.cli.codex import CODEX
from viva.agents.cli.events import CliEvent, CliTurn, EndReported, InputRequested, SessionStarted, ToolEnded
from viva.agents.cli.gemini import GEMINI
from viva.agents.cli.installation import find_executable
from viva.agents.cli.monitor import OutputMonitor
from viva.agents.cli.opencode import OPENCODE
from viva.agents.cli.output_text import to_one_line
from viva.agents.cli.place import open_cli_workspace
from viva.agents.cli.qwen import QWEN
from viva.agents.cli.spec import CliSpec, TurnRequest
from viva.agents.json_rpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    ConnectionClosed,
    JsonRpcConnection,
    RpcError,
)
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
_SPECS = {
    "gemini": GEMINI, "qwen": QWEN, "opencode": OPENCODE,
    "claude-code-acp": CLAUDE, "claude-agent-acp": CLAUDE, "codex-acp": CODEX,
}  # fmt: skip
_BY_FLAG = frozenset({"gemini", "qwen"})
"""They take the model on their command line, and not over the protocol."""


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
    def parse_reference(cls, reference: str) -> dict[str, Any] | None:
        return {"command": reference.removeprefix("acp:")} if reference.startswith("acp:") else None

    def build(self, setup: AgentSetup) -> "AcpAgent":
        if not self.command:
            raise setup.error("misses `command`")
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
        """What is known of the command beside the protocol."""
        name = Path(self.command[0]).name
        unknown = CliSpec(name=name, title=name, build_argv=lambda _request: [], parse_line=lambda _line: ())
        return _SPECS.get(name, unknown)

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
    """One conversation. The process starts with the first message, which may say what model it shall speak to."""

    def __init__(
        self, agent: AcpAgent, context: SessionContext, workspace: Workspace, executable: str, stack: AsyncExitStack
    ) -> None:
        self._agent, self._context, self._workspace = agent, context, workspace
        self._executable, self._stack = executable, stack
        self._process: Process | None = None
        self._wire: JsonRpcConnection | None = None
        self._id = ""
        self._model = ""
        self._turn = CliTurn()
        self._watch = OutputMonitor(agent.spec, self._turn)
        self._open = False

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        if message.attachments:
            names = ", ".join(each.name or each.source for each in message.attachments)
            raise Undetermined(f"an agent behind ACP is given text only here, and this message comes with {names}")
        model = str(options.get("model") or self._agent.model)
        self._turn = turn = CliTurn(model=model)
        self._watch = OutputMonitor(self._agent.spec, turn)
        text = message.text if self._wire is not None else prepend_history(self._context.history, message.text)
        patience = asyncio.timeout(None)
        try:
            async with patience:
                await self._prompt(text, model, patience)
        except TimeoutError:
            if not patience.expired():
                raise
            raise self._watch.find_fault(None) or AgentFailed("it waits for a login") from None
        except asyncio.CancelledError:
            await run_to_completion(self._cancel())
            raise
        except (RpcError, ConnectionClosed) as wrong:
            raise await self._fault(wrong) from wrong
        finally:
            self._open = False
            for call in turn.usage:
                self._context.meter(call)
            self._report(turn)
        if turn.end is not None and turn.end.finish_reason == "cancelled":
            raise AgentFailed("it ended the turn as cancelled, and nobody had cancelled it")
        return turn.build_reply()

    def _report(self, turn: CliTurn) -> None:
        """What is known of the turn, for a turn that ends without a usable reply."""
        progress = self._context.progress
        progress.partial = turn.build_reply()
        if self._process is not None:
            self._watch.stderr = self._process.stderr_tail
        self._watch.report_progress(progress)

    async def _prompt(self, text: str, model: str, patience: asyncio.Timeout) -> None:
        wire = self._wire or await self._start(model, patience)
        self._turn.add_event(SessionStarted(self._id))
        await self._choose(wire, model)
        self._open = True  # what comes before is not about this message
        prompt = {"sessionId": self._id, "prompt": [{"type": "text", "text": text}]}
        result = await wire.request("session/prompt", prompt, self._shut)
        for event in parse_usage(result):
            self._turn.add_event(event)
        reason = cast("Mapping[str, Any]", result).get("stopReason") if isinstance(result, Mapping) else None
        if not isinstance(reason, str):
            raise AgentFailed("its answer to the prompt says no reason to stop: the turn has no end")
        self._turn.add_event(EndReported(None, reason))

    def _shut(self) -> None:
        self._open = False

    async def _start(self, model: str, patience: asyncio.Timeout) -> JsonRpcConnection:
        agent, workspace = self._agent, self._workspace
        env = prepare_environment(agent.spec, agent.host, workspace, agent.env, agent.login)
        env = {**agent.spec.build_variables(TurnRequest(prompt="", model=model, env=env)), **env}
        flags = [f"--model={model}"] if model and agent.spec.name in _BY_FLAG else []
        argv = workspace.sandbox_command([self._executable, *agent.command[1:], *flags, *agent.args])
        process = await self._stack.enter_async_context(run_command(argv, cwd=workspace.path, env=env, stdin=True))
        self._process, self._model = process, model if flags else ""
        self._wire = wire = JsonRpcConnection(process, self._asked, self._told, self._noise)
        for beside in (wire.listen(), self._watch.watch_for_login(process, patience)):
            self._stack.push_async_callback(_ended, asyncio.ensure_future(beside))
        files = {"readTextFile": agent.files, "writeTextFile": agent.files}
        await wire.request(
            "initialize",
            {"protocolVersion": _VERSION, "clientCapabilities": {"fs": files, "terminal": False}},
        )
        if agent.auth_method:
            await wire.request("authenticate", {"methodId": agent.auth_method})
        opened = await wire.request("session/new", {"cwd": workspace.path, "mcpServers": []})
        self._id = str(cast("Mapping[str, Any]", opened).get("sessionId") or "") if isinstance(opened, Mapping) else ""
        if not self._id:
            raise AgentFailed("it opened a session without an id")
        if agent.mode:
            await wire.request("session/set_mode", {"sessionId": self._id, "modeId": agent.mode})
        return wire

    async def _choose(self, wire: JsonRpcConnection, model: str) -> None:
        """Asks for the model, in the one or the other way that agents know."""
        if not model or model == self._model:
            return
        self._model = model
        asked = {"sessionId": self._id}
        try:
            await wire.request("session/set_config_option", {**asked, "configId": "model", "value": model})
        except RpcError as first:
            if first.code not in (METHOD_NOT_FOUND, INVALID_PARAMS):
                raise
            await wire.request("session/set_model", {**asked, "modelId": model})

    async def _cancel(self) -> None:
        """Lets the agent know, and leaves it a moment."""
        if self._wire is not None and self._id:
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(_CANCEL_S):
                    await self._wire.notify("session/cancel", {"sessionId": self._id})

    async def _fault(self, wrong: RpcError | ConnectionClosed) -> TrialFault:
        title = self._agent.spec.title
        if self._process is not None:
            self._watch.stderr = self._process.stderr_tail
        if isinstance(wrong, RpcError):
            said = f"{wrong.message}: {_detail(wrong.data)}" if _detail(wrong.data) else wrong.message
            if wrong.code == _AUTH_REQUIRED and not self._turn.build_reply().content:
                return Unreachable(f"{title} needs a login: {to_one_line(said)}")
            return self._watch.find_fault(said) or AgentFailed(said)
        assert self._process is not None
        try:
            code = await self._process.wait()
        except TrialFault as unstartable:
            return unstartable
        self._watch.stderr = self._process.stderr_tail
        if (fault := self._watch.find_fault(None)) is not None:
            return fault
        words = self._watch.output_tail()
        how = f"exit code {code}" if code >= 0 else f"ended by signal {-code}"
        return AgentFailed(f"{how}, without an answer" + (f": {words}" if words else ""))

    def _told(self, method: str, params: Any) -> None:
        if method == "session/update" and self._open and isinstance(params, Mapping):
            for event in parse_update(params.get("update")):
                self._take(event)

    def _noise(self, line: bytes) -> None:
        self._watch.add_other_line(line)

    def _take(self, event: CliEvent) -> None:
        self._turn.add_event(event)
        if self._process is not None:
            self._watch.add_event(event, self._process)

    async def _asked(self, method: str, params: Any) -> Any:
        known = cast("Mapping[str, Any]", params) if isinstance(params, Mapping) else {}
        match method:
            case "session/request_permission":
                return self._permission(known)
            case "fs/read_text_file" if self._agent.files:
                return {"content": _read(self._place(known), known.get("line"), known.get("limit"))}
            case "fs/write_text_file" if self._agent.files:
                return _write(self._place(known), str(known.get("content") or ""))
            case _:
                raise RpcError(METHOD_NOT_FOUND, f"no method {method}")

    def _permission(self, params: Mapping[str, Any]) -> Any:
        call: Any = params.get("toolCall")
        options: Any = params.get("options")
        if not isinstance(call, Mapping) or not isinstance(options, list):
            raise RpcError(INVALID_PARAMS, "a permission is asked for with `toolCall` and `options`")
        about = parse_tool_call(cast("Mapping[str, Any]", call))
        self._take(about)
        allowed = self._agent.allows_tool(self._turn.get_tool_name(about.id), get_tool_kind(call))
        if not allowed:
            self._take(ToolEnded(about.id, "refused", "the permission that it asked for was denied"))
            self._take(InputRequested("permission-request", str(call.get("title") or about.name)))
        chosen = _option(cast("list[Any]", options), "allow" if allowed else "reject")
        outcome = {"outcome": "cancelled"} if chosen is None else {"outcome": "selected", "optionId": chosen}
        return {"outcome": outcome}

    def _place(self, params: Mapping[str, Any]) -> str:
        path = str(params.get("path") or "")
        named = path and "\0" not in path
        place = self._workspace.resolve_inside(os.path.relpath(path, self._workspace.path)) if named else None
        if place is None:
            raise RpcError(INVALID_PARAMS, f"{path} is not in the workspace")
        return place


async def _ended(task: asyncio.Future[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _option(options: Sequence[Any], word: str) -> str | None:
    """The option that says so for this once, else the one that says so for ever."""
    kinds = {str(each.get("kind")): each.get("optionId") for each in options if isinstance(each, Mapping)}
    return next((str(kinds[kind]) for kind in (f"{word}_once", f"{word}_always") if kind in kinds), None)


def _read(path: str, line: Any, limit: Any) -> str:
    try:
        with open(open_regular_file(path), encoding="utf-8", errors="replace") as file:  # noqa: PTH123 -- it is open already
            if os.fstat(file.fileno()).st_size > _READ_BYTES:
                raise RpcError(INTERNAL_ERROR, f"{path} is too large")
            text = file.read()
    except FileNotFoundError:
        raise RpcError(RESOURCE_NOT_FOUND, f"Resource not found: {path}") from None
    except OSError as wrong:
        raise RpcError(INTERNAL_ERROR, f"{path}: {wrong.strerror}") from None
    if not isinstance(line, int) and not isinstance(limit, int):
        return text
    start = max(0, line - 1) if isinstance(line, int) else 0
    lines = text.splitlines(keepends=True)[start:]
    return "".join(lines[:limit] if isinstance(limit, int) else lines)


def _write(path: str, text: str) -> dict[str, Any]:
    try:
        opened = open_regular_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, make_folders=True)
        with open(opened, "wb") as file:  # noqa: PTH123 -- it is open already
            file.write(text.encode(errors="replace"))
    except OSError as wrong:
        raise RpcError(INTERNAL_ERROR, f"{path}: {wrong.strerror}") from None
    return {}


def _detail(data: Any) -> str:
    if isinstance(data, str):
        return data
    if isinstance(data, Mapping):
        return str(next((data[key] for key in ("details", "message", "detail") if data.get(key)), ""))
    return ""
