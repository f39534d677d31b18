"""LangChain runnables as agents: `langchain:./app.py:chain`. Graphs and agents of LangChain 1 are those of LangGraph."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from viva.agents.frameworks.framework_agent import FrameworkConfig, FrameworkSession
from viva.agents.frameworks.langchain_shared import (
    convert_messages,
    get_message_text,
    make_callback_handler,
    stub_tools,
)
from viva.model.message import Message, Reply

_HISTORY_KEYS = ("messages", "chat_history", "history")


class LangChainSession(FrameworkSession):
    """A conversation whose messages are all passed each time: a runnable has no memory."""

    title = "LangChain"
    package = "langchain-core"
    tested_version = "1.7"
    types = ("langchain_core.runnables:Runnable",)

    @classmethod
    def check_target(cls, target: Any) -> None:
        super().check_target(target)
        if len(text_keys := _list_text_inputs(target)) > 1:
            raise cls.build_error(
                f"this runnable has the inputs {', '.join(text_keys)}; name a function instead that fills them"
            )

    async def start(self) -> None:
        stub_tools(self.load)
        self._messages = convert_messages(self.load, self.context.history)
        self._session_id = str(uuid.uuid4())  # by which a runnable with a history of its own keeps it

    async def run_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
        before = list(self._messages)
        self._messages += convert_messages(self.load, [message])
        config = {
            "callbacks": [make_callback_handler(self.load, self.log)],
            "configurable": {"session_id": self._session_id, **options.get("configurable", {})},
        }
        output = await self.target.ainvoke(self._build_input(before, message), config)
        if isinstance(output, Mapping):  # of an AgentExecutor, or of a graph inside
            output = output["messages"][-1] if output.get("messages") else output.get("output", output)
        text = get_message_text(output) if hasattr(output, "content") else output if isinstance(output, str) else ""
        self._messages.append(self.load("langchain_core.messages", "AIMessage")(text))
        return self.log.build_reply(text, data=None if text or hasattr(output, "content") else output)

    def _build_input(self, before: Sequence[Any], message: Message) -> Any:
        """A model or a chain of messages takes messages, a chain that asks a retriever a text, a prompt template its variables."""
        schema = _read_input_schema(self.target)
        if schema.get("type") == "string":
            return message.text
        if not (keys := schema.get("properties")):
            return self._messages
        texts = _list_text_inputs(self.target)
        history = before if texts else self._messages
        return {key: message.text if key in texts else history for key in keys}


def _read_input_schema(runnable: Any) -> Mapping[str, Any]:
    """The JSON Schema of what a runnable takes; without properties if that is not known, as for messages."""
    try:
        schema: Mapping[str, Any] = runnable.get_input_jsonschema()
    except Exception:  # a type without a schema: such a runnable takes messages
        return {}
    return schema["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _list_text_inputs(runnable: Any) -> list[str]:
    names = _read_input_schema(runnable).get("properties", ())
    return [name for name in names if name not in (*_HISTORY_KEYS, "agent_scratchpad")]


class LangChainConfig(FrameworkConfig, frozen=True, kw_only=True):
    """A LangChain runnable: a chain, a chat model, an AgentExecutor."""

    session = LangChainSession
