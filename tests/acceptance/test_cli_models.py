"""Agents behind a socket, through the command line: a model with tools, any JSON endpoint, and every way to break."""

import signal
from typing import Any

from project import Project, case, contains
from viva.model.message import ToolCall
from viva.testing import HttpServer, OpenAIServer, ReceivedRequest, Say, StubResponse, error_response, json_response

TOOLS = '''
def add(a, b):
    """Adds two numbers."""
    return a + b
'''


def configured(project: Project, server: OpenAIServer, **connector: Any) -> None:
    more = "".join(f"{key} = {value}\n" for key, value in connector.items())
    project.write("tools.py", TOOLS)
    project.write(
        "viva.toml",
        f'[connectors.local]\nbase_url = "{server.url}"\nmodel = "m"\napi_key_env = "LOCAL_KEY"\n{more}'
        '[agents.model]\ntype = "chat"\nconnector = "local"\nsystem = "You add."\n'
        '[[agents.model.tools]]\nname = "add"\ndescription = "Adds."\nuse = "python:./tools.py:add"\n'
        'parameters = { type = "object", properties = { a = { type = "number" }, b = { type = "number" } } }\n',
    )


KEY = {"LOCAL_KEY": "sk-local-0123456789"}


def test_a_model_with_a_tool_is_tested(project: Project):
    """The tool runs here, its result goes back to the model, usage is counted, and the key is seen by the server alone."""

    def model(received: ReceivedRequest) -> str | Say:
        last = received.json["messages"][-1]
        if last["role"] == "tool":
            return f"The sum is {last['content']}."
        return (
            Say(tool_calls=[ToolCall("add", {"a": 2, "b": 3})])
            if "add" in last["content"]
            else "Hello! What shall I add?"
        )

    project.suite(
        {
            "id": "adds",
            "turns": [
                {"input": "hi", "assertions": [contains("What shall I add?")]},
                {
                    "input": "add 2 and 3",
                    "assertions": [
                        contains("5"),
                        {"type": "tool_called", "name": "add", "arguments": {"a": 2}, "status": "ok"},
                        {"type": "tool_result", "name": "add", "result": 5},
                    ],
                },
            ],
            "final_assertions": [{"type": "max_tokens", "value": 45}],
        }
    )
    with OpenAIServer(model) as server:
        configured(project, server)
        ended, (record,) = project.report(agent=None, env=KEY)
    assert ended.code == 0, ended
    assert record["usage"]["calls"] == 3
    assert [message["role"] for message in server.requests[-1].json["messages"]] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
    ]  # N19
    assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {KEY['LOCAL_KEY']}"}
    kept = [path for path in project.folder.rglob("*") if path.is_file()]
    assert not [path for path in kept if KEY["LOCAL_KEY"].encode() in path.read_bytes()]


def test_trouble_of_the_provider_is_retried_and_then_its_own_fault(project: Project):
    """429 and 503 pass after a retry; what stays broken, is cut or no JSON, is an error of the infrastructure."""
    asked: dict[str, int] = {}

    def model(received: ReceivedRequest) -> str | StubResponse:
        said = received.json["messages"][-1]["content"]
        asked[said] = asked.get(said, 0) + 1
        first = asked[said] == 1
        return {
            "busy": error_response(429, "slow down", headers={"Retry-After": "0"}) if first else "busy no more",
            "down": error_response(503, "later") if first else "down no more",
            "dropped once": StubResponse(cut="before") if first else "dropped once",
            "broken": error_response(500, "it broke"),
            "half": StubResponse(body=b'{"choices": [{"mess', headers={"Content-Length": "5000"}, cut="amid_body"),
            "rubbish": StubResponse(body=b"<html>not JSON</html>"),
            "forbidden": error_response(401, "who are you?"),
        }[said]

    names = ["busy", "down", "dropped once", "broken", "half", "rubbish", "forbidden"]
    project.suite(*(case(name, name) for name in names))
    with OpenAIServer(model) as server:
        configured(project, server, retries=1)
        ended, records = project.report(agent=None, env=KEY)
    found = {record["id"]: (record["status"], record.get("fault")) for record in records}
    for name in ("busy", "down", "dropped once"):
        assert found[name] == ("passed", None), ended
    for name in ("broken", "half", "rubbish", "forbidden"):
        assert found[name] == ("error", "infra"), (name, ended)  # N17
    attempts = {record["id"]: record["attempt"] for record in records}
    assert (
        asked["broken"] == 2 * attempts["broken"]
    )  # N21: a whole trial is repeated after a fault that is not the agent's
    assert asked["forbidden"] == attempts["forbidden"]
    assert ended.code == 1


def test_a_closed_port_is_not_a_failure_of_the_agent(project: Project):
    """A refused connection is an error, not a failure of the agent."""
    project.write(
        "viva.toml",
        '[connectors.gone]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\nretries = 0\n[agents.model]\ntype = "chat"\nconnector = "gone"\n',
    )
    project.suite(case("a"))
    ended, (record,) = project.report(agent=None)
    assert (record["status"], record["fault"]) == ("error", "infra"), ended  # N17
    assert "127.0.0.1:9" in record["error"]


def test_another_connector_for_the_agent_under_test(project: Project):
    project.suite(case("a"))
    with OpenAIServer("hello from one") as one, OpenAIServer("hello from two") as two:
        configured(project, one)
        with (project.folder / "viva.toml").open("a") as file:
            file.write(f'[connectors.other]\nbase_url = "{two.url}"\nmodel = "m"\n')
        _, (first,) = project.report(agent=None, env=KEY)
        _, (second,) = project.report("-c", "other", agent=None, env=KEY)
    assert first["turns"][0]["output"] == "hello from one"
    assert second["turns"][0]["output"] == "hello from two"  # N7
    assert "did you mean other?" in project.test("-c", "othre", agent=None, env=KEY, code=4).err


def test_any_json_endpoint_is_an_agent(project: Project):
    """A body template, paths into the answer, its own session id sent back; status codes and whose fault they are."""

    def endpoint(received: ReceivedRequest) -> StubResponse:
        asked = received.json
        said = asked["question"]["text"]
        if said.isdigit():
            return json_response({"error": "as you wish"}, status=int(said))
        return json_response(
            {
                "result": {
                    "say": f"{said} / {asked['conversation']}",
                    "wants_more": True,
                    "actions": [{"name": "look", "arguments": {"at": said}}],
                },
                "conversation": "conv-7",
            }
        )

    project.suite(
        {
            "id": "talks",
            "turns": [
                {
                    "input": "one",
                    "assertions": [
                        contains("one / "),
                        {"type": "tool_called", "name": "look", "arguments": {"at": "one"}},
                    ],
                },
                {"input": "two", "assertions": [{"type": "equals", "value": "two / conv-7"}]},
            ],
        },
        *(case(code, code) for code in ("400", "404", "500", "429", "503")),
    )
    with HttpServer(endpoint) as server:
        project.write(
            "viva.toml",
            f'[agents.web]\nuse = "{server.url}/ask"\nretries = 0\ncontent = "$.result.say"\ntool_calls = "$.result.actions"\n'
            'awaiting = "$.result.wants_more"\nsession_id = "$.conversation"\n'
            '[agents.web.body]\nquestion = { text = "{{input}}" }\nconversation = "{{session_id}}"\n',
        )
        ended, records = project.report(agent=None)
    found = {record["id"]: (record["status"], record.get("fault")) for record in records}
    assert found == {  # N17
        "talks": ("passed", None),
        "400": ("failed", "agent"),
        "404": ("failed", "agent"),
        "500": ("failed", "agent"),
        "429": ("error", "infra"),
        "503": ("error", "infra"),
    }, ended
    assert records[0]["turns"][0]["awaiting_input"] is True


def test_an_endpoint_that_hangs_is_hung_up_on(project: Project, interrupted):
    """A timeout and Ctrl-C both close the connection."""
    project.suite(case("quick"), case("hang", "hang"))

    def endpoint(received: ReceivedRequest) -> StubResponse:
        said = received.json["messages"][-1]["content"]
        return StubResponse(hold=True) if said == "hang" else json_response({"content": said})

    with HttpServer(endpoint) as server:
        ended, records = project.report("--turn-timeout", "500ms", agent=f"{server.url}/chat")
        assert [record["status"] for record in records] == ["passed", "failed"], ended
        assert records[1]["error"] == "timeout after 500ms"  # N18
        server.wait_for(lambda: server.open_connections == 0)
        stopped = interrupted(
            "✓ quick", "-i", "suite.jsonl", "-n", f"{server.url}/chat", "-o", "again.jsonl", number=signal.SIGINT
        )
        assert stopped.code == 2, stopped
        server.wait_for(lambda: server.open_connections == 0)
    assert [record["id"] for record in project.records("again.jsonl")] == ["quick"]
