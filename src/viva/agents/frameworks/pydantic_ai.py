"""Agents of pydantic-ai: `pydantic_ai:./app.py:agent`."""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

from viva.agents.frameworks.framework_agent import FrameworkConfig, FrameworkSession, intercept
from viva.agents.tools import format_result
from viva.concurrency.shared_loop import DaemonThreadExecutor
from viva.model.message import Message, Reply, Text, ToolCall


class PydanticAISession(FrameworkSession):
    """A conversation that keeps the messages of all turns: each run gets them as its history."""

    title = "pydantic-ai"
    package = "pydantic-ai-slim"
    tested_version = "2.66"
    context_field = "deps_type"
    types = ("pydantic_ai.agent:AbstractAgent",)
    required_names = ("pydantic_ai.capabilities:UseThreadExecutor", "pydantic_ai.capabilities:ReinjectSystemPrompt")

    async def start(self) -> None:
        intercept(self.load("pydantic_ai", "Agent"), "iter", _record_run)
        self._parts: Any = self.load("pydantic_ai", "messages")
        self._messages: Sequence[Any] = self.convert_history()
        threads, prompts = self.load("pydantic_ai.capabilities", "UseThreadExecutor", "ReinjectSystemPrompt")
        has_prompt = any(message.role == "system" for message in self.context.history)
        self._capabilities = [
            threads(DaemonThreadExecutor()),
            *([prompts()] if self._messages and not has_prompt else []),
        ]
        self._waiting: Any = None

    async def run_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
        turn_input: dict[str, Any] = {"user_prompt": self._to_prompt(message)}
        if self._waiting is not None:
            turn_input = {"deferred_tool_results": self._resume(message, options)}
        result = await self.target.run(
            **turn_input,
            message_history=self._messages or None,
            deps=self.tool_context,
            infer_name=False,
            capabilities=self._capabilities,
        )
        self._messages, output = result.all_messages(), result.output
        self._waiting = None
        *earlier, last = [each for each in result.new_messages() if each.kind == "response"]
        for each in (*earlier, *([last] if last.tool_calls else [])):  # the text of the others is the output
            self.log.add_message(each.text or "")
        if isinstance(output, self.load("pydantic_ai", "DeferredToolRequests")):
            self._waiting = output
            for call in (*output.approvals, *output.calls):
                self.log.mark_call_pending(call.tool_call_id)
            return self.log.build_reply()
        return self.log.build_output_reply(output)

    def _resume(self, message: Message, options: Mapping[str, Any]) -> Any:
        """The results of the calls that wait: an approval or denial or, for tools that run outside, the value that the user gives."""
        results, denied = self.load("pydantic_ai", "DeferredToolResults", "ToolDenied")
        outside = {call.tool_call_id for call in self._waiting.calls}
        decision, result = self.answer_pending_calls(message, options, outside)
        verdict = True if decision.is_approved else denied(decision.text)
        approvals = {call.tool_call_id: verdict for call in self._waiting.approvals}
        return results(approvals=approvals, calls=dict.fromkeys(outside, result))

    def _to_prompt(self, message: Message) -> Any:
        """The content of a message, with attachments."""
        if isinstance(message.content, str):
            return message.content
        parts = self._parts
        kinds = {"image": parts.ImageUrl, "audio": parts.AudioUrl, "file": parts.DocumentUrl}
        return [
            part.text
            if isinstance(part, Text)
            else parts.BinaryContent.from_data_uri(part.url)
            if part.url.startswith("data:")
            else kinds[type(part).__name__.lower()](part.url)
            for part in message.content
        ]

    def convert_message(self, message: Message) -> Any:
        parts = self._parts
        if message.role == "system":
            return parts.ModelRequest([parts.SystemPromptPart(message.text)])
        if message.role == "user":
            return parts.ModelRequest([parts.UserPromptPart(self._to_prompt(message))])
        texts = [parts.TextPart(message.text)] if message.text else []
        calls = [parts.ToolCallPart(each.name, each.arguments or {}, each.id) for each in message.tool_calls]
        return parts.ModelResponse([*texts, *calls])

    def convert_results(self, calls: Sequence[ToolCall]) -> list[Any]:
        parts = self._parts
        return [parts.ModelRequest([parts.ToolReturnPart(each.name, format_result(each), each.id) for each in calls])]


def _record_run(session: Any, run: Any, /, *values: Any, capabilities: Any = None, **named: Any) -> Any:
    """Runs an agent, maybe in a tool of another one, with a capability that logs it."""
    recorder = _make_recorder(session.load)(session)
    return run(*values, capabilities=[*(capabilities or ()), recorder], **named)


@cache
def _make_recorder(load: Any) -> Any:
    """A capability that logs agents, models and tools, and answers for stubbed tools."""
    waiting = tuple(load("pydantic_ai", "CallDeferred", "ApprovalRequired"))

    class TurnCapability(load("pydantic_ai.capabilities", "AbstractCapability")):
        def __init__(self, session: FrameworkSession) -> None:
            self.log = session.log

        async def before_run(self, ctx: Any) -> None:
            if ctx.agent.name:
                self.log.enter_node(ctx.agent.name)

        async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> Any:
            for part in request_context.messages[-1].parts:
                if getattr(part, "outcome", "") in ("retried", "failed"):  # such as: there is no such tool
                    self.log.fail_call(part.tool_call_id, str(part.content))
            response = await handler(request_context)
            self.log.add_model_call(response.model_name, response.provider_name, response.usage)
            outputs = {tool.name for tool in request_context.model_request_parameters.output_tools}
            for call in response.tool_calls:
                if call.tool_name not in outputs:
                    self.log.start_call(call.tool_call_id, call.tool_name, call.args)
            return response

        async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
            run = partial(handler, args)
            return await self.log.run_tool(call.tool_call_id, call.tool_name, call.args, run, waiting)

        async def on_tool_validate_error(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, error: Any) -> Any:
            self.log.fail_call(call.tool_call_id, str(error))
            raise error

    return TurnCapability


class PydanticAIConfig(FrameworkConfig, frozen=True, kw_only=True):
    """An `Agent` of pydantic-ai."""

    session = PydanticAISession
