"""What runnables of LangChain and graphs of LangGraph share: messages, callbacks, and the approvals of LangChain's middleware."""

import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from viva.agents.frameworks.framework_agent import intercept
from viva.agents.frameworks.turn_log import TurnLog, decode_json_text, read_answer, read_decision
from viva.agents.openai_messages import encode_to_messages
from viva.agents.tools import format_result
from viva.model import codec
from viva.model.message import Message
from viva.state.trial_state import to_text


def convert_messages(load: Any, messages: Sequence[Message]) -> list[Any]:
    """Messages in LangChain's form, with attachments and tool calls."""
    plain = [codec.decode(encoded) for message in messages for encoded in encode_to_messages(message)]
    return load("langchain_core.messages", "convert_to_messages")(plain)


def get_message_text(message: Any) -> str:
    """The text of a message. `text` was a method in LangChain 0."""
    return str(message.text() if callable(message.text) and not isinstance(message.text, str) else message.text)


def make_callback_handler(load: Any, log: TurnLog) -> Any:
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
            ids[run_id] = about.get("tool_call_id") or str(run_id)
            log.start_call(ids[run_id], serialized["name"], inputs or text)

        def on_tool_end(self, output: Any, *, run_id: Any, **about: Any) -> None:
            output = _find_tool_message(output)
            result = decode_json_text(getattr(output, "content", output))
            log.end_or_fail_call(ids[run_id], result, is_error=getattr(output, "status", None) == "error")

        def on_tool_error(self, error: BaseException, *, run_id: Any, **about: Any) -> None:
            if isinstance(error, interrupt):
                log.mark_call_pending(ids[run_id])
            else:
                log.fail_call(ids[run_id], error)

    return Handler()


def _find_tool_message(output: Any) -> Any:
    """The result of a tool. One that returns a Command, as for a handoff, puts its result into the messages of the state."""
    update = getattr(output, "update", None) if hasattr(output, "goto") else None
    messages = update.get("messages", ()) if isinstance(update, Mapping) else ()
    return next((each for each in reversed(messages) if getattr(each, "type", "") == "tool"), output)


def stub_tools(load: Any) -> None:
    """Makes the tools of LangChain give the canned answers of a case that has some, wherever they are called."""
    tool = load("langchain_core.tools", "BaseTool")
    intercept(tool, "run", _run_tool)
    intercept(tool, "arun", _run_tool)


def _run_tool(
    session: Any, run: Any, tool: Any, /, tool_input: Any, *values: Any, tool_call_id: str = "", **named: Any
) -> Any:
    if not session.has_stubs:
        return run(tool, tool_input, *values, tool_call_id=tool_call_id or None, **named)
    call = session.log.answer_call(tool_call_id or session.log.create_call_id(), tool.name, tool_input)
    answer = format_result(call)
    if tool_call_id:  # the model asked for it
        message = session.load("langchain_core.messages", "ToolMessage")
        status = "success" if call.error is None else "error"
        answer = message(answer, name=tool.name, tool_call_id=tool_call_id, status=status)
    return _wrap_in_awaitable(answer) if inspect.iscoroutinefunction(run) else answer


async def _wrap_in_awaitable(value: Any) -> Any:
    return value


def list_approvals(value: Any) -> list[Any]:
    """The calls that an interrupt of LangChain's HumanInTheLoopMiddleware asks to approve; none for other interrupts."""
    if not isinstance(value, Mapping):
        return []
    interrupt = cast("Mapping[str, Any]", value)
    return list(interrupt.get("action_requests", [interrupt] if interrupt.get("type") == "tool_approval" else []))


def answer_interrupt(value: Any, message: Message, options: Mapping[str, Any]) -> Any:
    """The answer to an interrupt. An approval takes one decision for each of its calls; the option `resume` is taken as it is."""
    if not (approvals := list_approvals(value)) or "resume" in options:
        return read_answer(message, options)
    decision = read_decision(message, options)
    choice = {"type": "approve"} if decision.is_approved else {"type": "reject", "message": decision.text}
    return {"decisions": [choice] * len(approvals)} if "action_requests" in value else choice


def describe_interrupt(value: Any) -> str:
    """What an interrupt asks the user."""
    questions = [str(each.get("description") or each["name"]) for each in list_approvals(value)]
    return "\n".join(questions) or to_text(value)
