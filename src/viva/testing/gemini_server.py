"""A stand-in for the Gemini API: scripted replies over a real socket, with every fault a provider has.

with GeminiServer(["Hello!", Say(tool_calls=[ToolCall("add", {"a": 1, "b": 2})]), "3"]) as server:
    agent = GeminiAgent(connector=server.connector())
    ...
assert server.requests[0].json["contents"][0]["parts"][0]["text"] == "Hi"
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from viva.model import codec
from viva.testing.http_server import Answer, Received, json_answer
from viva.testing.model_server import MODEL, ModelServer, Refused, Say, pieces

SIGNATURE = "c2lnbmVk"
_FINISH = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_FIELDS = frozenset(
    [
        "contents",
        "systemInstruction",
        "tools",
        "toolConfig",
        "safetySettings",
        "generationConfig",
        "cachedContent",
        "serviceTier",
    ]
)
_CONFIG = frozenset(
    [
        "temperature",
        "seed",
        "maxOutputTokens",
        "responseMimeType",
        "responseJsonSchema",
        "responseSchema",
        "topP",
        "topK",
        "candidateCount",
        "stopSequences",
        "presencePenalty",
        "frequencyPenalty",
        "thinkingConfig",
        "responseModalities",
        "mediaResolution",
    ]
)


class GeminiServer(ModelServer):
    """Answers `/v1beta/models/NAME:generateContent` and `:streamGenerateContent?alt=sse`."""

    provider: ClassVar[str] = "gemini"

    @property
    def models(self) -> tuple[str, Any]:
        return "/v1beta/models", {"models": [{"name": f"models/{MODEL}"}]}

    def is_asked(self, path: str) -> bool:
        return path.startswith("/v1beta/models/") and path.endswith((":generateContent", ":streamGenerateContent"))

    def check(self, received: Received) -> None:
        if not {"x-goog-api-key", "authorization"} & received.headers.keys() and "key=" not in received.path:
            raise Refused(403, "Method doesn't allow unregistered callers")

    def problem(self, asked: Mapping[str, Any]) -> str | None:
        return _problem(asked)

    def wants_stream(self, received: Received, asked: Mapping[str, Any]) -> bool:
        return ":streamGenerateContent" in received.path

    def completion(self, say: Say, asked: Mapping[str, Any]) -> dict[str, Any]:
        return _answer(say, _parts(say), _FINISH.get(say.finish, say.finish.upper()))

    def stream(self, say: Say, asked: Mapping[str, Any]) -> tuple[bytes, ...]:
        told: list[dict[str, Any]] = []
        for part in _parts(say):
            if "text" in part:
                cut = [part | {"text": piece} for piece in pieces(part["text"])]
                told += [{k: v for k, v in each.items() if k != "thoughtSignature"} for each in cut[:-1]] + cut[-1:]
            else:
                told.append(part)
        events = [_answer(say, [part], None) for part in told]
        events.append(_answer(say, [], _FINISH.get(say.finish, say.finish.upper())))
        return tuple(b"data: %b\r\n\r\n" % codec.encode(event) for event in events)

    def error(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> Answer:
        told = {"code": status, "message": message, "status": _STATUSES.get(status, "UNKNOWN")}
        return json_answer({"error": told}, status, headers)


def _parts(say: Say) -> list[dict[str, Any]]:
    """The signature of a thought stands at the first call of a tool or, without any, at the text."""
    signed = {"thoughtSignature": SIGNATURE} if say.thought else {}
    parts: list[dict[str, Any]] = []
    if say.thought:
        parts.append({"text": say.thought, "thought": True})
    if say.content:
        parts.append({"text": say.content} | ({} if say.tool_calls else signed))
    for index, call in enumerate(say.tool_calls):
        arguments = codec.decode(call.arguments) if isinstance(call.arguments, str) else call.arguments or {}
        asked = {"name": call.name, "args": arguments} | ({"id": call.id} if call.id else {})
        parts.append({"functionCall": asked} | (signed if index == 0 else {}))
    return parts


def _answer(say: Say, parts: list[dict[str, Any]], finish: str | None) -> dict[str, Any]:
    candidate: dict[str, Any] = {
        "content": {"parts": parts, "role": "model"} if parts else {"role": "model"},
        "index": 0,
    }
    if finish is not None:
        candidate["finishReason"] = finish
    counted = {
        "promptTokenCount": say.input_tokens,
        "candidatesTokenCount": say.output_tokens - say.thought_tokens,
        "totalTokenCount": say.input_tokens + say.output_tokens,
        "cachedContentTokenCount": say.cached_tokens,
    }
    if say.thought_tokens:
        counted["thoughtsTokenCount"] = say.thought_tokens
    return {
        "candidates": [candidate | dict(say.extra)],
        "usageMetadata": counted,
        "modelVersion": MODEL,
        "responseId": "answer-1",
    }


def _problem(asked: Mapping[str, Any]) -> str | None:
    """What the API would not take in a request, or None."""
    unknown = [*(asked.keys() - _FIELDS), *(asked.get("generationConfig", {}).keys() - _CONFIG)]
    if unknown:
        return f'Invalid JSON payload received. Unknown name "{unknown[0]}": Cannot find field.'
    if not asked.get("contents"):
        return "* GenerateContentRequest.contents: contents is not specified"
    calls = 0
    for content in asked["contents"]:
        if content["role"] not in ("user", "model"):
            return "Please use a valid role: user, model."
        if not content["parts"]:
            return "* GenerateContentRequest.contents.parts: contents.parts must not be empty."
        answers = sum("functionResponse" in part for part in content["parts"])
        if answers != calls:
            return (
                "Please ensure that the number of function response parts is equal to the number of function call parts "
                "of the function call turn."
            )
        calls = sum("functionCall" in part for part in content["parts"])
        signed = [part for part in content["parts"] if "functionCall" in part][:1]
        if signed and "thoughtSignature" not in signed[0] and any("thought" in part for part in content["parts"]):
            return "Function call is missing a thought_signature in functionCall parts."
    return None
