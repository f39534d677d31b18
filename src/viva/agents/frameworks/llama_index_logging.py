"""Logs the model calls and tool calls of LlamaIndex, and answers for stubbed tools."""

from functools import cache
from typing import Any

from viva.agents.frameworks.framework_agent import copy_with, current_session, intercept
from viva.agents.frameworks.model_usage import guess_provider
from viva.agents.frameworks.turn_log import to_plain_value


@cache
def log_all_calls(session_type: Any) -> None:
    """Makes LlamaIndex log, in the session that makes them, each call of a model and of a tool that a step calls itself."""
    load = session_type.load

    def is_logged(session: Any, tool: Any) -> bool:
        """Is it a tool of the user that no agent calls? LlamaIndex's own are for handoffs and structured output."""
        is_own = tool.real_fn.__module__.startswith("llama_index.core.")
        return isinstance(session, session_type) and not is_own and not hasattr(tool, "is_wrapped")

    def call_tool(session: Any, call: Any, tool: Any, /, *values: Any, **named: Any) -> Any:
        if not is_logged(session, tool):
            return call(tool, *values, **named)
        done: list[Any] = []

        def run() -> Any:
            done.append(call(tool, *values, **named))
            return done[0].raw_output

        output = session.log.run_sync_tool(tool.metadata.get_name(), named, run)
        return done[0] if done else _make_output(load, tool, named, output)

    async def acall_tool(session: Any, call: Any, tool: Any, /, *values: Any, **named: Any) -> Any:
        if not is_logged(session, tool):
            return await call(tool, *values, **named)
        return await wrap_tool(session, tool).acall(*values, **named)

    function_tool = load("llama_index.core.tools", "FunctionTool")
    intercept(function_tool, "call", call_tool)
    intercept(function_tool, "acall", acall_tool)

    module = "llama_index.core.instrumentation.events.llm"
    started = tuple(load(module, "LLMChatStartEvent", "LLMCompletionStartEvent"))
    ended = tuple(load(module, "LLMChatEndEvent", "LLMCompletionEndEvent"))
    models: dict[str, Any] = {}  # the class of the model, by the span of its call

    class ModelWatcher(load("llama_index.core.instrumentation.event_handlers", "BaseEventHandler")):
        def handle(self, event: Any, **about: Any) -> None:
            session: Any = current_session.get()
            if not isinstance(session, session_type):
                return
            if isinstance(event, started):
                models[event.span_id] = event.model_dict.get("class_name")
            elif isinstance(event, ended) and event.response is not None:
                raw = to_plain_value(event.response.raw) or {}
                model, usage = (
                    raw.get("model") or raw.get("model_version"),
                    raw.get("usage") or raw.get("usage_metadata"),
                )
                session.log.add_model_call(model, guess_provider(models.pop(event.span_id, "")), usage)

    load("llama_index.core.instrumentation", "get_dispatcher")().add_event_handler(ModelWatcher())


def wrap_tool(session: Any, tool: Any) -> Any:
    """A copy of a tool that is logged in the session, or stubbed."""
    waiting = session.load("workflows.runtime.types.results", "WaitingForEvent")
    call = session.load("llama_index.core.tools", "adapt_to_async_tool")(copy_with(tool, is_wrapped=True)).acall

    async def acall(*values: Any, **named: Any) -> Any:
        done: list[Any] = []
        arguments = {key: value for key, value in named.items() if key != getattr(tool, "ctx_param_name", None)}

        async def run() -> Any:
            done.append(await call(*values, **named))
            return done[0].raw_output

        log = session.log
        output = await log.run_tool(log.create_call_id(), tool.metadata.get_name(), arguments, run, waiting)
        return done[0] if done else _make_output(session.load, tool, arguments, output)

    return copy_with(tool, acall=acall)


def _make_output(load: Any, tool: Any, arguments: Any, output: Any) -> Any:
    """A canned answer, as LlamaIndex expects it of a tool."""
    about = {"tool_name": tool.metadata.get_name(), "raw_input": arguments, "raw_output": output}
    return load("llama_index.core.tools", "ToolOutput")(content=str(output), **about)
