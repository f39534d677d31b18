"""Agents of smolagents: `smolagents:./app.py:agent`.

Each conversation has a copy of the agent with its own memory, which runs in a thread. The code that a CodeAgent writes is not
a tool call; the tools that the code calls are.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from viva.agents.frameworks.framework_agent import FrameworkConfig, FrameworkSession, copy_with
from viva.agents.frameworks.model_usage import guess_provider
from viva.agents.tools import format_result
from viva.concurrency.threads import run_in_thread
from viva.model.message import Message, Reply, ToolCall

_ANSWER = "final_answer"


class SmolagentsSession(FrameworkSession):
    """A conversation with a copy of the agent, which has its own memory."""

    title = "smolagents"
    package = "smolagents"
    tested_version = "1.26"
    types = ("smolagents:MultiStepAgent",)
    required_names = ("smolagents.monitoring:Timing",)

    async def start(self) -> None:
        self._agent: Any = self._copy_agent(self.target)
        self._timing: Any = self.load("smolagents.monitoring", "Timing")(0.0, 0.0)  # of steps of the history
        self._agent.memory.steps += self.convert_history()

    async def run_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
        text = self.require_text(message)
        self.log.enter_node(self.target.name or type(self.target).__name__)
        try:
            output = await run_in_thread(self._run, text)
        except asyncio.CancelledError:
            self._agent.interrupt()  # the thread ends with its step
            raise
        return self.log.build_output_reply(output)

    def _run(self, text: str) -> Any:
        calls, steps, final = self.load("smolagents.memory", "ToolCall", "ActionStep", "FinalAnswerStep")
        output: Any = ""
        for event in self._agent.run(text, stream=True, reset=False):
            if isinstance(event, calls) and not hasattr(self._agent, "python_executor"):
                if event.name != _ANSWER:
                    self.log.add_requested_call(event.id, event.name, event.arguments)
            elif isinstance(event, steps) and event.error is not None:
                self.log.fail_requested_calls(str(event.error))
            elif isinstance(event, final):
                output = event.output
        return output

    def _copy_agent(self, agent: Any) -> Any:
        """An agent with its own memory, whose models and tools are logged, and so are the agents that it manages."""
        clone = copy_with(
            agent,
            memory=type(agent.memory)(agent.system_prompt),
            state=dict(agent.state),
            model=self._copy_model(agent.model),
            tools={name: self._copy_tool(tool) for name, tool in agent.tools.items()},
            managed_agents={name: self._copy_managed_agent(each) for name, each in agent.managed_agents.items()},
        )
        if isinstance(getattr(agent, "python_executor", None), self.load("smolagents", "LocalPythonExecutor")):
            clone.python_executor = clone.create_python_executor()  # it keeps the variables of the code
        return clone

    def _copy_managed_agent(self, agent: Any) -> Any:
        clone = self._copy_agent(agent)
        run = clone.run

        def run_in_path(task: str, **named: Any) -> Any:
            self.log.enter_node(agent.name)
            call_id = self.log.start_requested_call(agent.name, {"task": task})
            try:
                result = run(task, **named)  # its tools are stubbed, it is not
            except Exception as error:
                self.log.fail_call(call_id, error)
                raise
            self.log.end_call(call_id, result)
            return result

        clone.run = run_in_path
        return clone

    def _copy_model(self, model: Any) -> Any:
        provider = guess_provider(model)

        def log_usage(piece: Any) -> Any:
            if piece.token_usage is not None:
                self.log.add_model_call(model.model_id, provider, piece.token_usage)
            return piece

        def generate(*values: Any, **named: Any) -> Any:
            return log_usage(model.generate(*values, **named))

        def generate_stream(*values: Any, **named: Any) -> Any:
            return map(log_usage, model.generate_stream(*values, **named))

        streams = {"generate_stream": generate_stream} if hasattr(model, "generate_stream") else {}
        return copy_with(model, generate=generate, **streams)

    def _copy_tool(self, tool: Any) -> Any:
        if tool.name == _ANSWER:
            return tool

        def forward(*values: Any, **named: Any) -> Any:
            arguments = {**dict(zip(tool.inputs, values, strict=False)), **named}
            return self.log.run_sync_tool(tool.name, arguments, lambda: tool.forward(*values, **named))

        return copy_with(tool, forward=forward)

    def convert_message(self, message: Message) -> Any:
        """A message as a step of the agent's memory. A system message becomes one of the user."""
        task, action, call = self.load("smolagents.memory", "TaskStep", "ActionStep", "ToolCall")
        if message.role != "assistant":
            return task(message.text)
        calls = [call(each.name, each.arguments, each.id) for each in message.tool_calls] or None
        return action(0, self._timing, model_output=message.text or None, tool_calls=calls)

    def convert_results(self, calls: Sequence[ToolCall]) -> list[Any]:
        action = self.load("smolagents.memory", "ActionStep")
        return [action(0, self._timing, observations="\n".join(map(format_result, calls)))]


class SmolagentsConfig(FrameworkConfig, frozen=True, kw_only=True):
    """A ToolCallingAgent or CodeAgent of smolagents."""

    session = SmolagentsSession
