"""Objects that hold one conversation at a time: sessions that share one take turns with it."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from viva.agents.frameworks.framework_agent import FrameworkSession


class SharedObjectSession(FrameworkSession):
    """A conversation whose state is loaded into the object for each turn. Between turns the object is as the user left it."""

    _state: Any = None

    @abstractmethod
    async def save_state(self) -> Any:
        """The state of the object."""

    @abstractmethod
    async def load_state(self, state: Any) -> None:
        """Gives the object a state."""

    @asynccontextmanager
    async def take_turn(self) -> AsyncGenerator[bool]:
        """Waits until no other turn uses the object, and loads the state of this conversation. Is it the first turn?"""
        async with _locks.setdefault(self.target, asyncio.Lock()):
            of_user = await self.save_state()
            is_first = self._state is None
            if not is_first:
                await self.load_state(self._state)
            try:
                yield is_first
                self._state = await self.save_state()
            finally:
                await self.load_state(of_user)


_locks: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()
