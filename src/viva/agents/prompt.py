"""A prompt agent: a prompt file with `{{variables}}`, a connector, and the schema of the answer. Helpers are prompt agents.

Variables are the metadata of the call and PROMPT_VARIABLES; `variables` in the config adds others. A prompt without
per-call variables (conversation, output, …) is the system prompt of one session. Any other prompt is filled in for each
call and sent alone.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, cast

from msgspec import UNSET, Struct, UnsetType, structs

from viva.agents.agent_config import AgentSetup, AgentStatus, inspect_url
from viva.agents.model_session import ModelAgent
from viva.agents.models import CompletionConfig, build_model_agent
from viva.errors import BadInput
from viva.model import codec
from viva.model.case import Feature
from viva.model.connector import Connector
from viva.model.message import Message, Part, Reply, Text
from viva.protocols import AgentSession, SessionContext, WorkspaceFactory
from viva.state.trial_state import EXAMPLE_INPUT, to_text
from viva.text.template import fill_variables, list_variables

_CONVERSATION_VARIABLES = frozenset({"conversation", "output", "last_response"})
"""Variables that contain the conversation. It is appended to a per-call prompt without any of them."""
PER_CALL_VARIABLES = _CONVERSATION_VARIABLES | {
    "input",
    "turn_number",
    "turn_count",
    "tool_results",
    "files",
    "fence",
    "problem",
}
_END_VARIABLES = frozenset({"can_end", "ending", "answer_format"})
_OWN_VARIABLES = (
    frozenset({"metadata", "max_turns", "session_id", "test_id", "test_mode"}) | _END_VARIABLES | PER_CALL_VARIABLES
)
"""Variables that Viva sets; the rest of the metadata comes from the author."""
PROMPT_VARIABLES: Mapping[str, Any] = {
    **dict.fromkeys(sorted(_OWN_VARIABLES), ""),
    "criteria": "",
    "persona": "an ordinary user of this assistant",
    "goal": "to get help",
    "facts": "only what is said above",
    "must_not_know": "nothing in particular",
    "mood": "neutral",
    "language": "the language of the conversation so far; English at the start",
    "patience": "ordinary",
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


class _EndInstructions(NamedTuple):
    """What a simulated user is told about the end of the conversation, and the schema of its answers."""

    instruction: str
    answer_format: str
    output: Mapping[str, Any]


_CAN_END = _EndInstructions(
    "The goal is achieved only when the assistant has really done it or clearly says so; a promise is not enough. "
    "Then set goal_achieved to true and leave input empty.",
    f'{{"input": "{EXAMPLE_INPUT}", "goal_achieved": false, "reasoning": "why, in a few words"}}',
    {
        "type": "object",
        "properties": {"reasoning": _TEXT, "input": _TEXT, "goal_achieved": {"type": "boolean"}},
        "required": ["reasoning", "input", "goal_achieved"],
        "additionalProperties": False,
    },
)
_CANNOT_END = _EndInstructions(
    "You cannot end the conversation; the test does. Always write a message.",
    f'{{"input": "{EXAMPLE_INPUT}", "reasoning": "why, in a few words"}}',
    {
        "type": "object",
        "properties": {"reasoning": _TEXT, "input": _TEXT},
        "required": ["reasoning", "input"],
        "additionalProperties": False,
    },
)
OUTPUT_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "simulator": _CAN_END.output,
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


def load_built_in_prompt(name: str) -> tuple[str, Mapping[str, Any] | None]:
    """The text of a built-in prompt such as `viva.simulator`, and the schema of its answers."""
    bare = name.removeprefix("viva.")
    prompts = Path(__file__).with_name("prompts")
    known = sorted(f"viva.{each.name.removesuffix('.md')}" for each in prompts.iterdir())
    if name not in known:
        raise ValueError(f"is not a built-in prompt; there are {', '.join(known)}")
    return prompts.joinpath(f"{bare}.md").read_text(encoding="utf-8"), OUTPUT_SCHEMAS.get(bare)


class UnknownVariable(ValueError):  # noqa: N818 -- the name says what it is
    """A prompt uses a variable that is not set."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line} {message}")
        self.line, self.message = line, message


class PromptConfig(CompletionConfig, frozen=True, kw_only=True):
    """A prompt file with `{{variables}}`, or a built-in one, on a connector."""

    file_fields = ("prompt",)

    prompt: str = ""
    """A prompt file with {{variables}}, or a built-in one: viva.simulator, viva.validator, viva.generator, viva.reporter."""
    variables: Mapping[str, Any] = {}
    """More variables of the prompt, with their default values."""
    must_quote: bool | UnsetType = UNSET
    """A judge must quote the evidence for its verdict. Default: true for viva.validator."""

    def build(self, setup: AgentSetup) -> "PromptAgent":
        prompt = self.prompt
        if not prompt:
            raise setup.error("is missing `prompt`")
        connector = self.get_connector(setup, setup.default_judge)
        try:
            is_built_in = prompt.startswith("viva.")
            text, schema = load_built_in_prompt(prompt) if is_built_in else (setup.read_text(prompt), None)
            return PromptAgent(
                prompt=text,
                connector=connector,
                output=self.output or schema,
                variables=self.variables,
                must_quote=prompt == "viva.validator" if self.must_quote is UNSET else self.must_quote,
            )
        except UnknownVariable as error:
            raise BadInput.of(f"{error.message} (agent {setup.name!r})", setup.path_of(prompt), error.line) from error
        except ValueError as error:
            raise setup.error(f"{prompt}: {error}", "prompt") from error


class PromptAgent(Struct, frozen=True, kw_only=True, dict=True):
    """A prompt on a connector. `output` is the JSON Schema of its answers; `variables` adds names with default values.

    A judge that `must_quote` must quote the evidence for its verdict.
    """

    prompt: str
    connector: Connector
    output: Mapping[str, Any] | None = None
    variables: Mapping[str, Any] = {}
    must_quote: bool = False

    def __post_init__(self) -> None:
        known = {**PROMPT_VARIABLES, **self.variables}
        for number, line in enumerate(self.prompt.splitlines(), 1):
            unknown = sorted({name for name in list_variables(line) if name not in known})
            if unknown:
                names = ", ".join(f"{{{{{name}}}}}" for name in unknown)
                raise UnknownVariable(
                    number, f"uses {names}, which is not set; known: {', '.join(known)}; add others with `variables`"
                )

    @property
    def provides(self) -> frozenset[Feature]:
        return frozenset({"tool_stubs", "memory"})

    @cached_property
    def model(self) -> ModelAgent:
        return build_model_agent(self.connector, output=self.output)

    @cached_property
    def model_that_cannot_end(self) -> ModelAgent:
        """The model with the schema of a simulator that cannot end the conversation."""
        output = _CANNOT_END.output if self.output == _CAN_END.output else self.output
        return build_model_agent(self.connector, output=output)

    @cached_property
    def used_variables(self) -> frozenset[str]:
        return frozenset(list_variables(self.prompt))

    async def inspect(self, _workspaces: WorkspaceFactory) -> AgentStatus:
        return await inspect_url(self.connector.base_url)

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
        self._session: AgentSession | None = None
        self._messages = list(context.history)

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        metadata: Mapping[str, Any] = options.get("metadata") or {}
        model = self._agent.model if _can_end(metadata) else self._agent.model_that_cannot_end
        if not self._agent.used_variables & PER_CALL_VARIABLES:
            if self._session is None:
                opened = model.open(self._context, self._fill_prompt(message, metadata))
                self._session = await self._stack.enter_async_context(opened)
            return await self._session.send(message, options)
        question = self._build_prompt_message(message, metadata)
        async with model.open(structs.replace(self._context, history=())) as session:
            reply = await session.send(question, options)
        self._messages += [message, Message("assistant", reply.content, tool_calls=reply.tool_calls)]
        return reply

    def _build_prompt_message(self, message: Message, metadata: Mapping[str, Any]) -> Message:
        """The prompt of this call, as one message."""
        used = self._agent.used_variables
        texts = [self._fill_prompt(message, metadata)]
        if not used & _CONVERSATION_VARIABLES and (conversation := self._format_conversation()):
            texts.append(f"The conversation so far, one JSON object a line:\n{conversation}")
        if not used & (_CONVERSATION_VARIABLES | {"input"}):
            texts.append(message.text)
        elif "problem" not in used and (problem := metadata.get("problem")):
            texts.append(f"Your last answer could not be used: {problem}.")
        text = "\n\n".join(texts)
        attachments = cast("list[Part]", message.attachments)
        return Message("user", (Text(text), *attachments) if attachments else text)

    def _fill_prompt(self, message: Message, metadata: Mapping[str, Any]) -> str:
        return str(fill_variables(self._agent.prompt, self._build_variable_texts(message, metadata)))

    def _build_variable_texts(self, message: Message, metadata: Mapping[str, Any]) -> dict[str, str]:
        known = {**PROMPT_VARIABLES, **self._agent.variables}
        metadata_values = {name: value for name, value in metadata.items() if value not in (None, "", [], {})}
        if self._context.role == "agent":
            metadata_values["input"] = message.text
        values = {name: _to_prompt_text(metadata_values.get(name, default)) for name, default in known.items()}
        values["conversation"] = (
            self._format_conversation() if self._agent.used_variables & {"conversation", "fence"} else ""
        )
        outcome = _CAN_END if _can_end(metadata) else _CANNOT_END
        values |= {"ending": outcome.instruction, "answer_format": outcome.answer_format}
        values["output"] = codec.compact_json(str(metadata_values.get("output", "")))
        author = {
            name: value
            for name, value in metadata_values.items()
            if name not in self._agent.used_variables | _OWN_VARIABLES
        }
        values["metadata"] = _to_prompt_text(author) or "nothing"
        # A text cannot contain this mark: it is a digest of the text.
        text = "\n".join(values.values())
        values["fence"] = "=== " + blake2b(text.encode(), digest_size=8).hexdigest() + " ==="
        return values

    def _format_conversation(self) -> str:
        """One JSON object per line: no text can end its line and pose as another speaker's."""
        conversation = self._context.conversation
        messages, prior = (
            (self._messages, len(self._context.history))
            if conversation is None
            else (conversation(), self._context.prior_count)
        )
        lines: list[str] = []
        turn = 0
        for at, message in enumerate(messages):
            turn += message.role == "user" and at >= prior
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
            lines.append(codec.compact_json(line))
        return "\n".join(lines)


def _can_end(metadata: Mapping[str, Any]) -> bool:
    """May the simulated user end the conversation, or only the case's criteria?"""
    return metadata.get("can_end") is not False


def _to_prompt_text(value: Any) -> str:
    """A value as text of a prompt."""
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {to_text(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(to_text(item) for item in value)
    return to_text(value)
