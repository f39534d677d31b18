"""Evidence without a run: what a check sees of a conversation that never took place."""

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
    """A user with nothing to say."""

    planned_messages: Sequence[UserMessage] = ()
    simulator: str | None = None

    async def speak(self, state: TrialState) -> AsyncGenerator[UserMessage, None]:
        for line in self.planned_messages:
            yield line


class NoHelpers:
    """Helpers of which none can be reached."""

    def open(
        self,
        role: Role,
        agent: str,
        state: TrialState | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> AbstractAsyncContextManager[HelperSession]:
        raise HelperFailed(role, f"there is no {agent} here")


class FrozenClock:
    """A clock that no time limit hangs on."""

    @asynccontextmanager
    async def pause(self) -> AsyncGenerator[None]:
        yield


def make_trial_state(
    *replies: Reply | str, inputs: Sequence[str] = (), metadata: Mapping[str, Any] | None = None
) -> TrialState:
    """A conversation with these replies, in which the user said `inputs` (or `hello`), with 100 ms for each turn."""
    case = Case(id="case", user=SilentUser(), metadata=metadata or {})
    state = TrialState(case, Key("suite", "case"), NoHelpers(), FrozenClock())
    for number, reply in enumerate(replies, 1):
        said = inputs[number - 1] if number <= len(inputs) else "hello"
        answer = Reply(reply) if isinstance(reply, str) else reply
        state.turns.append(Turn(number, UserMessage(Message("user", said)), answer, latency_ms=100.0))
    return state


def make_check_context(
    *replies: Reply | str,
    on: TextScope = "reply",
    over: TurnScope = "turn",
    inputs: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> CheckContext:
    """What a check sees after the last of these replies."""
    state = make_trial_state(*(replies or ("",)), inputs=inputs, metadata=metadata)
    return CheckContext(state, state.turns[-1], on, over)
