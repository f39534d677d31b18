"""Agents and teams of AutoGen AgentChat: `autogen:./app.py:team`.

Such an object holds one conversation. The turns of conversations that share it run one after another, each with its own
state; a function that creates the object lets them run in parallel.
"""

from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, cast

from viva.agents.frameworks.framework_agent import FrameworkConfig, intercept
from viva.agents.frameworks.shared_object import SharedObjectSession
from viva.agents.frameworks.turn_log import decode_json_text
from viva.agents.tools import format_result
from viva.model import codec
from viva.model.message import Message, Reply, ToolCall


class AutoGenSession(SharedObjectSession):
    """A conversation with its own state of the agent or team, which is loaded for each turn."""

    title = "AutoGen"
    package = "autogen-agentchat"
    tested_version = "0.7"
    types = ("autogen_agentchat.base:ChatAgent", "autogen_agentchat.base:Team")

    @classmethod
    def check_target(cls, target: Any) -> None:
        super().check_target(target)
        proxy = cls.load("autogen_agentchat.agents", "UserProxyAgent")
        users = [each for each in _iter_members(target) if isinstance(each, proxy)]
        if any(each.input_func.__module__ == proxy.__module__ for each in users):
            raise cls.build_error("its UserProxyAgent reads from the console; give it an input_func or use a handoff")

    async def start(self) -> None:
        self._messages, self._models = self.load("autogen_agentchat", "messages"), self.load("autogen_core", "models")
        self._runners = _list_runners(self.target)
        self._asker = ""  # the agent that handed over to the user
        intercept(self.load("autogen_core.tools", "BaseTool"), "run_json", _run_tool)
        for member in [member for runner in self._runners for member in _iter_members(runner)]:
            if (client := getattr(member, "_model_client", None)) is not None:
                intercept(type(client), "create", _create)
                intercept(type(client), "create_stream", _create_stream)
            for bench in getattr(member, "_workbench", ()):
                intercept(type(bench), "call_tool", _call_tool)
                if hasattr(bench, "call_tool_stream"):
                    intercept(type(bench), "call_tool_stream", _stream_tool)

    async def run_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
        text = self.require_text(message)
        async with self.take_turn() as is_first:
            history = await self._add_history() if is_first else []
            user_message = self._messages.TextMessage(content=text, source="user")
            if self._asker:
                user_message = self._messages.HandoffMessage(content=text, source="user", target=self._asker)
            try:
                return await self._run([*history, user_message])
            except RuntimeError as error:  # a team raises only the text of what its members raise
                raise self.log.model_error or error from error

    async def _run(self, task: Sequence[Any]) -> Reply:
        token, last = self.load("autogen_core", "CancellationToken")(), cast("Any", None)
        members = {each.name for each in _iter_members(self.target)}
        try:
            async for event in self.target.run_stream(task=task, cancellation_token=token):
                if getattr(event, "source", "user") != "user":
                    self.log.enter_node(event.source)
                    self._log_tools(event)
                    if hasattr(event, "to_model_message"):  # else it is no message
                        last = event
                        if (
                            event.source in members
                            and event.type != "HandoffMessage"
                            and isinstance(event.content, str)
                        ):
                            self.log.add_message(event.content)
        finally:
            token.cancel()  # what still runs when the turn is cut off
        self._asker = last.source if getattr(last, "target", self.target.name) not in members else ""
        content = getattr(last, "content", "")
        if not isinstance(content, str):
            return self.log.build_reply(data=content)
        return self.log.build_reply(content, input_hint=content if self._asker else None)

    def _log_tools(self, event: Any) -> None:
        if event.type == "ToolCallRequestEvent":
            for call in event.content:
                self.log.start_call(call.id, call.name, call.arguments)
        elif event.type == "ToolCallExecutionEvent":
            for each in event.content:
                self.log.end_or_fail_call(each.call_id, decode_json_text(each.content), is_error=each.is_error)
        elif event.type == "HandoffMessage":  # the path has it
            self.log.drop_calls_of(f"transfer_to_{event.target}")

    async def _add_history(self) -> list[Any]:
        """Adds the history of the case to the context of an agent; for a team, returns messages that go before the first one."""
        if (context := getattr(self.target, "model_context", None)) is None:
            plain = self._messages.TextMessage
            return [plain(content=each.text, source=each.role) for each in self.context.history]
        for each in self.convert_history():
            await context.add_message(each)
        return []

    def convert_message(self, message: Message) -> Any:
        if message.role == "system":
            return self._models.SystemMessage(content=message.text)
        if message.role == "user":
            return self._models.UserMessage(content=message.text, source="user")
        function = self.load("autogen_core", "FunctionCall")
        calls = [function(each.id, codec.compact_json(each.arguments or {}), each.name) for each in message.tool_calls]
        return self._models.AssistantMessage(content=calls or message.text, source=self.target.name)

    def convert_results(self, calls: Sequence[ToolCall]) -> list[Any]:
        results = [{"content": format_result(each), "name": each.name, "call_id": each.id} for each in calls]
        return [self._models.FunctionExecutionResultMessage(content=results)]

    async def save_state(self) -> Any:
        return [await each.save_state() for each in self._runners]

    async def load_state(self, state: Any) -> None:
        for each, own in zip(self._runners, state, strict=True):
            await each.load_state(own)


def _iter_members(target: Any) -> Iterator[Any]:
    """An agent or team and, at any depth, its members."""
    yield target
    for each in getattr(target, "_participants", ()):
        yield from _iter_members(each)


def _list_runners(target: Any) -> list[Any]:
    """An agent or team and, at any depth, those that are tools of its members."""
    benches = [bench for each in _iter_members(target) for bench in getattr(each, "_workbench", ())]
    tools = [tool for bench in benches for tool in getattr(bench, "_tools", ()) if hasattr(tool, "_task_runner")]
    return [target, *(runner for tool in tools for runner in _list_runners(tool._task_runner))]  # noqa: SLF001


async def _create(session: Any, create: Any, client: Any, /, *values: Any, **named: Any) -> Any:
    with session.log.store_model_error():
        return _log_usage(session, client, await create(client, *values, **named))


async def _create_stream(session: Any, create: Any, client: Any, /, *values: Any, **named: Any) -> Any:
    _, _, config = _describe_client(client)
    settings = {**config, **named.get("extra_create_args", {})}
    if "include_usage" in signature(create).parameters and "stream_options" not in settings:
        named = {"include_usage": True, **named}
    with session.log.store_model_error():
        async for piece in create(client, *values, **named):
            yield _log_usage(session, client, piece)


def _log_usage(session: Any, client: Any, piece: Any) -> Any:
    if hasattr(piece, "usage"):
        session.log.add_model_call(*_describe_client(client)[:2], piece.usage)
    return piece


def _describe_client(client: Any) -> tuple[str, str, Mapping[str, Any]]:
    """The model, the provider and the config of a client. All are empty for a client of the user that has no config."""
    try:
        component = client.dump_component()
    except Exception:  # what it raises depends on what the user's class lacks
        return "", "", {}
    provider = component.provider.partition("models.")[2].partition(".")[0]
    return component.config.get("model") or "", provider, component.config


async def _run_tool(session: Any, run: Any, tool: Any, args: Any, token: Any, call_id: str | None = None) -> Any:
    key = call_id or session.log.create_call_id()
    return await session.log.run_tool(key, tool.name, args, lambda: run(tool, args, token, call_id))


async def _call_tool(session: Any, call: Any, bench: Any, /, name: str, *values: Any, **named: Any) -> Any:
    """Calls a tool of a workbench, such as one of an MCP server, or gives its canned answer."""
    if session.has_stubs:
        return _answer_call(session, name, named)
    return await call(bench, name, *values, **named)


async def _stream_tool(session: Any, call: Any, bench: Any, /, name: str, *values: Any, **named: Any) -> Any:
    """Like `_call_tool`, for tools that may be agents or teams."""
    if session.has_stubs:
        yield _answer_call(session, name, named)
        return
    async for piece in call(bench, name, *values, **named):
        yield piece


def _answer_call(session: Any, name: str, named: Mapping[str, Any]) -> Any:
    call_id = named.get("call_id") or session.log.create_call_id()
    call = session.log.answer_call(call_id, name, named.get("arguments"))
    result, text = session.load("autogen_core.tools", "ToolResult", "TextResultContent")
    return result(name=name, result=[text(content=format_result(call))], is_error=call.error is not None)


class AutoGenConfig(FrameworkConfig, frozen=True, kw_only=True):
    """An agent or a team of AutoGen AgentChat."""

    session = AutoGenSession
