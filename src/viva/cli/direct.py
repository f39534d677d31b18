"""A message sent as it is: the reply, its tool calls and whether the agent waits. No verdict."""

import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from viva import catalog, config
from viva.engine.awaiting import detect
from viva.engine.outcome import blamed
from viva.errors import TrialFault
from viva.llm.transport import HttpTransport
from viva.model.case import Key
from viva.model.message import Message, ModelCall, Reply, Usage
from viva.model.talk import shown
from viva.protocols import AgentSession, SessionContext
from viva.reporters.visible import visible
from viva.session.agents import Agents
from viva.session.redaction import Redactor


async def send_messages(words: list[str], flags: dict[str, Any]) -> int:
    """Sends each message in turn, in one conversation."""
    settings = config.load(flags["config"], Path.cwd(), flags["env_file"])
    catalog.load_plugins(settings.plugins)
    agent = Agents(settings, flags["connector"]).under_test(flags["agent"])
    redactor = Redactor(settings.secrets)
    calls: list[ModelCall] = []
    options = {"session_id": "viva-direct", "referer": "agent-test", **agent.options}
    async with AsyncExitStack() as stack:
        http = HttpTransport()
        stack.push_async_callback(http.close)
        context = SessionContext(
            key=Key("", "direct"), options=agent.options, meter=calls.append, http=http, connectors=settings.connectors
        )
        try:
            session = await stack.enter_async_context(agent.agent.open(context))
            for text in words:
                await _one(session, text, options, redactor, as_json=flags["as_json"])
        except TrialFault as fault:
            print(redactor.text(blamed(fault).said or ""), file=sys.stderr)
            return 1
    return 0


async def _one(session: AgentSession, text: str, options: dict[str, Any], redactor: Redactor, *, as_json: bool) -> None:
    reply = redactor.record(await session.send(Message("user", text), options))
    if as_json:
        from viva.model import codec

        print(codec.compact(reply))
        return
    for line in _lines(reply):
        print(line)


def _lines(reply: Reply) -> list[str]:
    lines = [visible(line) for line in reply.content.splitlines()] if reply.content else []
    if reply.data is not None:
        lines.append(visible(shown(reply.data)))
    for call in reply.tool_calls:
        end = f" ✗ {call.error}" if call.error else ""
        lines.append(
            visible(f"[tool: {call.name}({shown(call.arguments) if call.arguments is not None else ''})]{end}")
        )
    awaiting = detect(reply)
    hint = f", hint: {visible(reply.input_hint)}" if reply.input_hint else ""
    lines.append(
        f"({'awaiting input' if awaiting.awaiting else 'not awaiting input'}: {awaiting.reason}{hint}{_used(reply)})"
    )
    return lines


def _used(reply: Reply) -> str:
    usage = Usage.of(reply.calls)
    return f", {usage.total_tokens} tokens" if usage.total_tokens else ""
