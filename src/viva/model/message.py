"""Messages, tool calls, replies and model calls: what passes between a user and an agent."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

MAX_TOKEN_COUNT = 10**12
TokenCount = Annotated[int, Meta(ge=-MAX_TOKEN_COUNT, le=MAX_TOKEN_COUNT)]
"""A number of tokens that can be summed, priced and indexed. A reply that reports more is invalid."""
MessageRole = Literal["system", "user", "assistant", "tool"]
DeclaredState = Literal["awaiting", "done"]


class Text(Struct, frozen=True, tag_field="type", tag="text"):
    """A text part of a message."""

    text: str


class Attachment(Struct, frozen=True, tag_field="type", omit_defaults=True):
    """A part that is not text. `source` is what the author wrote; `url` is what is sent: a data: or http(s) URL."""

    source: str
    name: str | None = None
    media_type: str | None = None
    url: str = ""


class Image(Attachment, frozen=True, tag="image"):
    """A picture."""


class Audio(Attachment, frozen=True, tag="audio"):
    """A sound file."""


class File(Attachment, frozen=True, tag="file"):
    """Any other document."""


Part = Text | Image | Audio | File
Content = str | tuple[Part, ...]


class ToolCall(Struct, frozen=True, omit_defaults=True):
    """A tool call of the agent. `error` is set if the call was refused or failed; `result` is unset until it ends."""

    name: str
    """The tool."""
    arguments: Any = None
    """The arguments of the call."""
    id: str = ""
    """The id of the call."""
    result: Any | UnsetType = UNSET
    """The result."""
    error: str | None = None
    """What went wrong."""
    pending: bool = False
    """Does the call wait, for example for an approval? The agent says so."""
    refused: bool = False
    """Did it not run, because a policy forbids it or the tool does not exist?"""


class Message(Struct, frozen=True, omit_defaults=True):
    """One message."""

    role: MessageRole
    """The role of the sender."""
    content: Content = ""
    """A text, or parts: text, images, audio, files."""
    data: Any = None
    """A structured value, with or instead of the text."""
    name: str | None = None
    """The name of the sender, or of the tool that replied."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tools that an assistant called."""
    tool_call_id: str | None = None
    """The call that a tool message replies to."""

    @property
    def text(self) -> str:
        """The text of the message, without attachments."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, Text))

    @property
    def attachments(self) -> list[Attachment]:
        """The parts that are not text."""
        return [] if isinstance(self.content, str) else [part for part in self.content if isinstance(part, Attachment)]


class ModelCall(Struct, frozen=True, omit_defaults=True):
    """The usage of one model call. An unknown price is None, never 0."""

    model: str = ""
    """The model, by its provider's name."""
    provider: str = ""
    """The provider."""
    input_tokens: int = 0
    """Tokens sent, cached ones included."""
    output_tokens: int = 0
    """Tokens returned, thoughts included."""
    cached_tokens: int = 0
    """Input tokens that came from the provider's cache."""
    cost_usd: float | None = None
    """The cost of the call, if the price is known."""


class Usage(Struct, frozen=True, omit_defaults=True):
    """The sum of model calls. The cost is None if one price is unknown."""

    calls: int = 0
    """How many model calls."""
    input_tokens: int = 0
    """Tokens sent."""
    output_tokens: int = 0
    """Tokens returned."""
    cost_usd: float | None = None
    """Their cost, if every price is known."""
    known_cost_usd: float | None = None
    """The cost of the calls with a known price, if there are others."""
    unpriced_calls: int = 0
    """How many calls have no known price, if there are others."""

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def least_cost_usd(self) -> float | None:
        """The cost of the calls whose price is known; None if there is none."""
        return self.known_cost_usd if self.cost_usd is None else self.cost_usd

    @property
    def calls_without_price(self) -> int:
        if self.cost_usd is not None:
            return 0
        return self.calls if self.known_cost_usd is None else self.unpriced_calls

    @classmethod
    def of(cls, calls: Sequence[ModelCall]) -> "Usage":
        input_tokens = output_tokens = unpriced = 0
        cost_usd = 0.0
        for call in calls:
            input_tokens += call.input_tokens
            output_tokens += call.output_tokens
            if call.cost_usd is None:
                unpriced += 1
            else:
                cost_usd += call.cost_usd
        if not unpriced:
            return cls(len(calls), input_tokens, output_tokens, cost_usd)
        if unpriced == len(calls):
            return cls(len(calls), input_tokens, output_tokens)
        return cls(len(calls), input_tokens, output_tokens, None, cost_usd, unpriced)


class Step(Struct, frozen=True, omit_defaults=True):
    """A model call or tool call inside a reply, with its measured time."""

    kind: Literal["model", "tool"]
    """A model call or a tool call."""
    name: str
    """The model or the tool."""
    start_ms: float
    """When it began, after the message was sent."""
    duration_ms: float
    """How long it took."""
    tokens: int = 0
    """Tokens sent and returned."""
    cost_usd: float | None = None
    """The cost, if it is known."""


class Reply(Struct, frozen=True, omit_defaults=True):
    """The reply of an agent in one turn, with its tool calls."""

    content: str = ""
    """The text."""
    data: Any = None
    """A structured value, with or instead of the text."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tool calls, in order."""
    declared_state: DeclaredState | None = None
    """Does the agent say that it is `awaiting` input, or `done`?"""
    input_hint: str | None = None
    """What the agent says it waits for."""
    finish_reason: str | None = None
    """Why the model stopped."""
    protocol_state: str | None = None
    """The state of its protocol: A2A `input-required`, an ACP permission request."""
    calls: tuple[ModelCall, ...] = ()
    """The model calls behind it."""
    path: tuple[str, ...] = ()
    """The graph nodes or agents that it passed through, in order."""
    elapsed_ms: float | None = None
    """The duration, if it is not measured but known (a replay)."""
    parts: tuple[str, ...] = ()
    """The texts of its messages, if it consists of several. `content` has them as lines of one text."""
    first_token_ms: float | None = None
    """The time until its first text arrived, if it was streamed."""
    steps: tuple[Step, ...] = ()
    """Its model calls and tool calls with their times, if they were measured."""
