"""`ctx`: how a script test or a hook calls agents."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import structs

from viva.model.case import Utterance
from viva.session.spoken import Heard, Words, line_from


class Context:
    """Calls agents for a script test or a hook: `reply = ctx.call("assistants.expense", "Hello")`.

    `variables` are what hooks returned; what a test or hook puts there is seen by those that come after it.
    """

    def __init__(self, ask: Callable[[Utterance], Heard], variables: dict[str, Any] | None = None) -> None:
        self._ask = ask
        self.variables = {} if variables is None else variables

    def call(
        self,
        agent: str | None,
        messages: Words,
        options: Mapping[str, Any] | None = None,
        *,
        timeout: str | float | None = None,
    ) -> Heard:
        """Sends a text or messages (the last is sent, the others were said before) to an agent, and gives its reply.

        None calls the agent under test (`-n`). An agent that breaks raises AgentFailed; one that cannot be reached,
        Unreachable.
        """
        __tracebackhide__ = True
        line = line_from(messages, options=options, timeout=timeout)
        return self._ask(structs.replace(line, to=agent.removeprefix("agents:") if agent else None))
