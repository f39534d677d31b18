"""LangChain runnables as agents: `langchain:./app.py:chain`. Graphs and agents of LangChain 1 are those of LangGraph."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from viva.agents.frameworks.framework_agent import FrameworkConfig, FrameworkSession
from viva.agents.frameworks.turn_log import TurnLog, decode_json_text
from viva.agents.openai_messages import encode_to_messages
from viva.model import codec
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
        if self.has_stubs:
            raise self.build_error("the tools of a runnable cannot be stubbed; a graph or agent with a ToolNode can")
        self._messages = convert_messages(self.load, self.context.history)

    async def run_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
        before = list(self._messages)
        self._messages += convert_messages(self.load, [message])
        config = {
            "callbacks": [make_callback_handler(self.load, self.log)],
            "configurable": options.get("configurable", {}),
        }
        output = await self.target.ainvoke(self._build_input(before, message), config)
        if isinstance(output, Mapping) and isinstance(output.get("output"), str):  # AgentExecutor
            output = output["output"]
        text = get_message_text(output) if hasattr(output, "content") else output if isinstance(output, str) else ""
        self._messages.append(self.load("langchain_core.messages", "AIMessage")(text))
        return self.log.build_reply(text, data=None if text or hasattr(output, "content") else output)

    def _build_input(self, before: Sequence[Any], message: Message) -> Any:
        """A model or a chain of messages takes messages; one that starts with a prompt template takes its variables."""
        keys = _list_inputs(self.target)
        if not keys:
            return self._messages
        texts = _list_text_inputs(self.target)
        history = before if texts else self._messages
        return {key: message.text if key in texts else history for key in keys}


def _list_inputs(runnable: Any) -> list[str]:
    """The input variables of a prompt template; none for runnables that take messages."""
    try:
        schema: Mapping[str, Any] = runnable.get_input_jsonschema()
    except Exception:  # a type without a schema: such a runnable takes messages
        return []
    return list(schema.get("properties", {})) if schema.get("type") == "object" else []


def _list_text_inputs(runnable: Any) -> list[str]:
    return [key for key in _list_inputs(runnable) if key not in (*_HISTORY_KEYS, "agent_scratchpad")]


def convert_messages(load: Any, messages: Sequence[Message]) -> list[Any]:
    """Messages in LangChain's form, with attachments and tool calls."""
    plain = [codec.decode(encoded) for message in messages for encoded in encode_to_messages(message)]
    return load("langchain_core.messages", "convert_to_messages")(plain)


def get_message_text(message: Any) -> str:
    """The text of a message. `text` was a method in LangChain 0."""
    return str(message.text() if callable(message.text) and not isinstance(message.text, str) else message.text)


def make_callback_handler(load: Any, log: TurnLog, *, must_stub: bool = False) -> Any:
    """Callbacks that log tools, models and nodes as they run, at any depth."""
    interrupt = getattr(sys.modules.get("langgraph.errors"), "GraphBubbleUp", ())
    ids: dict[Any, str] = {}

    class Handler(load("langchain_core.callbacks", "BaseCallbackHandler")):
        run_inline = raise_error = True

        def on_chain_start(self, serialized: Any, inputs: Any, *, metadata: Any = None, **about: Any) -> None:
            if metadata and about.get("name") == metadata.get("langgraph_node"):
                log.enter_node(about["name"])

        def on_llm_end(self, response: Any, **about: Any) -> None:
            message = getattr(response.generations[0][0], "message", None)
            made_by = getattr(message, "response_metadata", {})
            model = made_by.get("model_name") or made_by.get("model")
            log.add_model_call(model, made_by.get("model_provider"), getattr(message, "usage_metadata", None))
            for call in getattr(message, "tool_calls", ()):
                log.start_call(call["id"] or "", call["name"], call["args"])

        def on_tool_start(self, serialized: Any, text: str, *, run_id: Any, inputs: Any = None, **about: Any) -> None:
            if must_stub:
                raise LookupError(f"{serialized['name']} would run live: it is called outside of a ToolNode")
            ids[run_id] = about.get("tool_call_id") or str(run_id)
            log.start_call(ids[run_id], serialized["name"], inputs or text)

        def on_tool_end(self, output: Any, *, run_id: Any, **about: Any) -> None:
            result = decode_json_text(getattr(output, "content", output))
            log.end_or_fail_call(ids[run_id], result, is_error=getattr(output, "status", None) == "error")

        def on_tool_error(self, error: BaseException, *, run_id: Any, **about: Any) -> None:
            if isinstance(error, interrupt):
                log.mark_call_pending(ids[run_id])
            else:
                log.fail_call(ids[run_id], error)

    return Handler()


class LangChainConfig(FrameworkConfig, frozen=True, kw_only=True):
    """A LangChain runnable: a chain, a chat model, an AgentExecutor."""

    session = LangChainSession
