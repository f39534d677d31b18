"""Check contexts without a run, for tests of checks."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from viva.errors import HelperFailed, Role
from viva.model.case import Case, Key, TextScope, TurnScope, UserMessage
from viva.model.message import Message, Reply
from viva.model.turn import Turn
from viva.protocols import HelperSession
from viva.state.trial_state import CheckContext, TrialState


class SilentUser:
    """A user without messages."""

    planned_messages: Sequence[UserMessage] = ()
    simulator: str | None = None

    async def speak(self, state: TrialState) -> AsyncGenerator[UserMessage, None]:
        for line in self.planned_messages:
            yield line


class NoHelpers:
    """Helpers that always fail."""

    def open(
        self,
        role: Role,
        agent: str,
        state: TrialState | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> AbstractAsyncContextManager[HelperSession]:
        raise HelperFailed(role, f"no helper {agent} in this context")


class FrozenClock:
    """A clock without a time limit."""

    is_over: bool = False

    @asynccontextmanager
    async def pause(self) -> AsyncGenerator[None]:
        yield


def make_trial_state(
    *replies: Reply | str, inputs: Sequence[str] = (), metadata: Mapping[str, Any] | None = None
) -> TrialState:
    """Return the state of a conversation with these replies to `inputs` (default: `hello`), 100 ms per turn."""
    case = Case(id="case", user=SilentUser(), metadata=metadata or {})
    state = TrialState(case, Key("suite", "case"), NoHelpers(), FrozenClock())
    for number, reply in enumerate(replies, 1):
        text = inputs[number - 1] if number <= len(inputs) else "hello"
        answer = Reply(reply) if isinstance(reply, str) else reply
        state.turns.append(Turn(number, UserMessage(Message("user", text)), answer, latency_ms=100.0))
    return state


def make_check_context(
    *replies: Reply | str,
    on: TextScope = "reply",
    over: TurnScope = "turn",
    inputs: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> CheckContext:
    """Return the context of a check after the last of these replies."""
    state = make_trial_state(*(replies or ("",)), inputs=inputs, metadata=metadata)
    return CheckContext(state, state.turns[-1], on, over)
