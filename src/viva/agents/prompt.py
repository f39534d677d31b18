"""A prompt agent: a prompt file with `{{variables}}`, a connector, and the shape of the answer. Helpers are made of these.

Variables are the metadata of the call and what is listed in VARIABLES; others have to be named with `variables` in the
config. A prompt that holds no variable of the moment (conversation, output, …) becomes the system prompt of one
session, to which each message is added; any other is filled in anew and asked by itself each time.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import blake2b
from importlib.resources import files
from typing import Any

from msgspec import UNSET, Struct, structs

from viva.agents.models import model_agent
from viva.model import codec
from viva.model.case import Feature
from viva.model.connector import Connector
from viva.model.message import Message, Reply
from viva.model.talk import shown
from viva.model.template import fill, variables_in
from viva.protocols import AgentSession, SessionContext

OF_THE_MOMENT = frozenset(
    {
        "conversation",
        "output",
        "input",
        "last_response",
        "turn_number",
        "turn_count",
        "tool_results",
        "files",
        "fence",
        "metadata",
        "criteria",
        "problem",
    }
)
VARIABLES: Mapping[str, Any] = {
    **dict.fromkeys(OF_THE_MOMENT, ""),
    "persona": "an ordinary user of this assistant",
    "goal": "to get help",
    "facts": "nothing in particular",
    "must_not_know": "nothing in particular",
    "mood": "neutral",
    "language": "the language of the conversation so far; English at the start",
    "patience": "ordinary",
    "max_turns": "",
    "session_id": "",
    "test_id": "",
    "test_mode": "",
    "expected_intent": "",
    "tone": "",
    "target_agent": "",
    "target_description": "not described",
    "target_tools": "unknown",
    "count": 5,
    "focus": "the ordinary ways of use, and where it may go wrong",
    "complexity": "medium",
    "format": "",
}
_TEXT = {"type": "string"}
OUTPUTS: Mapping[str, Mapping[str, Any]] = {
    "simulator": {
        "type": "object",
        "properties": {"reasoning": _TEXT, "input": _TEXT, "goal_achieved": {"type": "boolean"}},
        "required": ["reasoning", "input", "goal_achieved"],
        "additionalProperties": False,
    },
    "validator": {
        "type": "object",
        "properties": {
            "reason": _TEXT,
            "evidence": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"turn": {"type": "integer"}, "quote": _TEXT},
                    "required": ["turn", "quote"],
                    "additionalProperties": False,
                },
            },
            "passed": {"type": "boolean"},
            "score": {"type": "number"},
            "suggestions": {"type": "array", "items": _TEXT},
        },
        "required": ["reason", "evidence", "passed", "score", "suggestions"],
        "additionalProperties": False,
    },
}


def built_in_prompt(name: str) -> tuple[str, Mapping[str, Any] | None]:
    """The text of `viva.simulator` and its kind, and the shape of their answers."""
    bare = name.removeprefix("viva.")
    return files("viva.agents").joinpath(f"prompts/{bare}.md").read_text(encoding="utf-8"), OUTPUTS.get(bare)


class PromptAgent(Struct, frozen=True, kw_only=True):
    """A prompt on a connector. `output` is the JSON Schema of its answer; `variables` adds names, with what they are by default."""

    prompt: str
    connector: Connector
    output: Mapping[str, Any] | None = None
    variables: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        known = {**VARIABLES, **self.variables}
        unknown = sorted({name for name in variables_in(self.prompt) if name not in known})
        if unknown:
            names = ", ".join(f"{{{{{name}}}}}" for name in unknown)
            raise ValueError(
                f"the prompt uses {names}, which nobody sets; known: {', '.join(known)}; add others with `variables`"
            )

    @property
    def provides(self) -> frozenset[Feature]:
        return frozenset({"tool_stubs", "memory"})

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator["PromptSession"]:
        async with AsyncExitStack() as stack:
            yield PromptSession(self, context, stack)


class PromptSession:
    """One conversation with a prompt agent."""

    def __init__(self, agent: PromptAgent, context: SessionContext, stack: AsyncExitStack) -> None:
        self._agent = agent
        self._context = context
        self._stack = stack
        self._of_the_moment = bool(OF_THE_MOMENT & set(variables_in(agent.prompt)))
        self._session: AgentSession | None = None

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        prompt = str(fill(self._agent.prompt, self._values(options.get("metadata", {}))))
        connector = self._connector(options)
        if self._of_the_moment:
            problem = options.get("metadata", {}).get("problem")
            again = f"\n\nYour last answer could not be used: {problem}." if problem else ""
            context = structs.replace(self._context, history=())
            async with model_agent(connector, "", self._agent.output).open(context) as session:
                return await session.send(Message("user", prompt + again), {})
        if self._session is None:
            opened = model_agent(connector, prompt, self._agent.output).open(self._context)
            self._session = await self._stack.enter_async_context(opened)
        return await self._session.send(message, {})

    def _connector(self, options: Mapping[str, Any]) -> Connector:
        """A case may ask for another one, as `options.connector`."""
        return self._context.connectors.get(str(options.get("connector") or ""), self._agent.connector)

    def _values(self, metadata: Mapping[str, Any]) -> dict[str, str]:
        known = {**VARIABLES, **self._agent.variables}
        given = {name: value for name, value in metadata.items() if value not in (None, "", [], {})}
        values = {name: _readable(given.get(name, default)) for name, default in known.items()}
        conversation = self._conversation()
        values["conversation"] = conversation
        values["output"] = codec.compact(str(given.get("output", "")))
        values["metadata"] = _readable({name: value for name, value in given.items() if name not in known}) or "nothing"
        # Nobody can put this mark into a text: it is made of that very text.
        values["fence"] = "=== " + blake2b(conversation.encode(), digest_size=8).hexdigest() + " ==="
        return values

    def _conversation(self) -> str:
        """One JSON object a line: no text in it can end its line, and so pretend to be somebody else's."""
        if self._context.conversation is None:
            return ""
        lines: list[str] = []
        turn = 0
        for message in self._context.conversation():
            turn += message.role == "user"
            line: dict[str, Any] = {"turn": turn, "role": message.role, "text": message.text}
            if message.data is not None:
                line["data"] = message.data
            if message.tool_calls:
                line["tool_calls"] = [
                    {"name": call.name, "arguments": call.arguments}
                    | ({} if call.result is UNSET else {"result": call.result})
                    | ({"error": call.error} if call.error else {})
                    for call in message.tool_calls
                ]
            lines.append(codec.compact(line))
        return "\n".join(lines)


def _readable(value: Any) -> str:
    """A value in a prompt: lists and tables as lines, a text as it is."""
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {shown(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(shown(item) for item in value)
    return shown(value)
