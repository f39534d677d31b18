"""Objects that hold one conversation at a time: sessions that share one take turns with it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from viva.agents.frameworks.framework_agent import FrameworkSession
from viva.agents.frameworks.turn_log import TurnLog
from viva.model.progress import CallProgress


class SharedObject:
    """A framework's object that sessions share, the state that each conversation starts from, and the log of the current turn."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._first_state: Any = None
        self.log = _new_log()

    @classmethod
    def of(cls, target: Any) -> "SharedObject":
        """The SharedObject of `target`, created by the first session."""
        return _shared.setdefault(target, cls())

    @asynccontextmanager
    async def take_turn(
        self, session: FrameworkSession, prepare: "Callable[[SharedObject], Awaitable[Any]]"
    ) -> AsyncGenerator[Any]:
        """Waits until no other turn uses the object, and yields the state that each conversation starts from.

        `prepare` is called once: it makes the object write to `self.log`, and returns that state.
        """
        async with self._lock:
            if self._first_state is None:
                self._first_state = await prepare(self)
            self.log = session.log
            try:
                yield self._first_state
            finally:
                self.log = _new_log()


def _new_log() -> TurnLog:
    """A log that is not read, for uses of the object between turns: the user's own code may use it, too."""
    return TurnLog(CallProgress())


_shared: WeakKeyDictionary[Any, SharedObject] = WeakKeyDictionary()
