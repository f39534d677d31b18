"""What passes between a user and an agent: messages, tool calls, replies, and what each model call cost."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

MAX_TOKENS = 10**12
TokenCount = Annotated[int, Meta(ge=-MAX_TOKENS, le=MAX_TOKENS)]
"""A number of tokens that can be added up, priced and indexed. An answer that counts more is rubbish."""
Speaker = Literal["system", "user", "assistant", "tool"]
DeclaredState = Literal["awaiting", "done"]


class Text(Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of text among other parts."""

    text: str


class Attachment(Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Something that is not text. `source` is what the author wrote; `url` is what is sent: a data: or http(s) address."""

    source: str
    name: str | None = None
    media_type: str | None = None
    url: str = ""


class Image(Attachment, frozen=True, tag="image"):
    """A picture."""


class Audio(Attachment, frozen=True, tag="audio"):
    """A recording."""


class File(Attachment, frozen=True, tag="file"):
    """Any other document."""


Part = Text | Image | Audio | File
Content = str | tuple[Part, ...]


class ToolCall(Struct, frozen=True, omit_defaults=True):
    """A tool that the agent used. `error` is set when the call was refused or failed; `result` is unset until it ends.

    A call that was `refused` never ran: a policy forbids it, or there is no such tool.
    """

    name: str
    """The tool."""
    arguments: Any = None
    """What it was called with."""
    id: str = ""
    """The id of the call."""
    result: Any | UnsetType = UNSET
    """What it gave back."""
    error: str | None = None
    """What went wrong."""
    pending: bool = False
    """Does the call wait, for an approval say? So the agent itself says."""
    refused: bool = False
    """It did not run: a policy forbids it, or there is no such tool."""


class Message(Struct, frozen=True, omit_defaults=True):
    """One message. `data` is a structured value that came with (or instead of) the text."""

    role: Speaker
    """Who speaks."""
    content: Content = ""
    """A text, or parts: text, images, audio, files."""
    data: Any = None
    """A structured value."""
    name: str | None = None
    """Who said it, or the tool that answered."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tools that an assistant called."""
    tool_call_id: str | None = None
    """Which call a tool answers."""

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
    """What one call of a model used. A price that is not known is None, never 0."""

    model: str = ""
    """The model, as its provider calls it."""
    provider: str = ""
    """Who served it."""
    input_tokens: int = 0
    """Tokens sent, cached ones included."""
    output_tokens: int = 0
    """Tokens sent back, thoughts included."""
    cached_tokens: int = 0
    """Of the input tokens, those that the provider had kept."""
    cost_usd: float | None = None
    """What the call cost, where the price is known."""


class Usage(Struct, frozen=True, omit_defaults=True):
    """Model calls added up. The cost is None as soon as one price is unknown."""

    calls: int = 0
    """How many model calls."""
    input_tokens: int = 0
    """Tokens sent."""
    output_tokens: int = 0
    """Tokens sent back."""
    cost_usd: float | None = None
    """What they cost, where every price is known."""

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @classmethod
    def of(cls, calls: Sequence[ModelCall]) -> "Usage":
        costs = [call.cost_usd for call in calls]
        known = [cost for cost in costs if cost is not None]
        return cls(
            calls=len(calls),
            input_tokens=sum(call.input_tokens for call in calls),
            output_tokens=sum(call.output_tokens for call in calls),
            cost_usd=sum(known) if len(known) == len(costs) else None,
        )


class Reply(Struct, frozen=True, omit_defaults=True):
    """What an agent answered and did in one turn.

    `declared` is the agent's own word on whether it waits for input; `protocol_state` is its protocol's word for
    the same (A2A `input-required`, an ACP permission request). `calls` has one entry for each model call behind it.
    `elapsed_ms` is set where how long it took is known better than by our own clock (a replay).
    """

    content: str = ""
    """What it said."""
    data: Any = None
    """A structured value that came with or instead of the text."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tools that it used, in order."""
    declared_state: DeclaredState | None = None
    """Its own word: `awaiting` or `done`."""
    input_hint: str | None = None
    """What it waits for, in its words."""
    finish_reason: str | None = None
    """Why the model stopped."""
    protocol_state: str | None = None
    """Its protocol's word on whether it waits."""
    calls: tuple[ModelCall, ...] = ()
    """The model calls behind it."""
    elapsed_ms: float | None = None
    """How long it took, where known better than by the clock."""
