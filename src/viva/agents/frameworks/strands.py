"""Agents of Strands: `strands:./app.py:agent`.

Such an agent holds one conversation. The turns of conversations that share it run one after another, each with its own
snapshot; a function that creates the agent lets them run in parallel.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from viva.agents.frameworks.framework_agent import FrameworkConfig, FrameworkSession
from viva.agents.frameworks.turn_log import TurnLog, read_decision
from viva.agents.tools import format_result, split_steps
from viva.model import codec
from viva.model.message import Message, Reply
from viva.state.trial_state import to_text


class _SharedAgent:
    """An agent, the state that every conversation starts from, and the turn that runs now."""

    def __init__(self, agent: Any, load: Any) -> None:
        self.lock = asyncio.Lock()
        self.first_state = agent.take_snapshot(preset="session")
        self.log: TurnLog | None = None
        self.has_stubs = False
        before, after, added = load("strands.hooks", "BeforeToolCallEvent", "AfterToolCallEvent", "MessageAddedEvent")
        self._make_stub = _make_stub_type(load, self)
        agent.add_hook(self._before_tool, before)
        agent.add_hook(self._after_tool, after)
        agent.add_hook(self._on_message, added)

    def _before_tool(self, event: Any) -> None:
        if self.log is not None:
            use = event.tool_use
            self.log.start_call(use["toolUseId"], use["name"], use["input"])
            if self.has_stubs:
                event.selected_tool = self._make_stub(use["name"])

    def _after_tool(self, event: Any) -> None:
        if self.log is None:
            return
        call_id, result = event.tool_use["toolUseId"], event.result
        if event.cancel_message is not None:
            self.log.refuse_call(call_id, event.cancel_message)
        elif event.exception is not None:
            self.log.fail_call(call_id, event.exception)
        elif result["status"] == "error":
            self.log.fail_call(call_id, _read_content(result))
        else:
            self.log.end_call(call_id, _read_content(result))

    def _on_message(self, event: Any) -> None:
        usage = event.message.get("metadata", {}).get("usage")
        if self.log is None or event.message["role"] != "assistant" or not usage:
            return
        model = event.agent.model
        provider = type(model).__name__.removesuffix("Model").removesuffix("Responses").lower()
        provider = {"bedrock": "aws", "gemini": "google"}.get(provider, provider)
        counts = usage.get("inputTokens"), usage.get("outputTokens"), usage.get("cacheReadInputTokens")
        self.log.add_model_call(model.get_config().get("model_id"), provider, *counts)


_shared: WeakKeyDictionary[Any, _SharedAgent] = WeakKeyDictionary()


class StrandsSession(FrameworkSession):
    """A snapshot of the agent, loaded for each turn."""

    title: ClassVar[str] = "Strands"
    package: ClassVar[str] = "strands-agents"
    tested: ClassVar[str] = "1.62"

    @classmethod
    def load_types(cls) -> Sequence[type]:
        return [cls.load("strands", "Agent")]

    async def start(self) -> None:
        if self.target not in _shared:
            _shared[self.target] = _SharedAgent(self.target, self.load)
        self._state: Any = None
        self._interrupts: Any = ()

    async def run_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
        agent, shared, log = self.target, _shared[self.target], self.log
        async with shared.lock:
            agent.load_snapshot(self._state or shared.first_state)
            if self._state is None:
                agent.messages.extend(part for each in self.context.history for part in _convert(each))
            shared.log, shared.has_stubs = log, self.has_stubs
            log.enter(agent.name)
            try:
                result = await agent.invoke_async(self._build_input(message, options))
                self._state = agent.take_snapshot(preset="session")
            finally:
                shared.log = None
                agent.load_snapshot(shared.first_state)
        self._interrupts = result.interrupts or ()
        text = "".join(block.get("text", "") for block in result.message["content"])
        if self._interrupts:
            for block in result.message["content"]:
                if use := block.get("toolUse"):
                    log.start_call(use["toolUseId"], use["name"], use["input"])
            log.await_unfinished_calls()
            hint = "\n".join(f"{each.name}: {to_text(codec.to_plain(each.reason))}" for each in self._interrupts)
            return log.build_reply(text, input_hint=hint)
        if result.structured_output is None:
            return log.build_reply(text)
        for call in log.build_reply().tool_calls:
            if call.name == type(result.structured_output).__name__:
                log.drop_call(call.id)
        return log.build_reply(data=result.structured_output)

    def _build_input(self, message: Message, options: Mapping[str, Any]) -> Any:
        """The text; or for each interrupt the option `resume`, the decision of the option `approval`, or the text."""
        if not self._interrupts:
            return self.require_text(message)
        default = read_decision(message, options).is_approved if "approval" in options else message.text
        answer = options.get("resume", default)
        return [{"interruptResponse": {"interruptId": each.id, "response": answer}} for each in self._interrupts]


def _read_content(result: Any) -> Any:
    values = [block.get("json", block.get("text")) for block in result["content"]]
    return values[0] if len(values) == 1 else values


def _convert(message: Message) -> list[dict[str, Any]]:
    """A message of the case's history, with its tool calls and their results. A system message is one of the user."""
    asking, answered, text = split_steps(message)
    content: list[Any] = [{"text": asking.text}] if asking.text else []
    uses = [{"toolUseId": call.id, "name": call.name, "input": call.arguments or {}} for call in asking.tool_calls]
    results = [
        {"toolUseId": call.id, "status": "success", "content": [{"text": format_result(call)}]} for call in answered
    ]
    role = "assistant" if message.role == "assistant" else "user"
    converted = [{"role": role, "content": content + [{"toolUse": use} for use in uses]}]
    if results:
        converted.append({"role": "user", "content": [{"toolResult": result} for result in results]})
    if text is not None:
        converted.append({"role": "assistant", "content": [{"text": text.text}]})
    return converted


def _make_stub_type(load: Any, shared: _SharedAgent) -> Any:
    """Tools that give the canned answers of the case."""
    agent_tool, event = load("strands.types.tools", "AgentTool"), load("strands.types._events", "ToolResultEvent")

    class Stub(agent_tool):
        tool_type = "stub"

        def __init__(self, name: str) -> None:
            super().__init__()
            self._name = name

        @property
        def tool_name(self) -> str:
            return self._name

        @property
        def tool_spec(self) -> Any:
            return {"name": self._name, "description": "", "inputSchema": {"json": {"type": "object"}}}

        async def stream(self, tool_use: Any, invocation_state: Any, **keywords: Any) -> Any:
            assert shared.log is not None
            call = shared.log.answer_call(tool_use["toolUseId"], self._name)
            status = "success" if call.error is None else "error"
            content = [{"text": format_result(call)}]
            yield event({"toolUseId": tool_use["toolUseId"], "status": status, "content": content})

    return Stub


class StrandsConfig(FrameworkConfig, frozen=True, kw_only=True):
    """An `Agent` of Strands."""

    session: ClassVar[type[FrameworkSession]] = StrandsSession
