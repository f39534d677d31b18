"""Agents, apps and runners of Google's Agent Development Kit: `adk:./app.py:root_agent`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from viva.agents.frameworks.framework_agent import FrameworkConfig, FrameworkSession
from viva.agents.frameworks.turn_log import Decision, decode_json_text, read_decision
from viva.agents.gemini_api import encode_content, encode_result_content
from viva.model import codec
from viva.model.message import Message, Reply, ToolCall

_CONFIRMATION = "adk_request_confirmation"
_HANDOFF = "transfer_to_agent"


class AdkSession(FrameworkSession):
    """A session of an in-memory runner: the session service of a runner that is passed is not used."""

    title: ClassVar[str] = "Google ADK"
    package: ClassVar[str] = "google-adk"
    tested: ClassVar[str] = "2.13"

    @classmethod
    def load_types(cls) -> Sequence[type]:
        places = {"agents": "BaseAgent", "apps": "App", "runners": "Runner"}
        return [cls.load(f"google.adk.{module}", name) for module, name in places.items()]

    async def start(self) -> None:
        self._types: Any = self.load("google.genai", "types")
        self._runner: Any = self._make_runner()
        config, threads = self.load("google.adk.agents.run_config", "RunConfig", "ToolThreadPoolConfig")
        self._config = config(tool_thread_pool_config=threads(max_workers=64))  # else sync tools block every session
        service = self._runner.session_service
        self._session: Any = await service.create_session(app_name=self._runner.app_name, user_id="viva")
        event = self.load("google.adk.events", "Event")
        for content in self.convert_history():
            author = "user" if content.role == "user" else self._runner.agent.name
            await service.append_event(self._session, event(author=author, content=content))
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
        decision = read_decision(message, options)
        answers = list(self._resume(decision, options))
        self._waiting = {}
        reply = await self._run(self._types.Content(role="user", parts=answers))
        if decision.is_approved or len(message.text.split()) < 2:
            return reply
        return await self._run(self.convert_message(message))  # ADK takes no text with the answer to a call

    async def _run(self, content: Any) -> Reply:
        text, problem, author, hints = "", "", "", list[str]()
        names = {"user_id": "viva", "session_id": self._session.id}
        async for event in self._runner.run_async(**names, new_message=content, run_config=self._config):
            problem = f"{event.error_code}: {event.error_message}" if event.error_code else problem
            hints += self._read_calls(event)
            if event.is_final_response() and _text(event):
                text, author = _text(event), event.author
        if problem and not text:
            raise RuntimeError(problem)
        for call_id in self._waiting:  # a tool that runs long has returned, but its result is still to come
            self.log.await_call(call_id)
        agent = self._runner.agent.find_agent(author) if author else None
        data = decode_json_text(text) if getattr(agent, "output_schema", None) else text
        hint = "\n".join(hints) or None
        return self.log.build_reply(text, input_hint=hint) if data == text else self.log.build_reply(data=data)

    def _read_calls(self, event: Any) -> Iterator[str]:
        """Notes the calls that wait, and yields what they wait for."""
        for call in event.get_function_calls():
            if call.name == _CONFIRMATION:
                asked = call.args["originalFunctionCall"]
                self.log.drop_call(asked["id"])  # its result was only that it needs a confirmation
                self.log.await_call(asked["id"], asked["name"], asked.get("args"))
                self._waiting[asked["id"]] = (call.id, call.name)
                yield call.args.get("toolConfirmation", {}).get("hint") or f"approve or deny: {asked['name']}"
            elif call.id in (event.long_running_tool_ids or ()):
                self.log.await_call(call.id, call.name, call.args)
                self._waiting[call.id] = (call.id, call.name)
                yield f"waits for the result of {call.name}"

    def _resume(self, decision: Decision, options: Mapping[str, Any]) -> Iterator[Any]:
        """Confirmations, or results of tools that run long: the option `resume`, JSON in the text, or the text."""
        result = options.get("resume", decode_json_text(decision.text))
        for call in self.pending_calls:
            call_id, name = self._waiting[call.id]
            response = result if isinstance(result, dict) else {"result": result}
            if name == _CONFIRMATION:
                response = {"confirmed": decision.is_approved}
                if not decision.is_approved:
                    self.refuse_pending(decision.text, call)
            else:
                self.end_pending(call, response)
            yield self._types.Part(function_response={"id": call_id, "name": name, "response": response})

    def answer_call(self, call_id: str, name: str, arguments: Any) -> dict[str, Any] | None:
        """The canned answer of a stubbed tool; None if the tool runs."""
        self.log.start_call(call_id, name, arguments)
        return _to_response(self.log.answer_call(call_id, name)) if self.has_stubs and name != _HANDOFF else None

    def convert_message(self, message: Message) -> Any:
        return self._types.Content.model_validate_json(encode_content(message))

    def convert_results(self, calls: Sequence[ToolCall]) -> list[Any]:
        return [self._types.Content.model_validate_json(encode_result_content(calls))]


def _text(event: Any) -> str:
    parts = event.content.parts if event.content and event.content.parts else []
    return "".join(part.text for part in parts if part.text and not part.thought)


def _to_response(call: ToolCall) -> dict[str, Any]:
    """What the model is told: an object."""
    if call.error is not None:
        return {"error": call.error}
    result = codec.to_plain(call.result)
    return result if isinstance(result, dict) else {"result": result}


def _make_plugin(session: AdkSession) -> Any:
    """Logs agents, models and tools of the runner, and answers for stubbed tools."""

    class TurnRecorder(session.load("google.adk.plugins.base_plugin", "BasePlugin")):
        async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
            session.log.enter(agent.name)

        async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> None:
            if (usage := llm_response.usage_metadata) is not None and not llm_response.partial:
                model = llm_response.model_version or ""
                session.log.add_model_call(model, "google" if model.startswith("gemini") else "", usage)

        async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> Any:
            return session.answer_call(tool_context.function_call_id, tool.name, tool_args)

        async def after_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, result: Any) -> None:
            session.log.end_call(tool_context.function_call_id, result)
            if tool.name == _HANDOFF:  # the path has it
                session.log.drop_call(tool_context.function_call_id)

        async def on_tool_error_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, error: Any) -> None:
            session.log.fail_call(tool_context.function_call_id, error)

    return TurnRecorder(name="viva")


class AdkConfig(FrameworkConfig, frozen=True, kw_only=True):
    """An agent, App or Runner of Google ADK."""

    session: ClassVar[type[FrameworkSession]] = AdkSession
