"""One suite for every stand-in model server, seen over its socket by a client that shares no code with Viva."""

import asyncio
import http.client
import json
import re
import urllib.error
import urllib.request
from typing import Any

import pytest
from msgspec import Struct

from viva.model.message import ToolCall
from viva.testing import AnthropicServer, Fail, GeminiServer, ModelRequest, OpenAIServer, ReceivedRequest, Say, When
from viva.testing.model_server import ModelServer


class Spoken(Struct, frozen=True):
    """What an answer says, in words that are the same for all."""

    text: str
    calls: tuple[tuple[str, Any], ...] = ()
    finish: str = ""


class Client(Struct, frozen=True):
    """How one provider is asked, and how its answers are read."""

    stand_in: type[ModelServer]
    headers: dict[str, str]

    def path(self, *, stream: bool) -> str:
        raise NotImplementedError

    def first(self, said: str, system: str) -> dict[str, Any]:
        raise NotImplementedError

    def later(self, said: str) -> list[dict[str, Any]]:
        """A call of `add` and its result `3`, and then what the user says, if anything."""
        raise NotImplementedError

    def conversation(self) -> str:
        raise NotImplementedError

    def read(self, answer: dict[str, Any]) -> Spoken:
        raise NotImplementedError

    def gather(self, events: list[dict[str, Any]]) -> Spoken:
        raise NotImplementedError

    def ask(self, server: ModelServer, said: str = "Hi", *, stream: bool = False, after: str | None = None) -> Any:
        """The status, and what is said; `after` continues behind a tool's result."""
        body = self.first(said, "Be brief.")
        if after is not None:
            body[self.conversation()] += self.later(after)
        return self.post(server, self.path(stream=stream), body | self.streaming(stream=stream))

    def streaming(self, *, stream: bool) -> dict[str, Any]:
        return {"stream": True} if stream else {}

    def post(self, server: ModelServer, path: str, body: Any) -> Any:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        request = urllib.request.Request(server.origin + path, data, self.headers)
        try:
            with urllib.request.urlopen(request, timeout=300) as response:
                text = response.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.status, json.load(refused)
        if text.startswith("{"):
            return 200, self.read(json.loads(text)) if path == self.path(stream=False) else json.loads(text)
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
        return 200, self.gather([json.loads(line) for line in lines])


class Gemini(Client, frozen=True):
    def path(self, *, stream: bool) -> str:
        return "/v1beta/models/m-1:" + ("streamGenerateContent?alt=sse" if stream else "generateContent")

    def streaming(self, *, stream: bool) -> dict[str, Any]:
        return {}

    def conversation(self) -> str:
        return "contents"

    def first(self, said: str, system: str) -> dict[str, Any]:
        user = {"role": "user", "parts": [{"text": said}]}
        return {"contents": [user], "systemInstruction": {"parts": [{"text": system}]}}

    def later(self, said: str) -> list[dict[str, Any]]:
        call = {"functionCall": {"id": "c1", "name": "add", "args": {"a": 1}}}
        result = {"functionResponse": {"id": "c1", "name": "add", "response": {"output": "3"}}}
        return [
            {"role": "model", "parts": [call]},
            {"role": "user", "parts": [result, *([{"text": said}] if said else [])]},
        ]

    def read(self, answer: dict[str, Any]) -> Spoken:
        return self.gather([answer])

    def gather(self, events: list[dict[str, Any]]) -> Spoken:
        candidates = [event["candidates"][0] for event in events]
        parts = [part for candidate in candidates for part in candidate["content"].get("parts", ())]
        return Spoken(
            "".join(part.get("text", "") for part in parts),
            tuple((part["functionCall"]["name"], part["functionCall"]["args"]) for part in parts if "functionCall" in part),
            candidates[-1]["finishReason"],
        )  # fmt: skip


class Chat(Client, frozen=True):
    def path(self, *, stream: bool) -> str:
        return "/v1/chat/completions"

    def conversation(self) -> str:
        return "messages"

    def first(self, said: str, system: str) -> dict[str, Any]:
        return {"model": "m-1", "messages": [{"role": "system", "content": system}, {"role": "user", "content": said}]}

    def later(self, said: str) -> list[dict[str, Any]]:
        call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
        return [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
            *([{"role": "user", "content": said}] if said else []),
        ]

    def read(self, answer: dict[str, Any]) -> Spoken:
        choice = answer["choices"][0]
        calls = [call["function"] for call in choice["message"].get("tool_calls", ())]
        given = tuple((call["name"], json.loads(call["arguments"])) for call in calls)
        return Spoken(choice["message"]["content"] or "", given, choice["finish_reason"])

    def gather(self, events: list[dict[str, Any]]) -> Spoken:
        deltas = [event["choices"][0]["delta"] for event in events]
        names, arguments = [], {}
        for call in (call for delta in deltas for call in delta.get("tool_calls", ())):
            names += [call["function"]["name"]] if "name" in call["function"] else []
            arguments[call["index"]] = arguments.get(call["index"], "") + call["function"]["arguments"]
        given = tuple((name, json.loads(arguments[index])) for index, name in enumerate(names))
        text = "".join(delta.get("content") or "" for delta in deltas)
        return Spoken(text, given, events[-1]["choices"][0]["finish_reason"])


class Responses(Client, frozen=True):
    def path(self, *, stream: bool) -> str:
        return "/v1/responses"

    def conversation(self) -> str:
        return "input"

    def first(self, said: str, system: str) -> dict[str, Any]:
        user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": said}]}
        return {"model": "m-1", "instructions": system, "input": [user]}

    def later(self, said: str) -> list[dict[str, Any]]:
        return [
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
            *([{"role": "user", "content": said}] if said else []),
        ]

    def read(self, answer: dict[str, Any]) -> Spoken:
        text = "".join(item["content"][0]["text"] for item in answer["output"] if item["type"] == "message")
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        return Spoken(text, tuple((call["name"], json.loads(call["arguments"])) for call in calls), answer["status"])

    def gather(self, events: list[dict[str, Any]]) -> Spoken:
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        whole = self.read(events[-1]["response"])
        pieces = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        given = "".join(event["delta"] for event in events if event["type"].endswith("arguments.delta"))
        assert (pieces, given) == (
            whole.text,
            "".join(json.dumps(call, separators=(",", ":")) for _, call in whole.calls),
        )
        return whole


class Anthropic(Client, frozen=True):
    def path(self, *, stream: bool) -> str:
        return "/v1/messages"

    def conversation(self) -> str:
        return "messages"

    def first(self, said: str, system: str) -> dict[str, Any]:
        return {"model": "m-1", "max_tokens": 9, "system": system, "messages": [{"role": "user", "content": said}]}

    def later(self, said: str) -> list[dict[str, Any]]:
        call = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}
        result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "3"}]}
        return [
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result, *([{"type": "text", "text": said}] if said else [])]},
        ]

    def read(self, answer: dict[str, Any]) -> Spoken:
        text = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
        calls = tuple((block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use")
        return Spoken(text, calls, answer["stop_reason"])

    def gather(self, events: list[dict[str, Any]]) -> Spoken:
        text, names, given = "", [], {}
        for event in events:
            match event["type"]:
                case "content_block_start" if event["content_block"]["type"] == "tool_use":
                    names.append((event["index"], event["content_block"]["name"]))
                case "content_block_delta":
                    text += event["delta"].get("text", "")
                    given[event["index"]] = given.get(event["index"], "") + event["delta"].get("partial_json", "")
                case _:
                    pass
        ended = next(event for event in events if event["type"] == "message_delta")
        return Spoken(text, tuple((name, json.loads(given[at])) for at, name in names), ended["delta"]["stop_reason"])


CLIENTS = [
    Gemini(GeminiServer, {"x-goog-api-key": "k"}),
    Chat(OpenAIServer, {"authorization": "Bearer k"}),
    Responses(OpenAIServer, {"authorization": "Bearer k"}),
    Anthropic(AnthropicServer, {"x-api-key": "k", "anthropic-version": "2023-06-01"}),
]
clients = pytest.mark.parametrize("client", CLIENTS, ids=[type(client).__name__ for client in CLIENTS])


@clients
def test_a_streamed_answer_says_the_same_as_a_whole_one(client: Client):
    line = Say(content="One moment, please.", tool_calls=[ToolCall("add", {"a": 1, "b": [2]}), ToolCall("stop", {})])
    with client.stand_in([line, line]) as server:
        whole, streamed = client.ask(server), client.ask(server, stream=True)
        assert whole == streamed
        assert whole[1].text == "One moment, please."
        assert whole[1].calls == (("add", {"a": 1, "b": [2]}), ("stop", {}))
        assert [asked.stream for asked in server.model_requests] == [False, True]


@clients
def test_a_request_is_read_in_the_same_words_for_all(client: Client):
    with client.stand_in("fine") as server:
        client.ask(server, "Hi", after="and now?")
        asked = server.model_requests[0]
    assert asked.model == "m-1"
    assert asked.system == "Be brief."
    assert [(message.role, message.name) for message in asked.messages if message.role != "system"] == [
        ("user", None),
        ("assistant", None),
        ("tool", "add"),
        ("user", None),
    ]
    (called,) = asked.messages[2].tool_calls
    assert (called.name, called.id) == ("add", "c1")
    assert asked.tool_results == ["add"]
    assert "3" in asked.text
    assert asked.text.endswith("and now?")
    assert "Hi" not in asked.text


@clients
def test_the_first_line_that_fits_and_is_not_used_up_answers(client: Client):
    script = [
        When("to another model", model="n-*"),
        When("to another assistant", system="Be long"),
        When("hello again", text=r"(?i)^hi\b", times=2),
        When("the sum is 3", tool="add"),
        "the first of the rest",
        Fail(503, "enough"),
    ]
    with client.stand_in(script) as server:
        said = [client.ask(server)[1].text for _ in range(2)]
        said += [client.ask(server, "Hi", after="")[1].text, client.ask(server)[1].text]
        status, outcome = client.ask(server)
        over, why = client.ask(server)
    assert said == ["hello again", "hello again", "the sum is 3", "the first of the rest"]
    assert (status, over) == (503, 400)
    assert "enough" in json.dumps(outcome)
    assert "the script has 6 lines; none is left for request 6" in json.dumps(why)


@clients
def test_a_function_of_the_request_gives_the_line(client: Client):
    def script(asked: ModelRequest) -> str | Say:
        return Say(tool_calls=[ToolCall("add", {"a": 1})]) if not asked.tool_results else f"heard {asked.text}"

    with client.stand_in(script) as server:
        assert client.ask(server)[1].calls == (("add", {"a": 1}),)
        assert client.ask(server, after="")[1].text.startswith("heard ")


@clients
@pytest.mark.parametrize("status", [400, 401, 429, 503])
def test_an_error_has_its_status_headers_and_words(client: Client, status: int):
    with client.stand_in([Fail(status, "not now", {"Retry-After": "7"}, delay_s=0.01)]) as server:
        body = json.dumps(client.first("Hi", "x"))
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        connection.request("POST", client.path(stream=False), body, client.headers)
        answer = connection.getresponse()
        outcome = json.load(answer)
        connection.close()
    assert (answer.status, answer.headers["Retry-After"]) == (status, "7")
    assert outcome["error"]["message"] == "not now"


@clients
def test_a_reply_can_get_stuck_amid_its_stream_and_go_on(client: Client):
    with client.stand_in([Say(content="x" * 70, hold="amid_body")]) as server:
        body = client.first("Hi", "x") | client.streaming(stream=True)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        connection.request("POST", client.path(stream=True), json.dumps(body), client.headers)
        answer = connection.getresponse()
        begun = answer.read1(100)
        assert b"data: " in begun
        server.release()
        assert answer.read()
        connection.close()


@clients
def test_a_reply_can_be_dropped(client: Client):
    with client.stand_in([Say(content="x" * 70, cut="amid_body")]) as server, pytest.raises(http.client.IncompleteRead):
        client.ask(server, stream=True)


@clients
def test_an_unknown_path_is_a_404_and_is_recorded(client: Client):
    with client.stand_in() as server:
        status, outcome = client.post(server, "/v7/else", {})
        assert [received.path for received in server.unknown_requests] == ["/v7/else"]
        assert server.model_requests == []
    assert status == 404
    assert "no endpoint /v7/else; this stand-in has POST /v1" in json.dumps(outcome)


@clients
def test_what_is_not_a_request_is_refused_and_uses_nothing_up(client: Client):
    with client.stand_in(["one"]) as server:
        assert client.post(server, client.path(stream=False), b"{")[0] == 400
        assert client.post(server, client.path(stream=False), b"[]")[0] == 400
        body = client.first("Hi", "x")
        assert client.post(server, client.path(stream=False), body | {client.conversation(): [7]})[0] == 400
        assert client.ask(server)[1].text == "one"


@clients
def test_its_environment_leads_there(client: Client):
    with client.stand_in() as server:
        assert server.url in server.env.values()
        assert any(name.endswith("API_KEY") for name in server.env)


@clients
def test_it_can_be_used_in_an_event_loop(client: Client):
    async def hold_conversation() -> str:
        async with client.stand_in("fine") as server:
            return (await asyncio.to_thread(client.ask, server))[1].text

    assert asyncio.run(hold_conversation()) == "fine"


@clients
def test_a_request_may_come_in_chunks(client: Client):
    with client.stand_in() as server:
        data = json.dumps(client.first("Hi", "x")).encode()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        for _ in range(2):  # the second stands behind the first on the same connection
            connection.request(
                "POST", client.path(stream=False), iter([data[:9], data[9:]]), client.headers, encode_chunked=True
            )
            assert client.read(json.load(connection.getresponse())).text == "ok"
        connection.close()


@clients
def test_a_script_that_breaks_is_not_overlooked(client: Client):
    def script(asked: ModelRequest) -> str:
        raise LookupError("a bug of the test")

    def hold_conversation() -> None:
        with client.stand_in(script) as server:
            assert client_status(client, server) == 500

    with pytest.raises(LookupError, match="a bug of the test"):
        hold_conversation()


def client_status(client: Client, server: ModelServer) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    connection.request("POST", client.path(stream=False), json.dumps(client.first("Hi", "x")), client.headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_tokens_are_counted_where_the_provider_counts_them():
    gemini, anthropic = CLIENTS[0], CLIENTS[3]
    with GeminiServer([]) as server:
        status, outcome = gemini.post(server, "/v1beta/models/m-1:countTokens", gemini.first("Hi " * 400, "x"))
        assert (status, server.model_requests) == (200, [])
        assert 200 < outcome["totalTokens"] < 600
    with AnthropicServer([]) as server:
        status, outcome = anthropic.post(
            server, "/v1/messages/count_tokens?beta=true", anthropic.first("Hi " * 400, "x")
        )
        assert (status, server.model_requests) == (200, [])
        assert 200 < outcome["input_tokens"] < 600


def test_what_the_gemini_cli_asks_for_itself_is_answered_without_the_script():
    with GeminiServer(["for the user"]) as server:
        schema = {"type": "OBJECT", "properties": {"complexity_score": {"type": "INTEGER"}}}
        body = CLIENTS[0].first("Hi", "x") | {"generationConfig": {"responseJsonSchema": schema}}
        status, outcome = CLIENTS[0].post(server, CLIENTS[0].path(stream=False), body)
        assert status == 200
        assert json.loads(outcome.text)["complexity_score"] == 1
        assert CLIENTS[0].ask(server)[1].text == "for the user"
        assert len(server.model_requests) == 1


def test_gemini_takes_the_answer_to_a_call_twice_as_its_cli_sends_it_when_it_resumes():
    client = CLIENTS[0]
    with GeminiServer() as server:
        body = client.first("Hi", "x")
        call, result = client.later("")
        body["contents"] += [call, result | {"parts": result["parts"] * 2}]
        assert client.post(server, client.path(stream=False), body)[0] == 200


def test_a_port_can_be_chosen_and_what_came_is_kept_as_it_came():
    with OpenAIServer() as first:
        port = first.port
    with OpenAIServer(port=port) as server:
        assert server.url == f"http://127.0.0.1:{port}/v1"
        CLIENTS[1].ask(server)
        (received,) = server.requests
    assert isinstance(received, ReceivedRequest)
    assert received.json["messages"][1]["content"] == "Hi"


@pytest.mark.parametrize("client", CLIENTS[1:], ids=["Chat", "Responses", "Anthropic"])
def test_what_has_an_id_has_one_of_its_own_in_its_conversation(client: Client):
    both = Say(content="Both.", tool_calls=[ToolCall("add", {}), ToolCall("add", {}, id="mine"), ToolCall("add", {})])
    ids: list[set[str]] = []
    with client.stand_in([both, both, both]) as server:
        for start, after in (("Hi", None), ("Hi", "go on"), ("Hello", None)):
            body = client.first(start, "x")
            body[client.conversation()] += client.later(after) if after else []
            request = urllib.request.Request(
                server.origin + client.path(stream=False), json.dumps(body).encode(), client.headers
            )
            with urllib.request.urlopen(request, timeout=300) as response:
                text = response.read().decode()
            ids.append(set(re.findall(r'"(?:id|call_id)":"([^"]+)"', text)))
    assert "mine" in ids[0]
    assert ids[0] & ids[1] == {"mine"}
    # An agent that a tool runs has another conversation.
    assert not [each for each in ids[0] & ids[2] if each.startswith(("call_", "toolu_"))]


def test_anthropic_takes_more_from_those_who_ask_for_its_beta():
    client = CLIENTS[3]
    body: dict[str, Any] = client.first("Hi", "x") | {"context_management": {"edits": []}}
    body["messages"] += [*client.later(""), {"role": "system", "content": "One more thing."}]
    with AnthropicServer() as server:
        assert client.post(server, "/v1/messages", body)[0] == 400
        asking = Anthropic(AnthropicServer, client.headers | {"anthropic-beta": "x"})
        assert asking.post(server, "/v1/messages?beta=true", body)[0] == 200
        assert "One more thing." in server.model_requests[0].system
