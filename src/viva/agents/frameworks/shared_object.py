"""Objects that hold one conversation at a time: sessions that share one take turns with it."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from viva.agents.frameworks.framework_agent import FrameworkSession


class SharedObjectSession(FrameworkSession):
    """A conversation whose state is loaded into the object for each turn. Between turns the object is as the user made it."""

    _state: Any = None

    async def prepare(self) -> None:
        """Makes the object log to the current turn. Called once for an object."""

    @abstractmethod
    async def save_state(self) -> Any:
        """The state of the object."""

    @abstractmethod
    async def load_state(self, state: Any) -> None:
        """Gives the object a state."""

    @asynccontextmanager
    async def take_turn(self) -> AsyncGenerator[bool]:
        """Waits until no other turn uses the object, and loads the state of this conversation. Is it the first turn?"""
        shared = _shared.setdefault(self.target, _SharedObject())
        async with shared.lock:
            if shared.first_state is None:
                await self.prepare()
                shared.first_state = await self.save_state()
            await self.load_state(shared.first_state if self._state is None else self._state)
            try:
                yield self._state is None
                self._state = await self.save_state()
            finally:
                await self.load_state(shared.first_state)


class _SharedObject:
    """The lock of an object, and the state that each of its conversations starts from."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.first_state: Any = None


_shared: WeakKeyDictionary[Any, _SharedObject] = WeakKeyDictionary()
