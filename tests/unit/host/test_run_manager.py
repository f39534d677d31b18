"""How a host starts runs: tenants take turns, and a store that is unavailable holds runs up but loses none."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from viva.host.errors import ApiError
from viva.host.events import RunLog, RunLogs, run_completed
from viva.host.runs import HostLimits, RunEnd, RunManager
from viva.host.sqlite_store import SqliteStore
from viva.host.store import Run, StoreUnavailable
from viva.host.turns import HostWork

DONE = RunEnd("completed", (run_completed({}),))


def make_run(name: str, tenant: str) -> Run:
    return Run(id=name, tenant=tenant, kind="workflow", workflow="w", status="pending", created_at="1", request={})


def make_limits(host_at_once: int, **tenant: int) -> HostLimits:
    return HostLimits(at_once=host_at_once, max_unfinished=100, defaults=tenant, by_tenant={})


def make_manager(
    store: SqliteStore,
    run_function: Callable[[Run, RunLog, bytes | None, HostWork], Awaitable[RunEnd]],
    limits: HostLimits,
) -> RunManager:
    return RunManager(store, RunLogs(store), {"workflow": run_function}, limits, has_free_space=lambda: True)


@pytest.mark.parametrize(
    ("at_once", "expected"),
    [(1, ["a1", "b1", "a2", "b2", "a3", "a4"]), (3, ["a1", "b1", "a2", "b2", "a3", "a4"])],
)
def test_tenants_take_turns(tmp_path: Path, at_once: int, expected: list[str]):
    async def act() -> list[str]:
        store, started = SqliteStore(tmp_path), list[str]()

        async def run(run: Run, _log: RunLog, _inputs: bytes | None, _work: HostWork) -> RunEnd:
            started.append(run.id)
            return DONE

        for name in ("a1", "a2", "a3", "a4", "b1", "b2"):
            store.create_run(make_run(name, name[0]))
        manager = make_manager(store, run, make_limits(at_once, at_once=1))
        manager.open()
        while store.count_unfinished():
            await asyncio.sleep(0)
        await manager.close()
        store.close()
        return started

    assert asyncio.run(act()) == expected


def test_a_tenant_with_a_full_queue_is_refused(tmp_path: Path):
    async def act() -> ApiError:
        store = SqliteStore(tmp_path)

        async def run(_run: Run, _log: RunLog, _inputs: bytes | None, _work: HostWork) -> RunEnd:
            raise AssertionError

        manager = make_manager(store, run, make_limits(1, max_unfinished=2))
        for name in ("a1", "a2"):
            manager.check_capacity("a")
            store.create_run(make_run(name, "a"))
        manager.check_capacity("b")
        with pytest.raises(ApiError) as error:
            manager.check_capacity("a")
        store.close()
        return error.value

    error = asyncio.run(act())
    assert (error.status, error.details and error.details["scope"]) == (429, "tenant")
    assert "Retry-After" in error.headers


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_run_that_is_stopped_before_its_first_step_keeps_no_lease(tmp_path: Path, is_closed: bool):
    async def act() -> tuple[str, bool]:
        store = SqliteStore(tmp_path)

        async def run(_run: Run, _log: RunLog, _inputs: bytes | None, _work: HostWork) -> RunEnd:
            await asyncio.sleep(600)
            return DONE

        manager = make_manager(store, run, make_limits(1))
        started = make_run("a1", "a")
        store.create_run(started)
        manager.start(started)
        if not is_closed:
            manager.cancel(started, "a/1")
            await asyncio.wait_for(manager.wait_for_end(started), 60)
        await manager.close()
        ended = store.find_run("a1", "a")
        assert ended is not None
        has_lease = store.holds_lease("a1")
        store.close()
        return ended.status, has_lease

    assert asyncio.run(act()) == ("running" if is_closed else "cancelled", False)


class FullStore(SqliteStore):
    """A file that cannot grow: SQLite reports a full disk, as it does on a real one."""

    def fill(self) -> None:
        count = self._db.execute("PRAGMA page_count").fetchone()[0]
        self._db.execute(f"PRAGMA max_page_count = {count}")

    def make_room(self) -> None:
        self._db.execute("PRAGMA max_page_count = 1000000")

    def check(self) -> None:
        with self.transaction():
            self._execute("INSERT INTO answers VALUES ('', '', '', '', 0, ?, 0)", b"x" * 100_000)
            self._execute("DELETE FROM answers WHERE tenant = ''")


def test_a_run_waits_for_room_on_the_disk_and_continues(tmp_path: Path, shorten: Callable[[str, float], None]):
    """Its result is in memory: the agent is not asked twice."""
    shorten("viva.host.runs.WATCH_INTERVAL_S", 0.01)

    async def act() -> tuple[int, list[str], ApiError, str]:
        store, calls = FullStore(tmp_path), 0
        replied = asyncio.Event()

        async def run(_run: Run, _log: RunLog, _inputs: bytes | None, _work: HostWork) -> RunEnd:
            nonlocal calls
            calls += 1
            store.fill()
            replied.set()
            return RunEnd("completed", (run_completed({"output": "x" * 200_000}),))

        store.create_run(make_run("a1", "a"))
        manager = make_manager(store, run, make_limits(1))
        manager.open()
        await replied.wait()
        while manager.readiness().is_ready:
            await asyncio.sleep(0)
        with pytest.raises(ApiError) as refused:
            manager.check_capacity("b")
        log = manager.logs.open_log("a1")
        assert not log.is_finished
        store.make_room()
        while not log.is_finished:
            await asyncio.sleep(0.01)
        while not manager.readiness().is_ready:
            await asyncio.sleep(0.01)
        stored = store.find_run("a1", "a")
        await manager.close()
        store.close()
        assert stored is not None
        return calls, [logged.event.type for logged in log.iterate()], refused.value, stored.status

    calls, kinds, refused, status = asyncio.run(act())
    assert (calls, kinds, status) == (1, ["run.started", "run.completed"], "completed")
    assert (refused.status, refused.code, "Retry-After" in refused.headers) == (507, "disk_full", True)


def test_a_run_that_cannot_write_is_interrupted_and_resumed(tmp_path: Path, shorten: Callable[[str, float], None]):
    shorten("viva.host.runs.WATCH_INTERVAL_S", 0.01)

    async def act() -> list[bytes | None]:
        store, received = SqliteStore(tmp_path), list[bytes | None]()

        async def run(_run: Run, log: RunLog, inputs: bytes | None, _work: HostWork) -> RunEnd:
            received.append(inputs)
            if len(received) == 1:
                raise StoreUnavailable("disk_full")
            return DONE

        store.create_run(make_run("a1", "a"), b"inputs")
        manager = make_manager(store, run, make_limits(1))
        manager.open()
        log = manager.logs.open_log("a1")
        while not log.is_finished:
            await asyncio.sleep(0.01)
        await manager.close()
        store.close()
        return received

    assert asyncio.run(act()) == [b"inputs", None]  # inputs are stored until a run starts, and not longer


def test_all_runs_that_were_interrupted_go_on_after_each_outage(tmp_path: Path, shorten: Callable[[str, float], None]):
    """A run whose lease was kept, but that nobody executes, would be running for ever."""  # 20.8
    shorten("viva.host.runs.WATCH_INTERVAL_S", 0.01)
    outages = [["a"], [f"b{number}" for number in range(20)], [f"c{number}" for number in range(20)]]

    async def act() -> Counter[str]:
        store, attempts = SqliteStore(tmp_path), Counter[str]()

        async def run(run: Run, _log: RunLog, _inputs: bytes | None, _work: HostWork) -> RunEnd:
            attempts[run.id] += 1
            if attempts[run.id] == 1:
                raise StoreUnavailable("database_unavailable")
            return DONE

        manager = make_manager(store, run, make_limits(20, at_once=20))
        manager.open()
        for names in outages:
            for name in names:
                store.create_run(make_run(name, "a"))
            async with asyncio.timeout(20):
                while store.count_unfinished():
                    await asyncio.sleep(0.01)
        await manager.close()
        store.close()
        return attempts

    assert asyncio.run(act()) == dict.fromkeys([name for names in outages for name in names], 2)
