"""The A2A agent: cards that cannot be used, and answers that the real SDK does not give."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from viva.agents.a2a import A2aAgent, A2aConfig
from viva.agents.a2a_card import A2aService, list_card_urls, read_card
from viva.agents.agent_config import find_reference_kind
from viva.agents.agui import AguiAgent
from viva.agents.agui_events import RunReader, apply_patch
from viva.agents.remote_config import RemoteEndpoint
from viva.errors import AgentFailed, TrialFault, Unreachable
from viva.llm.transport import HttpTransport
from viva.model import codec
from viva.model.case import Key
from viva.model.message import Message, Reply, ToolCall
from viva.model.progress import CallProgress
from viva.protocols import SessionContext
from viva.testing import HttpServer, ReceivedRequest, StubResponse, json_response

Answer = Callable[[Any], StubResponse]


def test_a_reference_names_the_agent():
    assert find_reference_kind("a2a:https://host/agent") == ("a2a", {"url": "https://host/agent"})
    assert find_reference_kind("agui:https://host/agent") == ("agui", {"url": "https://host/agent"})
    assert A2aConfig(url="http://x").stream


# Cards


def card(**fields: Any) -> dict[str, Any]:
    interface = {"url": "http://h/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    return {"name": "x", "supportedInterfaces": [interface], "capabilities": {"streaming": True}, **fields}


def old_card(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "url": "http://h/rpc", "protocolVersion": "0.3.0", **fields}


def test_a_card_is_looked_for_beside_the_agent_and_at_the_root():
    assert list_card_urls("https://h/agent") == [
        "https://h/agent/.well-known/agent-card.json",
        "https://h/.well-known/agent-card.json",
        "https://h/agent/.well-known/agent.json",
    ]
    assert list_card_urls("https://h/cards/one.json") == ["https://h/cards/one.json"]


@pytest.mark.parametrize(
    ("fields", "service"),
    [
        (card(), A2aService("http://h/rpc", "jsonrpc", False, True)),
        (card(capabilities=None), A2aService("http://h/rpc", "jsonrpc", False, False)),
        (old_card(), A2aService("http://h/rpc", "jsonrpc", True, False)),
        (old_card(preferredTransport="HTTP+JSON"), A2aService("http://h/rpc", "rest", True, False)),
        (
            old_card(preferredTransport="GRPC", additionalInterfaces=[{"url": "/json", "transport": "HTTP+JSON"}]),
            A2aService("http://h/json", "rest", True, False),
        ),
    ],
)
def test_a_card_names_the_service(fields: Any, service: A2aService):
    assert read_card(fields, "http://h/.well-known/agent-card.json", {}) == service


KEY = {"k": {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}}}
OLD_KEY = {"k": {"type": "apiKey", "in": "header", "name": "X-Key"}}
BEARER = {"b": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}
MTLS = {"m": {"mtlsSecurityScheme": {}}}


@pytest.mark.parametrize(
    ("fields", "headers", "problem"),
    [
        ([], {}, "is not a JSON object"),
        ({"name": "x"}, {}, "it does not name an address"),
        (old_card(preferredTransport="GRPC"), {}, "it offers GRPC, not JSONRPC or HTTP+JSON"),
        (old_card(url="http://["), {}, "an address that is not valid"),
        (card(securitySchemes=KEY, securityRequirements=[{"schemes": {"k": {}}}]), {}, "the key 'X-Key'"),
        (old_card(securitySchemes=OLD_KEY, security=[{"k": []}]), {}, "the key 'X-Key'"),
        (card(securitySchemes=KEY, securityRequirements=[{"schemes": {"k": {}}}]), {"x-key": "1"}, None),
        (card(securitySchemes=BEARER, securityRequirements=[{"schemes": {"b": {}}}]), {}, "set `token`"),
        (card(securitySchemes=BEARER, securityRequirements=[{"schemes": {"b": {}}}]), {"Authorization": "x"}, None),
        (card(securitySchemes=MTLS, securityRequirements=[{"schemes": {"m": {}}}]), {}, "a scheme that Viva lacks"),
        (card(securityRequirements=[{"schemes": {"gone": {}}}]), {}, "(unknown), a scheme that Viva lacks"),
        (
            card(securitySchemes=KEY | MTLS, securityRequirements=[{"schemes": {"m": {}}}, {"schemes": {"k": {}}}]),
            {"X-Key": "1"},
            None,
        ),
    ],
)
def test_a_card_that_asks_for_what_is_missing(fields: Any, headers: Mapping[str, str], problem: str | None):  # N17
    if problem is None:
        assert read_card(fields, "http://h/card.json", headers).url == "http://h/rpc"
        return
    with pytest.raises(Unreachable) as fault:
        read_card(fields, "http://h/card.json", headers)
    assert problem in fault.value.message
    assert fault.value.deterministic


# Conversations with a server that answers as it likes


def converse(answer: Answer, *output: str, headers: Mapping[str, str] | None = None, **fields: Any) -> list[Reply]:
    """The replies of an agent whose card offers JSON-RPC; `answer` gets the decoded request."""
    streaming = fields.pop("streaming", False)

    def handle(request: ReceivedRequest) -> StubResponse:
        if request.method == "GET":
            named = fields.get("named_url") or f"{server.url}/rpc"
            interface = {"url": named, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            return json_response(card(supportedInterfaces=[interface], capabilities={"streaming": streaming}))
        return answer(request.json)

    async def scenario() -> list[Reply]:
        http = HttpTransport()
        try:
            endpoint = RemoteEndpoint(url=server.url, retries=fields.get("retries", 0), headers=headers or {})
            context = SessionContext(key=Key("s", "c"), meter=lambda _: None, http=http)
            agent = A2aAgent(endpoint=endpoint, service_url=fields.get("service_url", ""))
            async with agent.open(context) as session:
                return [await session.send(Message("user", line), {}) for line in output]
        finally:
            await http.close()

    with HttpServer(handle) as server:
        return asyncio.run(scenario())


def result(value: Any) -> StubResponse:
    return json_response({"jsonrpc": "2.0", "id": 1, "result": value})


def task(state: str, text: str = "") -> dict[str, Any]:
    message = {"parts": [{"text": text}]} if text else {}
    return {"id": "t1", "contextId": "c1", "status": {"state": f"TASK_STATE_{state}", "message": message}}


def test_a_working_task_is_polled():
    answers = iter([{"task": task("SUBMITTED")}, task("WORKING", "soon"), task("COMPLETED", "Done.")])
    methods: list[str] = []

    def answer(request: Any) -> StubResponse:
        methods.append(request["method"])
        return result(next(answers))

    (reply,) = converse(answer, "go")
    assert (reply.content, methods) == ("Done.", ["SendMessage", "GetTask", "GetTask"])


def test_a_question_for_a_task_is_asked_again_but_a_message_is_not_sent_again():  # N17
    lost = StubResponse(cut="before")
    answers = iter([result({"task": task("WORKING")}), lost, lost, result(task("COMPLETED", "Done.")), lost])
    methods: list[str] = []

    def answer(request: Any) -> StubResponse:
        methods.append(request["method"])
        return next(answers)

    with pytest.raises(Unreachable, match="closed the connection"):
        converse(answer, "go", "again", retries=2)
    assert methods == ["SendMessage", "GetTask", "GetTask", "GetTask", "SendMessage"]


def test_a_stream_that_ends_early_is_followed_by_asking():
    def answer(request: Any) -> StubResponse:
        if request["method"] == "GetTask":
            return result(task("INPUT_REQUIRED", "Which?"))
        event = codec.encode({"jsonrpc": "2.0", "id": 1, "result": {"task": task("WORKING")}})
        return StubResponse(chunks=(b"data: %b\n\n" % event,), headers={"Content-Type": "text/event-stream"})

    (reply,) = converse(answer, "go", streaming=True)
    assert (reply.content, reply.protocol_state) == ("Which?", "input-required")


def artifact(*texts: str, name: str = "a") -> dict[str, Any]:
    return {"artifactId": name, "parts": [{"text": text} for text in texts]}


def test_an_artifact_that_is_reported_again_as_far_as_it_has_come_is_in_the_reply_once():
    answers = iter(
        [
            {"task": {**task("WORKING"), "artifacts": [artifact("Hel")]}},
            {**task("COMPLETED", "Hello there"), "artifacts": [artifact("Hel", "lo there"), artifact("!", name="b")]},
        ]
    )
    (reply,) = converse(lambda _: result(next(answers)), "go")
    assert reply.parts == ("Hello there", "!")


def test_an_artifact_that_was_streamed_in_pieces_is_in_the_reply_once_and_not_in_the_next():
    def update(append: bool, text: str) -> dict[str, Any]:
        return {"artifactUpdate": {"taskId": "t1", "contextId": "c1", "artifact": artifact(text), "append": append}}

    whole = {"artifacts": [artifact("Hel", "lo")]}
    streams = iter(
        [
            [update(False, "Hel"), update(True, "lo")],
            [{"task": {**task("WORKING"), **whole}}, {"task": {**task("COMPLETED", "Bye."), **whole}}],
        ]
    )

    def answer(request: Any) -> StubResponse:
        if request["method"] == "GetTask":
            return result({**task("INPUT_REQUIRED", "More?"), **whole})
        events = [codec.encode({"jsonrpc": "2.0", "id": 1, "result": each}) for each in next(streams)]
        chunks = tuple(b"data: %b\n\n" % event for event in events)
        return StubResponse(chunks=chunks, headers={"Content-Type": "text/event-stream"})

    replies = converse(answer, "go", "no", streaming=True)
    assert [reply.content for reply in replies] == ["Hello\nMore?", "Bye."]


def test_artifacts_of_two_tasks_may_have_the_same_id_and_text():
    tasks = iter([{**task("COMPLETED"), "id": each, "artifacts": [artifact("Yes.")]} for each in ("t1", "t2")])
    replies = converse(lambda _: result({"task": next(tasks)}), "a", "b")
    assert [reply.content for reply in replies] == ["Yes.", "Yes."]


def test_the_next_message_continues_a_task_that_waits_and_the_context_of_one_that_ended():
    states = iter(["INPUT_REQUIRED", "COMPLETED", "COMPLETED"])
    sent: list[Any] = []

    def answer(request: Any) -> StubResponse:
        sent.append(request["params"]["message"])
        return result({"task": task(next(states), "ok")})

    converse(answer, "a", "b", "c")
    assert [(each.get("contextId"), each.get("taskId")) for each in sent] == [(None, None), ("c1", "t1"), ("c1", None)]
    assert len({each["messageId"] for each in sent}) == 3


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda _: json_response({"error": {"code": -32603, "message": "broken"}}), "A2A error -32603: broken"),
        (lambda _: result(None), "instead of a message or a task"),
        (lambda _: result({"task": {"id": "", "status": {}}}), "neither a message nor a task"),
        (lambda _: result({"task": task("REJECTED", "not me")}), "ended as rejected: not me"),
        (lambda _: StubResponse(body=b"<html>"), "its answer is not JSON"),
        (lambda _: json_response({"detail": "oops"}, 500), "HTTP 500 Internal Server Error: oops"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_an_answer_that_is_none_is_the_agents_failure(answer: Answer, problem: str, streaming: bool):  # N17
    with pytest.raises(AgentFailed) as fault:
        converse(answer, "go", streaming=streaming)
    if not (streaming and problem == "its answer is not JSON"):
        assert problem in fault.value.message


def test_a_refused_key_is_not_the_agents_failure():  # N17
    with pytest.raises(Unreachable, match="HTTP 401"):
        converse(lambda _: json_response({"detail": "who?"}, 401), "go")


def test_credentials_stay_with_the_host_of_the_card():
    def answer(request: Any) -> StubResponse:
        return result({"message": {"parts": [{"text": "hi"}]}})

    secret = {"Authorization": "Bearer very-secret"}
    with pytest.raises(Unreachable, match=r"names another host, http://elsewhere\.test/: set `service_url`"):
        converse(answer, "go", headers=secret, named_url="http://elsewhere.test/")
    with HttpServer(lambda request: answer(request.json)) as other:
        (reply,) = converse(answer, "go", headers=secret, named_url="http://elsewhere.test/", service_url=other.url)
    assert reply.content == "hi"
    assert other.requests[0].headers["authorization"] == "Bearer very-secret"


def test_an_agent_without_a_card_says_where_it_was_looked_for():  # N17
    async def scenario() -> None:
        http = HttpTransport()
        context = SessionContext(key=Key("s", "c"), meter=lambda _: None, http=http)
        try:
            async with A2aAgent(endpoint=RemoteEndpoint(url=f"{server.url}/x", retries=0)).open(context):
                pass
        finally:
            await http.close()

    with (
        HttpServer(lambda request: StubResponse(status=404)) as server,
        pytest.raises(Unreachable, match=r"no agent card at http.*/x/\.well-known/agent-card\.json \(HTTP 404\) or "),
    ):
        asyncio.run(scenario())


# AG-UI


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (b"{", "not JSON"),
        (b"{}", "without a type"),
        (b'{"type": "RUN_ERROR", "message": "broken"}', "broken"),
        (b'{"type": "RUN_FINISHED", "outcome": {"type": "cancelled"}}', "cancelled the run"),
        (b'{"type": "STATE_DELTA", "delta": [{"op": "remove", "path": "/a"}]}', "does not fit the state"),
        (b'{"type": "STATE_DELTA", "delta": 7}', "does not fit the state"),
    ],
)
def test_an_event_that_is_none_is_the_agents_failure(event: bytes, problem: str):  # N17
    with pytest.raises(AgentFailed, match=problem):
        RunReader(CallProgress(), {}).add(event)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (json_response({"detail": "log in"}), "its answer has no events of AG-UI: log in"),
        (StubResponse(), "its answer is empty"),
        (StubResponse(body=b'data: {"type": "X"}\n\n'), "ended without RUN_FINISHED"),
        (StubResponse(status=307, headers={"Location": "/agent/"}), "HTTP 307 .* to /agent/: .* give the agent that"),
    ],
)
def test_an_answer_that_is_not_a_run_is_the_agents_failure(answer: StubResponse, problem: str):  # N17
    async def scenario() -> None:
        http = HttpTransport()
        context = SessionContext(key=Key("s", "c"), meter=lambda _: None, http=http)
        try:
            async with AguiAgent(endpoint=RemoteEndpoint(url=server.url, retries=0)).open(context) as session:
                await session.send(Message("user", "hi"), {})
        finally:
            await http.close()

    with HttpServer(lambda _: answer) as server, pytest.raises(AgentFailed, match=problem):
        asyncio.run(scenario())


def test_tool_calls_of_the_history_have_their_arguments_as_json():  # N5
    calls = [
        ToolCall("add", arguments, f"c{at}") for at, arguments in enumerate([{"a": 1}, '{"a": 1}', "no JSON", None])
    ]

    async def scenario(url: str) -> None:
        http = HttpTransport()
        history = (Message("assistant", "", tool_calls=tuple(calls)),)
        context = SessionContext(key=Key("s", "c"), meter=lambda _: None, http=http, history=history)
        try:
            async with AguiAgent(endpoint=RemoteEndpoint(url=url, retries=0)).open(context) as session:
                await session.send(Message("user", "hi"), {})
        finally:
            await http.close()

    with HttpServer(lambda _: StubResponse(body=b'data: {"type": "RUN_FINISHED"}\n\n')) as server:
        asyncio.run(scenario(server.url))
    sent = server.requests[0].json["messages"][0]["toolCalls"]
    assert [call["function"]["arguments"] for call in sent] == ['{"a":1}', '{"a": 1}', "no JSON", "{}"]


def test_the_state_is_patched():
    state = {"": {"a": [1, 2], "b": {"c": 1}}}
    operations: list[Any] = [
        {"op": "test", "path": "/a/0", "value": 1},
        {"op": "add", "path": "/a/-", "value": 3},
        {"op": "add", "path": "/a/0", "value": 0},
        {"op": "replace", "path": "/b/c", "value": 2},
        {"op": "copy", "from": "/b", "path": "/d"},
        {"op": "move", "from": "/b/c", "path": "/e~1f"},
        {"op": "remove", "path": "/a/1"},
    ]
    apply_patch(state, operations)
    assert state[""] == {"a": [0, 2, 3], "b": {}, "d": {"c": 2}, "e/f": 2}


@pytest.mark.parametrize("paths", [["/a"] * 200, [f"/{number}" for number in range(60)]], ids=["deeper", "larger"])
def test_copies_of_copies_end(paths: list[str]):
    """Each copy makes the state deeper, or twice as large."""
    reader = RunReader(CallProgress(), {"a": 1})
    delta = [{"op": "copy", "from": "", "path": path} for path in paths]

    def run() -> None:
        reader.add(codec.encode({"type": "STATE_DELTA", "delta": delta}))
        reader.copy_state()

    with pytest.raises(TrialFault):
        run()
