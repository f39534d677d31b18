"""The parts of a host, each by itself."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.errors import BadInput
from viva.host import events
from viva.host.agents import HostedAgent, derive_agent_id
from viva.host.auth import ALL_SCOPES, READ_SCOPES, TokenRegistry
from viva.host.errors import ApiError, validation_error
from viva.host.idempotency import IdempotencyCache, Mutation
from viva.host.log import EventDraft, RunLog, RunLogs
from viva.host.setup import is_loopback, is_public_url
from viva.host.store import Run, Store
from viva.host.stream import (
    StreamOptions,
    parse_last_event_id,
    parse_modes,
    parse_number,
    stream_frames,
    wait_for_events,
)
from viva.host.workflows import CONFORMANCE_WORKFLOWS, run_workflow

ID = re.compile(r"(core|vendor|community|private|local)\.[a-z][a-z0-9_-]*(\.[a-z][a-zA-Z0-9_-]*)+")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def a_run(name: str = "r", tenant: str = "t", **more: Any) -> Run:
    known: dict[str, Any] = {"kind": "workflow", "workflow": "w", "status": "running", "created_at": "1", "asked": {}}
    return Run(id=name, tenant=tenant, **{**known, **more})


@given(st.text(min_size=1, max_size=300))
def test_every_name_of_an_agent_gives_an_id_that_the_protocol_takes(name: str):
    found = derive_agent_id(name)
    assert ID.fullmatch(found)
    assert 3 <= len(found) <= 256


def test_an_id_can_be_read():
    assert derive_agent_id("assistants.Expense Bot") == "local.viva.assistants.expense-bot"
    assert derive_agent_id("42") == "local.viva.a42"


def test_tools_go_by_their_bare_name_or_with_their_scope():
    agent = HostedAgent(agent_id="a", name="a", persona="a", tools=("openwop:core.search", "calc"))
    assert agent.is_tool_allowed("core.search")
    assert agent.is_tool_allowed("openwop:core.search")
    assert agent.is_tool_allowed("calc")
    assert not agent.is_tool_allowed("search")
    assert not agent.is_tool_allowed("shell")
    assert HostedAgent(agent_id="a", name="a", persona="a", tools=("*",)).is_tool_allowed("anything")


@given(st.text(max_size=200))
def test_a_name_that_is_a_sentence_never_gets_into_an_event(name: str):
    shown = events.tool_called("local.viva.a", name, "c").payload["toolName"]
    assert shown == name if re.fullmatch(r"[A-Za-z0-9_.:/-]{1,128}", name) else shown == "unknown"


def test_a_price_that_is_not_known_is_left_out_never_nought():
    call = events.ModelCall("m", "OpenAI", 3, 4)
    assert events.provider_usage(call).payload == {
        "provider": "openai", "model": "m", "inputTokens": 3, "outputTokens": 4, "totalTokens": 7,
    }  # fmt: skip


def test_a_key_is_known_by_its_digest_and_may_do_what_it_was_given_for():
    keys = TokenRegistry()
    keys.add("first-token-of-acme", "acme")
    keys.add("second-token-of-acme", "acme", READ_SCOPES)
    full = keys.authenticate({"authorization": "Bearer first-token-of-acme"})
    reader = keys.authenticate({"authorization": "bearer second-token-of-acme"})
    assert (full.tenant, full.scopes, reader.tenant) == ("acme", ALL_SCOPES, "acme")
    assert full.name != reader.name
    with pytest.raises(ApiError) as refused:
        reader.require_scope("runs:create")
    assert refused.value.status == 403
    for wrong in ("", "Bearer", "Bearer x", "Basic first-token-of-acme", "Bearer first-token-of-acme2"):
        with pytest.raises(ApiError) as refused:
            keys.authenticate({"authorization": wrong})
        assert refused.value.status == 401
    assert "token" not in repr(vars(keys))


def test_what_is_written_together_stands_together_or_not_at_all(store: Store):
    def write_and_break() -> None:
        with store.transaction():
            store.save_run(a_run("gone"))
            store.append_events("gone", 0, [b"{}"])
            raise KeyError

    with pytest.raises(KeyError):
        write_and_break()
    assert store.find_run("gone", "t") is None
    assert store.load_events("gone") == []
    with store.transaction():
        store.save_run(a_run("kept"))
    assert store.find_run("kept", "t") == a_run("kept")
    assert store.find_run("kept", "somebody") is None


def test_a_number_is_given_once(store: Store):
    import sqlite3

    store.append_events("r", 0, [b"1", b"2"])
    with pytest.raises(sqlite3.IntegrityError):
        store.append_events("r", 1, [b"3", b"4"])
    assert store.load_events("r") == [b"1", b"2"]


def test_one_process_alone_has_the_store(tmp_path: Path):
    first = Store(tmp_path)
    with pytest.raises(BadInput, match="another `viva serve`"):
        Store(tmp_path)
    first.close()
    Store(tmp_path).close()


def test_events_are_numbered_from_nought_and_a_log_that_is_opened_again_goes_on(store: Store):
    log = RunLog("r", store)
    log.append([events.run_started("w", "t"), events.node_started("n", "core.noop")])
    log.append([events.run_completed()])
    again = RunLog("r", store)
    assert [each.event.sequence for each in again.events] == [0, 1, 2]
    assert again.events == log.events
    assert again.is_finished
    assert again.events[1].event.node_id == "n"


def test_readers_and_writers_of_a_run_share_one_log(store: Store):
    logs = RunLogs(store)
    log = logs.open_log("r")
    assert logs.open_log("r") is log


async def _read(log: RunLog, watching: StreamOptions, closing: asyncio.Event) -> list[bytes]:
    return [frame async for frame in stream_frames(log, watching, lambda _events: {}, closing)]


def test_a_reader_gets_what_is_written_while_it_reads_and_stops_at_the_end(store: Store):
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


def test_a_reader_of_a_run_that_goes_on_is_let_go_when_the_host_closes(store: Store):
    async def act() -> list[bytes]:
        log, closing = RunLog("r", store), asyncio.Event()
        log.append([events.run_started("w", "t")])
        reading = asyncio.create_task(_read(log, StreamOptions(), closing))
        await asyncio.sleep(0)
        closing.set()
        return await asyncio.wait_for(reading, 10)

    assert len(asyncio.run(act())) == 1


def test_a_stream_says_that_it_is_still_there_while_nothing_happens(store: Store):
    assert StreamOptions().keep_alive_s <= 30

    async def act() -> bytes:
        log = RunLog("r", store)
        log.append([events.run_started("w", "t")])
        frames = stream_frames(log, StreamOptions(keep_alive_s=0.01), lambda _events: {}, asyncio.Event())
        assert (await anext(frames)).startswith(b"id: 0")
        alive = await asyncio.wait_for(anext(frames), 10)
        await frames.aclose()
        return alive

    assert asyncio.run(act()).startswith(b":")


def test_polling_comes_back_as_soon_as_something_is_there(store: Store):
    async def act() -> tuple[list[Any], bool]:
        log = RunLog("r", store)
        waiting = asyncio.create_task(wait_for_events(log, -1, 60, asyncio.Event()))
        await asyncio.sleep(0)
        log.append([events.run_started("w", "t")])
        return await asyncio.wait_for(waiting, 10)

    seen, complete = asyncio.run(act())
    assert (len(seen), complete) == (1, False)


def test_what_a_stream_is_asked_for_is_read_strictly(store: Store):
    assert parse_modes(None) == ("updates",)
    assert parse_modes("debug,updates") == ("updates", "debug")
    for wrong in ("values,debug", "x", "updates,", "UPDATES"):
        with pytest.raises(ApiError):
            parse_modes(wrong)
    assert parse_number("7", "n", 0, 0, 9) == 7
    for wrong in ("1.0", "x", "", "10", "-1"):
        with pytest.raises(ApiError):
            parse_number(wrong, "n", 0, 0, 9)
    log = RunLog("r", store)
    log.append([events.run_started("w", "t")])
    assert parse_last_event_id(log.events[0].event.event_id, log) == 0
    assert parse_last_event_id("41", log) == 41
    assert parse_last_event_id("-41", log) == -1
    assert parse_last_event_id(None, log) == parse_last_event_id("", log) == -1


def test_a_deed_is_done_once_and_a_refusal_is_forgotten(store: Store):
    once, done = IdempotencyCache(store), list[str]()
    principal = TokenRegistry()
    principal.add("a-token-of-somebody", "t")
    who = principal.authenticate({"authorization": "Bearer a-token-of-somebody"})

    async def do(text: str, body: bytes = b"1") -> tuple[int, bytes, dict[str, str]]:
        async def check() -> Mutation:
            await asyncio.sleep(0)
            if text == "refuse":
                raise validation_error("no")
            return Mutation(201, text.encode(), start=lambda: done.append(text))

        return await once.run_once(who, "POST /x", "key", body, check)

    async def act() -> list[Any]:
        with pytest.raises(ApiError):
            await do("refuse")
        answers = await asyncio.gather(*(do(f"a{number}") for number in range(10)))
        with pytest.raises(ApiError, match="another request"):
            await do("other", b"2")
        return answers

    answers = asyncio.run(act())
    assert len(done) == 1
    assert {answer[1] for answer in answers} == {done[0].encode()}
    assert store.find_response("t", "POST /x", "key") is None  # only its digest is kept


@pytest.mark.parametrize(("address", "ours"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("example.com", False)])  # fmt: skip
def test_only_loopback_is_loopback(address: str, ours: bool):
    assert is_loopback(address) is ours


@pytest.mark.parametrize("url", ["http://127.0.0.1:0", "https://evals.example.com/viva", "http://[::1]:8765"])
def test_links_can_be_made_from_an_address(url: str):
    assert is_public_url(url)


@pytest.mark.parametrize(
    "url",
    ["evals.example.com", "ftp://x", "http://", "http://[", "https://x?y=1", "https://x#y", "https://u:p@x",
     "https://x\r\ny: z", "javascript:alert(1)", "https://x:99999"],
)  # fmt: skip
def test_links_are_made_from_nothing_else(url: str):
    assert not is_public_url(url)


def test_a_workflow_that_was_under_way_is_not_begun_again(store: Store):
    """Its node had begun when the host went down."""
    log = RunLog("r", store)
    log.append([events.run_started("w", "t"), events.node_started("delay", "core.delay")])
    asyncio.run(run_workflow(CONFORMANCE_WORKFLOWS["conformance-delay"], {"delayMs": 1}, log))
    asyncio.run(run_workflow(CONFORMANCE_WORKFLOWS["conformance-delay"], {"delayMs": 1}, log))
    assert [each.event.type for each in log.events] == ["run.started", "node.started", "node.completed"]
