"""A user that is Python code: it sends a message and gets the turn back."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from msgspec import Struct

from viva.errors import TrialFault
from viva.model.case import UserMessage
from viva.model.turn import Turn
from viva.state.trial_state import TrialState

SendMessage = Callable[[UserMessage], Awaitable[Turn]]
"""Sends a message and returns the turn; raises the agent's fault."""


class CodeUser(Struct, frozen=True):
    """A user that is the Python function `run`: it speaks until the function returns. An exception of it ends the conversation."""

    run: Callable[[TrialState, SendMessage], Awaitable[None]]

    @property
    def planned_messages(self) -> Sequence[UserMessage]:
        return ()

    @property
    def simulator(self) -> str | None:
        return None

    async def speak(self, state: TrialState) -> AsyncGenerator[UserMessage, None]:
        sent: asyncio.Queue[tuple[UserMessage, asyncio.Future[Turn]] | None] = asyncio.Queue()

        async def send(message: UserMessage) -> Turn:
            turn: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
            sent.put_nowait((message, turn))
            return await turn

        task = asyncio.ensure_future(self.run(state, send))
        task.add_done_callback(lambda _: sent.put_nowait(None))
        try:
            while (item := await sent.get()) is not None:
                message, turn = item
                try:
                    yield message
                except TrialFault as fault:
                    if not turn.cancelled():
                        turn.set_exception(fault)
                else:
                    if not turn.cancelled():
                        turn.set_result(state.turns[-1])
            await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()  # it was raised above, or nothing awaits it any more
