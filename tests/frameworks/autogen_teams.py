"""Teams of AutoGen: their path, handoffs to the user, tools and faults."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from apps import autogen as app
from apps.tools import BOOKED, add, book
from autogen_agentchat.agents import AssistantAgent, UserProxyAgent
from autogen_agentchat.conditions import HandoffTermination, MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat, Swarm
from autogen_agentchat.tools import AgentTool
from autogen_core.models import ChatCompletionClient, CreateResult, RequestUsage
from autogen_core.tools import TextResultContent, ToolResult, Workbench
from autogen_ext.models.openai import OpenAIChatCompletionClient

import viva
from viva.errors import BadInput
from viva.model.message import ToolCall
from viva.model.record import TrialRecord
from viva.testing import Fail, ModelRequest, OpenAIServer, Say


def answer(request: ModelRequest) -> Say | Fail | str:
    """A writer that can add and book, a critic, and a clerk that asks the user before it books."""
    role, text = request.system, request.text
    if role == "fail":
        return Fail(401)
    if request.tool_results and "yes" not in text:
        return f"{request.tool_results[-1]} is done"
    if role == "boss":
        return Say(tool_calls=[ToolCall("writer", {"task": "add"}, "call_of_boss")])
    if role == "researcher":
        return Say(tool_calls=[ToolCall("research", {})])
    if role == "clerk":
        name = "book" if "yes" in text else "transfer_to_user"
        return Say(tool_calls=[ToolCall(name, {"a": 7} if name == "book" else {})])
    if role == "writer" and "add" in text:
        return Say(tool_calls=[ToolCall("add", {"a": 1, "b": 2})])
    return f"{role} saw {len([each for each in request.messages if each.role == 'user'])}"


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[Any]:
    with OpenAIServer(answer) as running:
        app.connect(running)
        yield running


def make_member(name: str, role: str = "", **fields: Any) -> Any:
    return AssistantAgent(name, app.get_model(), system_message=role or name, reflect_on_tool_use=True, **fields)


def run(team: Any, *turns: str, **fields: Any) -> TrialRecord:
    holds = {"type": "regex", "pattern": "(?s).*"}
    case = {"id": "c", "turns": [{"input": turn, "assertions": [holds]} for turn in turns], **fields}
    return next(iter(viva.run([case], team, options=viva.RunOptions(retry_faults=0)).records()))


def make_pair() -> Any:
    members = [make_member("writer", tools=[add]), make_member("critic")]
    return RoundRobinGroupChat(members, max_turns=2)


def test_the_members_of_a_team_are_its_path_and_the_last_one_replies():
    team = make_pair()
    for _ in range(2):  # a new conversation has no history
        record = run(team, "add", "more")
        assert record.status == "passed", record.error
        first, second = record.turns
        assert (first.path, first.output) == (("writer", "critic"), "critic saw 2")
        assert [(call.name, call.result) for call in first.tool_calls] == [("add", 3)]
        assert (second.output, second.tool_calls) == ("critic saw 4", [])
        assert first.usage is not None
        assert first.usage.calls == 3


def test_the_tools_of_a_team_are_stubbed():
    record = run(make_pair(), "add", fixtures={"tools": [{"tool": "add", "response": 40}]})
    assert [call.result for call in record.turns[0].tool_calls] == [40]


@pytest.mark.parametrize("stubs", [None, {"tools": [{"tool": "writer", "response": "canned"}]}])
def test_an_agent_that_is_a_tool_is_logged_and_starts_fresh_in_each_conversation(server: OpenAIServer, stubs: Any):
    agent = make_member("boss", tools=[AgentTool(make_member("writer", tools=[add]))])
    for _ in range(2):
        record = run(agent, "delegate", **({"fixtures": stubs} if stubs else {}))
        assert record.status == "passed", record.error
        assert [call.name for call in record.turns[0].tool_calls] == (["writer"] if stubs else ["writer", "add"])
        assert record.usage is not None
        assert record.usage.calls == (2 if stubs else 4)
        asked = [request for request in server.model_requests if request.system == "writer"]
        assert stubs or len(asked[-1].messages) == 4  # its prompt, the task, the call and its result


class Bench(Workbench):
    """A workbench with a tool of its own, as that of an MCP server."""

    def __init__(self) -> None:
        self.called: list[Any] = []

    async def list_tools(self) -> Any:
        return [{"name": "add", "description": "", "parameters": {"type": "object", "properties": {}}}]

    async def call_tool(self, name: str, *values: Any, **named: Any) -> Any:
        self.called.append(named["arguments"])
        return ToolResult(name=name, result=[TextResultContent(content="3")])

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def reset(self) -> None: ...
    async def save_state(self) -> Any: ...
    async def load_state(self, state: Any) -> None: ...


def test_the_tools_of_a_workbench_are_stubbed():  # W3
    bench = Bench()
    writer = make_member("writer", workbench=bench)
    assert [call.result for call in run(writer, "add").turns[0].tool_calls] == ["3"]
    record = run(writer, "add", fixtures={"tools": [{"tool": "add", "response": 40}]})
    assert [call.result for call in record.turns[0].tool_calls] == [40]
    assert bench.called == [{"a": 1, "b": 2}]


def test_a_streaming_agent_reports_its_usage():
    record = run(make_member("writer", tools=[add], model_client_stream=True), "add")
    assert record.usage is not None
    assert (record.usage.calls, record.usage.input_tokens) == (2, 20)
    assert record.cost_usd


class OwnClient(ChatCompletionClient):
    """A client of the user that AutoGen cannot turn into a config."""

    def __init__(self) -> None:
        self._usage = RequestUsage(prompt_tokens=10, completion_tokens=5)
        self._result = CreateResult(finish_reason="stop", content="Rome", usage=self._usage, cached=False)

    @property
    def model_info(self) -> Any:
        return {
            **dict.fromkeys(("vision", "function_calling", "json_output", "structured_output"), True),
            "family": "x",
        }

    capabilities = model_info

    async def create(self, messages: Any, **options: Any) -> CreateResult:
        return self._result

    async def create_stream(self, messages: Any, **options: Any) -> Any:
        yield self._result

    async def close(self) -> None: ...
    def actual_usage(self) -> RequestUsage:
        return self._usage

    total_usage = actual_usage

    def count_tokens(self, messages: Any, **options: Any) -> int:
        return 10

    remaining_tokens = count_tokens


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_without_a_config_works_and_is_counted(streams: bool):
    record = run(AssistantAgent("writer", OwnClient(), model_client_stream=streams), "hello")
    assert (record.status, record.turns[0].output, record.error) == ("passed", "Rome", None)
    assert record.usage is not None
    assert (record.usage.calls, record.usage.input_tokens) == (1, 10)


def test_an_agent_that_a_tool_runs_in_its_thread_is_counted(server: OpenAIServer):
    client = OpenAIChatCompletionClient(model="gpt-4o-mini", base_url=server.url, api_key="k")

    def research() -> str:
        """Asks another agent."""
        return str(asyncio.run(AssistantAgent("critic", client, system_message="critic").run(task="hello")))

    boss = make_member("researcher", tools=[research])
    record = run(boss, "go")
    assert record.usage is not None
    assert (record.usage.calls, record.turns[0].output) == (3, "research is done")


def test_teams_may_share_a_member():
    writer = make_member("writer", tools=[add])
    for _ in range(2):
        record = run(RoundRobinGroupChat([writer], max_turns=1), "add")
        assert record.usage is not None
        assert (record.turns[0].path, record.usage.calls) == (("writer",), 2)


def test_a_provider_that_fails_inside_a_team_is_infra():
    team = RoundRobinGroupChat([make_member("writer", "fail")], max_turns=1)
    record = run(team, "hello")
    assert (record.status, record.fault) == ("error", "infra"), record.error  # N17


def test_a_handoff_to_the_user_waits_for_the_next_message():
    BOOKED.clear()
    end = HandoffTermination("user") | MaxMessageTermination(8)
    clerk = make_member("clerk", handoffs=["user"], tools=[book])
    record = run(Swarm([clerk], termination_condition=end, max_turns=2), "book", "yes")
    assert record.status == "passed", record.error
    waiting, after = record.turns
    assert (waiting.awaiting_input, waiting.tool_calls) == (True, [])
    assert waiting.input_hint
    assert [(call.name, call.args) for call in after.tool_calls] == [("book", {"a": 7})]
    assert BOOKED == [7]


def test_a_proxy_that_reads_from_the_console_is_refused():
    with pytest.raises(BadInput, match="reads from the console"):
        run(RoundRobinGroupChat([make_member("writer"), UserProxyAgent("person")], max_turns=2), "hello")
    proxy = UserProxyAgent("person", input_func=lambda prompt: "fine")
    assert run(RoundRobinGroupChat([make_member("writer"), proxy], max_turns=2), "hello").turns[0].output == "fine"
