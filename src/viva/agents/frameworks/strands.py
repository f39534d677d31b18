"""Agents, graphs and swarms of Strands: `strands:./app.py:agent`.

Such an object holds one conversation. The turns of conversations that share it run one after another, each with its own
snapshot; a function that creates the object lets them run in parallel.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakSet

from viva.agents.frameworks.framework_agent import (
    FrameworkConfig,
    current_session,
    get_current_log,
    intercept,
)
from viva.agents.frameworks.model_usage import guess_provider
from viva.agents.frameworks.shared_object import SharedObjectSession
from viva.agents.frameworks.turn_log import read_answer
from viva.agents.tools import format_result
from viva.model import codec
from viva.model.message import Message, Reply, ToolCall
from viva.state.trial_state import to_text

_HANDOFF = "handoff_to_agent"


class StrandsSession(SharedObjectSession):
    """A conversation with its own snapshot of the agent, graph or swarm, which is loaded for each turn."""

    title = "Strands"
    package = "strands-agents"
    tested_version = "1.62"
    types = ("strands:Agent", "strands.multiagent.graph:Graph", "strands.multiagent:Swarm")
    required_names = ("strands.tools:PythonAgentTool",)

    async def start(self) -> None:
        agent = self.load("strands", "Agent")
        intercept(agent, "stream_async", _add_hooks)
        self._interrupts: Any = ()
        self._teams = list(_iter_teams(self.target))
        nodes = [(name, node.executor) for team in self._teams for name, node in team.nodes.items()]
        self.agents: dict[Any, str] = {each: name for name, each in nodes if isinstance(each, agent)}
        """Those that speak to the user, with their names in the path."""
        if not self._teams:
            self.agents[self.target] = self.target.name
        elif self.context.history:
            raise self.build_error("a graph or swarm has no place for the prior messages of a case")

    async def run_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
        log = self.log
        async with self.take_turn() as is_first:
            if is_first and not self._teams:
                self.target.messages.extend(self.convert_history())
            result = await self.target.invoke_async(self._build_input(message, options))
        self._interrupts = result.interrupts or ()
        log.drop_calls_of(_HANDOFF if self._teams else "")  # the path has it
        if self._interrupts:
            log.mark_unfinished_pending()
            hint = "\n".join(f"{each.name}: {to_text(codec.to_plain(each.reason))}" for each in self._interrupts)
            return log.build_reply(input_hint=hint)
        if self._teams and result.status.value == "failed":
            errors = [each.result for each in result.results.values() if isinstance(each.result, Exception)]
            raise errors[-1] if errors else RuntimeError("it stopped at a limit of its executions or its time")
        if self._teams or result.structured_output is None:
            return log.build_reply()
        log.drop_calls_of(type(result.structured_output).__name__)
        return log.build_reply(data=result.structured_output)

    async def save_state(self) -> Any:
        teams = [
            (
                each.state,
                copy.deepcopy(each._interrupt_state),  # noqa: SLF001
                copy.deepcopy(each.shared_context.context) if hasattr(each, "shared_context") else None,
                [
                    (getattr(node, "execution_status", None), getattr(node, "result", None))
                    for node in each.nodes.values()
                ],
            )
            for each in self._teams
        ]
        return teams, [each.take_snapshot(preset="session") for each in self.agents]

    async def load_state(self, state: Any) -> None:
        teams, agents = state
        for each, (own, interrupts, shared, nodes) in zip(self._teams, teams, strict=True):
            each.state, each._interrupt_state = own, copy.deepcopy(interrupts)  # noqa: SLF001
            if shared is not None:
                each.shared_context.context = copy.deepcopy(shared)
            for node, (status, result) in zip(each.nodes.values(), nodes, strict=True):
                node.execution_status, node.result = status, result
        for agent, snapshot in zip(self.agents, agents, strict=True):
            agent.load_snapshot(snapshot)

    def _build_input(self, message: Message, options: Mapping[str, Any]) -> Any:
        """The text, or the answer to each interrupt."""
        if not self._interrupts:
            return self.require_text(message)
        answer = read_answer(message, options)
        return [{"interruptResponse": {"interruptId": each.id, "response": answer}} for each in self._interrupts]

    def convert_message(self, message: Message) -> Any:
        """A message as Strands stores it. A system message becomes one of the user."""
        content: list[Any] = [{"text": message.text}] if message.text else []
        uses = [{"toolUseId": each.id, "name": each.name, "input": each.arguments or {}} for each in message.tool_calls]
        role = "assistant" if message.role == "assistant" else "user"
        return {"role": role, "content": content + [{"toolUse": use} for use in uses]}

    def convert_results(self, calls: Sequence[ToolCall]) -> list[Any]:
        return [{"role": "user", "content": [{"toolResult": _encode_result(each)} for each in calls]}]


def _iter_teams(target: Any) -> Iterator[Any]:
    """A graph or swarm and, at any depth, those that are its nodes."""
    if hasattr(target, "nodes"):
        yield target
        for node in target.nodes.values():
            yield from _iter_teams(node.executor)


_hooked = WeakSet[Any]()


def _add_hooks(session: Any, run: Any, agent: Any, /, *values: Any, **named: Any) -> Any:
    """Runs an agent, maybe in a tool of another one, with hooks that log it."""
    if agent not in _hooked:
        _hooked.add(agent)
        for event, hook in _make_hooks(session.load).items():
            agent.add_hook(hook, event)
    return run(agent, *values, **named)


def _make_hooks(load: Any) -> dict[Any, Any]:
    """Hooks that log agents, tools and models to the current turn, and answer for stubbed tools."""
    make_tool = load("strands.tools", "PythonAgentTool")

    def before_run(event: Any) -> None:
        names = getattr(current_session.get(), "agents", {})
        get_current_log().enter_node(names.get(event.agent, event.agent.name))

    def answer(use: Any, **_: Any) -> Any:
        return _encode_result(get_current_log().answer_call(use["toolUseId"], use["name"]))

    def before_tool(event: Any) -> None:
        use, log = event.tool_use, get_current_log()
        log.start_call(use["toolUseId"], use["name"], use["input"])
        if log.has_stubs and use["name"] != _HANDOFF:
            spec = {"name": use["name"], "description": "", "inputSchema": {"json": {"type": "object"}}}
            event.selected_tool = make_tool(use["name"], spec, answer)

    def after_tool(event: Any) -> None:
        call_id, result, log = event.tool_use["toolUseId"], event.result, get_current_log()
        if event.cancel_message is not None:
            log.refuse_call(call_id, event.cancel_message)
        elif event.exception is not None:
            log.fail_call(call_id, event.exception)
        else:
            log.end_or_fail_call(call_id, _read_content(result), is_error=result["status"] == "error")

    def on_message(event: Any) -> None:
        usage = event.message.get("metadata", {}).get("usage")
        if event.message["role"] == "assistant" and usage:
            model = event.agent.model
            get_current_log().add_model_call(model.get_config().get("model_id"), guess_provider(model), usage)
        if event.message["role"] != "assistant":
            return
        if event.agent in getattr(current_session.get(), "agents", {}):
            get_current_log().add_message("".join(block.get("text", "") for block in event.message["content"]))
        for block in event.message["content"]:
            if use := block.get("toolUse"):
                get_current_log().start_call(use["toolUseId"], use["name"], use["input"])

    names = ("BeforeInvocationEvent", "BeforeToolCallEvent", "AfterToolCallEvent", "MessageAddedEvent")
    events = load("strands.hooks", *names)
    return dict(zip(events, (before_run, before_tool, after_tool, on_message), strict=True))


def _read_content(result: Any) -> Any:
    values = [block.get("json", block.get("text")) for block in result["content"]]
    return values[0] if len(values) == 1 else values


def _encode_result(call: ToolCall) -> Any:
    status = "success" if call.error is None else "error"
    return {"toolUseId": call.id, "status": status, "content": [{"text": format_result(call)}]}


class StrandsConfig(FrameworkConfig, frozen=True, kw_only=True):
    """An `Agent`, `Graph` or `Swarm` of Strands."""

    session = StrandsSession
