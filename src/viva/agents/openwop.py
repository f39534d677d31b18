"""An agent on an OpenWOP host: `openwop:https://host#agent.id`.

Evals of the protocol return scores, not replies. A reply is the output of a run of the workflow `viva.agent`, whose root
is the agent. Viva hosts have that workflow; other hosts refuse the run, and the turn fails with their error. Each turn sends the whole
conversation. Tool calls have names only: the protocol has no place for arguments.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any
from urllib.parse import urlsplit

from msgspec import UNSET, Struct, UnsetType

from viva.agents.agent_config import AgentConfig, AgentSetup, AgentStatus, NonEmpty, inspect_url
from viva.agents.json_objects import as_object
from viva.agents.openwop_client import HostClient, HostRefused
from viva.errors import AgentFailed, TrialFault, Undetermined, Unreachable
from viva.model.case import Feature
from viva.model.connector import Secret
from viva.model.message import MAX_TOKEN_COUNT, Message, ModelCall, Reply, ToolCall
from viva.protocols import SessionContext, WorkspaceFactory
from viva.state.trial_state import to_text
from viva.text.credentials import mask_url_credentials

WORKFLOW = "viva.agent"
PREFIX = "openwop:"
_HOST_FAULTS = frozenset({"agent_unreachable", "agent_gone", "host_restarted", "internal_error"})
"""Codes with which a host of Viva ends a run for reasons that are not the agent's."""
_CANCEL_S = 2.0
TOKEN_VARIABLE = "OPENWOP_TOKEN"  # noqa: S105 -- the name of a variable


class OpenwopConfig(AgentConfig, frozen=True, kw_only=True):
    """An agent on an OpenWOP host: a server that runs agents and eval suites by the OpenWOP standard."""

    use: NonEmpty = ""
    """A reference: openwop:https://host#agent.id."""
    token: NonEmpty | UnsetType = UNSET
    """The host's bearer token, best as ${NAME}; else OPENWOP_TOKEN of the environment."""

    @classmethod
    def parse_reference(cls, reference: str) -> dict[str, Any]:
        return {"use": reference}

    def build(self, setup: AgentSetup) -> "OpenwopAgent":
        url, agent = parse_reference(self.use)
        token = setup.expand(self.token, "token") if self.token else setup.environ.get(TOKEN_VARIABLE)
        setup.add_secrets([token] if token else [])
        return OpenwopAgent(url=url, agent=agent, token=Secret(token) if token else None)


class OpenwopAgent(Struct, frozen=True, kw_only=True):
    """An agent of a host, and the token for it."""

    url: str
    agent: str
    token: Secret | None = None

    @property
    def provides(self) -> frozenset[Feature]:
        return frozenset()

    def open(self, context: SessionContext) -> AbstractAsyncContextManager["OpenwopSession"]:
        return nullcontext(OpenwopSession(self, context))

    async def inspect(self, _workspaces: WorkspaceFactory) -> AgentStatus:
        return await inspect_url(self.url)


def parse_reference(text: str) -> tuple[str, str]:
    """URL and agent of `openwop:URL#agent`. ValueError says what is missing."""
    address, _, agent = text.removeprefix(PREFIX).partition("#")
    host = parse_host_url(address, "openwop:https://host#agent.id")
    if not agent:
        raise ValueError(
            f"{mask_url_credentials(text)!r} does not name an agent: write openwop:{mask_url_credentials(address)}#agent.id"
        )
    return host, agent


def parse_host_url(text: str, example: str) -> str:
    """The URL of a host, without a trailing slash. ValueError says what is wrong with it."""
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    if "@" in parts.netloc:
        raise ValueError("the address must not contain a token: set OPENWOP_TOKEN or `token` in viva.toml")
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise ValueError(f"{mask_url_credentials(text)!r} does not name a host: write {example}")
    return text.rstrip("/")


class OpenwopSession:
    """One conversation. The host keeps no state: each turn sends all messages."""

    def __init__(self, agent: OpenwopAgent, context: SessionContext) -> None:
        self._agent = agent
        self._context = context
        self._host = HostClient(url=agent.url, token=agent.token, http=context.http, progress=context.progress)
        self._messages = [_encode_message(message) for message in context.history]

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        if message.attachments:
            raise AgentFailed("attachments cannot be sent to an agent on an OpenWOP host")
        self._messages.append(_encode_message(message))
        run = await self._start_run()
        reply = Reply()
        calls: list[ModelCall] = []
        tools: list[ToolCall] = []
        try:
            async for event in self._host.iterate_events(run, "debug"):
                payload = as_object(event.get("payload"))
                match event["type"]:
                    case "provider.usage":
                        calls.append(_read_model_call(payload))
                        self._context.meter(calls[-1])
                    case "agent.toolReturned":
                        failed = "failed" if payload.get("status", "ok") != "ok" else None
                        tools.append(ToolCall(str(payload.get("toolName")), error=failed))
                    case "run.completed":
                        reply = _build_reply(payload, tuple(calls), tuple(tools))
                    case "run.failed" | "run.cancelled":
                        raise _build_failure(event["type"], as_object(payload.get("error")))
                    case _:
                        pass
        except BaseException:
            await self._cancel_run(run)
            raise
        self._messages.append({"role": "assistant", "content": reply.content or to_text(reply.data)})
        return reply

    async def _start_run(self) -> str:
        body = {"workflowId": WORKFLOW, "agentId": self._agent.agent, "inputs": {"messages": self._messages}}
        try:
            return await self._host.create_run(body)
        except HostRefused as refused:
            if refused.field == "agentId":
                raise Unreachable(
                    f"{self._agent.url} has no agent {self._agent.agent!r}", deterministic=True
                ) from refused
            if refused.status in (400, 404, 501) and refused.field != "inputs":
                what = f"has no workflow {WORKFLOW!r}: without it an OpenWOP host returns scores, not replies"
                raise Unreachable(f"{self._agent.url} {what}", deterministic=True) from refused
            if refused.status == 400:
                raise AgentFailed(refused.message) from refused
            raise

    async def _cancel_run(self, run: str) -> None:
        """Asks the host to cancel a run, with a short time limit: a turn that is cut off does not wait. A failure is ignored."""
        with suppress(Unreachable, TimeoutError):
            async with asyncio.timeout(_CANCEL_S):
                await self._host.post(f"/v1/runs/{run}/cancel", {})


def _encode_message(message: Message) -> dict[str, Any]:
    encoded: dict[str, Any] = {"role": message.role, "content": message.text}
    return encoded if message.data is None else {**encoded, "data": message.data}


def _read_model_call(payload: Mapping[str, Any]) -> ModelCall:
    usd = payload.get("currency", "USD") == "USD"  # other currencies are not converted: the cost is unknown
    return ModelCall(
        model=str(payload.get("model", "")),
        provider=str(payload.get("provider", "")),
        input_tokens=int(_read_number(payload.get("inputTokens")) or 0),
        output_tokens=int(_read_number(payload.get("outputTokens")) or 0),
        cost_usd=0.0 if payload.get("cacheHit") else _read_number(payload.get("costEstimateUsd")) if usd else None,
    )


def _read_number(value: Any) -> float | None:
    """A number between 0 and the maximum; None for anything else."""
    return value if type(value) in (int, float) and 0 <= value <= MAX_TOKEN_COUNT else None


def _build_failure(event: str, error: Mapping[str, Any]) -> TrialFault:
    """The fault of a run without a reply. A run that was cancelled on the host is not the fault of the agent."""
    message = str(error.get("message") or event)
    code = error.get("code")
    if event == "run.cancelled" or code in _HOST_FAULTS:
        return Unreachable(message, deterministic=code == "agent_gone")
    return Undetermined(message) if code == "failure_undetermined" else AgentFailed(message)


def _build_reply(payload: Mapping[str, Any], calls: tuple[ModelCall, ...], tools: tuple[ToolCall, ...]) -> Reply:
    outputs = as_object(payload.get("outputs"))
    output = outputs.get("output")
    text = output if isinstance(output, str) else ""
    refused = "content_filter" if outputs.get("outcome") == "refused" else None
    data = None if isinstance(output, str) else output
    return Reply(content=text, data=data, tool_calls=tools, calls=calls, finish_reason=refused)
