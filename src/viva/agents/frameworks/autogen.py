"""Agents and teams of AutoGen AgentChat: `autogen:./app.py:team`.

Such an object holds one conversation. The turns of conversations that share it run one after another, each with its own
state; a function that creates the object lets them run in parallel.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast
from weakref import WeakSet

from viva.agents.frameworks.framework_agent import FrameworkConfig, copy_with, get_current_log
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

    async def run_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
        text = self.require_text(message)
        async with self.take_turn() as is_first:
            history = await self._add_history() if is_first else []
            given = self._messages.TextMessage(content=text, source="user")
            if self._asker:
                given = self._messages.HandoffMessage(content=text, source="user", target=self._asker)
            try:
                return await self._run([*history, given])
            except RuntimeError as error:  # a team raises only the text of what its members raise
                raise self.log.model_error or error from error

    async def _run(self, task: Sequence[Any]) -> Reply:
        token, last = self.load("autogen_core", "CancellationToken")(), cast("Any", None)
        try:
            async for event in self.target.run_stream(task=task, cancellation_token=token):
                if getattr(event, "source", "user") != "user":
                    self.log.enter_node(event.source)
                    self._log_tools(event)
                    last = event if hasattr(event, "to_model_message") else last
        finally:
            token.cancel()  # what still runs when the turn is cut off
        members = {each.name for each in _iter_members(self.target)}
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

    async def prepare(self) -> None:
        for each in [member for runner in self._runners for member in _iter_members(runner)]:
            if each in _prepared:
                continue
            _prepared.add(each)
            if hasattr(each, "_model_client"):  # AutoGen has no public way to see these
                each._model_client = _wrap_model_client(each._model_client)  # noqa: SLF001
            for bench in getattr(each, "_workbench", ()):
                if hasattr(bench, "_tools"):
                    bench._tools = [_wrap_tool(tool) for tool in bench._tools]  # noqa: SLF001

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


_prepared = WeakSet[Any]()
"""The agents and teams that log to the current turn. Several teams may have the same members."""


def _wrap_model_client(client: Any) -> Any:
    config = client.dump_component()
    about = config.config.get("model"), config.provider.partition("models.")[2].partition(".")[0]

    def log_usage(piece: Any) -> Any:
        if hasattr(piece, "usage"):
            get_current_log().add_model_call(*about, piece.usage)
        return piece

    async def create(*values: Any, **named: Any) -> Any:
        with get_current_log().store_model_error():
            return log_usage(await client.create(*values, **named))

    async def create_stream(*values: Any, **named: Any) -> Any:
        with get_current_log().store_model_error():
            async for piece in client.create_stream(*values, **named):
                yield log_usage(piece)

    return copy_with(client, create=create, create_stream=create_stream)


def _wrap_tool(tool: Any) -> Any:
    async def run_json(args: Any, token: Any, call_id: str | None = None) -> Any:
        log = get_current_log()
        key = call_id or log.create_call_id()
        return await log.run_tool(key, tool.name, args, lambda: tool.run_json(args, token, call_id))

    async def run_json_stream(args: Any, token: Any, call_id: str | None = None) -> Any:
        if get_current_log().has_stubs:  # an agent that is a tool: AutoGen logs its call
            yield await run_json(args, token, call_id)
            return
        async for piece in tool.run_json_stream(args, token, call_id):
            yield piece

    def return_value_as_string(value: Any) -> str:
        return value if isinstance(value, str) else tool.return_value_as_string(value)

    streams = {"run_json_stream": run_json_stream} if hasattr(tool, "run_json_stream") else {}
    return copy_with(tool, run_json=run_json, return_value_as_string=return_value_as_string, **streams)


class AutoGenConfig(FrameworkConfig, frozen=True, kw_only=True):
    """An agent or a team of AutoGen AgentChat."""

    session = AutoGenSession
