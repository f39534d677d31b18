"""Shares the event loop between tenants: their trials start in turns.

A trial of an agent that replies at once keeps the loop busy from its start to its end. So only a few start in each pass of
the loop, of the tenant that has used the fewest turns. While the host works for such a tenant (it creates, starts or ends a
run, or has just started a trial), the trials of others wait, but not for long: all of that takes many passes of the loop.
Each piece of work counts as a turn, so that a tenant that sends requests all the time holds up others no longer than they it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

MAX_TURNS_PER_PASS = 2
"""How many trials start in one pass of the loop. Trials that end in the same pass share one write to the disk."""
MAX_WAIT_S = 0.02
"""How long trials of other tenants wait for one piece of work of the host."""
MAX_WAIT_FOR_TRIAL_S = 0.01
"""How long they wait for a trial: its agent may take long."""


class _Tenant:
    def __init__(self, used: int) -> None:
        self.used = used
        """The turns that this tenant has used, counted from those of the tenant that had used the fewest."""
        self.works: dict[HostWork, None] = {}
        self.waiting: deque[asyncio.Future[None]] = deque()


class TenantTurns:
    """The turns of all tenants that have work now."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._handle: asyncio.Handle | None = None
        self._is_soon = False

    @contextmanager
    def work_for(self, tenant: str) -> Generator["HostWork"]:
        """Counts as work of the host for a tenant, except while its trials have a turn."""
        state = self._tenants.get(tenant)
        if state is None:  # it has no credit from the time before
            fewest = min((each.used for each in self._tenants.values()), default=0)
            state = self._tenants[tenant] = _Tenant(fewest)
        state.used += 1
        work = HostWork(self, state)
        state.works[work] = None
        try:
            yield work
        finally:
            del state.works[work]
            if not state.works:
                del self._tenants[tenant]
            self._give_turns_soon()

    async def wait_for_turn(self, tenant: _Tenant) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tenant.waiting.append(future)
        self._give_turns_soon()
        await future

    def _give_turns_soon(self) -> None:
        if not self._is_soon and any(tenant.waiting for tenant in self._tenants.values()):
            if self._handle is not None:
                self._handle.cancel()
            self._is_soon = True
            self._handle = asyncio.get_running_loop().call_soon(self._give_turns)

    def _give_turns(self) -> None:
        self._handle, self._is_soon = None, False
        now = asyncio.get_running_loop().time()
        # What another tenant waits for takes many passes, and in each the loop is busy with what starts here.
        for _ in range(MAX_TURNS_PER_PASS if len(self._tenants) == 1 else 1):
            tenant = self._choose_tenant(now)
            if tenant is None:
                return
            if not tenant.waiting:  # the host works for it
                until = min(work.until for work in tenant.works if work.holds_up_others(now))
                self._handle = asyncio.get_running_loop().call_later(until - now, self._give_turns)
                return
            future = tenant.waiting.popleft()
            if not future.done():  # else its run was cancelled
                tenant.used += 1
                future.set_result(None)
        self._give_turns_soon()

    def _choose_tenant(self, now: float) -> _Tenant | None:
        """The tenant that has used the fewest turns, of those for which there is something to do; else the newest one."""
        active = [
            tenant
            for tenant in self._tenants.values()
            if tenant.waiting or any(work.holds_up_others(now) for work in tenant.works)
        ]
        return min(reversed(active), key=lambda tenant: tenant.used, default=None)


class HostWork:
    """Work of the host for one tenant, such as a run."""

    def __init__(self, turns: TenantTurns, tenant: _Tenant) -> None:
        self._turns = turns
        self._tenant = tenant
        self._extend(MAX_WAIT_S)

    @asynccontextmanager
    async def take_turn(self) -> AsyncGenerator[None]:
        """Waits for a turn of a trial, which lasts until the trial has ended."""
        self.until = 0.0  # the host has nothing to do meanwhile
        try:
            await self._turns.wait_for_turn(self._tenant)
            self._extend(MAX_WAIT_FOR_TRIAL_S)
            yield
        finally:
            self._extend(MAX_WAIT_S)

    def holds_up_others(self, now: float) -> bool:
        return now < self.until

    def _extend(self, seconds: float) -> None:
        self.until = asyncio.get_running_loop().time() + seconds
