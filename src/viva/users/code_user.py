"""A user that is code: it speaks where its program does, and hears the answer there."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from msgspec import Struct

from viva.errors import TrialFault
from viva.model.case import UserMessage
from viva.model.turn import Turn
from viva.state.trial_state import TrialState

SendMessage = Callable[[UserMessage], Awaitable[Turn]]
"""Says a line, and waits for the turn that comes of it; the agent's fault is raised here."""


class CodeUser(Struct, frozen=True):
    """Speaks as long as `play` runs. What `play` raises ends the talk."""

    run: Callable[[TrialState, SendMessage], Awaitable[None]]

    @property
    def planned_messages(self) -> Sequence[UserMessage]:
        return ()

    @property
    def simulator(self) -> str | None:
        return None

    async def speak(self, state: TrialState) -> AsyncGenerator[UserMessage, None]:
        spoken: asyncio.Queue[tuple[UserMessage, asyncio.Future[Turn]] | None] = asyncio.Queue()

        async def say(line: UserMessage) -> Turn:
            heard: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
            spoken.put_nowait((line, heard))
            return await heard

        playing = asyncio.ensure_future(self.run(state, say))
        playing.add_done_callback(lambda _: spoken.put_nowait(None))
        try:
            while (said := await spoken.get()) is not None:
                line, heard = said
                try:
                    yield line
                except TrialFault as fault:
                    if not heard.cancelled():
                        heard.set_exception(fault)
                else:
                    if not heard.cancelled():
                        heard.set_result(state.turns[-1])
            await playing
        finally:
            if not playing.done():
                playing.cancel()
                await asyncio.wait((playing,))
            if not playing.cancelled():
                playing.exception()  # it was raised above, or nobody waits for it any more
