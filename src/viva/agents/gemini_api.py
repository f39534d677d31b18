"""Models behind the Gemini API, `models/NAME:generateContent`.

Vertex AI has the same API: its base URL ends with `publishers/google`, and its token goes into `headers`.
"""

import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Struct, field

from viva.agents.attachments import get_inline_data, guess_media_type
from viva.agents.model_session import Completion, Endpoint, ModelAgent, OnText, decode_answer
from viva.agents.tools import NOT_RUN_TEXT, Tool, parse_arguments
from viva.errors import Unreachable
from viva.llm.sse import SseParser
from viva.model import codec
from viva.model.message import Attachment, Message, Text, TokenCount, ToolCall
from viva.protocols import Response

_GOOGLE = "https://generativelanguage.googleapis.com"
_VERSIONED = re.compile(r"/v\d\w*(/|$)")
_KIND = "a Gemini answer"
_FINISH = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY"), "content_filter"
    ),
}
# Documented for tool calls of other origin: newer models refuse a call without a signature.
_NO_SIGNATURE = "skip_thought_signature_validator"


class GeminiEndpoint(Endpoint):
    """The generateContent method."""

    merged_field: ClassVar[str] = "generationConfig"

    def build_url(self, agent: ModelAgent) -> str:
        base, mark, query = (self.connector.base_url or _GOOGLE).partition("?")
        base = base.rstrip("/")
        if not _VERSIONED.search(base.partition("://")[2]):
            base += "/v1beta"
        model = self.connector.model
        path = quote(model if "/" in model else f"models/{model}", safe="/:@")
        if agent.stream:
            mark, query = "?", "alt=sse" + (f"&{query}" if query else "")
        return f"{base}/{path}:{'streamGenerateContent' if agent.stream else 'generateContent'}{mark}{query}"

    def build_key_header(self, key: str) -> tuple[str, str]:
        return "x-goog-api-key", key

    def is_key_rejected(self, answer: Response) -> bool:
        """Does the answer say that the key is wrong? This API answers 400 for that, and for an unsupported country."""
        is_key_error = answer.status == 400 and (
            b"API_KEY_INVALID" in answer.body or b"FAILED_PRECONDITION" in answer.body
        )
        return is_key_error or super().is_key_rejected(answer)

    def build_fields(self, agent: ModelAgent) -> dict[str, Any]:
        connector = self.connector
        settings: dict[str, Any] = {
            "temperature": connector.temperature,
            "seed": connector.seed,
            "maxOutputTokens": connector.max_tokens,
        }
        if agent.output is not None and connector.structured != "text":
            settings["responseMimeType"] = "application/json"
            settings["responseJsonSchema"] = agent.output if connector.structured == "schema" else None
        config = {name: value for name, value in settings.items() if value is not None}
        fields: dict[str, Any] = {"generationConfig": config}
        if agent.tools:
            fields["tools"] = [{"functionDeclarations": [_encode_tool(tool) for tool in agent.tools]}]
        return fields

    def encode_system(self, system: str) -> tuple[bytes, list[bytes]]:
        instruction = {"parts": [{"text": system}]}
        prefix = b',"systemInstruction":%b' % codec.encode(instruction) if system else b""
        return prefix + b',"contents":[', []

    def encode_message(self, message: Message) -> bytes:
        return encode_content(message)

    def encode_results(self, calls: Sequence[ToolCall]) -> list[bytes]:
        return [encode_result_content(calls)]

    def parse_completion(self, body: bytes) -> Completion:
        return _build_completion([decode_answer(_answers, body, _KIND)])

    async def parse_stream(self, chunks: AsyncIterator[bytes], on_text: OnText) -> Completion:
        events, answers = SseParser(), list[_Answer]()
        async for chunk in chunks:
            for event in events.feed_data(chunk):
                answers.append(decode_answer(_answers, event, _KIND))
                if text := _read_text(answers[-1]):
                    on_text(text)
        answers += [decode_answer(_answers, event, _KIND) for event in events.feed_eof()]
        if not any(answer.is_last for answer in answers):
            raise Unreachable("the stream ended before the answer did")
        return _build_completion(answers)


class GeminiAgent(ModelAgent, frozen=True, kw_only=True, dict=True):
    """A model behind the Gemini API."""

    endpoint_type: ClassVar[type[Endpoint]] = GeminiEndpoint


def encode_content(message: Message) -> bytes:
    """A message as a Content of the API."""
    if message.role == "tool":
        call = ToolCall(message.name or "tool", id=message.tool_call_id or "", result=message.text)
        return encode_result_content([call])
    parts = (Text(message.content),) if isinstance(message.content, str) else message.content
    pieces = [_encode_part(part) for part in parts if part != Text("") or not message.tool_calls]
    pieces += [_encode_call(call, first=at == 0) for at, call in enumerate(message.tool_calls)]
    return _encode_content("model" if message.role == "assistant" else "user", pieces)


def encode_result_content(calls: Sequence[ToolCall]) -> bytes:
    """One Content with the results of all tool calls: the API requires as many results as calls."""
    return _encode_content("user", [_encode_result(call) for call in calls])


def _encode_content(role: str, parts: Sequence[Any]) -> bytes:
    return codec.encode({"role": role, "parts": parts})


def _encode_part(part: Any) -> dict[str, Any]:
    return {"text": part.text} if isinstance(part, Text) else _encode_attachment(part)


def _encode_attachment(part: Attachment) -> dict[str, Any]:
    kind, data = guess_media_type(part), get_inline_data(part)
    if data is None:
        return {"fileData": {"mimeType": kind, "fileUri": part.url}}
    return {"inlineData": {"mimeType": kind, "data": data}}


def _encode_tool(tool: Tool) -> dict[str, Any]:
    declared: dict[str, Any] = {"name": tool.name, "description": tool.description}
    if tool.parameters.get("properties"):  # the API refuses an object without properties
        declared["parametersJsonSchema"] = tool.parameters
    return declared


def _encode_call(call: ToolCall, *, first: bool) -> dict[str, Any]:
    part: dict[str, Any] = {"functionCall": {"id": call.id, "name": call.name, "args": parse_arguments(call)}}
    return part | {"thoughtSignature": _NO_SIGNATURE} if first else part


def _encode_result(call: ToolCall) -> dict[str, Any]:
    """The result of a tool call. It has an id only if the call has one: calls of older models have none."""
    response = {"error": call.error} if call.error is not None else {"output": _get_output(call)}
    return {
        "functionResponse": {"name": call.name, "response": response} | ({"id": call.id} if call.id else {}),
    }


def _get_output(call: ToolCall) -> Any:
    return NOT_RUN_TEXT if call.result is UNSET else call.result


class _Call(Struct, gc=False):
    name: str = ""
    args: Any = None
    id: str = ""


class _Part(Struct, gc=False, rename="camel"):
    text: str = ""
    thought: bool = False
    function_call: _Call | None = None


class _Content(Struct, gc=False):
    parts: list[msgspec.Raw] | None = None


class _Candidate(Struct, gc=False, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None


class _Feedback(Struct, gc=False, rename="camel"):
    block_reason: str | None = None


class _Usage(Struct, gc=False, rename="camel"):
    prompt_token_count: TokenCount = 0
    tool_use_prompt_token_count: TokenCount = 0
    candidates_token_count: TokenCount = 0
    thoughts_token_count: TokenCount = 0
    cached_content_token_count: TokenCount = 0


class _Answer(Struct, gc=False, rename="camel"):
    candidates: list[_Candidate] = field(default_factory=list["_Candidate"])
    prompt_feedback: _Feedback = field(default_factory=_Feedback)
    usage_metadata: _Usage | None = None
    model_version: str = ""
    error: Any = None

    @property
    def is_last(self) -> bool:
        return self.prompt_feedback.block_reason is not None or any(c.finish_reason for c in self.candidates[:1])


_answers = codec.Decoder[_Answer](_Answer)
_objects = codec.Decoder[dict[str, Any]](dict[str, Any])
_parts = codec.Decoder[_Part](_Part)


def _build_completion(answers: list[_Answer]) -> Completion:
    """The completion, from a complete answer or the pieces of a stream. The model's parts are sent back unchanged."""
    candidates = [answer.candidates[0] for answer in answers if answer.candidates]
    blocked = any(answer.prompt_feedback.block_reason for answer in answers)
    if not candidates and not blocked:
        raise Unreachable("the answer has no candidates")
    raw = [part for candidate in candidates if candidate.content for part in candidate.content.parts or ()]
    parts = [(part, decode_answer(_parts, part, _KIND)) for part in raw]
    message_parts = [raw_part for raw_part, part in parts if not _is_empty(raw_part, part)]
    calls = [ToolCall(c.name, c.args, c.id) for _, part in parts if (c := part.function_call) is not None]
    finish = next((each.finish_reason for each in reversed(candidates) if each.finish_reason), None)
    usage = next((answer.usage_metadata for answer in reversed(answers) if answer.usage_metadata), _Usage())
    return Completion(
        b'{"role":"model","parts":[%b]}' % b",".join(message_parts) if message_parts else b"",
        "".join(part.text for _, part in parts if not part.thought),
        calls,
        "content_filter" if blocked else _choose_finish_reason(finish, calls),
        next((answer.model_version for answer in answers if answer.model_version), ""),
        usage.prompt_token_count + usage.tool_use_prompt_token_count,
        usage.candidates_token_count + usage.thoughts_token_count,
        usage.cached_content_token_count,
    )


def _read_text(answer: _Answer) -> str:
    content = answer.candidates[0].content if answer.candidates else None
    parts = [decode_answer(_parts, part, _KIND) for part in (content.parts if content else None) or ()]
    return "".join(part.text for part in parts if not part.thought)


def _is_empty(raw_part: msgspec.Raw, part: _Part) -> bool:
    """Is this part an empty text without a signature? The API refuses such a part when it is sent back."""
    return not part.text and decode_answer(_objects, raw_part, _KIND).keys() <= {"text", "thought"}


def _choose_finish_reason(reason: str | None, calls: Sequence[ToolCall]) -> str | None:
    if reason == "STOP" and calls:
        return "tool_calls"
    return _FINISH.get(reason or "", reason and reason.lower())
