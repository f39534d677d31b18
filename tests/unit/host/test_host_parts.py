"""The parts of a host: ids, tokens, store, event log, streams, idempotency, workflows."""

import asyncio
import gc
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from viva.errors import BadInput
from viva.host import events, server
from viva.host.discovery import ENDPOINTS
from viva.host.errors import ApiError, validation_error
from viva.host.events import (
    EventDraft,
    LoggedEvent,
    RunLog,
    RunLogs,
    StreamOptions,
    iter_frames,
    parse_last_event_id,
    parse_number,
    parse_stream_modes,
    wait_for_events,
)
from viva.host.inventory import HostedAgent, derive_agent_id
from viva.host.requests import REPLAY_HEADER, IdempotencyCache, Mutation
from viva.host.setup import is_public_url
from viva.host.sqlite_store import SqliteStore, checkpoint
from viva.host.store import Run, SequenceTaken, Store
from viva.host.tokens import ALL_SCOPES, READ_SCOPES, Principal, TokenRegistry
from viva.host.workflows import CONFORMANCE_WORKFLOWS, run_nodes
from viva.model import codec
from viva.text.addresses import is_loopback

AGENT_ID = re.compile(r"(core|vendor|community|private|local)\.[a-z][a-z0-9_-]*(\.[a-z][a-zA-Z0-9_-]*)+")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with a run that this process executes."""
    store = SqliteStore(tmp_path)
    store.create_run(make_run("r"))
    store.claim_run("r")
    return store


@pytest.fixture
def log(store: Store) -> RunLog:
    """The log of a started run."""
    log = RunLog("r", store)
    log.append([events.run_started("w", "t")])
    return log


def make_run(name: str) -> Run:
    return Run(id=name, tenant="t", kind="workflow", workflow="w", status="running", created_at="1", request={})


@given(st.text(min_size=1, max_size=300))
def test_every_agent_name_gives_a_valid_id(name: str):
    agent_id = derive_agent_id(name)
    assert AGENT_ID.fullmatch(agent_id)
    assert 3 <= len(agent_id) <= 256


def test_a_derived_id_is_readable():
    assert derive_agent_id("assistants.Expense Bot") == "local.viva.assistants.expense-bot"
    assert derive_agent_id("42") == "local.viva.a42"


@pytest.mark.parametrize(
    ("tools", "tool", "is_allowed"),
    [
        (("openwop:core.search", "calc"), "core.search", True),
        (("openwop:core.search", "calc"), "openwop:core.search", True),
        (("openwop:core.search", "calc"), "calc", True),
        (("openwop:core.search", "calc"), "search", False),
        (("openwop:core.search", "calc"), "shell", False),
        (("*",), "anything", True),
    ],
)
def test_tools_match_with_or_without_scope(tools: tuple[str, ...], tool: str, is_allowed: bool):
    assert HostedAgent(agent_id="a", name="a", persona="a", tools=tools).is_tool_allowed(tool) is is_allowed


@given(st.text(max_size=200))
def test_a_tool_name_that_is_a_sentence_is_not_sent(name: str):
    is_plain = re.fullmatch(r"[A-Za-z0-9_.:/-]{1,128}", name)
    assert events.to_plain_name(name) == (name if is_plain else "unknown")


def test_an_unknown_price_is_left_out():
    call = events.ModelCall("m", "OpenAI", 3, 4)
    assert events.provider_usage(call).payload == {
        "provider": "openai", "model": "m", "inputTokens": 3, "outputTokens": 4, "totalTokens": 7,
    }  # fmt: skip


def test_tokens_are_stored_as_digests_and_have_scopes():
    tokens = TokenRegistry()
    tokens.add("first-token-of-acme", "acme")
    tokens.add("second-token-of-acme", "acme", READ_SCOPES)
    full = tokens.authenticate({"authorization": "Bearer first-token-of-acme"})
    reader = tokens.authenticate({"authorization": "bearer second-token-of-acme"})
    assert (full.tenant, full.scopes, reader.tenant) == ("acme", ALL_SCOPES, "acme")
    assert full.name != reader.name
    with pytest.raises(ApiError) as error:
        reader.require_scope("runs:create")
    assert error.value.status == 403
    for header in ("", "Bearer", "Bearer x", "Basic first-token-of-acme", "Bearer first-token-of-acme2"):
        with pytest.raises(ApiError) as error:
            tokens.authenticate({"authorization": header})
        assert error.value.status == 401
    assert "token" not in repr(list(vars(tokens).values()))


def test_a_failed_transaction_writes_nothing(store: Store):
    def write_and_fail() -> None:
        with store.transaction():
            store.create_run(make_run("lost"))
            store.append_events("r", 0, [b"{}"])
            raise KeyError

    with pytest.raises(KeyError):
        write_and_fail()
    assert store.find_run("lost", "t") is None
    assert store.load_events("r") == []
    with store.transaction():
        store.create_run(make_run("saved"))
    assert store.find_run("saved", "t") == make_run("saved")
    assert store.find_run("saved", "other") is None


def test_a_sequence_number_is_used_once(store: Store):
    store.append_events("r", 0, [b"1", b"2"])
    with pytest.raises(SequenceTaken):
        store.append_events("r", 1, [b"3", b"4"])
    assert store.load_events("r") == [b"1", b"2"]


def test_one_process_opens_the_store(tmp_path: Path):
    first = SqliteStore(tmp_path)
    with pytest.raises(BadInput, match="Another `viva serve`"):
        SqliteStore(tmp_path)
    first.close()
    SqliteStore(tmp_path).close()


def test_no_request_waits_for_a_checkpoint(tmp_path: Path, shorten: Callable[[str, float], None]):  # 20.1
    """A checkpoint waits for the disk, so another thread makes it. The write-ahead log does not grow without end."""
    shorten("viva.host.sqlite_store._CHECKPOINT_INTERVAL_S", 1000.0)
    shorten("viva.host.sqlite_store._MAX_LOG_FRAMES", 100)
    store = SqliteStore(tmp_path)
    file, log = tmp_path / "host.sqlite", tmp_path / "host.sqlite-wal"
    store.create_run(make_run("r"))
    store.claim_run("r")

    def write(first: int) -> None:
        for number in range(first, first + 300):
            store.append_events("r", number, [b"x" * 20_000])

    before = file.stat().st_size
    write(0)
    assert file.stat().st_size == before
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        checkpoint(db)
    assert file.stat().st_size > 300 * 20_000
    longest = log.stat().st_size
    write(300)
    assert log.stat().st_size <= longest + 100_000  # it began again at its start
    store.close()


def test_runs_of_an_older_file_are_taken_over_in_their_order(tmp_path: Path):
    with closing(sqlite3.connect(tmp_path / "host.sqlite")) as old, old:
        old.execute("CREATE TABLE runs (id TEXT PRIMARY KEY, tenant TEXT, status TEXT, doc BLOB) WITHOUT ROWID")
        for name, created_at in (("a", "2026-01-02"), ("b", "2026-01-01")):
            run = structs.replace(make_run(name), created_at=created_at)
            old.execute("INSERT INTO runs VALUES (?, ?, ?, ?)", (name, run.tenant, run.status, codec.encode(run)))
    for _ in range(2):  # opened again, nothing changes
        store = SqliteStore(tmp_path)
        assert [(queue.waiting, queue.next_run) for queue in store.list_queues()] == [(2, "b")]
        assert store.find_run("a", "t") == structs.replace(make_run("a"), created_at="2026-01-02")
        store.close()


def test_a_file_of_a_newer_viva_is_refused_and_left_as_it_is(tmp_path: Path):  # 20.5
    store = SqliteStore(tmp_path)
    store.create_run(make_run("r"))
    store.close()
    with closing(sqlite3.connect(tmp_path / "host.sqlite")) as db:
        db.execute("PRAGMA user_version = 99")
        with pytest.raises(BadInput, match="newer Viva"):
            SqliteStore(tmp_path)
        assert db.execute("SELECT id FROM runs").fetchall() == [("r",)]
        db.execute("PRAGMA user_version = 2")
    SqliteStore(tmp_path).close()  # the lock was released


def test_a_log_is_numbered_from_0_and_continues_when_reopened(log: RunLog, store: Store):
    log.append([events.node_started("n", "core.noop")])
    log.append([events.run_completed()])
    reopened = RunLog("r", store)
    assert [logged.event.sequence for logged in reopened.iterate()] == [0, 1, 2]
    assert list(reopened.iterate()) == list(log.iterate())
    assert reopened.is_finished
    assert reopened.read(1, 1)[0].event.node_id == "n"


def test_readers_and_writers_of_a_run_share_one_log(store: Store):
    logs = RunLogs(store)
    log = logs.open_log("r")
    assert logs.open_log("r") is log


def test_a_long_log_is_read_in_pages_and_others_come_first(store: Store):  # 20.2
    """In memory are the newest events only, and no step takes all events."""
    count = 3 * events.KEPT_EVENTS
    kinds = ["run.started", *["node.started"] * (count - 2), "run.completed"]

    async def act() -> tuple[RunLog, list[bytes], int]:
        log, steps = RunLog("r", store), 0
        log.append([EventDraft(kind, {"list": [1]}) for kind in kinds])  # the collector sees a list

        async def count_steps() -> None:
            nonlocal steps
            while True:
                steps += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_steps())
        frames = await _read(RunLog("r", store), StreamOptions(("debug",)), asyncio.Event())
        counting.cancel()
        return log, frames, steps

    log, frames, steps = asyncio.run(act())
    pages = count // events.PAGE_SIZE
    assert len(frames) == pages
    assert steps >= pages - 1
    numbers = re.findall(rb"^id: (\d+)$", b"".join(frames), re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(count))
    for opened in (log, RunLog("r", store)):
        assert (opened.count, opened.is_finished) == (count, True)
        assert [logged.event.type for logged in opened.iterate()] == kinds
        in_memory = [each for each in gc.get_objects() if isinstance(each, LoggedEvent)]
        assert 0 < len(in_memory) <= 2 * events.KEPT_EVENTS
    polled: list[int] = []
    is_complete = False
    while not is_complete:
        last = polled[-1] if polled else -1
        found, is_complete = asyncio.run(wait_for_events(log, last, 1, asyncio.Event()))
        assert 0 < len(found) <= events.PAGE_SIZE
        polled += [event.sequence for event in found]
    assert polled == list(range(count))


def test_runs_are_compared_page_by_page(store: Store):
    runs = [structs.replace(make_run(name), status="completed") for name in ("r", "s")]
    store.create_run(make_run("s"))
    store.claim_run("s")
    logs = [RunLog(run.id, store) for run in runs]
    different = events.PAGE_SIZE + 7
    for log in logs:
        drafts = [EventDraft("node.started", {"n": number}) for number in range(2 * events.PAGE_SIZE)]
        if log.run_id == "s":
            drafts[different] = EventDraft("node.started", {"n": "other"})
        log.append([*drafts, events.run_completed()])
    diff = codec.decode(codec.encode(asyncio.run(events.diff_logs(runs[0], runs[1], logs[0], logs[1]))))
    assert (diff["divergedAtSeq"], [each["op"] for each in diff["eventDiffs"]]) == (different, ["changed"])
    assert diff["eventDiffs"][0]["bEvent"]["payload"] == {"n": "other"}
    same = codec.decode(codec.encode(asyncio.run(events.diff_logs(runs[0], runs[0], logs[0], logs[0]))))
    assert (same["divergedAtSeq"], same["eventDiffs"]) == (None, [])


async def _read(log: RunLog, options: StreamOptions, shutdown: asyncio.Event) -> list[bytes]:
    return [frame async for frame in iter_frames(log, options, lambda: make_run("r"), shutdown)]


def test_a_reader_gets_events_until_the_run_ends(store: Store):
    async def act() -> list[bytes]:
        log = RunLog("r", store)
        reading = asyncio.create_task(_read(log, StreamOptions(("debug",)), asyncio.Event()))
        for number in range(50):
            log.append([EventDraft("node.started", {"n": number})])
            if number % 7 == 0:
                await asyncio.sleep(0)
        log.append([events.run_completed()])
        return await reading

    text = b"".join(asyncio.run(act()))
    assert [int(number) for number in re.findall(rb"^id: (\d+)$", text, re.MULTILINE)] == list(range(51))


def test_a_stream_ends_when_the_host_shuts_down(log: RunLog):
    async def act() -> list[bytes]:
        shutdown = asyncio.Event()
        reading = asyncio.create_task(_read(log, StreamOptions(), shutdown))
        await asyncio.sleep(0)
        shutdown.set()
        return await asyncio.wait_for(reading, 10)

    assert len(asyncio.run(act())) == 1


def test_a_stream_sends_keep_alive_frames(log: RunLog):
    assert StreamOptions().keep_alive_s <= 30

    async def act() -> bytes:
        frames = iter_frames(log, StreamOptions(keep_alive_s=0.01), lambda: make_run("r"), asyncio.Event())
        assert (await anext(frames)).startswith(b"id: 0")
        frame = await asyncio.wait_for(anext(frames), 10)
        await frames.aclose()
        return frame

    assert asyncio.run(act()).startswith(b":")


def test_polling_returns_at_the_first_event(store: Store):
    async def act() -> tuple[list[Any], bool]:
        log = RunLog("r", store)
        waiting = asyncio.create_task(wait_for_events(log, -1, 60, asyncio.Event()))
        await asyncio.sleep(0)
        log.append([events.run_started("w", "t")])
        return await asyncio.wait_for(waiting, 10)

    polled, is_complete = asyncio.run(act())
    assert (len(polled), is_complete) == (1, False)


def test_stream_parameters_are_validated(log: RunLog):
    assert parse_stream_modes(None) == ("updates",)
    assert parse_stream_modes("debug,updates") == ("updates", "debug")
    for text in ("values,debug", "x", "updates,", "UPDATES"):
        with pytest.raises(ApiError):
            parse_stream_modes(text)
    assert parse_number("7", "n", 0, 0, 9) == 7
    for text in ("1.0", "x", "", "10", "-1"):
        with pytest.raises(ApiError):
            parse_number(text, "n", 0, 0, 9)
    last_ids = [log.read(0)[0].event.event_id, "41", "-41", None, ""]
    assert [asyncio.run(parse_last_event_id(text, log)) for text in last_ids] == [0, 41, -1, -1, -1]


def test_a_mutation_runs_once_per_key_and_errors_are_not_stored(store: Store):
    cache, started = IdempotencyCache(store), list[str]()
    tokens = TokenRegistry()
    tokens.add("a-token-of-somebody", "t")
    principal = tokens.authenticate({"authorization": "Bearer a-token-of-somebody"})

    async def request(text: str, body: bytes = b"1") -> tuple[int, bytes, dict[str, str]]:
        async def validate() -> Mutation:
            await asyncio.sleep(0)
            if text == "invalid":
                raise validation_error("no")
            return Mutation(201, text.encode(), start=lambda: started.append(text))

        return await cache.run_once(principal, "POST /x", "key", body, validate)

    async def act() -> list[Any]:
        with pytest.raises(ApiError):
            await request("invalid")
        responses = await asyncio.gather(*(request(f"a{number}") for number in range(10)))
        with pytest.raises(ApiError) as error:
            await request("other", b"2")
        assert error.value.code == "idempotency_key_mismatch"
        return responses

    responses = asyncio.run(act())
    assert len(started) == 1
    assert {response[1] for response in responses} == {started[0].encode()}
    assert store.find_response("t", "POST /x", "key") is None  # only its digest is stored


@pytest.mark.parametrize(("address", "expected"), [("127.0.0.1", True), ("localhost", True), ("a.localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("example.com", False)])  # fmt: skip
def test_loopback_addresses(address: str, expected: bool):
    assert is_loopback(address) is expected


@pytest.mark.parametrize("url", ["http://127.0.0.1:0", "https://evals.example.com/viva", "http://[::1]:8765"])
def test_valid_public_urls(url: str):
    assert is_public_url(url)


@pytest.mark.parametrize(
    "url",
    ["evals.example.com", "ftp://x", "http://", "http://[", "https://x?y=1", "https://x#y", "https://u:p@x",
     "https://x\r\ny: z", "javascript:alert(1)", "https://x:99999"],
)  # fmt: skip
def test_invalid_public_urls(url: str):
    assert not is_public_url(url)


def test_a_node_that_was_started_before_a_restart_is_not_started_again(log: RunLog):
    log.append([events.node_started("delay", "core.delay")])
    for _ in range(2):
        asyncio.run(run_nodes(CONFORMANCE_WORKFLOWS["conformance-delay"], {"delayMs": 1}, log))
    assert [logged.event.type for logged in log.iterate()] == ["run.started", "node.started", "node.completed"]


def test_a_request_with_a_key_in_progress_waits_only_so_long(store: Store):
    async def run() -> None:
        cache = IdempotencyCache(store, ack_timeout_s=0.01)
        started, go = asyncio.Event(), asyncio.Event()

        async def slow() -> Mutation:
            started.set()
            await go.wait()
            return Mutation(201, b"{}")

        principal = Principal("t", "t/1")
        first = asyncio.create_task(cache.run_once(principal, "POST /x", "key", b"", slow))
        await started.wait()
        with pytest.raises(ApiError) as error:
            await cache.run_once(principal, "POST /x", "key", b"", slow)
        assert (error.value.status, error.value.code) == (409, "idempotency_in_flight")
        go.set()
        assert (await first)[0] == 201
        assert (await cache.run_once(principal, "POST /x", "key", b"", slow))[2] == {REPLAY_HEADER: "true"}

    asyncio.run(run())


def test_no_event_follows_the_last_one(log: RunLog):
    with pytest.raises(RuntimeError):
        log.append([events.run_completed(), events.run_completed()])
    log.append([events.run_completed()])
    with pytest.raises(RuntimeError):
        log.append([EventDraft("provider.usage", {})])
    assert log.count == 2


def test_each_endpoint_has_its_function_and_no_other_is_named():
    assert [each.name for each in ENDPOINTS if each.name not in server._HANDLERS] == []
    assert server._HANDLERS.keys() - {each.name for each in ENDPOINTS} == set()
