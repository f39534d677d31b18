"""The http agent against real servers of many shapes."""

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import UNSET, Struct

from viva.agents.http import HttpAgent
from viva.errors import AgentFailed, ConnectFailed, Unreachable
from viva.llm.transport import HttpTransport
from viva.model.case import Fixtures, Key, ToolStub
from viva.model.message import Image, Message, ModelCall, Reply, Text, ToolCall
from viva.protocols import SessionContext
from viva.testing import HttpServer, ReceivedRequest, StubResponse, json_response


class HeldConversation(Struct):
    """The result of a conversation."""

    replies: list[Reply]
    metered: list[ModelCall]
    server: HttpServer

    @property
    def bodies(self) -> list[Any]:
        return [request.json for request in self.server.requests]


def hold_conversation(
    handler: Callable[[ReceivedRequest], StubResponse],
    *said: str | Message,
    options: Mapping[str, Any] | None = None,
    context: Mapping[str, Any] | None = None,
    path: str = "/chat",
    **fields,
) -> HeldConversation:
    metered: list[ModelCall] = []

    async def scenario() -> list[Reply]:
        http = HttpTransport()
        try:
            opened = SessionContext(key=Key("s", "c"), meter=metered.append, http=http, **(context or {}))
            async with HttpAgent(url=server.url + path, retries=fields.pop("retries", 0), **fields).open(
                opened
            ) as session:
                return [
                    await session.send(Message("user", line) if isinstance(line, str) else line, options or {})
                    for line in said
                ]
        finally:
            await http.close()

    with HttpServer(handler) as server:
        return HeldConversation(asyncio.run(scenario()), metered, server)


def answering(value: Any, status: int = 200) -> Callable[[ReceivedRequest], StubResponse]:
    return lambda received: json_response(value, status)


def reply_to(value: Any, **fields) -> Reply:
    return hold_conversation(answering(value), "Hi", **fields).replies[0]


# Requests


def test_the_usual_request_has_messages_input_session_and_options():  # N19, N20
    outcome = hold_conversation(
        lambda r: json_response({"content": f"answer {len(r.json['messages'])}"}),
        "one",
        "two",
        options={"skip": {"history": True}, "session_id": "s-1"},
        context={"history": (Message("system", "be kind"),)},
    )
    assert outcome.bodies[1] == {
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "answer 2"},
            {"role": "user", "content": "two"},
        ],
        "input": "two",
        "session_id": "s-1",
        "options": {"skip": {"history": True}, "session_id": "s-1"},
    }
    assert outcome.server.requests[0].method == "POST"
    assert outcome.server.requests[0].headers["content-type"] == "application/json"


def test_the_conversations_own_id_stands_in_where_no_option_gives_one():
    assert hold_conversation(answering("x"), "Hi").bodies[0]["session_id"] == "s/c#1.1"


def test_the_session_id_of_an_answer_is_sent_from_then_on():
    numbered = iter(["a", None, "b", None])
    outcome = hold_conversation(
        lambda r: json_response({"content": "x", "session_id": next(numbered)}), "1", "2", "3", "4"
    )
    assert [body["session_id"] for body in outcome.bodies] == ["s/c#1.1", "a", "a", "b"]


def test_a_template_is_filled_in():
    body = {
        "q": "User says: {{input}}",
        "deep": [{"all": "{{messages}}"}, "{{history}}"],
        "n": 5,
        "meta": "{{metadata}}",
        "d": "{{data}}",
    }
    outcome = hold_conversation(
        answering("x"), "a", Message("user", "[1]", data=[1]), body=body, options={"metadata": {"k": 1}}
    )
    assert outcome.bodies[0] == {
        "q": "User says: a",
        "deep": [{"all": [{"role": "user", "content": "a"}]}, []],
        "n": 5,
        "meta": {"k": 1},
        "d": None,
    }
    assert outcome.bodies[1]["deep"][1] == [{"role": "user", "content": "a"}, {"role": "assistant", "content": "x"}]
    assert outcome.bodies[1]["d"] == [1]


def test_what_was_said_before_keeps_its_tool_calls():
    """With their results where the endpoint tells them."""
    calls = [{"name": "look", "id": "1", "arguments": {"x": 1}}]
    asked = hold_conversation(answering({"content": "done", "tool_calls": calls}), "a", "b").bodies[1]["messages"]
    assert asked[1]["content"] == "done"  # N20
    assert [call["function"]["name"] for call in asked[1]["tool_calls"]] == ["look"]
    outcome = [{**calls[0], "result": "found"}]
    body = {"earlier": "{{history}}"}
    earlier = hold_conversation(answering({"content": "done", "tool_calls": outcome}), "a", "b", body=body).bodies[1][
        "earlier"
    ]
    assert [message["role"] for message in earlier] == ["user", "assistant", "tool", "assistant"]
    assert (earlier[2]["content"], earlier[3]["content"]) == ("found", "done")


def test_messages_inside_a_longer_text_are_json():
    outcome = hold_conversation(answering("x"), "a", body={"prompt": "Talk: {{messages}}!"})
    assert outcome.bodies[0] == {"prompt": 'Talk: [{"role":"user","content":"a"}]!'}


def test_address_and_headers_are_templates_too():
    outcome = hold_conversation(
        answering("x"), "a b&c", path="/chat/{{session_id}}?q={{input}}", headers={"X-Session": "id {{session_id}}"}
    )
    (request,) = outcome.server.requests
    assert request.path == "/chat/s%2Fc%231.1?q=a%20b%26c"
    assert request.headers["x-session"] == "id s/c#1.1"


def test_a_get_request_has_no_body():
    (request,) = hold_conversation(answering("x"), "a", method="GET", path="/ask?q={{input}}").server.requests
    assert (request.method, request.body, request.path) == ("GET", b"", "/ask?q=a")
    assert "content-type" not in request.headers


def test_attachments_and_workspace_can_be_sent():  # N5, P5
    message = Message("user", (Text("see"), Image("a.png", name="a.png", url="data:,x")))
    body = {"files": "{{attachments}}", "folder": "{{workspace}}", "text": "{{input}}"}
    outcome = hold_conversation(
        answering("x"), message, body=body, context={"workspace": SimpleNamespace(path="/tmp/w")}
    )
    assert outcome.bodies[0] == {
        "files": [{"type": "image", "source": "a.png", "name": "a.png", "url": "data:,x"}],
        "folder": "/tmp/w",
        "text": "see",
    }


def test_fixtures_are_forwarded_when_asked_for():  # W3
    context = {"fixtures": Fixtures(tools=(ToolStub("look", {"n": 1}),), memory=("tea",), stub_all_tools=True)}
    expected = {
        "tools": [{"tool": "look", "response": {"n": 1}, "error": None}],
        "memory": ["tea"],
        "stubbed": True,
    }
    assert hold_conversation(answering("x"), "a", context=context, fixtures="forward").bodies[0]["fixtures"] == expected
    own = hold_conversation(answering("x"), "a", context=context, fixtures="forward", body={"f": "{{fixtures}}"})
    assert own.bodies[0] == {"f": expected}
    assert "fixtures" not in hold_conversation(answering("x"), "a", context=context).bodies[0]


def test_it_provides_what_its_request_can_carry():
    def provided(**fields) -> set[str]:
        return set(HttpAgent(url="http://h", **fields).provides)

    assert provided() == {"workspace"}
    assert provided(fixtures="forward") == {"tool_stubs", "memory", "workspace"}
    assert provided(body={"q": "{{input}}"}) == set()
    assert provided(body={"q": "{{workspace}}"}) == {"workspace"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"body": {"q": ["{{inptu}}"]}}, "unknown variable {{inptu}}"),
        ({"headers": {"X": "{{nope}}"}}, "unknown variable {{nope}}"),
        ({"content": "$.["}, "not a JSONPath"),
        ({"usage": ""}, "the path is empty"),
        ({"fixtures": "forward", "body": ["{{input}}"]}, "needs {{fixtures}}"),
        ({"fixtures": "forward", "method": "GET"}, "needs {{fixtures}}"),
    ],
)
def test_what_cannot_work_is_refused_when_the_agent_is_made(fields, expected):  # N2
    with pytest.raises(ValueError) as problem:
        HttpAgent(url="http://h", **fields)
    assert expected in str(problem.value)


# Answers


@pytest.mark.parametrize(
    "answer",
    [
        "hello",
        {"content": "hello"},
        {"output": "hello"},
        {"reply": "hello"},
        {"response": "hello"},
        {"message": {"role": "assistant", "content": "hello"}},
        {"message": "hello"},
        {"text": "hello"},
        {"choices": [{"message": {"content": "hello"}}]},
        {"content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]},
        {"content": None, "output": "hello"},
    ],
)
def test_the_reply_is_found_in_the_usual_places(answer):
    assert reply_to(answer).content == "hello"


def test_every_part_of_a_reply_is_found_in_its_usual_place():
    reply = reply_to(
        {
            "content": "Which one?",
            "data": {"n": 1},
            "tool_calls": [
                {"id": "1", "name": "look", "arguments": {"a": 1}, "result": {"ok": True}},
                {"name": "pay", "args": {"b": 2}, "error": "refused"},
                {"id": "3", "function": {"name": "log", "arguments": '{"c":3}'}},
            ],
            "awaiting_input": True,
            "input_hint": "a number",
            "finish_reason": "stop",
            "usage": {"prompt_tokens": 7, "completion_tokens": 2, "cost_usd": 0.5},
        }
    )
    assert reply == Reply(
        "Which one?",
        data={"n": 1},
        tool_calls=(
            ToolCall("look", {"a": 1}, "1", {"ok": True}),
            ToolCall("pay", {"b": 2}, error="refused"),
            ToolCall("log", {"c": 3}, "3"),
        ),
        declared_state="awaiting",
        input_hint="a number",
        finish_reason="stop",
        calls=(ModelCall(input_tokens=7, output_tokens=2, cost_usd=0.5),),
    )
    assert reply.tool_calls[2].result is UNSET


def test_usage_is_metered():
    outcome = hold_conversation(answering({"content": "x", "usage": {"input_tokens": 3, "output_tokens": 4}}), "a")
    assert outcome.metered == [ModelCall(input_tokens=3, output_tokens=4)]


@pytest.mark.parametrize(("flag", "declared"), [(True, "awaiting"), (False, "done"), (None, None)])
def test_the_awaiting_flag_is_the_agents_own_word(flag, declared):  # N22
    assert reply_to({"content": "x", "awaiting_input": flag}).declared_state == declared
    assert reply_to({"content": "x", "state": {"waits": flag}}, awaiting="$.state.waits").declared_state == declared


def test_paths_point_where_the_user_says():
    answer = {
        "result": {
            "say": ["Hello", "there"],
            "json": {"n": 1},
            "steps": [{"call": {"name": "look"}}, {"call": {"name": "pay"}}],
        },
        "meta": {"sid": 7, "why": "end", "hint": "name", "tokens": [{"input_tokens": 1}, {"input_tokens": 2}]},
        "content": "not this",
    }
    outcome = hold_conversation(
        answering(answer), "a", "b", content="$.result.say[*]", data="$.result.json", tool_calls="$.result.steps[*].call",
        session_id="$.meta.sid", finish_reason="meta.why", input_hint="$.meta.hint", usage="$.meta.tokens",
    )  # fmt: skip
    assert outcome.replies[0] == Reply(
        "Hello\nthere", data={"n": 1}, tool_calls=(ToolCall("look"), ToolCall("pay")), input_hint="name", finish_reason="end",
        calls=(ModelCall(input_tokens=1), ModelCall(input_tokens=2)), parts=("Hello", "there"),
    )  # fmt: skip
    assert outcome.bodies[1]["session_id"] == 7


@pytest.mark.parametrize(
    ("found", "calls"),
    [(None, ()), ([], ()), ([{"name": "look"}], (ToolCall("look"),)), ({"name": "look"}, (ToolCall("look"),))],
)
def test_a_path_of_tool_calls_may_point_at_a_list_a_call_or_nothing(found, calls):
    assert reply_to({"content": "x", "steps": found}, tool_calls="$.steps").tool_calls == calls
    assert reply_to({"content": "x"}, tool_calls="$.steps").tool_calls == ()


def test_a_structure_where_text_is_expected_is_data():
    assert reply_to({"output": {"status": "ok"}}) == Reply(data={"status": "ok"})
    assert reply_to({"a": [1, 2]}, content="$.a") == Reply(data=[1, 2])
    assert reply_to({"a": 5}, content="$.a") == Reply("5")
    assert reply_to({"a": None}, content="$.a") == Reply("")


def test_data_or_tool_calls_alone_are_a_reply():
    assert reply_to({"data": {"n": 1}}) == Reply(data={"n": 1})
    assert reply_to({"tool_calls": [{"name": "look"}]}) == Reply(tool_calls=(ToolCall("look"),))


def test_ten_megabytes_of_reply_are_fine():
    assert len(reply_to({"content": "x" * 10_000_000}).content) == 10_000_000


# Faults


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (json_response({"error": "boom"}, 500), "HTTP 500: boom"),
        (json_response({"detail": "no"}, 401), "HTTP 401: no"),
        (StubResponse(status=404), "HTTP 404 Not Found"),
        (StubResponse(status=302, headers={"Location": "/x"}), "HTTP 302 Found"),
        (StubResponse(body=b"<html>oops</html>"), ": oops"),
        (StubResponse(body=b"hi", headers={"Content-Type": "text/plain; charset=utf-8"}), '; set `answer = "text"`'),
        (StubResponse(body=b"data: x\n\n", headers={"Content-Type": "text/event-stream"}), '; set `stream = "sse"`'),
        (StubResponse(), "answer is empty"),
        (json_response({"answer": 1, "b": 2}), "no reply at any of the usual places ($.content, "),
        (json_response({"answer": 1, "b": 2}), "its keys are 'answer', 'b'"),
        (json_response([1]), "it is [1]"),
        (json_response({}), "its keys are none"),
        (json_response({"content": "x", "tool_calls": "look"}), "tool_calls"),
        (json_response({"content": "x", "tool_calls": [{"args": {}}]}), "a tool call without a name"),
        (
            json_response({"content": "x", "awaiting_input": "maybe"}),
            '$.awaiting_input holds "maybe" instead of true or false',
        ),
    ],
)
def test_an_agent_that_answers_rubbish_has_failed(answer, expected):  # N17
    with pytest.raises(AgentFailed) as failed:
        hold_conversation(lambda r: answer, "a")
    assert expected in failed.value.message


def test_a_path_that_finds_nothing_is_named_with_what_is_there():  # N17
    with pytest.raises(AgentFailed, match=r"no reply at \$\.a\.text; its keys are 'b'"):
        reply_to({"b": 1}, content="$.a.text")


@pytest.mark.parametrize("status", [429, 503])
def test_an_agent_that_is_busy_is_asked_again_and_then_out_of_reach(status):  # N17
    due = iter([StubResponse(status=status, headers={"Retry-After": "0"}), json_response("hello")])
    assert hold_conversation(lambda r: next(due), "a", retries=1).replies[0].content == "hello"
    with pytest.raises(Unreachable, match=f"^http agent: {status} .* after 2 tries: full$"):
        hold_conversation(
            lambda r: StubResponse(status=status, headers={"Retry-After": "0"}, body=b"full"), "a", retries=1
        )


@pytest.mark.parametrize("cut", ["before", "after_headers", "amid_body"])
def test_a_dropped_answer_is_not_requested_again(cut):  # N17
    """The agent may have acted on it, on a connection that has served before too."""
    due = iter([json_response("first"), StubResponse(body=b'"second"', cut=cut)])
    seen: list[ReceivedRequest] = []

    def handler(received: ReceivedRequest) -> StubResponse:
        seen.append(received)
        return next(due)

    with pytest.raises(Unreachable):
        hold_conversation(handler, "a", "b", retries=4)
    assert len(seen) == 2


def test_an_agent_that_does_not_exist_is_unreachable():  # N17
    with HttpServer(answering("x")) as gone:
        pass

    async def scenario() -> None:
        http = HttpTransport()
        context = SessionContext(key=Key("s", "c"), meter=lambda call: None, http=http)
        async with HttpAgent(url=gone.url, retries=0).open(context) as session:
            await session.send(Message("user", "x"), {})

    with pytest.raises(ConnectFailed, match="connection refused"):
        asyncio.run(scenario())


def test_an_agent_that_does_not_answer_in_time_is_cut_off():
    with pytest.raises(Unreachable, match="within 50ms"):
        hold_conversation(lambda r: StubResponse(hold=True), "a", timeout=0.05)


def test_a_secret_header_does_not_come_back_in_an_error():
    with pytest.raises(AgentFailed) as failed:
        hold_conversation(
            lambda r: StubResponse(status=403, body=b"bad token geheim123"), "a", headers={"X-Token": "geheim123"}
        )
    assert failed.value.message == "HTTP 403: bad token ***"


@pytest.mark.parametrize(
    ("charset", "encoding"),
    [
        ("latin-1", "utf-8"),
        ("iso-8859-1", "utf-8"),
        ("windows-1252", "utf-8"),
        ("latin-1", "latin-1"),
        ("utf-16", "utf-16"),
    ],
)
def test_an_answer_is_read_by_the_charset_that_it_is_in(charset: str, encoding: str):  # N17
    """JSON is UTF-8: a label that says otherwise counts only for a body that is no UTF-8."""
    headers = {"Content-Type": f"application/json; charset={charset}"}
    answer = StubResponse(body='{"content": "Grüße, 数据"}'.encode(encoding, "replace"), headers=headers)
    expected = "Grüße, 数据" if encoding != "latin-1" else "Grüße, ??"
    assert hold_conversation(lambda received: answer, "Hi").replies[0].content == expected
