"""What every store of a host has to do: SQLite for one process, PostgreSQL for many."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

import postgres
from viva.host.events import EventDraft, RunLog, RunLogs, run_completed, run_started
from viva.host.postgres_store import PostgresStore
from viva.host.requests import REPLAY_HEADER, IdempotencyCache, Mutation
from viva.host.sqlite_store import SqliteStore
from viva.host.store import LeaseLost, Run, SequenceTaken, Store, StoredResponse, StoreUnavailable
from viva.host.tokens import Principal

OpenStore = Callable[..., Store]


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server | None]:
    if not postgres.works():
        postgres.say_not_run("the contract of the store with PostgreSQL")
        yield None
        return
    with postgres.run_server("-c", "fsync=off") as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path, server: postgres.Server | None) -> Iterator[OpenStore]:
    """Opens a store; each call with PostgreSQL is another host of the same database."""
    stores: list[Store] = []
    url = server.create_database(f"d{uuid4().hex}") if request.param == "postgres" and server is not None else None

    def open_one(**options: float) -> Store:
        store = SqliteStore(tmp_path, **options) if url is None else PostgresStore(url, **options)
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store()


@pytest.fixture
def open_shared(server: postgres.Server | None) -> Iterator[OpenStore | None]:
    """Opens hosts of one database; None without PostgreSQL."""
    if server is None:
        yield None
        return
    stores: list[Store] = []
    url = server.create_database(f"d{uuid4().hex}")

    def open_one(**options: float) -> Store:
        stores.append(PostgresStore(url, **options))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


def make_run(name: str, tenant: str = "t") -> Run:
    return Run(
        id=name, tenant=tenant, kind="workflow", workflow="w", status="pending", created_at="1", request={"a": 1}
    )


def test_runs_belong_to_a_tenant(store: Store):
    store.create_run(make_run("a"))
    assert store.find_run("a", "t") == make_run("a")
    assert store.find_run("a", "other") is None
    assert (store.has_run("a"), store.has_run("b")) == (True, False)
    with pytest.raises(SequenceTaken):
        store.create_run(make_run("a"))


def test_names_that_a_database_cannot_hold_find_nothing(store: Store):  # 20.6
    assert store.find_run("\0", "t\0") is None
    assert (store.count_unfinished("\0"), store.list_runs("\0", ()), store.has_run("a\0b")) == (0, [], False)
    store.delete_responses("\0")


def test_only_the_holder_of_the_lease_writes(store: Store):
    store.create_run(make_run("a"), b"inputs")
    run = make_run("a")
    for write in (lambda: store.save_run(run), lambda: store.append_events("a", 0, [b"x"])):
        with pytest.raises(LeaseLost):
            write()
    claim = store.claim_run("a")
    assert claim is not None
    assert (claim.run, claim.inputs, claim.cancelled_by) == (run, b"inputs", None)
    assert store.claim_run("a") is None
    store.append_events("a", 0, [b"x", b"y"])
    run.status = "running"
    store.save_run(run)
    assert store.load_events("a") == [b"x", b"y"]
    assert (store.load_events("a", 1), store.load_events("a", 0, 1)) == ([b"y"], [b"x"])
    assert store.load_events("a", 2**53) == []
    assert (store.load_last_event("a"), store.load_last_event("b")) == ((1, b"y"), None)
    store.release_lease("a")
    again = store.claim_run("a")
    assert again is not None
    assert (again.run.status, again.inputs) == ("running", None)  # inputs are gone when a run has started
    run.status = "completed"
    store.save_run(run)
    store.forget_lease("a")
    assert store.claim_run("a") is None
    assert store.renew_leases() == []


def test_a_sequence_number_is_used_once_and_a_failed_block_leaves_nothing(store: Store):
    store.create_run(make_run("a"))
    store.claim_run("a")
    store.append_events("a", 0, [b"1", b"2"])
    with pytest.raises(SequenceTaken):
        store.append_events("a", 1, [b"3", b"4"])

    def fail() -> None:
        with store.transaction():
            store.append_events("a", 2, [b"3"])
            store.create_run(make_run("b"))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert store.load_events("a") == [b"1", b"2"]
    assert not store.has_run("b")
    store.append_events("a", 2, [b"3"])


def test_queues_have_the_oldest_waiting_run_of_each_tenant(store: Store):
    for name in ("a1", "a2", "b1", "c1"):
        store.create_run(make_run(name, name[0]))
    store.claim_run("a1")
    ended = store.claim_run("c1")
    assert ended is not None
    ended.run.status = "failed"
    store.save_run(ended.run)
    queues = {queue.tenant: (queue.running, queue.waiting, queue.next_run) for queue in store.list_queues()}
    assert queues == {"a": (1, 1, "a2"), "b": (0, 1, "b1")}
    assert (store.count_unfinished("a"), store.count_unfinished("c"), store.count_unfinished()) == (2, 0, 3)


def test_a_cancellation_is_seen_by_the_holder_of_the_lease(store: Store):
    store.create_run(make_run("a"))
    store.claim_run("a")
    assert store.list_cancelled() == {}
    store.request_cancel("a", "somebody")
    store.request_cancel("a", "somebody else")
    assert store.list_cancelled() == {"a": "somebody"}
    found = store.find_run("a", "t")
    assert found is not None
    assert found.status == "cancelling"
    store.release_lease("a")
    claim = store.claim_run("a")
    assert claim is not None
    assert claim.cancelled_by == "somebody"


def test_annotations_and_responses(store: Store):
    for number in range(3):
        store.add_annotation("a", {"n": number})
    assert store.load_annotations("a") == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert (store.count_annotations("a"), store.count_annotations("b")) == (3, 0)
    assert store.find_response("t", "POST /x", "k") is None
    first = StoredResponse("digest", 201, b"body")
    assert store.save_response("t", "POST /x", "k", first)
    assert not store.save_response("t", "POST /x", "k", StoredResponse("digest", 201, b"other"))
    assert store.find_response("t", "POST /x", "k") == first


def test_runs_are_created_at_the_time_of_the_database(store: Store):
    before = store.read_clock()
    store.create_run(make_run("a"))
    [(created, _)] = store.list_runs(None, ())
    assert before <= created <= store.read_clock()


def test_a_journal_has_each_number_once(store: Store):
    store.create_run(make_run("a"))
    with pytest.raises(LeaseLost):
        store.append_journal("a", {0: b"start"})
    store.claim_run("a")
    store.append_journal("a", {0: b"start", 2: b"second"})
    store.append_journal("a", {1: b"first"})
    with pytest.raises(SequenceTaken):
        store.append_journal("a", {1: b"again"})
    assert store.load_journal("a") == {0: b"start", 1: b"first", 2: b"second"}
    assert list(store.load_journal("a")) == [0, 1, 2]


def test_runs_are_listed_newest_first_and_finished_ones_can_be_deleted(store: Store):
    for name in ("a1", "b1", "a2"):
        store.create_run(make_run(name, name[0]))
    claim = store.claim_run("a1")
    assert claim is not None
    store.append_events("a1", 0, [b"x"])
    claim.run.status = "completed"
    store.save_run(claim.run)
    listed = store.list_runs(None, ())
    assert [run.id for _, run in listed] == ["a2", "b1", "a1"]
    assert [run.id for _, run in store.list_runs("a", ("pending",))] == ["a2"]
    created, run = listed[0]
    assert [run.id for _, run in store.list_runs(None, (), before=(created, run.id), limit=1)] == ["b1"]
    assert store.save_response("a", "POST /x", "k", StoredResponse("digest", 201, b"body"))
    store.delete_runs(["a1", "a2"])
    store.delete_responses("a")
    assert [run.id for _, run in store.list_runs("a", ())] == ["a2"]  # it is not finished
    assert (store.load_events("a1"), store.find_any_run("a1")) == ([], None)
    assert store.find_response("a", "POST /x", "k") is None


# Several hosts


def test_a_run_is_taken_over_and_its_first_host_cannot_write_any_more(open_shared: OpenStore | None):
    if open_shared is None:
        return
    first, second = open_shared(lease_s=0.0), open_shared()  # the lease of the first host ends at once
    first.create_run(make_run("a"))
    assert first.claim_run("a") is not None
    first.append_events("a", 0, [b"1"])
    assert second.claim_run("a") is not None
    with pytest.raises(LeaseLost):
        first.append_events("a", 1, [b"2"])
    with pytest.raises(LeaseLost):
        first.save_run(make_run("a"))
    second.append_events("a", 1, [b"2"])
    assert first.load_events("a") == [b"1", b"2"]
    assert not first.holds_lease("a")


def test_renewing_tells_which_leases_are_lost(open_shared: OpenStore | None):
    if open_shared is None:
        return
    first, second = open_shared(lease_s=0.0), open_shared()
    for name in ("a", "b"):
        first.create_run(make_run(name))
        first.claim_run(name)
    assert first.renew_leases() == []
    second.claim_run("a")
    assert first.renew_leases() == ["a"]
    assert first.renew_leases() == []


def test_leases_are_renewed_while_the_event_loop_is_blocked(server: postgres.Server | None):
    """An agent that computes for a minute in an async function is no dead host."""
    if server is None:
        return
    store = PostgresStore(server.create_database(f"d{uuid4().hex}"), lease_s=1.0)
    store.create_run(make_run("a"))
    store.claim_run("a")
    store.watch(lambda _run, _notice: None)
    ends = [store._query("SELECT lease_until FROM runs")[0][0]]
    while len(set(ends)) < 3:  # nothing of this thread renews it
        ends.append(store._query("SELECT lease_until FROM runs")[0][0])
    assert ends == sorted(ends)
    store.close()


def test_annotations_of_several_hosts_are_all_kept(open_shared: OpenStore | None):
    if open_shared is None:
        return
    hosts = [open_shared(), open_shared()]
    hosts[0].create_run(make_run("a"))

    def annotate(host: Store) -> None:
        for number in range(50):
            with host.transaction():
                host.add_annotation("a", {"n": number})

    with ThreadPoolExecutor() as pool:
        list(pool.map(annotate, hosts))
    assert len(hosts[0].load_annotations("a")) == 100


def test_one_of_many_hosts_claims_a_run(open_shared: OpenStore | None):
    if open_shared is None:
        return
    hosts = [open_shared() for _ in range(4)]
    names = [f"run-{number}" for number in range(25)]
    for name in names:
        hosts[0].create_run(make_run(name))
    claimed: list[str] = []

    def claim_all(host: Store) -> None:
        claimed.extend(name for name in names if host.claim_run(name) is not None)

    threads = [threading.Thread(target=claim_all, args=(host,)) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == sorted(names)


def test_a_key_is_executed_on_one_host_only(open_shared: OpenStore | None):
    if open_shared is None:
        return
    hosts = [open_shared() for _ in range(4)]
    barrier = threading.Barrier(len(hosts))
    started: list[str] = []
    answers: list[tuple[bytes, str]] = []

    def request(number: int) -> None:
        host, run = hosts[number], make_run(f"run-{number}")

        async def validate() -> Mutation:
            barrier.wait()  # no host has stored a response yet
            body = run.id.encode()
            return Mutation(201, body, lambda: host.create_run(run), lambda: started.append(run.id))

        once = IdempotencyCache(host).run_once(Principal("t", "t/1"), "POST /v1/runs", "key", b"{}", validate)
        _, body, headers = asyncio.run(once)
        answers.append((body, headers[REPLAY_HEADER]))

    threads = [threading.Thread(target=request, args=(number,)) for number in range(len(hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(started) == 1
    assert {body.decode() for body, _ in answers} == set(started)
    assert sorted(is_replay for _, is_replay in answers) == ["false", "true", "true", "true"]
    assert [host.count_unfinished() for host in hosts] == [1, 1, 1, 1]


def test_other_hosts_hear_of_new_events_and_notices(open_shared: OpenStore | None):
    if open_shared is None:
        return
    writer, reader = open_shared(), open_shared()
    received: list[tuple[str, bool]] = []
    both = threading.Event()

    def note(run: str, notice: bytes | None) -> None:
        received.append((run, notice is not None))
        if len(received) >= 2:
            both.set()

    writer.watch(lambda run, _notice: received.append((run, False)))  # its own events are no news
    reader.watch(note)
    writer.create_run(make_run("a"))
    writer.claim_run("a")
    read, written = RunLogs(reader).open_log("a"), RunLogs(writer).open_log("a")
    while not received:  # the watcher may not listen yet
        written.append([run_started("w", "t")] if not written.count else [EventDraft("node.started", {})])
        both.wait(0.05)
    received.clear()
    written.send_notice(EventDraft("run.annotated", {}))
    written.append([run_completed()])
    assert both.wait(300)
    assert ("a", True) in received
    assert ("a", False) in received
    assert read.count == 0
    read.refresh()
    assert list(read.iterate()) == list(written.iterate())
    assert read.is_finished


def test_a_database_that_restarts_is_unavailable_and_comes_back(server: postgres.Server | None):
    if server is None:
        return
    store = PostgresStore(server.create_database(f"d{uuid4().hex}"))
    store.create_run(make_run("a"))
    store.claim_run("a")
    log = RunLog("a", store)
    log.append([run_started("w", "t")])
    server.stop()
    for use in (lambda: log.append([run_completed()]), lambda: store.find_run("a", "t"), store.check):
        with pytest.raises(StoreUnavailable) as error:
            use()
        assert error.value.reason == "database_unavailable"
    assert log.count == 1
    server.start()
    store.check()
    log.append([run_completed()])
    assert RunLog("a", store).count == 2
    store.close()


def test_what_a_crash_of_the_database_lost_is_written_again(server: postgres.Server | None):  # 20.8
    """Events without results are not durable at once. The host goes on, and the log has no gap."""
    if server is None:
        return
    store = PostgresStore(server.create_database(f"d{uuid4().hex}"))
    store.create_run(make_run("a"))
    store.claim_run("a")
    log = RunLog("a", store)
    log.append([run_started("w", "t")])
    log.append([EventDraft("eval.started", {})])
    store._execute("DELETE FROM events WHERE sequence = 1")  # as after a crash
    server.restart()
    with pytest.raises(StoreUnavailable):
        store.read_clock()
    store.check()
    with pytest.raises(LeaseLost):  # this transaction is undone
        log.append([run_completed()], make_run("run of another host"))
    log.append([run_completed()])
    assert [logged.event.type for logged in RunLog("a", store).iterate()] == [
        "run.started",
        "eval.started",
        "run.completed",
    ]
    assert list(RunLog("a", store).iterate()) == list(log.iterate())
    store.close()


def test_runs_are_listed_newest_first_with_filters(store: Store):
    for number, tenant in enumerate(("a", "b", "a", "a", "b")):
        store.create_run(make_run(f"run-{number}", tenant))
    assert store.claim_run("run-2") is not None
    RunLog("run-2", store).append([run_started("w", "a"), run_completed()], finished("run-2", "a"))

    def names(*arguments: object) -> list[str]:
        return [run.id for _, run in store.list_runs(*arguments)]  # type: ignore[arg-type]

    assert names(None, ()) == ["run-4", "run-3", "run-2", "run-1", "run-0"]
    assert names("a", ()) == ["run-3", "run-2", "run-0"]
    assert names("a", ("completed", "failed")) == ["run-2"]
    (created, first), *_ = store.list_runs("a", (), None, 1)
    assert first.id == "run-3"
    assert names("a", (), (created, first.id), 10) == ["run-2", "run-0"]


def test_deleting_runs_leaves_nothing_of_them_and_no_unfinished_one(store: Store):
    for name in ("run-0", "run-1"):
        store.create_run(make_run(name, "a"))
    assert store.claim_run("run-0") is not None
    RunLog("run-0", store).append([run_started("w", "a"), run_completed()], finished("run-0", "a"))
    store.add_annotation("run-0", {"a": 1})
    store.save_response("a", "POST /x", "key", StoredResponse("digest", 201, b"{}"))
    store.delete_runs(["run-0", "run-1", "run-unknown"])
    assert store.find_any_run("run-0") is None
    assert (store.load_events("run-0"), store.load_annotations("run-0")) == ([], [])
    unfinished = store.find_any_run("run-1")
    assert unfinished is not None
    assert unfinished.tenant == "a"
    store.delete_responses("b")
    assert store.find_response("a", "POST /x", "key") is not None
    store.delete_responses("a")
    assert store.find_response("a", "POST /x", "key") is None


def finished(name: str, tenant: str) -> Run:
    run = make_run(name, tenant)
    run.status = "completed"
    return run
