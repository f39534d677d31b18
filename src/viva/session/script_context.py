"""`ctx`: how a script test or a hook calls agents."""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from msgspec import structs

from viva.model.case import UserMessage
from viva.session.loop_bridge import LoopBridge
from viva.session.messages import AgentReply, MessageInput, build_user_message

SendToAgent = Callable[[UserMessage], Coroutine[Any, Any, AgentReply]]
"""Says a line to an agent, on the loop where agents are reached."""


class Context:
    """Calls agents for a script test or a hook: `reply = ctx.call("assistants.expense", "Hello")`.

    `variables` are what hooks returned; what a test or hook puts there is seen by those that come after it.
    """

    def __init__(self, ask: SendToAgent, bridge: LoopBridge, variables: dict[str, Any]) -> None:
        self._ask = ask
        self._bridge = bridge
        self.variables = variables

    def call(
        self,
        agent: str | None,
        messages: MessageInput,
        options: Mapping[str, Any] | None = None,
        *,
        timeout: str | float | None = None,
    ) -> AgentReply:
        """Sends a text or messages (the last is sent, the others were said before) to an agent, and gives its reply.

        None calls the agent under test (`-n`). An agent that breaks raises AgentFailed; one that cannot be reached,
        Unreachable.
        """
        __tracebackhide__ = True
        return self._bridge.run_blocking(self._ask(_line(agent, messages, options, timeout)))


class AsyncContext:
    """The `ctx` of an `async def`: `reply = await ctx.call("assistants.expense", "Hello")`. All else is as in Context."""

    def __init__(self, ask: SendToAgent, bridge: LoopBridge, variables: dict[str, Any]) -> None:
        self._ask = ask
        self._bridge = bridge
        self.variables = variables

    async def call(
        self,
        agent: str | None,
        messages: MessageInput,
        options: Mapping[str, Any] | None = None,
        *,
        timeout: str | float | None = None,  # noqa: ASYNC109 -- whose time it is, the agent's, has to be told
    ) -> AgentReply:
        """As `Context.call`; what else the test has on its loop goes on meanwhile."""
        __tracebackhide__ = True
        return await self._bridge.run_async(self._ask(_line(agent, messages, options, timeout)))


def create_context(
    function: Callable[..., Any], ask: SendToAgent, bridge: LoopBridge, variables: dict[str, Any]
) -> Context | AsyncContext:
    """The `ctx` that fits a function: whoever can await, awaits."""
    kind = AsyncContext if inspect.iscoroutinefunction(function) else Context
    return kind(ask, bridge, variables)


def _line(
    agent: str | None, messages: MessageInput, options: Mapping[str, Any] | None, timeout: str | float | None
) -> UserMessage:
    line = build_user_message(messages, options=options, timeout=timeout)
    return structs.replace(line, agent=agent.removeprefix("agents:") if agent else None)
