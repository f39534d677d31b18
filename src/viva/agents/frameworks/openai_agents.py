"""Agents of the OpenAI Agents SDK: `openai_agents:./app.py:agent`. Traces are not sent anywhere."""

import uuid
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

from viva.agents.frameworks.framework_agent import FrameworkConfig, FrameworkSession, copy_with, intercept
from viva.agents.frameworks.turn_log import TurnLog
from viva.agents.responses import encode_items, encode_result_items
from viva.agents.tools import format_result
from viva.model import codec
from viva.model.message import Message, Reply, ToolCall


class OpenAIAgentsSession(FrameworkSession):
    """A session of the SDK in memory. After a handoff the next message goes to the agent that took over."""

    title = "OpenAI Agents SDK"
    package = "openai-agents"
    tested_version = "0.24"
    types = ("agents:Agent",)
    required_names = ("agents:Runner", "agents:RunConfig", "agents:RunHooks", "agents:SQLiteSession")

    async def start(self) -> None:
        agent, runner = self.load("agents", "Agent"), self.load("agents.run", "AgentRunner")
        intercept(agent, "get_all_tools", _get_tools)
        intercept(runner, "run", _record_run)
        intercept(runner, "run_streamed", _record_run)
        self._memory: Any = self.load("agents", "SQLiteSession")(str(uuid.uuid4()))
        await self._memory.add_items([item for items in self.convert_history() for item in items])
        self._agent: Any = self.target
        self._paused: Any = None

    async def run_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
        log, keywords = self.log, {"session": self._memory}
        if self._paused is None:
            turn_input, keywords["context"] = self.convert_message(message), self.tool_context
        else:
            turn_input = self._resume(message, options)
        try:
            result = await self.load("agents", "Runner").run(self._agent, turn_input, **keywords)
        except self.load("agents", "AgentsException") as error:
            log.fail_named_calls(error)  # of a tool that raises, or that is not there, only this tells
            raise
        text_of = self.load("agents", "ItemHelpers").text_message_output
        before = len(self._paused.new_items) if self._paused is not None else 0  # a run that goes on has them again
        for item in result.new_items[before:]:
            if item.type == "message_output_item":
                log.add_message(text_of(item))
            elif item.type == "handoff_call_item":  # the path has it
                log.drop_call(item.raw_item.call_id)
        for item in result.interruptions:
            log.mark_call_pending(item.raw_item.call_id, item.tool_name or item.raw_item.name, item.raw_item.arguments)
        self._paused = result if result.interruptions else None
        if self._paused is not None:
            return log.build_reply()
        self._agent = result.last_agent
        if not isinstance(result.final_output, str):
            log.drop_message()
        return log.build_output_reply(result.final_output)

    def _resume(self, message: Message, options: Mapping[str, Any]) -> Any:
        decision, _ = self.answer_pending_calls(message, options)
        state = self._paused.to_state()
        for item in self._paused.interruptions:
            if decision.is_approved:
                state.approve(item)
            else:
                state.reject(item, rejection_message=decision.text)
        return state

    def convert_message(self, message: Message) -> list[Any]:
        """The items of the Responses API."""
        return [codec.decode(item) for item in encode_items(message)]

    def convert_results(self, calls: Sequence[ToolCall]) -> list[Any]:
        return [[codec.decode(item) for item in encode_result_items(calls)]]


def _record_run(
    session: Any, run: Any, /, *values: Any, hooks: Any = None, run_config: Any = None, **named: Any
) -> Any:
    """Runs an agent, maybe in a tool of another one, with hooks that log it."""
    recorder = _make_hooks(session.load)(session.log)
    make_config = session.load("agents", "RunConfig")
    config = make_config(tracing_disabled=True, tool_error_formatter=recorder.log_tool_error)
    return run(
        *values,
        hooks=_join_hooks(session.load, hooks, recorder) if hooks else recorder,
        run_config=run_config or config,
        **named,
    )


def _join_hooks(load: Any, *hooks: Any) -> Any:
    """Hooks that call several, such as those of the user's code and the recorder."""
    joined = load("agents", "RunHooks")()
    for name in [name for name in dir(joined) if name.startswith("on_")]:
        setattr(joined, name, partial(_call_hooks, [getattr(each, name) for each in hooks]))
    return joined


async def _call_hooks(methods: Sequence[Any], *values: Any, **named: Any) -> None:
    for method in methods:
        await method(*values, **named)


async def _get_tools(session: Any, get: Any, /, *values: Any) -> list[Any]:
    """The tools of an agent, or those with canned answers in their place; there are none for what the provider runs."""
    tools = await get(*values)
    if not session.has_stubs:
        return tools
    function_tool = session.load("agents", "FunctionTool")

    async def answer(call: Any, arguments: str) -> Any:
        return format_result(session.log.answer_call(call.tool_call_id, call.tool_name, arguments))

    return [copy_with(tool, on_invoke_tool=answer) for tool in tools if isinstance(tool, function_tool)]


@cache
def _make_hooks(load: Any) -> Any:
    class TurnHooks(load("agents", "RunHooks")):
        def __init__(self, log: TurnLog) -> None:
            self._log = log

        async def on_agent_start(self, context: Any, agent: Any) -> None:
            self._log.enter_node(agent.name)

        async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
            model, log = _find_model(agent.model), self._log
            provider = "openai" if model.startswith(("gpt", "o1", "o3", "o4")) else ""
            log.add_model_call(model, provider, response.usage)
            for item in response.output:
                if item.type == "function_call":
                    log.start_call(item.call_id, item.name, item.arguments)
                elif item.type.endswith("_call"):  # a tool that the provider runs
                    log.start_call(item.id, item.type.removesuffix("_call"), item.model_dump(mode="json"))

        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            if call_id := getattr(context, "tool_call_id", ""):
                self._log.start_call(call_id, context.tool_name, context.tool_arguments)

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            self._log.end_call(getattr(context, "tool_call_id", ""), result)

        def log_tool_error(self, about: Any) -> None:
            if about.error is not None:
                self._log.fail_call(about.call_id, about.error)

    return TurnHooks


def _find_model(model: Any) -> str:
    if model is None:
        return OpenAIAgentsSession.load("agents.models", "get_default_model")()
    return str(model if isinstance(model, str) else getattr(model, "model", "")).rpartition("/")[2]


class OpenAIAgentsConfig(FrameworkConfig, frozen=True, kw_only=True):
    """An `Agent` of the OpenAI Agents SDK."""

    session = OpenAIAgentsSession
