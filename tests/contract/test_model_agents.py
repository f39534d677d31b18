"""One suite for every agent that is a model behind a provider's API, each against the stand-in of its provider."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec import UNSET, Struct, structs

from model_conversations import ADD, HeldConversation, hold_conversation, only
from viva.agents.anthropic import AnthropicAgent
from viva.agents.chat import ChatAgent, Tool
from viva.agents.gemini_api import GeminiAgent
from viva.agents.model_session import ModelAgent
from viva.agents.models import build_model_agent
from viva.agents.responses import ResponsesAgent
from viva.errors import AgentFailed, Unreachable
from viva.llm.transport import HttpTransport
from viva.model import codec
from viva.model.case import Fixtures, Key, ToolStub
from viva.model.connector import Connector, Price, Secret
from viva.model.message import Message, ModelCall, Reply, ToolCall
from viva.model.progress import CallProgress
from viva.protocols import SessionContext
from viva.testing import AnthropicServer, GeminiServer, OpenAIServer, Say, StubResponse, json_response
from viva.testing.model_server import ModelServer

SCHEMA = {
    "type": "object",
    "properties": {"passed": {"type": "boolean"}, "notes": {"type": "array", "items": {"type": "string"}}},
    "required": ["passed", "notes"],
}
Spoken = list[tuple[str, Any]]


class Provider(Struct):
    """An agent, its stand-in, and what a request says in the words of all providers."""

    stand_in: type[ModelServer]
    agent: type[ModelAgent]
    priced: str

    def hold_conversation(self, script: Any, *said: str | Message, **fields: Any) -> HeldConversation:
        return hold_conversation(script, *said, agent=self.agent, stand_in=self.stand_in, **fields)

    def fails(self, script: Any, **fields: Any) -> str:
        """What is said of a provider that failed: not the agent's failure (N17)."""
        with pytest.raises(Unreachable) as failed:
            self.hold_conversation(script, "?", **fields)
        return failed.value.message

    def error(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> StubResponse:
        return self.stand_in("").build_error(status, message, headers)

    def spoken(self, asked: Any) -> Spoken:
        """Who said what: `call` and `result` for tools."""
        raise NotImplementedError

    def system(self, asked: Any) -> str | None:
        return asked.get("system")

    def schema(self, asked: Any) -> Any:
        raise NotImplementedError

    def settings(self, asked: Any) -> Mapping[str, Any]:
        return asked


class OpenAI(Provider):
    def spoken(self, asked: Any) -> Spoken:
        outcome: Spoken = []
        for message in asked["messages"]:
            match message:
                case {"role": "tool"}:
                    outcome.append(("result", message["content"]))
                case {"role": "system"}:
                    continue
                case _:
                    outcome += [(message["role"], message["content"])] if message["content"] is not None else []
                    outcome += [("call", call["function"]["name"]) for call in message.get("tool_calls", ())]
        return outcome

    def system(self, asked: Any) -> str | None:
        first = asked["messages"][0]
        return first["content"] if first["role"] == "system" else None

    def schema(self, asked: Any) -> Any:
        return asked.get("response_format", {}).get("json_schema", {}).get("schema")


class ResponsesServer(OpenAIServer):
    """The stand-in, with connectors to its Responses API."""

    def connector(self, **fields: Any) -> Connector:
        return super().connector(api="responses", **fields)

    def build_completion(self, say: Say, body: Mapping[str, Any]) -> dict[str, Any]:
        return super().build_completion(say, {"input": [], **body})

    def build_stream(self, say: Say, body: Mapping[str, Any]) -> tuple[bytes, ...]:
        return super().build_stream(say, {"input": [], **body})


class Responses(Provider):
    def spoken(self, asked: Any) -> Spoken:
        outcome: Spoken = []
        for item in asked["input"]:
            match item:
                case {"type": "function_call"}:
                    outcome.append(("call", item["name"]))
                case {"type": "function_call_output"}:
                    outcome.append(("result", item["output"]))
                case {"type": "reasoning"} | {"role": "developer"}:
                    continue
                case _:
                    content = item["content"]
                    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
                    outcome.append((item["role"], text))
        return outcome

    def system(self, asked: Any) -> str | None:
        first = asked["input"][0]
        return first["content"] if first["role"] == "developer" else None

    def schema(self, asked: Any) -> Any:
        return asked.get("text", {}).get("format", {}).get("schema")


class Anthropic(Provider):
    def spoken(self, asked: Any) -> Spoken:
        outcome: Spoken = []
        for message in asked["messages"]:
            blocks = message["content"]
            for block in [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks:
                match block["type"]:
                    case "text":
                        outcome.append((message["role"], block["text"]))
                    case "tool_use":
                        outcome.append(("call", block["name"]))
                    case "tool_result":
                        outcome.append(("result", block["content"]))
                    case _:  # what it thought
                        continue
        return outcome

    def schema(self, asked: Any) -> Any:
        return asked.get("output_config", {}).get("format", {}).get("schema")


class Gemini(Provider):
    def spoken(self, asked: Any) -> Spoken:
        outcome: Spoken = []
        for content in asked["contents"]:
            role = "assistant" if content["role"] == "model" else content["role"]
            for part in content["parts"]:
                match part:
                    case {"functionCall": call}:
                        outcome.append(("call", call["name"]))
                    case {"functionResponse": response}:
                        outcome.append(
                            ("result", response["response"].get("output", response["response"].get("error")))
                        )
                    case {"thought": True}:
                        continue
                    case _ if (
                        outcome and outcome[-1][0] == role == "assistant"
                    ):  # a stream goes back in the pieces in which it came
                        outcome[-1] = (role, outcome[-1][1] + part["text"])
                    case _:
                        outcome.append((role, part["text"]))
        return outcome

    def system(self, asked: Any) -> str | None:
        return asked["systemInstruction"]["parts"][0]["text"] if "systemInstruction" in asked else None

    def schema(self, asked: Any) -> Any:
        return asked["generationConfig"].get("responseJsonSchema")

    def settings(self, asked: Any) -> Mapping[str, Any]:
        return asked["generationConfig"] | {key: asked[key] for key in asked.keys() - {"generationConfig"}}


PROVIDERS = [
    OpenAI(OpenAIServer, ChatAgent, "gpt-4o-mini"),
    Responses(ResponsesServer, ResponsesAgent, "gpt-4o-mini"),
    Anthropic(AnthropicServer, AnthropicAgent, "claude-3-5-haiku-latest"),
    Gemini(GeminiServer, GeminiAgent, "gemini-2.5-flash"),
]


@pytest.fixture(params=PROVIDERS, ids=lambda provider: type(provider).__name__)
def provider(request: pytest.FixtureRequest) -> Provider:
    return request.param


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def streams(request: pytest.FixtureRequest) -> bool:
    return request.param


# Talking


def without_time(reply: Reply) -> Reply:
    return structs.replace(reply, first_token_ms=None, steps=())


def test_a_message_is_sent_and_answered(provider: Provider, streams: bool) -> None:
    outcome = provider.hold_conversation(["Hello, näturlich!"], "Hi", system="Be kind.", stream=streams)
    assert without_time(only(outcome)) == Reply("Hello, näturlich!", finish_reason="stop", calls=only(outcome).calls)
    assert (only(outcome).first_token_ms is not None) == streams
    assert provider.spoken(outcome.sent) == [("user", "Hi")]
    assert provider.system(outcome.sent) == "Be kind."


def test_the_whole_history_is_sent_each_turn(provider: Provider, streams: bool) -> None:  # N19
    before = (Message("user", "before"), Message("assistant", "then"))
    outcome = provider.hold_conversation(["One", "Two"], "a", "b", context={"history": before}, stream=streams)
    assert [reply.content for reply in outcome.replies] == ["One", "Two"]
    assert provider.spoken(outcome.sent) == [
        ("user", "before"), ("assistant", "then"), ("user", "a"), ("assistant", "One"), ("user", "b"),
    ]  # fmt: skip


def test_each_message_is_encoded_once(provider: Provider) -> None:
    """The pieces of earlier turns are the very same bytes in every request."""
    outcome = provider.hold_conversation(["one", "two", "three"], "a", "b", "c")
    first, second, third = (request.body for request in outcome.server.requests)
    assert second.startswith(first[:-2])
    assert third.startswith(second[:-2])


def test_what_the_model_thought_goes_back_as_it_came(provider: Provider) -> None:
    thinking = Say(content="One", thought="A long thought.")
    outcome = provider.hold_conversation([thinking, "Two"], "a", "b")
    assert [reply.content for reply in outcome.replies] == ["One", "Two"]
    assert b"A long thought." in outcome.server.requests[1].body


def test_a_system_message_of_the_history_reaches_the_model(provider: Provider) -> None:  # N5
    outcome = provider.hold_conversation(["x"], "a", context={"history": (Message("system", "Speak softly."),)})
    assert provider.spoken(outcome.sent) == [("user", "a")]
    assert provider.system(outcome.sent) == "Speak softly."


def test_an_empty_reply_is_one_and_the_conversation_can_continue(provider: Provider, streams: bool) -> None:
    outcome = provider.hold_conversation([Say(content=""), "Hello"], "a", "b", stream=streams)
    assert [reply.content for reply in outcome.replies] == ["", "Hello"]
    assert [line for line in provider.spoken(outcome.sent) if line[1]] == [("user", "a"), ("user", "b")]


@pytest.mark.parametrize("word", ["stop", "length", "content_filter"])
def test_the_finish_reason_has_one_name_for_all(provider: Provider, streams: bool, word: str) -> None:  # N22
    outcome = provider.hold_conversation([Say(content="Well", finish_reason=word)], "a", stream=streams)
    assert only(outcome).finish_reason == word


def test_temperature_seed_and_longest_answer(provider: Provider) -> None:
    """Two APIs take no seed: a connector that has one cannot even be made."""
    asked: dict[str, Any] = {"temperature": 0.0, "max_tokens": 50}
    if provider.stand_in in (AnthropicServer, ResponsesServer):
        with pytest.raises(ValueError, match="does not take `seed`"):
            provider.stand_in("").connector(seed=7)
    else:
        asked["seed"] = 7
    outcome = provider.hold_conversation(["x"], "a", connector=asked)
    sent = provider.settings(outcome.sent)
    assert sent["temperature"] == 0.0
    assert 50 in (sent.get("max_tokens"), sent.get("maxOutputTokens"), sent.get("max_output_tokens"))
    assert sent.get("seed") == asked.get("seed")


def test_the_config_adds_fields_to_the_request(provider: Provider) -> None:
    """Those of the agent win over those of the connector; settings of our own beside them stay."""
    more: dict[str, tuple[Any, Any]] = {
        "openai": ({"top_p": 0.1, "user": "c"}, {"top_p": 0.5}),
        "anthropic": ({"top_p": 0.1, "output_config": {"effort": "low"}}, {"top_p": 0.5}),
        "gemini": ({"generationConfig": {"topP": 0.1, "topK": 3}}, {"generationConfig": {"topP": 0.5}}),
    }
    extra, body = more[provider.stand_in.provider]
    outcome = provider.hold_conversation(
        ["x"], "a", connector={"temperature": 0.3, "extra": extra}, body=body, output=SCHEMA
    )
    sent = provider.settings(outcome.sent)
    assert (sent["temperature"], 0.5 in (sent.get("top_p"), sent.get("topP"))) == (0.3, True)
    assert sent.get("user", "c") == "c"
    assert sent.get("topK", 3) == 3
    assert provider.schema(outcome.sent)["properties"] == SCHEMA["properties"]


def test_the_address_may_have_a_query(provider: Provider) -> None:
    with provider.stand_in("x") as server:
        connector = server.connector(base_url=f"{server.url}/?proxy=1")
        request = provider.agent(connector=connector).get_endpoint(connector).build_request(b"", [])
    path, _, query = request.url.partition("?")
    assert query == "proxy=1"
    assert "//" not in path.removeprefix("http://")


def test_the_key_is_sent_and_never_shown(provider: Provider) -> None:
    key = "sk-geheim-123"
    outcome = provider.hold_conversation(["x"], "a", connector={"api_key": Secret(key)})
    assert any(key in value for value in outcome.server.requests[0].headers.values())
    said = provider.fails([provider.error(401, f"Incorrect API key: {key}")], connector={"api_key": Secret(key)})
    assert said == "stand-in: 401 Unauthorized: Incorrect API key: ***"


def test_a_key_of_another_kind_takes_the_place_of_ours(provider: Provider) -> None:
    outcome = provider.hold_conversation(
        ["x"], "a", connector={"headers": {"authorization": "Token abc", "X-Team": "t"}}
    )
    headers = outcome.server.requests[0].headers
    assert (headers["authorization"], headers["x-team"]) == ("Token abc", "t")
    assert "test-key" not in "".join(headers.values())


def test_a_key_that_is_not_set_is_named(provider: Provider) -> None:
    missing = {"api_key": None, "key_source": "ACME_KEY"}
    said = provider.fails(lambda r: provider.error(401, "who?"), connector=missing)
    assert said.endswith("(ACME_KEY is not set)")


# Tools


def test_tools_run_and_the_model_reads_their_results(provider: Provider, streams: bool) -> None:
    wanted = [ToolCall("add", {"a": 1, "b": 2}, "c1"), ToolCall("add", {"a": 30, "b": 4}, "c2")]
    script = [Say(content="Let me see.", thought="Hm.", tool_calls=wanted), "3 and 34"]
    outcome = provider.hold_conversation(script, "?", tools=(ADD,), stream=streams)
    done = tuple(structs.replace(call, result=total) for call, total in zip(wanted, (3, 34), strict=True))
    assert without_time(only(outcome)) == Reply(
        "3 and 34", tool_calls=done, finish_reason="stop", calls=only(outcome).calls
    )
    spoken = provider.spoken(outcome.sent)
    assert spoken[:4] == [("user", "?"), ("assistant", "Let me see."), ("call", "add"), ("call", "add")]
    assert [(who, str(what)) for who, what in spoken[4:]] == [("result", "3"), ("result", "34")]
    assert [step.kind for step in only(outcome).steps] == ["model", "tool", "tool", "model"]


def test_results_are_told_once(provider: Provider) -> None:
    script = [Say(tool_calls=[ToolCall("add", {"a": 1, "b": 2})]), "3", "Bye."]
    outcome = provider.hold_conversation(script, "?", "thanks", tools=(ADD,))
    assert [who for who, _ in provider.spoken(outcome.sent)] == ["user", "call", "result", "assistant", "user"]


def test_a_tool_is_described_to_the_model(provider: Provider) -> None:
    outcome = provider.hold_conversation(["x"], "a", tools=(ADD, Tool("look")))
    sent = str(outcome.sent["tools"])
    assert "'name': 'add', 'description': 'Adds.'" in sent
    assert str(ADD.parameters) in sent
    assert "'name': 'look'" in sent


def test_a_tool_that_fails_tells_the_model_and_the_report(provider: Provider) -> None:
    def boom() -> None:
        raise LookupError("no such order")

    outcome = provider.hold_conversation(
        [Say(tool_calls=[ToolCall("boom", {})]), "Sorry."], "?", tools=(Tool("boom", run=boom),)
    )
    (used,) = only(outcome).tool_calls
    assert (used.error, used.result) == ("LookupError: no such order", UNSET)
    assert "LookupError: no such order" in provider.spoken(outcome.sent)[-1][1]


def test_stubs_stand_for_tools_and_nothing_runs_live(provider: Provider) -> None:  # W3
    def never() -> None:
        raise AssertionError("the live tool ran")

    fixtures = Fixtures(tools=(ToolStub("look", {"n": 1}),), memory=("Likes tea",), stub_all_tools=True)
    script = [Say(tool_calls=[ToolCall("look", {}), ToolCall("pay", {})]), "ok"]
    outcome = provider.hold_conversation(
        script, "?", tools=(Tool("look", run=never), Tool("pay", run=never)), context={"fixtures": fixtures}
    )
    assert [(call.result, call.error) for call in only(outcome).tool_calls] == [
        ({"n": 1}, None),
        (UNSET, "no canned response for the tool 'pay'"),
    ]
    assert provider.system(outcome.sent) == "What you remember:\n- Likes tea"


def test_a_tool_that_is_not_run_here_ends_the_turn_and_the_conversation_can_continue(provider: Provider) -> None:
    asked = [ToolCall("add", {"a": 1, "b": 1}, "c1"), ToolCall("confirm", {"x": 1}, "c2")]
    outcome = provider.hold_conversation(
        [Say(content="One moment.", tool_calls=asked), "Done."], "go", "yes", tools=(ADD, Tool("confirm"))
    )
    first, second = outcome.replies
    assert (first.content, first.finish_reason, second.content) == ("One moment.", "tool_calls", "Done.")
    assert [call.result for call in first.tool_calls] == [2, UNSET]
    assert [who for who, _ in provider.spoken(outcome.sent)] == [
        "user", "assistant", "call", "call", "result", "result", "user",
    ]  # fmt: skip


def test_the_result_of_such_a_tool_may_be_the_next_message(provider: Provider) -> None:
    script = [Say(tool_calls=[ToolCall("confirm", {}, "c1")]), "Done."]
    outcome = provider.hold_conversation(
        script, "go", Message("tool", "yes", tool_call_id="c1"), tools=(Tool("confirm"),)
    )
    assert provider.spoken(outcome.sent) == [("user", "go"), ("call", "confirm"), ("result", "yes")]


def test_the_tool_loop_has_a_limit(provider: Provider) -> None:
    again = Say(tool_calls=[ToolCall("add", {"a": 1, "b": 2})])
    with pytest.raises(AgentFailed) as failed:
        provider.hold_conversation(lambda r: again, "?", tools=(ADD,), max_tool_rounds=2)
    assert failed.value.message == "tool loop exceeded 2 rounds"
    outcome = provider.hold_conversation([again, again, "ok"], "?", tools=(ADD,), max_tool_rounds=2)
    assert only(outcome).content == "ok"


@pytest.mark.parametrize("arguments", [{"n": 1}, '{"n": 1}', "not JSON", None])
def test_tool_calls_of_a_history_come_before_its_text(provider: Provider, arguments: Any) -> None:
    used = (ToolCall("look", arguments, result={"ok": True}), ToolCall("pay", error="refused"))
    before = (Message("user", "a"), Message("assistant", "Done.", tool_calls=used))
    outcome = provider.hold_conversation(["x"], "b", context={"history": before})
    assert [who for who, _ in provider.spoken(outcome.sent)] == [
        "user", "call", "call", "result", "result", "assistant", "user",
    ]  # fmt: skip


@pytest.mark.parametrize("answered", [True, False])
def test_a_history_may_hold_results_as_messages_of_their_own_or_none(provider: Provider, answered: bool) -> None:
    asked = Message("assistant", "", tool_calls=(ToolCall("look", {}, "functions.look:0"),))
    result = (Message("tool", "seen", tool_call_id="functions.look:0"),) if answered else ()
    outcome = provider.hold_conversation(["x"], "b", context={"history": (Message("user", "a"), asked, *result)})
    spoken = provider.spoken(outcome.sent)
    assert [who for who, _ in spoken] == ["user", "call", "result", "user"]
    assert spoken[2][1] == ("seen" if answered else "This tool is not run here. The user gives its result next.")


# Answers of a fixed shape


def test_answers_of_a_fixed_shape_are_asked_for_by_their_schema(provider: Provider, streams: bool) -> None:
    outcome = provider.hold_conversation(['{"passed": true, "notes": []}'], "a", output=SCHEMA, stream=streams)
    assert only(outcome).content == '{"passed": true, "notes": []}'
    sent = provider.schema(outcome.sent)
    assert {key: sent[key] for key in SCHEMA} == SCHEMA


@pytest.mark.parametrize("structured", ["json", "text"])
def test_a_server_that_knows_no_schemas_gets_none(provider: Provider, structured: str) -> None:
    outcome = provider.hold_conversation(["{}"], "a", output=SCHEMA, connector={"structured": structured})
    assert provider.schema(outcome.sent) is None
    as_json = (
        b"json_object" in outcome.server.requests[0].body or b"application/json" in outcome.server.requests[0].body
    )
    assert as_json == (structured == "json" and provider.stand_in is not AnthropicServer)


def test_a_model_is_an_agent_by_its_connectors_provider(provider: Provider) -> None:
    connector = provider.stand_in("").connector()
    assert build_model_agent(connector, "Be kind.", SCHEMA) == provider.agent(
        connector=connector, system="Be kind.", output=SCHEMA
    )


# What it costs


def test_every_call_is_metered_with_its_price(provider: Provider, streams: bool) -> None:
    script = [
        Say(tool_calls=[ToolCall("add", {"a": 1, "b": 2})], input_tokens=100, output_tokens=10, cached_tokens=30),
        Say(content="3", thought="Hm.", input_tokens=200, output_tokens=20, reasoning_tokens=8),
    ]
    outcome = provider.hold_conversation(
        script, "1+2?", tools=(ADD,), connector={"price": Price(1.0, 10.0)}, stream=streams
    )
    name = provider.stand_in.provider
    assert [structs.replace(call, cost_usd=None) for call in outcome.metered] == [
        ModelCall("stand-in", name, 100, 10, 30),
        ModelCall("stand-in", name, 200, 20),
    ]
    assert [call.cost_usd for call in outcome.metered] == pytest.approx([0.0002, 0.0004])
    assert only(outcome).calls == tuple(outcome.metered)


def test_the_price_of_a_known_model_is_looked_up(provider: Provider) -> None:
    said = Say(content="x", input_tokens=1000, output_tokens=100)
    (known,) = provider.hold_conversation([said], "a", connector={"model": provider.priced}).metered
    assert known.cost_usd is not None
    assert 0 < known.cost_usd < 0.01
    (unknown,) = provider.hold_conversation([said], "a").metered
    assert unknown.cost_usd is None


def test_a_call_is_metered_even_if_the_next_one_fails(provider: Provider) -> None:
    metered: list[ModelCall] = []

    async def scenario() -> None:
        http = HttpTransport()
        context = SessionContext(key=Key("s", "c"), meter=metered.append, http=http)
        async with provider.agent(connector=server.connector(), tools=(ADD,)).open(context) as session:
            with pytest.raises(Unreachable):
                await session.send(Message("user", "x"), {})
        await http.close()

    script = [Say(tool_calls=[ToolCall("add", {"a": 1, "b": 2})]), provider.error(500, "down")]
    with provider.stand_in(script) as server:
        asyncio.run(scenario())
    assert len(metered) == 1


# Faults


@pytest.mark.parametrize("status", [401, 402, 403, 404, 408, 429, 500, 502, 503, 504, 529, 302])
def test_a_provider_that_fails_is_not_the_agents_failure(provider: Provider, streams: bool, status: int) -> None:  # N17
    said = provider.fails([provider.error(status, "told why")], stream=streams)
    assert said.startswith(f"stand-in: {status}")
    assert said.endswith(": told why")


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_request_that_the_model_cannot_take_is_the_agents_failure(
    provider: Provider, streams: bool, status: int
) -> None:  # N17
    with pytest.raises(AgentFailed, match=f"^stand-in: {status} .*: context too long$"):
        provider.hold_conversation([provider.error(status, "context too long")], "?", stream=streams)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (json_response({"error": {"message": "upstream failed"}}), "it answered with an error: upstream failed"),
        (json_response({"error": "flat"}), "it answered with an error: flat"),
        (json_response([1]), "the answer is not "),
        (StubResponse(body=b"<html>"), "the answer is not JSON"),
        (StubResponse(body=b'{"choices": [{"mess'), "the answer is not JSON"),
        (StubResponse(cut="before"), "closed the connection without an answer"),
        (StubResponse(body=b"{}", cut="after_headers"), "its answer was cut off"),
        (StubResponse(body=b'{"choices": [], "content": []}', cut="amid_body"), "its answer was cut off"),
    ],
)
def test_an_answer_that_is_none_is_the_providers_fault(
    provider: Provider, answer: StubResponse, expected: str
) -> None:  # N17
    outcome = provider.fails([answer])
    assert outcome.startswith("stand-in: ")
    assert expected in outcome


@pytest.mark.parametrize("close", ["silent", None])
@pytest.mark.parametrize("provider", PROVIDERS[:3], ids=lambda provider: type(provider).__name__)
def test_a_stream_is_complete_with_its_last_event_however_its_connection_ends(provider: Provider, close: Any) -> None:
    server = provider.stand_in("")
    body = b"".join(server.build_stream(Say(content="Hello"), {"model": "m"}))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    without_end = StubResponse(raw=(head, b"%x\r\n%b\r\n" % (len(body), body)), close=close)
    connector = {"retries": 0, "timeout_s": 5.0}
    conversation = provider.hold_conversation([without_end], "?", stream=True, connector=connector)
    assert only(conversation).content == "Hello"


def test_a_json_object_without_an_answer_is_the_providers_fault(provider: Provider) -> None:  # N17
    assert "the answer " in provider.fails([json_response({})])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda whole: StubResponse(chunks=whole, cut="amid_body"), "its answer was cut off"),
        (lambda whole: StubResponse(chunks=whole[:3]), "the stream ended before the answer did"),
        (lambda whole: StubResponse(chunks=()), "the stream ended before the answer did"),
        (
            lambda whole: StubResponse(
                chunks=(whole[0], b'data: {"type":"error","error":{"message":"overloaded"}}\n\n')
            ),
            "it answered with an error: overloaded",
        ),
        (lambda whole: StubResponse(chunks=(whole[0], b"data: {oops\n\n")), "the answer is not JSON"),
    ],
)
def test_a_stream_that_breaks_is_the_providers_fault(provider: Provider, change: Any, expected: str) -> None:  # N17
    whole = provider.stand_in("").build_stream(Say(content="Hello there, this is long"), {"model": "m"})
    assert expected in provider.fails([change(whole)], stream=True)


def test_a_stream_that_hangs_keeps_what_it_said(provider: Provider) -> None:  # N16, N18
    text = "Hello there, this is long. " * 20
    whole = provider.stand_in("").build_stream(Say(content=text), {"model": "m"})
    progress = CallProgress()

    async def scenario() -> None:
        http = HttpTransport()
        context = SessionContext(key=Key("s", "c"), meter=lambda call: None, http=http, progress=progress)
        async with provider.agent(connector=server.connector(), stream=True).open(context) as session:
            call = asyncio.ensure_future(session.send(Message("user", "x"), {}))
            while not session._texts:
                await asyncio.sleep(0.001)
            call.cancel()
            await asyncio.wait([call])
        await http.close()

    with provider.stand_in([StubResponse(chunks=whole, hold="amid_body")]) as server:
        asyncio.run(scenario())
    assert progress.partial is not None
    assert progress.partial.content
    assert text.startswith(progress.partial.content)
    assert progress.partial.first_token_ms is not None


def test_a_stream_may_come_in_any_pieces(provider: Provider) -> None:
    whole = provider.stand_in("").build_stream(
        Say(content="Hello there", tool_calls=[ToolCall("add", {"a": 1, "b": 2})]), {"model": "m"}
    )
    torn = tuple(bytes([byte]) for byte in b": ping\r\n\r\n" + b"".join(whole))
    outcome = provider.hold_conversation([StubResponse(chunks=torn), "3"], "?", stream=True, tools=(ADD,))
    assert only(outcome).tool_calls[0].result == 3
    assert ("assistant", "Hello there") in provider.spoken(outcome.sent)


def test_a_provider_that_recovers_is_tried_again(provider: Provider, streams: bool) -> None:
    now = {"Retry-After": "0"}
    script = [
        provider.error(429, "slow down", now), provider.error(529, "overloaded", now), provider.error(503, "down", now),
        "Hello",
    ]  # fmt: skip
    outcome = provider.hold_conversation(script, "a", connector={"retries": 3}, stream=streams)
    assert only(outcome).content == "Hello"
    assert len(outcome.server.requests) == 4


def test_a_wait_that_is_too_long_is_not_waited_for(provider: Provider) -> None:
    said = provider.fails([provider.error(429, "come back", {"Retry-After": "3600"})], connector={"retries": 3})
    assert "it asks for 1h: too long to wait" in said


def test_the_pace_of_a_connector_is_kept_over_sessions(provider: Provider) -> None:
    """Two sessions of a run share the limit: the second call has to wait, and is not sent."""

    async def scenario() -> None:
        http = HttpTransport()
        agent = provider.agent(connector=server.connector(requests_per_minute=1))
        context = SessionContext(key=Key("s", "c"), meter=lambda call: None, http=http)
        async with agent.open(context) as one:
            await one.send(Message("user", "x"), {})
        async with agent.open(context) as two:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await two.send(Message("user", "x"), {})
        await http.close()

    with provider.stand_in("x") as server:
        asyncio.run(scenario())
    assert len(server.requests) == 1


def test_a_cancelled_call_closes_its_connection(provider: Provider, streams: bool) -> None:
    async def scenario() -> None:
        http = HttpTransport()
        context = SessionContext(key=Key("s", "c"), meter=lambda call: None, http=http)
        async with provider.agent(connector=server.connector(), stream=streams).open(context) as session:
            sending = asyncio.create_task(session.send(Message("user", "x"), {}))
            await asyncio.to_thread(server.wait_for, lambda: len(server.requests) == 1)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await asyncio.to_thread(server.wait_for, lambda: server.open_connections == 0)
        await http.close()

    with provider.stand_in([StubResponse(hold=True)]) as server:
        asyncio.run(scenario())


# Connectors


def _others(provider: Provider) -> Sequence[Provider]:
    return [other for other in PROVIDERS if other is not provider]


def test_an_option_chooses_another_connector_of_any_provider(provider: Provider) -> None:  # N20
    for other in _others(provider):
        with other.stand_in(["Hello from there"]) as elsewhere:
            connectors = {"big": elsewhere.connector(name="big")}
            outcome = provider.hold_conversation(
                [], "a", options={"connector": "big"}, context={"connectors": connectors}
            )
            asked = elsewhere.requests[0].json
        assert only(outcome).content == "Hello from there"
        assert other.spoken(asked) == [("user", "a")]
        assert outcome.metered[0].provider == other.stand_in.provider


def test_a_conversation_stays_with_the_provider_it_began_on(provider: Provider) -> None:
    async def scenario(connectors: Mapping[str, Any]) -> None:
        http = HttpTransport()
        context = SessionContext(key=Key("s", "c"), meter=lambda call: None, http=http, connectors=connectors)
        async with provider.agent(connector=server.connector()).open(context) as session:
            await session.send(Message("user", "x"), {})
            with pytest.raises(Unreachable, match="cannot take over a conversation that began on 'stand-in'"):
                await session.send(Message("user", "x"), {"connector": "big"})
        await http.close()

    for other in _others(provider):
        with provider.stand_in("x") as server, other.stand_in("x") as elsewhere:
            asyncio.run(scenario({"big": elsewhere.connector(name="big")}))
        assert elsewhere.requests == []


def test_an_answer_in_utf_8_with_another_label_is_read_right(provider: Provider):  # N17
    said = provider.stand_in("").build_completion(Say(content="Grüße, 数据"), {"model": "m", "turn": 1})
    body = codec.encode(said)
    answer = StubResponse(body=body, headers={"Content-Type": "application/json; charset=latin-1"})
    assert only(provider.hold_conversation([answer], "?")).content == "Grüße, 数据"


def _below_zero(value: Any) -> Any:
    """The same answer, with every number of its usage negative."""
    if isinstance(value, dict):
        return {name: _below_zero(item) for name, item in value.items()}
    return -7 if type(value) is int else value


def test_usage_below_zero_counts_as_none(provider: Provider):
    said = provider.stand_in("").build_completion(Say(content="x"), {"model": "m", "turn": 1})
    answer = json_response({name: _below_zero(value) if "usage" in name else value for name, value in said.items()})
    assert b"-7" in answer.body
    outcome = provider.hold_conversation([answer], "?", connector={"price": Price(input=1.0, output=1.0)})
    assert only(outcome).content == "x"
    (call,) = outcome.metered
    assert (call.input_tokens, call.output_tokens, call.cached_tokens, call.cost_usd) == (0, 0, 0, 0.0)
