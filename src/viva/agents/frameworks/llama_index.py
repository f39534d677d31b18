"""Agents and workflows of LlamaIndex: `llama_index:./app.py:agent`. Agents run without streaming, which does not report usage."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from viva.agents.frameworks.framework_agent import (
    FrameworkConfig,
    FrameworkSession,
    copy_with,
    intercept,
)
from viva.agents.frameworks.llama_index_logging import log_all_calls, wrap_tool
from viva.agents.frameworks.llama_index_workflows import (
    NO_TEXT_FIELD,
    find_text_field,
    guard_steps,
    make_answer,
    read_result,
)
from viva.agents.frameworks.turn_log import read_answer
from viva.agents.tools import format_result
from viva.model.message import Image, Message, Reply, Text, ToolCall


class LlamaIndexSession(FrameworkSession):
    """A conversation with a copy of the workflow and its Context. The next message continues a run that waits for the user."""

    title = "LlamaIndex"
    package = "llama-index-core"
    tested_version = "0.14"
    agent_types = ("llama_index.core.agent.workflow:BaseWorkflowAgent", "llama_index.core.agent.workflow:AgentWorkflow")
    types = (*agent_types, "llama_index.core.workflow:Workflow")
    required_names = ("workflows.runtime.types.results:WaitingForEvent",)

    @classmethod
    def check_target(cls, target: Any) -> None:
        super().check_target(target)
        if not cls._is_agent(target) and find_text_field(cls.load, target) is None:
            raise cls.build_error(f"{type(target).__name__}: {NO_TEXT_FIELD}")

    @classmethod
    def _is_agent(cls, target: Any) -> bool:
        """Is it an agent or a workflow of agents, not a Workflow with steps of the user?"""
        return isinstance(target, tuple(cls.load(*place.split(":")) for place in cls.agent_types))

    async def start(self) -> None:
        log_all_calls(LlamaIndexSession)
        for place in self.agent_types:
            intercept(self.load(*place.split(":")), "run", _run_copy)
        self._blocks: Any = self.load("llama_index.core.base.llms", "types")
        self._tools: set[str] = set()
        self.workflow: Any = self.copy_workflow(self.target)
        self._context: Any = self.load("llama_index.core.workflow", "Context")(self.workflow)
        self._run: Any = None
        self._question: Any = None
        self._start_field = None if self._is_agent(self.target) else find_text_field(self.load, self.target)
        if self._start_field is not None:
            if self.context.history:
                raise self.build_error("an own Workflow has no place for the prior messages of a case")
            return
        agent = self.target if not hasattr(self.target, "agents") else self.target.agents[self.target.root_agent]
        memory = self.load("llama_index.core.memory", "ChatMemoryBuffer")
        self._memory = memory.from_defaults(self.convert_history(), agent.llm)  # a Context keeps none from run to run

    async def close(self) -> None:
        if self._run is not None and not self._run.is_done():
            await self._run.cancel_run()

    async def run_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
        if self._question is None:
            self._run = self.workflow.run(**self._build_input(message), ctx=self._context)
            self._events = self._run.stream_events(expose_internal=self._start_field is not None)
        else:
            self._run.ctx.send_event(self._answer(message, options))
            self._question = None
        asking = self.load("llama_index.core.workflow", "InputRequiredEvent")
        try:
            async for event in self._events:
                self._log_event(event)
                if isinstance(event, asking):
                    self._question = event
                    return self.log.build_reply(input_hint=str(event.get("prefix", "")) or type(event).__name__)
            output, self._run = await self._run, None
        except asyncio.CancelledError:
            await self.close()
            raise
        if not hasattr(output, "structured_response"):
            return self.log.build_output_reply(read_result(self.load, output))
        if output.structured_response is None:
            return self.log.build_reply(output.response.content or "")
        self.log.drop_message()
        return self.log.build_reply(data=output.structured_response)

    def _build_input(self, message: Message) -> dict[str, Any]:
        if self._start_field is not None:
            return {self._start_field: self.require_text(message)}
        return {"user_msg": self.convert_message(message), "memory": self._memory}

    def _answer(self, message: Message, options: Mapping[str, Any]) -> Any:
        """The event that answers the agent's question. It has the fields of the question, by which the workflow recognises it."""
        fields = {name: value for name, value in self._question.items() if name != "prefix"}
        fields["response"] = read_answer(message, options, "yes", "no")
        if self._start_field is not None and not fields.keys() - {"response"}:
            return make_answer(self.load, self.workflow, fields["response"])
        return self.load("llama_index.core.workflow", "HumanResponseEvent")(**fields)

    def _log_event(self, event: Any) -> None:
        if name := getattr(event, "current_agent_name", ""):
            self.log.enter_node(name)
        if type(event).__name__ == "StepStateChanged" and event.step_state.value == "running":
            self.log.enter_node(event.name)
        if type(event).__name__ == "AgentOutput":
            self.log.add_message(event.response.content or "")
        if type(event).__name__ == "ToolCallResult" and event.tool_name not in (*self._tools, "handoff"):
            self.log.start_call(event.tool_id, event.tool_name, event.tool_kwargs)
            self.log.fail_call(event.tool_id, event.tool_output.content)  # there is no such tool

    def copy_workflow(self, target: Any) -> Any:
        if not self._is_agent(target):
            return guard_steps(target)
        if not hasattr(target, "agents"):
            return self._copy_agent(target)
        return copy_with(target, agents={name: self._copy_agent(agent) for name, agent in target.agents.items()})

    def _copy_agent(self, agent: Any) -> Any:
        if agent.tool_retriever is not None and self.has_stubs:
            raise self.build_error("tools that a retriever finds cannot be stubbed")
        tools = [wrap_tool(self, tool) for tool in agent.tools or ()]
        self._tools.update(tool.metadata.get_name() for tool in tools)
        return agent.model_copy(update={"tools": tools, "streaming": False})

    def convert_message(self, message: Message) -> Any:
        parts = [Text(message.text)] if isinstance(message.content, str) else message.content
        blocks = [self._to_block(part) for part in parts if part != Text("")]
        for each in message.tool_calls:
            about = {"tool_call_id": each.id, "tool_name": each.name, "tool_kwargs": each.arguments or {}}
            blocks.append(self._blocks.ToolCallBlock(**about))
        return self._blocks.ChatMessage(role=message.role, blocks=blocks)

    def convert_results(self, calls: Sequence[ToolCall]) -> Iterator[Any]:
        for each in calls:
            about = {"tool_call_id": each.id, "name": each.name}
            yield self._blocks.ChatMessage(role="tool", content=format_result(each), additional_kwargs=about)

    def _to_block(self, part: Any) -> Any:
        if isinstance(part, Text):
            return self._blocks.TextBlock(text=part.text)
        if isinstance(part, Image):
            return self._blocks.ImageBlock(url=part.url)
        raise ValueError(f"Viva sends only text and images to LlamaIndex; this message has {part.name or part.source}")


def _run_copy(session: Any, run: Any, workflow: Any, *values: Any, **named: Any) -> Any:
    """Runs a workflow in a tool of another one as a copy that is logged."""
    is_nested = isinstance(session, LlamaIndexSession) and workflow is not session.workflow
    return run(session.copy_workflow(workflow) if is_nested else workflow, *values, **named)


class LlamaIndexConfig(FrameworkConfig, frozen=True, kw_only=True):
    """An agent, an AgentWorkflow or an own Workflow of LlamaIndex."""

    session = LlamaIndexSession
