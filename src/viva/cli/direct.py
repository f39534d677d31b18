"""A message sent as it is: the reply, its tool calls and whether the agent waits. No verdict."""

import secrets
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TextIO

import click
from msgspec import Struct

from viva import catalog, config
from viva.config import Settings
from viva.engine.awaiting import detect
from viva.engine.helpers import Crew
from viva.engine.outcome import blamed
from viva.engine.sending import sent
from viva.errors import TrialFault, VivaError
from viva.formats.reading import TIMEOUT_S
from viva.llm.transport import HttpTransport
from viva.model.case import Case, Key
from viva.model.message import Message, ModelCall, Reply, Usage
from viva.model.progress import CallProgress
from viva.model.talk import Awaiting, shown
from viva.protocols import AgentSession, SessionContext, Workspace
from viva.record.redaction import Redactor
from viva.reporters.visible import visible
from viva.session.agents import Agents, NamedAgent
from viva.session.options import RunOptions
from viva.session.workspaces import Places
from viva.users.script import Script

_KEY = Key("", "direct")


class Opened(Struct, frozen=True):
    """A session with the agent under test, outside of any run."""

    name: str
    session: AgentSession
    options: dict[str, Any]
    settings: Settings
    redactor: Redactor
    crew: Crew
    progress: CallProgress


@asynccontextmanager
async def opened(flags: dict[str, Any]) -> AsyncGenerator[Opened]:
    """Opens the agent that the flags name. What it breaks with is said as it is, and the exit code is 1."""
    settings = config.load(flags["config"], Path.cwd(), flags["env_file"])
    catalog.load_plugins(settings.plugins, settings.folder)
    agents = Agents(settings, flags["connector"])
    agent = agents.under_test(flags["agent"], folder=Path.cwd())
    redactor = settings.redactor
    calls: list[ModelCall] = []
    options = {"session_id": f"viva-{secrets.token_hex(4)}", "referer": "agent-test", **agent.options}
    if flags["agent_model"]:
        options["model"] = flags["agent_model"]
    async with AsyncExitStack() as stack:
        http = HttpTransport()
        stack.push_async_callback(http.close)
        places = _places(flags, settings, agent)
        workspace = await _placed(stack, places)
        if workspace is not None:
            options["workspace"] = workspace.path
        context = SessionContext(
            key=_KEY,
            options=agent.options,
            workspace=workspace,
            meter=calls.append,
            http=http,
            connectors=settings.connectors,
            spare_workspaces=places.spare,
        )
        crew = Crew(agents.find, http, settings.connectors, spare_workspaces=places.spare)
        try:
            session = await stack.enter_async_context(agent.agent.open(context))
            yield Opened(agent.name, session, options, settings, redactor, crew, context.progress)
        except TrialFault as fault:
            raise VivaError(redactor.text(blamed(fault).said or "")) from fault


def _places(flags: dict[str, Any], settings: Settings, agent: NamedAgent) -> Places:
    asked = RunOptions(
        inputs=(),
        folder=Path.cwd(),
        workspace=flags["workspace"],
        keep_workspace=flags["keep_workspace"],
        sandbox=flags["sandbox"],
    )
    return Places(asked, settings, agent, ())


async def _placed(stack: AsyncExitStack, places: Places) -> Workspace | None:
    """The folder that the agent works in, if it is one that lives in a folder, and what somebody should know of that."""
    for note in places.notes():
        print(visible(note), file=sys.stderr)
    spec = places.placed(Case(id=_KEY.case, user=Script(()))).workspace
    if spec is None:
        return None
    workspace = await stack.enter_async_context(places.opened(spec, _KEY))
    if workspace.kept:
        print(f"workspace: {workspace.path}", file=sys.stderr)
    return workspace


async def send_messages(words: list[str], flags: dict[str, Any]) -> int:
    """Sends each message in turn, in one conversation."""
    if flags["outputs"]:
        raise click.UsageError("a message has no report; -o needs cases")
    if flags["dry_run"]:
        print(f"{len(words)} message{'s' if len(words) > 1 else ''}; nothing was sent")
        return 0
    async with opened(flags) as agent:
        defaults = agent.settings.defaults
        limit_s = flags["turn_timeout"] or flags["timeout"] or defaults.turn_timeout_s or defaults.timeout_s
        for text in words:
            reply = await sent(
                agent.session, Message("user", text), agent.options, limit_s or TIMEOUT_S, agent.progress
            )
            found = detect(reply, frozenset(agent.settings.confirmation_tools))
            _print(agent.redactor.record(reply), found, flags["out"], as_json=flags["as_json"])
    return 0


def _print(reply: Reply, found: Awaiting, out: TextIO, *, as_json: bool) -> None:
    if as_json:
        from viva.model import codec

        said = {**codec.plain(reply), "awaiting_input": found.awaiting, "awaiting_reason": found.reason}
        print(codec.compact(said), file=out, flush=True)
        return
    for line in reply_lines(reply, found):
        print(line, file=out)


def reply_lines(reply: Reply, awaiting: Awaiting) -> list[str]:
    """All that there is to see of a reply."""
    lines = [visible(line) for line in reply.content.splitlines()] if reply.content else []
    if reply.data is not None:
        lines.append(visible(shown(reply.data)))
    for call in reply.tool_calls:
        end = f" ✗ {call.error}" if call.error else ""
        lines.append(
            visible(f"[tool: {call.name}({shown(call.arguments) if call.arguments is not None else ''})]{end}")
        )
    hint = f", hint: {visible(reply.input_hint)}" if reply.input_hint else ""
    lines.append(
        f"({'awaiting input' if awaiting.awaiting else 'not awaiting input'}: {awaiting.reason}{hint}{_used(reply)})"
    )
    return lines


def _used(reply: Reply) -> str:
    usage = Usage.of(reply.calls)
    return f", {usage.total_tokens} tokens" if usage.total_tokens else ""
