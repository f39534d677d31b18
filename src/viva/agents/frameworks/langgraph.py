"""LangGraph graphs with a `messages` state, LangChain's agents among them, as agents: `langgraph:./app.py:graph`."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from viva.agents.frameworks.framework_agent import FrameworkConfig, FrameworkSession
from viva.agents.frameworks.langchain_shared import (
    answer_interrupt,
    convert_messages,
    describe_interrupt,
    get_message_text,
    list_approvals,
    make_callback_handler,
    stub_tools,
)
from viva.agents.frameworks.turn_log import decode_json_text
from viva.model.message import Message, Reply


class LangGraphSession(FrameworkSession):
    """A thread of a graph, kept in memory: the graph's own checkpointer is not used."""

    title = "LangGraph"
    package = "langgraph"
    tested_version = "1.2"
    context_field = "context_schema"
    types = ("langgraph.pregel:Pregel", "langgraph.graph:StateGraph")
    required_names = ("langgraph.checkpoint.memory:InMemorySaver", "langgraph.types:Command")

    @classmethod
    def check_target(cls, target: Any) -> None:
        super().check_target(target)
        if "messages" not in target.channels:
            keys = ", ".join(name for name in target.channels if not name.startswith(("__", "branch:"))) or "nothing"
            raise cls.build_error(
                f"the state of this graph has no `messages`, it has {keys}; name a function instead, such as\n"
                '    def agent(messages):\n        return graph.invoke({"question": messages[-1]["content"]})["answer"]'
            )

    async def start(self) -> None:
        stub_tools(self.load)
        graph = self.target if hasattr(self.target, "ainvoke") else self.target.compile()
        memory = self.load("langgraph.checkpoint.memory", "InMemorySaver")()
        self._graph: Any = graph.copy({"checkpointer": memory})
        self._thread = f"{self.context.key.session_id} {uuid.uuid4()}"
        self._adds_messages = hasattr(graph.channels["messages"], "operator")  # else each turn gets all messages
        self._unsent: list[Any] = convert_messages(self.load, self.context.history)  # goes in with the next message
        for each in self._unsent:
            each.id = str(uuid.uuid4())
        self._seen: set[str] = {each.id for each in self._unsent}  # its tool calls are not of this conversation
        self._paused: Any = None

    async def run_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
        handler = make_callback_handler(self.load, self.log)
        configurable = {**options.get("configurable", {}), "thread_id": self._thread}
        config = {"configurable": configurable, "callbacks": [handler]}
        if self._paused is not None:
            turn_input = await self._resume(config, message, options)
        else:
            turn_input = {"messages": [*self._unsent, *convert_messages(self.load, [message])]}
            self._unsent = []
        context = {} if self.tool_context is None else {"context": self.tool_context}
        values = await self._graph.ainvoke(turn_input, config, **context)
        snapshot = await self._graph.aget_state(config)
        messages = self.load("langchain_core.messages", "convert_to_messages")(values["messages"])
        self._read_messages(messages)
        if not snapshot.next:
            self._paused = None
            self._unsent = [] if self._adds_messages else messages
            return self.log.build_reply(data=values.get("structured_response"))
        self._paused = snapshot
        self.log.mark_unfinished_pending(
            [call["name"] for each in snapshot.interrupts for call in list_approvals(each.value)]
        )
        hints = [describe_interrupt(each.value) for each in snapshot.interrupts]
        return self.log.build_reply(input_hint="\n".join(hints) or f"paused before {', '.join(snapshot.next)}")

    def _read_messages(self, messages: Sequence[Any]) -> None:
        """Adds the new messages to the log. Calls of LangChain tools are in it already; other tools appear only in the messages."""
        new = {each.id or str(at): each for at, each in enumerate(messages)}
        for key in [key for key in new if key not in self._seen]:
            self._seen.add(key)
            each = new[key]
            if each.response_metadata.get("__is_handoff_back"):  # of langgraph-supervisor, for the model's eyes
                continue
            if each.type == "ai":
                self.log.add_message(get_message_text(each))
                for call in each.tool_calls:
                    self.log.start_call(call["id"] or "", call["name"], call["args"])
            elif each.type == "tool" and str(each.content).startswith("Returning structured response"):
                self.log.drop_call(each.tool_call_id)
            elif each.type == "tool" and self.log.lacks_result(each.tool_call_id):
                result = decode_json_text(each.content)
                self.log.end_or_fail_call(each.tool_call_id, result, is_error=each.status == "error")

    async def _resume(self, config: Any, message: Message, options: Mapping[str, Any]) -> Any:
        """The input that resumes the graph: the answers to its interrupts, or None if it only paused before a node."""
        if interrupts := self._paused.interrupts:
            if "resume" not in options and any(list_approvals(each.value) for each in interrupts):
                self.answer_pending_calls(message, options)
            answers = {each.id: answer_interrupt(each.value, message, options) for each in interrupts}
            return self.load("langgraph.types", "Command")(resume=answers)
        decision, _ = self.answer_pending_calls(message, options)
        if self.pending_calls and not decision.is_approved:
            tool_message = self.load("langchain_core.messages", "ToolMessage")
            results = [tool_message(decision.text, tool_call_id=call.id, name=call.name) for call in self.pending_calls]
            await self._graph.aupdate_state(config, {"messages": results}, as_node=self._paused.next[0])
        return None


class LangGraphConfig(FrameworkConfig, frozen=True, kw_only=True):
    """A LangGraph graph with a `messages` state, such as an agent of LangChain."""

    session = LangGraphSession
