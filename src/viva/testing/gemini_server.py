"""A stand-in for the Gemini API: scripted replies and failures over a real socket.

with GeminiServer(["Hello!", Say(tool_calls=[ToolCall("write_file", {"file_path": "a.txt", "content": "x"})]), "Done"]) as server:
    subprocess.run(["gemini", "-p", "Hi"], env=os.environ | server.env)     # or GeminiAgent(connector=server.connector())
assert server.model_requests[0].text == "Hi"
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from viva.model import codec
from viva.model.message import Message, MessageRole, ToolCall
from viva.testing.http_server import ReceivedRequest, StubResponse, json_response
from viva.testing.model_server import KEY, MODEL, ModelServer, RequestRejected, Say, estimate_tokens, split_text

THOUGHT_SIGNATURE = "c2lnbmVk"
_FINISH_REASONS = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
_STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_KNOWN_FIELDS = frozenset([
    "contents", "systemInstruction", "tools", "toolConfig", "safetySettings", "generationConfig", "cachedContent",
    "serviceTier",
])  # fmt: skip
_KNOWN_CONFIG_FIELDS = frozenset([
    "temperature", "seed", "maxOutputTokens", "responseMimeType", "responseJsonSchema", "responseSchema", "topP",
    "topK", "candidateCount", "stopSequences", "presencePenalty", "frequencyPenalty", "thinkingConfig",
    "responseModalities", "mediaResolution",
])  # fmt: skip

_ROLES: dict[str, MessageRole] = {"system": "system", "user": "user", "model": "assistant"}
_SIDE_ANSWERS: dict[str, dict[str, Any]] = {
    "complexity_score": {"complexity_reasoning": "Stand-in.", "complexity_score": 1},
    "model_choice": {"reasoning": "Stand-in.", "model_choice": "flash"},
    "next_speaker": {"reasoning": "Stand-in.", "next_speaker": "user"},
    "unproductive_state_confidence": {"unproductive_state_analysis": "None.", "unproductive_state_confidence": 0.0},
}
"""Replies to requests that the Gemini CLI makes for itself (model choice, next speaker, loop detection), by schema field."""


class GeminiServer(ModelServer):
    """Serves `/v1beta/models/NAME:generateContent`, `:streamGenerateContent?alt=sse` and `:countTokens`.

    Requests that the Gemini CLI makes for itself, for example to choose a model, do not use the script.
    """

    provider: ClassVar[str] = "gemini"
    endpoints: ClassVar[str] = (
        "POST /v1beta/models/NAME:generateContent, :streamGenerateContent?alt=sse and :countTokens, GET /v1beta/models"
    )

    @property
    def env(self) -> dict[str, str]:
        return {"GOOGLE_GEMINI_BASE_URL": self.url, "GEMINI_API_KEY": KEY}

    @property
    def model_list(self) -> tuple[str, Any]:
        return "/v1beta/models", {"models": [{"name": f"models/{MODEL}"}]}

    def is_reply_path(self, path: str) -> bool:
        return path.startswith("/v1beta/models/") and path.endswith((":generateContent", ":streamGenerateContent"))

    def answer_side_request(self, path: str, body: Mapping[str, Any]) -> Any | None:
        if path.endswith(":countTokens"):
            return {"totalTokens": estimate_tokens(body)}
        schema = body.get("generationConfig", {}).get("responseJsonSchema") or {}
        side_answer = next(
            (answer for name, answer in _SIDE_ANSWERS.items() if name in schema.get("properties", {})), None
        )
        if side_answer is None or not self.is_reply_path(path):
            return None
        return _build_response(Say(), [{"text": codec.compact_json(side_answer)}], "STOP", self.find_model(path, body))

    def read_messages(self, body: Any) -> Sequence[Message]:
        return list(_iter_messages(body))

    def find_model(self, path: str, body: Mapping[str, Any]) -> str:
        """Return the name of the model, which is part of the path."""
        return path.rpartition("/")[2].partition(":")[0]

    def check_headers(self, request: ReceivedRequest) -> None:
        if not {"x-goog-api-key", "authorization"} & request.headers.keys() and "key=" not in request.path:
            raise RequestRejected(403, "Method doesn't allow unregistered callers")

    def find_problem(self, request: ReceivedRequest, body: Mapping[str, Any]) -> str | None:
        return _find_problem(body)

    def wants_stream(self, path: str, body: Mapping[str, Any]) -> bool:
        """Return whether the path requests a stream."""
        return ":streamGenerateContent" in path

    def build_completion(self, say: Say, body: Mapping[str, Any]) -> dict[str, Any]:
        return _build_response(
            say,
            _build_parts(say),
            _FINISH_REASONS.get(say.effective_finish_reason, say.effective_finish_reason.upper()),
            body["model"],
        )

    def build_stream(self, say: Say, body: Mapping[str, Any]) -> tuple[bytes, ...]:
        parts: list[dict[str, Any]] = []
        for part in _build_parts(say):
            if "text" in part:
                cut = [part | {"text": text} for text in split_text(part["text"])]
                parts += [{k: v for k, v in piece.items() if k != "thoughtSignature"} for piece in cut[:-1]] + cut[-1:]
            else:
                parts.append(part)
        events = [_build_response(say, [part], None, body["model"]) for part in parts]
        events.append(
            _build_response(
                say,
                [],
                _FINISH_REASONS.get(say.effective_finish_reason, say.effective_finish_reason.upper()),
                body["model"],
            )
        )
        return tuple(b"data: %b\r\n\r\n" % codec.encode(event) for event in events)

    def build_error(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> StubResponse:
        error = {"code": status, "message": message, "status": _STATUS_NAMES.get(status, "UNKNOWN")}
        return json_response({"error": error}, status, headers)


def _iter_messages(body: Any) -> Iterator[Message]:
    system: dict[str, Any] = {"parts": [], **body.get("systemInstruction", {}), "role": "system"}
    for content in (system, *body["contents"]):
        role = _ROLES[content.get("role", "user")]
        for part in content["parts"]:
            if answer := part.get("functionResponse"):
                result = codec.compact_json(answer.get("response"))
                yield Message("tool", result, name=answer["name"], tool_call_id=answer.get("id"))
        text = "\n".join(part["text"] for part in content["parts"] if "text" in part and not part.get("thought"))
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        if text or calls:
            used = tuple(ToolCall(call["name"], call.get("args"), call.get("id", "")) for call in calls)
            yield Message(role, text, tool_calls=used)


def _build_parts(say: Say) -> list[dict[str, Any]]:
    """Return the parts of a reply. A thought is signed at the first tool call or, without one, at the text."""
    signed = {"thoughtSignature": THOUGHT_SIGNATURE} if say.thought else {}
    parts: list[dict[str, Any]] = []
    if say.thought:
        parts.append({"text": say.thought, "thought": True})
    if say.content:
        parts.append({"text": say.content} | ({} if say.tool_calls else signed))
    for index, call in enumerate(say.tool_calls):
        arguments = codec.decode(call.arguments) if isinstance(call.arguments, str) else call.arguments or {}
        function_call = {"name": call.name, "args": arguments} | ({"id": call.id} if call.id else {})
        parts.append({"functionCall": function_call} | (signed if index == 0 else {}))
    return parts


def _build_response(say: Say, parts: list[dict[str, Any]], finish: str | None, model: str) -> dict[str, Any]:
    candidate: dict[str, Any] = {
        "content": {"parts": parts, "role": "model"} if parts else {"role": "model"},
        "index": 0,
    }
    if finish is not None:
        candidate["finishReason"] = finish
    usage = {
        "promptTokenCount": say.input_tokens,
        "candidatesTokenCount": say.output_tokens - say.reasoning_tokens,
        "totalTokenCount": say.input_tokens + say.output_tokens,
        "cachedContentTokenCount": say.cached_tokens,
    }
    if say.reasoning_tokens:
        usage["thoughtsTokenCount"] = say.reasoning_tokens
    return {
        "candidates": [candidate | dict(say.extra)],
        "usageMetadata": usage,
        "modelVersion": model,
        "responseId": "answer-1",
    }


def _find_problem(body: Mapping[str, Any]) -> str | None:
    """Return why the API would reject a request, or None."""
    unknown = [*(body.keys() - _KNOWN_FIELDS), *(body.get("generationConfig", {}).keys() - _KNOWN_CONFIG_FIELDS)]
    if unknown:
        return f'Invalid JSON payload received. Unknown name "{unknown[0]}": Cannot find field.'
    if not body.get("contents"):
        return "* GenerateContentRequest.contents: contents is not specified"
    calls = 0
    for content in body["contents"]:
        if content.get("role", "user") not in ("user", "model"):
            return "Please use a valid role: user, model."
        if not content["parts"]:
            return "* GenerateContentRequest.contents.parts: contents.parts must not be empty."
        if _count_results(content["parts"]) != calls:
            return (
                "Please ensure that the number of function response parts is equal to the number of function call parts "
                "of the function call turn."
            )
        calls = sum("functionCall" in part for part in content["parts"])
        signed = [part for part in content["parts"] if "functionCall" in part][:1]
        if signed and "thoughtSignature" not in signed[0] and any("thought" in part for part in content["parts"]):
            return "Function call is missing a thought_signature in functionCall parts."
    return None


def _count_results(parts: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of tool results. The Gemini CLI sends each one twice when it resumes a session."""
    answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
    named = {answer["id"] for answer in answers if answer.get("id")}
    return len(named) + sum(not answer.get("id") for answer in answers)
