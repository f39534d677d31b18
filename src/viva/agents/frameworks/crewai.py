"""Agents and crews of CrewAI: `crewai:./app.py:crew`.

Each conversation has a copy of the object, which runs in a thread. An agent gets all messages each time. A crew gets the
user's message as the one input of its tasks; earlier messages only if it also has an input such as `history`.
"""

from collections.abc import Mapping
from typing import Any

from viva.agents.frameworks.framework_agent import FrameworkConfig, FrameworkSession
from viva.agents.openai_messages import encode_to_messages
from viva.concurrency.threads import run_in_thread
from viva.model import codec
from viva.model.message import Message, Reply

_HISTORY_KEYS = ("messages", "chat_history", "history", "conversation")
_FLOW_FUNCTION = """    def agent(messages):
        return str(MyFlow().kickoff(inputs={"message": messages[-1]["content"]}))"""


class CrewAISession(FrameworkSession):
    """A conversation with a copy of the agent or crew, and all messages so far."""

    title = "CrewAI"
    package = "crewai"
    tested_version = "1.15"
    types = ("crewai:Agent", "crewai:Crew")
    required_names = (
        "crewai.events.utils.console_formatter:set_suppress_console_output",
        "crewai.utilities.agent_utils:extract_tool_call_info",
        "crewai.utilities.string_utils:sanitize_tool_name",
    )

    @classmethod
    def check_target(cls, target: Any) -> None:
        if isinstance(target, cls.load("crewai", "Flow")):
            raise cls.build_error(f"a Flow needs a function that runs it:\n{_FLOW_FUNCTION}")
        super().check_target(target)
        if any(getattr(each, name, None) for each in getattr(target, "agents", [target]) for name in ("mcps", "apps")):
            raise cls.build_error("a copy of an agent has no tools of its `mcps` and `apps`; give it those as `tools`")
        if not hasattr(target, "tasks"):
            return
        if any(task.human_input for task in target.tasks):
            raise cls.build_error("a task with human_input reads from the console; remove it for tests")
        if len(keys := _list_text_inputs(target)) != 1:
            has = f"has the inputs {', '.join(keys)}" if keys else "has no input"
            raise cls.build_error(f"this crew {has}; it needs one, such as {{message}}, for the user's message")

    async def start(self) -> None:
        self._copy: Any = self.target.copy()
        agents = getattr(self._copy, "agents", [self._copy])
        self._tools: dict[str, str] = {}  # the names that the model sees -> their own
        for each in [*agents, *getattr(self._copy, "tasks", ())]:
            each.tools = [self._wrap_tool(tool) for tool in each.tools or ()]
        manager, model = getattr(self._copy, "manager_agent", None), getattr(self._copy, "manager_llm", None)
        for each in [*agents, *([manager] if manager else [])]:
            self._log_model(each.llm, each.role)
        if model is not None and manager is None:  # the crew makes its manager when it starts
            self._copy.manager_llm = self.load("crewai.utilities.llm_utils", "create_llm")(model)
            self._log_model(self._copy.manager_llm, "manager")
        self._messages = [
            codec.decode(each) for message in self.context.history for each in encode_to_messages(message)
        ]

    async def run_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
        text = self.require_text(message)
        quiet = self.load("crewai.events.utils.console_formatter", "set_suppress_console_output")
        quiet(not self.target.verbose)  # an agent prints a box for each step even so
        output = await run_in_thread(self._kick_off, text)
        self._messages += [{"role": "user", "content": text}, *_list_new_messages(output)]
        return self.log.build_output_reply(output.pydantic or getattr(output, "json_dict", None) or output.raw)

    def _kick_off(self, text: str) -> Any:
        if not hasattr(self._copy, "tasks"):
            return self._copy.kickoff([*self._messages, {"role": "user", "content": text}])
        history = "\n".join(f"{each['role']}: {each.get('content') or ''}" for each in self._messages)
        inputs = {key: text if key in _list_text_inputs(self.target) else history for key in self.target.fetch_inputs()}
        return self._copy.kickoff(inputs=inputs)

    def _log_model(self, model: Any, role: str) -> None:
        """Makes the model of a copied agent log its usage, and the tools that it asks for, in order.

        CrewAI's own events report both too late, in other threads.
        """
        metrics, track = self.load("crewai.types.usage_metrics", "UsageMetrics"), model._track_token_usage_internal  # noqa: SLF001
        read_call, call_model = self.load("crewai.utilities.agent_utils", "extract_tool_call_info"), model.call

        def log_usage(usage: Any) -> None:
            track(usage)
            self.log.enter_node(role)
            counts = metrics.from_provider_dict(usage)
            self.log.add_model_call(model.model, getattr(model, "provider", ""), counts)

        def call(*values: Any, **named: Any) -> Any:
            answer = call_model(*values, **named)
            requested = [read_call(each) for each in answer] if isinstance(answer, list) else []
            for call_id, name, arguments in filter(None, requested):
                if name in self._tools:
                    self.log.add_requested_call(call_id, self._tools[name], arguments)
            return answer

        vars(model).update(_track_token_usage_internal=log_usage, call=call)

    def _wrap_tool(self, tool: Any) -> Any:
        """A tool that is logged, or stubbed."""
        base, session = self.load("crewai.tools", "BaseTool"), self

        class Recorded(base):
            def _run(self, **arguments: Any) -> Any:
                return session.log.run_sync_tool(tool.name, arguments, lambda: tool.run(**arguments))

        self._tools[self.load("crewai.utilities.string_utils", "sanitize_tool_name")(tool.name)] = tool.name
        copied = ("name", "description", "args_schema", "result_as_answer", "max_usage_count", "cache_function")
        return Recorded(**{name: getattr(tool, name) for name in copied})


def _list_text_inputs(crew: Any) -> list[str]:
    return sorted(crew.fetch_inputs().difference(_HISTORY_KEYS))


def _list_new_messages(output: Any) -> list[Any]:
    """The agent's messages of this turn, with its tool calls and their results."""
    messages = getattr(output, "messages", None) or []  # a crew has none
    last = max((at for at, each in enumerate(messages) if each["role"] == "user"), default=-1)
    return [*messages[last + 1 :], {"role": "assistant", "content": output.raw}]


class CrewAIConfig(FrameworkConfig, frozen=True, kw_only=True):
    """An `Agent` or `Crew` of CrewAI."""

    session = CrewAISession
