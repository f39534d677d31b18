"""`ctx`: the object by which a script test or a hook calls agents."""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from msgspec import structs

from viva.model.case import UserMessage
from viva.session.loop import LoopBridge
from viva.session.messages import AgentReply, MessageInput, build_user_message

SendToAgent = Callable[[UserMessage], Coroutine[Any, Any, AgentReply]]
"""Sends a message to an agent, on the loop of the run."""


class _AgentCallContext:
    def __init__(self, send: SendToAgent, bridge: LoopBridge, variables: dict[str, Any]) -> None:
        self._send = send
        self._bridge = bridge
        self.variables = variables

    def _send_message(
        self, agent: str | None, messages: MessageInput, options: Mapping[str, Any] | None, timeout: str | float | None
    ) -> Coroutine[Any, Any, AgentReply]:
        message = build_user_message(messages, options=options, timeout=timeout)
        return self._send(structs.replace(message, agent=agent.removeprefix("agents:") if agent else None))


class Context(_AgentCallContext):
    """Calls agents for a script test or a hook: `reply = ctx.call("assistants.expense", "Hello")`.

    `variables` holds what hooks returned. Changes are visible to later hooks and tests.
    """

    def call(
        self,
        agent: str | None,
        messages: MessageInput,
        options: Mapping[str, Any] | None = None,
        *,
        timeout: str | float | None = None,
    ) -> AgentReply:
        """Send a text or messages (the last is sent, the others are the history) to an agent and return its reply.

        None calls the agent under test (`-n`). Raises AgentFailed if the agent fails, Unreachable if it cannot be
        reached.
        """
        __tracebackhide__ = True
        return self._bridge.run_blocking(self._send_message(agent, messages, options, timeout))


class AsyncContext(_AgentCallContext):
    """The `ctx` of an `async def`: `reply = await ctx.call("assistants.expense", "Hello")`. Otherwise like Context."""

    async def call(
        self,
        agent: str | None,
        messages: MessageInput,
        options: Mapping[str, Any] | None = None,
        *,
        timeout: str | float | None = None,  # noqa: ASYNC109 -- charged to the agent, so asyncio.timeout does not do
    ) -> AgentReply:
        """Like `Context.call`, but other tasks on the loop of the test continue while the agent replies."""
        __tracebackhide__ = True
        return await self._bridge.run_async(self._send_message(agent, messages, options, timeout))


def create_context(
    function: Callable[..., Any], send: SendToAgent, bridge: LoopBridge, variables: dict[str, Any]
) -> Context | AsyncContext:
    """An AsyncContext for an `async def`, else a Context."""
    kind = AsyncContext if inspect.iscoroutinefunction(function) else Context
    return kind(send, bridge, variables)
