"""Agents, apps and runners of Google's Agent Development Kit: `adk:./app.py:root_agent`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from viva.agents.frameworks.framework_agent import FrameworkConfig, FrameworkSession
from viva.agents.frameworks.turn_log import decode_json_text
from viva.agents.gemini_api import encode_content, encode_result_content
from viva.model import codec
from viva.model.message import Message, Reply, ToolCall

_CONFIRMATION = "adk_request_confirmation"
_HANDOFF = "transfer_to_agent"


class AdkSession(FrameworkSession):
    """A conversation in a runner with an in-memory session service: the session service of the user's runner is not used."""

    title = "Google ADK"
    package = "google-adk"
    tested_version = "2.13"
    types = (
        "google.adk.agents:BaseAgent", "google.adk.workflow:Workflow", "google.adk.apps:App", "google.adk.runners:Runner",
    )  # fmt: skip
    required_names = ("google.adk.agents.run_config:ToolThreadPoolConfig", "google.adk.plugins.base_plugin:BasePlugin")

    async def start(self) -> None:
        self._types: Any = self.load("google.genai", "types")
        self._runner: Any = self._make_runner()
        config, threads = self.load("google.adk.agents.run_config", "RunConfig", "ToolThreadPoolConfig")
        service = self._runner.session_service
        session = await service.create_session(app_name=self._runner.app_name, user_id="viva")
        pool = threads(max_workers=64)  # else sync tools block every session
        self._run_options = {"session_id": session.id, "run_config": config(tool_thread_pool_config=pool)}
        event = self.load("google.adk.events", "Event")
        for content in self.convert_history():
            author = "user" if content.role == "user" else self._runner.agent.name
            await service.append_event(session, event(author=author, content=content))
        self._waiting: dict[str, tuple[str, str]] = {}  # id of a call that waits -> id and name to answer to

    def _make_runner(self) -> Any:
        target, plugin = self.target, _make_plugin(self)
        memory = self.load("google.adk.runners", "InMemoryRunner")
        if hasattr(target, "run_async") and hasattr(target, "app"):  # a Runner
            target = target.app
        if hasattr(target, "root_agent") and hasattr(target, "plugins"):  # an App
            return memory(app=target.model_copy(update={"plugins": [*target.plugins, plugin]}))
        return memory(agent=target, app_name="viva", plugins=[plugin])

    async def run_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
        if not self._waiting:
            return await self._run(self.convert_message(message))
        needs_result = {key for key, (_, name) in self._waiting.items() if name != _CONFIRMATION}
        decision, result = self.answer_pending_calls(message, options, needs_result)
        answers: list[Any] = []
        for key, (call_id, name) in self._waiting.items():
            response = _wrap_result(result) if key in needs_result else {"confirmed": decision.is_approved}
            answers.append(self._types.Part(function_response={"id": call_id, "name": name, "response": response}))
        self._waiting = {}
        reply = await self._run(self._types.Content(role="user", parts=answers))
        if decision.is_approved or len(message.text.split()) < 2:
            return reply
        return await self._run(self.convert_message(message))  # ADK takes no text with the answer to a call

    async def _run(self, content: Any) -> Reply:
        data, problem, hints = cast("Any", None), "", list[str]()
        async for event in self._runner.run_async(user_id="viva", new_message=content, **self._run_options):
            hints += self._read_calls(event)
            if not event.partial and (text := _get_event_text(event)):
                self.log.add_message(text)
                data = self._read_output(event, text)
                problem = "" if event.is_final_response() else problem
            elif event.error_code:
                problem = f"{event.error_code}: {event.error_message}"
        if problem:
            raise RuntimeError(problem)
        for call_id in self._waiting:  # a tool that runs long has returned, but its result is still to come
            self.log.mark_call_pending(call_id)
        if data is not None:
            self.log.drop_message()
        return self.log.build_reply(data=data, input_hint="\n".join(hints) or None)

    def _read_output(self, event: Any, text: str) -> Any:
        """The structured output of an agent that has an output schema, from its last text; None if there is none."""
        find_agent = getattr(self._runner.agent, "find_agent", None)  # a Workflow has none
        agent = find_agent(event.author) if find_agent and event.is_final_response() else None
        data = decode_json_text(text) if getattr(agent, "output_schema", None) else text
        return None if data == text else data

    def _read_calls(self, event: Any) -> Iterator[str]:
        """Logs the calls in an event that wait, and yields a hint for each: what it waits for."""
        for call in event.get_function_calls():
            if call.name == _CONFIRMATION:
                original_call = call.args["originalFunctionCall"]
                self.log.drop_call(original_call["id"])  # its result was only that it needs a confirmation
                self.log.mark_call_pending(original_call["id"], original_call["name"], original_call.get("args"))
                self._waiting[original_call["id"]] = (call.id, call.name)
                yield call.args.get("toolConfirmation", {}).get("hint") or f"approve or deny: {original_call['name']}"
            elif call.id in (event.long_running_tool_ids or ()):
                self.log.mark_call_pending(call.id, call.name, call.args)
                self._waiting[call.id] = (call.id, call.name)
                yield f"waits for the result of {call.name}"

    def convert_message(self, message: Message) -> Any:
        return self._types.Content.model_validate_json(encode_content(message))

    def convert_results(self, calls: Sequence[ToolCall]) -> list[Any]:
        return [self._types.Content.model_validate_json(encode_result_content(calls))]


def _get_event_text(event: Any) -> str:
    parts = event.content.parts if event.content and event.content.parts else []
    return "".join(part.text for part in parts if part.text and not part.thought)


def _wrap_result(value: Any) -> Any:
    """A result as an object, which ADK asks for."""
    return value if isinstance(value, dict) else {"result": value}


def _make_plugin(session: AdkSession) -> Any:
    """Logs agents, models and tools of the runner, and answers for stubbed tools."""

    class TurnPlugin(session.load("google.adk.plugins.base_plugin", "BasePlugin")):
        async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
            session.log.enter_node(agent.name)

        async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> None:
            if (usage := llm_response.usage_metadata) is not None and not llm_response.partial:
                model = llm_response.model_version or ""
                session.log.add_model_call(model, "google" if model.startswith("gemini") else "", usage)

        async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> Any:
            call_id = tool_context.function_call_id
            session.log.start_call(call_id, tool.name, tool_args)
            if not session.has_stubs or tool.name == _HANDOFF:
                return None  # the tool runs
            call = session.log.answer_call(call_id, tool.name)
            return {"error": call.error} if call.error is not None else _wrap_result(codec.to_plain(call.result))

        async def after_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, result: Any) -> None:
            call_id = tool_context.function_call_id
            error = result.get("error") if isinstance(result, dict) and len(result) == 1 else None
            session.log.end_or_fail_call(
                call_id, error or result, is_error=error is not None
            )  # such as wrong arguments
            if tool.name == _HANDOFF:  # the path has it
                session.log.drop_call(call_id)

        async def on_tool_error_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, error: Any) -> None:
            session.log.fail_call(tool_context.function_call_id, error)

    return TurnPlugin(name="viva")


class AdkConfig(FrameworkConfig, frozen=True, kw_only=True):
    """An agent, App or Runner of Google ADK."""

    session = AdkSession
