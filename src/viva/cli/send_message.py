"""Sends messages to an agent outside of a run, and prints its replies."""

import asyncio
import secrets
import shutil
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TextIO

from msgspec import UNSET, Struct, structs

from viva import config
from viva.awaiting.detector import detect_awaiting
from viva.config import Settings
from viva.engine.helpers import HelperPool
from viva.engine.outcome import outcome_of_fault
from viva.engine.sending import build_session_options, merge_options, send_with_timeout
from viva.errors import AgentFailed, BadInput, TrialFault, Unreachable, VivaError
from viva.formats.load_options import DEFAULT_TIMEOUT_S
from viva.llm.budget import UNPRICED_WARNING, Budget
from viva.llm.transport import HttpTransport
from viva.model import codec
from viva.model.case import Case, Key
from viva.model.message import Message, Reply, Usage
from viva.model.progress import CallProgress
from viva.model.turn import AwaitingState
from viva.protocols import AgentSession, SessionContext, Workspace
from viva.record.redaction import Redactor
from viva.reporters.console_lines import format_traceback
from viva.reporters.formatting import escape_controls
from viva.session.agents import AgentFactory
from viva.session.options.run_options import AllRunOptions, CommandFlags
from viva.session.workspaces import WorkspaceProvider
from viva.state.trial_state import to_text
from viva.text.duration import format_duration
from viva.users.script import Script

_DIRECT_KEY = Key("", "direct")


class DirectSession(Struct, frozen=True):
    """A session with the agent under test, outside of a run."""

    name: str
    session: AgentSession
    options: dict[str, Any]
    settings: Settings
    redactor: Redactor
    helpers: HelperPool
    progress: CallProgress
    turn_timeout_s: float | None
    """The time limit for one reply."""

    async def send(self, message: Message) -> Reply:
        return await send_with_timeout(self.session, message, self.options, self.turn_timeout_s, self.progress)


@asynccontextmanager
async def open_direct_session(options: AllRunOptions) -> AsyncGenerator[DirectSession]:
    """Opens a session with the agent that the options name. Faults of the agent become VivaError, exit code 1."""
    if len(options.agents) > 1:
        raise BadInput.of("A message and a chat go to one agent. Pass -n once, or a suite of cases")
    options = structs.replace(options, folder=Path.cwd())
    settings = config.load_project(options.config, options.folder, options.env_file)
    agents = AgentFactory(settings, options.connector)
    agent = agents.find_agent_under_test(next(iter(options.agents), None), folder=options.folder)
    redactor = settings.redactor
    budget = Budget(options.max_cost_usd)
    if budget.max_usd is not None:
        budget.notify_on_unpriced_call(lambda: print(f"warning: --max-cost: {UNPRICED_WARNING}", file=sys.stderr))
    agent_options = merge_options(
        build_session_options(f"viva-{secrets.token_hex(4)}"),
        agent.options,
        {"connector": options.connector} if options.connector else {},
        {"model": options.agent_model} if options.agent_model else {},
    )
    async with AsyncExitStack() as stack:
        http = HttpTransport()
        stack.push_async_callback(http.close)
        workspaces = WorkspaceProvider(options, settings, [agent], ())
        workspace = await _open_workspace(stack, workspaces, agent.name)
        if workspace is not None:
            agent_options["workspace"] = workspace.path
        context = SessionContext(
            key=_DIRECT_KEY,
            options=agent.options,
            workspace=workspace,
            meter=budget.spend,
            http=http,
            connectors=settings.connectors,
            empty_workspaces=workspaces.empty_workspaces,
        )
        helpers = HelperPool(
            agents.find_helper, http, settings.connectors, empty_workspaces=workspaces.empty_workspaces
        )
        try:
            session = await stack.enter_async_context(agent.agent.open(context))
            turn_timeout_s = options.turn_timeout_s or settings.defaults.turn_timeout_s
            yield DirectSession(
                agent.name, session, agent_options, settings, redactor, helpers, context.progress, turn_timeout_s
            )
        except TrialFault as fault:
            lines = [outcome_of_fault(fault).message or ""]
            for traceback in context.progress.tracebacks:  # what the agent printed is on the screen already
                lines += format_traceback(traceback, shutil.get_terminal_size((100, 24)).columns)[1:]
            raise VivaError(redactor.redact_text("\n".join(lines))) from fault


async def _open_workspace(stack: AsyncExitStack, workspaces: WorkspaceProvider, agent: str) -> Workspace | None:
    """Opens the workspace of an agent that needs one, and prints notes and the path of a kept workspace."""
    for note in workspaces.describe_permissions():
        print(escape_controls(note), file=sys.stderr)
    spec = workspaces.assign_workspace(Case(id=_DIRECT_KEY.case, user=Script(())), agent).workspace
    if spec is None:
        return None
    workspace = await stack.enter_async_context(workspaces.open_workspace(spec, _DIRECT_KEY))
    if workspace.is_kept:
        print(f"workspace: {workspace.path}", file=sys.stderr)
    return workspace


async def send_messages(messages: list[str], options: AllRunOptions, flags: CommandFlags, out: TextIO) -> int:
    """Sends the messages in one conversation and prints the replies. --timeout limits all of them together."""
    if options.dry_run:
        print(f"{len(messages)} message{'s' if len(messages) > 1 else ''}; nothing sent")
        return 0
    async with open_direct_session(options) as agent:
        timeout_s = options.timeout_s or agent.settings.defaults.timeout_s or DEFAULT_TIMEOUT_S
        timeout = asyncio.timeout(timeout_s)
        try:
            async with timeout:
                for text in messages:
                    await _send_message(agent, text, flags, out)
        except TimeoutError:
            if not timeout.expired():
                raise
            message, trouble = f"timeout after {format_duration(timeout_s)}", agent.progress.provider_trouble
            raise (Unreachable(f"{message}: {trouble}") if trouble else AgentFailed(message)) from None
    return 0


async def _send_message(agent: DirectSession, text: str, flags: CommandFlags, out: TextIO) -> None:
    """Sends one message and prints the reply."""
    started = time.perf_counter()
    reply = await agent.send(Message("user", text))
    elapsed_ms = (time.perf_counter() - started) * 1e3
    awaiting = detect_awaiting(reply, frozenset(agent.settings.confirmation_tools))
    reply = agent.redactor.redact(reply)
    if flags.as_json:
        fields = {
            **codec.to_plain(reply),
            "awaiting_input": awaiting.is_awaiting,
            "awaiting_reason": awaiting.reason,
        }
        lines = [codec.compact_json(fields)]
    elif flags.quiet:
        lines = format_reply_text(reply)
    else:
        lines = format_reply(reply, awaiting, elapsed_ms if flags.verbose else None)
    print("\n".join(lines), file=out, flush=True)


def format_reply_text(reply: Reply) -> list[str]:
    """The lines of a reply's content and data."""
    lines = [escape_controls(line) for line in reply.content.splitlines()] if reply.content else []
    return lines if reply.data is None else [*lines, escape_controls(to_text(reply.data))]


def format_reply(reply: Reply, awaiting: AwaitingState, elapsed_ms: float | None) -> list[str]:
    """The lines of a reply's text, tool calls and awaiting state; with `elapsed_ms` also tool results and the time."""
    lines = format_reply_text(reply)
    for call in reply.tool_calls:
        arguments = to_text(call.arguments) if call.arguments is not None else ""
        error = f" ✗ {call.error}" if call.error else ""
        lines.append(escape_controls(f"[tool: {call.name}({arguments})]{error}"))
        if elapsed_ms is not None and call.result is not UNSET:
            lines.append(escape_controls(f"  {to_text(call.result)}"))
    hint = f", hint: {escape_controls(reply.input_hint)}" if reply.input_hint else ""
    tokens = Usage.of(reply.calls).total_tokens
    usage = f", {tokens} tokens" if tokens else ""
    elapsed = "" if elapsed_ms is None else f", {format_duration(round(elapsed_ms) / 1e3)}"
    if elapsed_ms is not None and reply.first_token_ms is not None:
        elapsed += f", first token {format_duration(round(reply.first_token_ms) / 1e3)}"
    state = "awaiting input" if awaiting.is_awaiting else "not awaiting input"
    lines.append(f"({state}: {awaiting.reason}{hint}{usage}{elapsed})")
    return lines
