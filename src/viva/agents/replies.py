"""Converts what an agent returns to a Reply: a string, a Reply, a dict, a pydantic model, a dataclass, or a list of these, which
are several messages.

Anything else is the agent's failure.
"""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, TypeGuard, cast

from msgspec import UNSET, Struct, structs

from viva.agents.streamed_reply import StreamedReply
from viva.errors import AgentFailed, with_article
from viva.llm.price import compute_reported_cost
from viva.model import codec
from viva.model.message import MAX_TOKEN_COUNT, DeclaredState, ModelCall, Reply, Step, ToolCall
from viva.text.similar_names import find_similar_names

_CONTENT_KEYS = ("content", "data", "tool_calls")
REPLY_KEYS = (
    *_CONTENT_KEYS,
    "awaiting_input",
    "done",
    "input_hint",
    "finish_reason",
    "protocol_state",
    "usage",
    "path",
)
"""The keys of a dict that are read."""
REPLY_SHAPE = "a string, a Reply, a pydantic model, a dataclass, or a dict with content, data or tool_calls"
PIECE_SHAPE = f"a string, a Reply, or a dict with {', '.join(REPLY_KEYS)}"


def parse_reply(value: Any) -> Reply:
    """The reply of a returned value."""
    match value:
        case str():
            return Reply(value)
        case Reply():
            for call in value.calls:
                counts = (call.input_tokens, call.output_tokens, call.cached_tokens, call.cost_usd or 0.0)
                if not all(map(_is_token_count, counts)):
                    raise AgentFailed(f"returned a model call with a number beyond {MAX_TOKEN_COUNT:g}")
            return value
        case Mapping():
            return _reply_from_mapping(cast("Mapping[str, Any]", value))
        case list() | tuple() if value:
            return _reply_from_messages(cast("list[Any]", value))
        case _:
            raise AgentFailed(f"returned {_describe_type(value)} instead of {REPLY_SHAPE}")


def convert_typed_object(value: Any) -> Any:
    """Converts a pydantic model or a dataclass: to a dict of its fields if they are those of a reply, else to a reply with
    them as `data`. Other values stay as they are.
    """
    if isinstance(value, type | Reply):
        return value
    if callable(getattr(value, "model_dump", None)):
        fields = value.model_dump(mode="json")
    elif is_dataclass(value) or isinstance(value, Struct):
        fields = codec.to_plain(value)
    else:
        return value
    return fields if isinstance(fields, dict) and is_reply_object(cast("Any", fields)) else Reply(data=fields)


def to_plain_copy(reply: Reply) -> Reply:
    """A copy of the reply in plain values. ValueError for NaN and infinity; user objects may raise anything."""
    encoded = codec.encode(reply)
    used = [(call.arguments, call.result) for call in reply.tool_calls]
    if b"null" in encoded and codec.has_nan_or_infinity([reply.data, used]):  # encoded NaN is null
        raise ValueError("a number that is NaN or infinite")
    return codec.decode(encoded, type=Reply)


def _reply_from_mapping(value: Mapping[str, Any]) -> Reply:
    if not any(key in value for key in _CONTENT_KEYS):
        keys = ", ".join(map(repr, list(value)[:6])) or "no keys"
        raise AgentFailed(f"returned a dict with {keys} instead of {REPLY_SHAPE}")
    return _reply_from_fields(value)


def _reply_from_messages(messages: list[Any]) -> Reply:
    """One reply from several messages. A message with the role `tool` is the result of a tool call."""
    reply = StreamedReply()
    for message in messages:
        if not isinstance(message, str | Reply | Mapping):
            raise AgentFailed(f"returned a list with {_describe_type(message)} instead of messages")
        fields = cast("Mapping[str, Any]", message) if isinstance(message, Mapping) else {}
        match fields.get("role", "assistant"):
            case "tool":
                reply.add_result(str(fields.get("tool_call_id") or fields.get("name") or ""), fields.get("content"))
            case "assistant":
                reply.add_piece(Reply(message) if isinstance(message, str) else parse_reply(message))
                reply.end_message()
            case role:
                raise AgentFailed(f"returned a message of the role {role!r} instead of assistant or tool")
    return reply.build()


def parse_piece(value: Any) -> Reply:
    """Parses a piece of a streamed reply that is not a plain text."""
    if isinstance(value, Reply):
        return parse_reply(value)
    if not isinstance(value, Mapping) or not any(key in value for key in REPLY_KEYS):
        raise AgentFailed(f"yielded {_describe_type(value)} instead of {PIECE_SHAPE}")
    return _reply_from_fields(cast("Mapping[str, Any]", value))


def _reply_from_fields(value: Mapping[str, Any]) -> Reply:
    content = value.get("content")
    if content is not None and not isinstance(content, str):
        raise AgentFailed(f"returned content of type {_describe_type(content)} instead of a string")
    return Reply(
        content=content or "",
        data=value.get("data"),
        tool_calls=parse_tool_calls(value.get("tool_calls")),
        declared_state=parse_declared_state(value.get("awaiting_input"), value.get("done")),
        input_hint=_get_text(value, "input_hint"),
        finish_reason=_get_text(value, "finish_reason"),
        protocol_state=_get_text(value, "protocol_state"),
        calls=parse_model_calls(value.get("usage")),
        steps=_read_tool_durations(value.get("tool_calls")),
        path=_parse_path(value.get("path")),
    )


def is_reply_object(value: Mapping[str, Any]) -> bool:
    """Is a JSON object a reply? Other keys are allowed next to a text: they may be mistyped."""
    if isinstance(value.get("content"), str):
        return True
    return any(key in value for key in _CONTENT_KEYS) and all(key in REPLY_KEYS for key in value)


def describe_unknown_keys(value: Mapping[str, Any]) -> list[str]:
    """A warning for each unknown key of a returned dict."""
    return [_describe_unknown_key(str(key)) for key in value if key not in REPLY_KEYS]


def _describe_unknown_key(key: str) -> str:
    near = find_similar_names(key, REPLY_KEYS, 1)
    meant = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(REPLY_KEYS)}"
    return f"the agent returned the unknown key {key!r}, which is ignored; {meant}"


def parse_declared_state(awaiting: Any, done: Any = None) -> DeclaredState | None:
    """The state that the agent declares: `awaiting_input: true|false`, or a done flag."""
    if awaiting is True:
        return "awaiting"
    return "done" if awaiting is False or done is True else None


def parse_tool_calls(value: Any) -> tuple[ToolCall, ...]:
    """Tool calls in Viva's form or in that of chat completions (`function: {name, arguments}`)."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise AgentFailed(f"returned tool_calls of type {_describe_type(value)} instead of a list")
    return tuple(_parse_tool_call(item) for item in cast("list[Any]", value))


def _parse_tool_call(item: Any) -> ToolCall:
    if isinstance(item, ToolCall):
        return item
    if not isinstance(item, Mapping):
        raise AgentFailed(
            f"returned a tool call of type {_describe_type(item)} instead of a dict with name and arguments"
        )
    call = cast("Mapping[str, Any]", item)
    function: Mapping[str, Any] = call["function"] if isinstance(call.get("function"), Mapping) else call
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise AgentFailed("returned a tool call without a name")
    error = call.get("error")
    return ToolCall(
        name=name,
        arguments=_parse_arguments(function.get("arguments", function.get("args"))),
        id=str(call.get("id") or ""),
        result=call.get("result", UNSET),
        error=None if error is None or error is False else str(error),
        pending=call.get("status") == "pending",
        refused=call.get("refused") is True,
    )


def _read_tool_durations(calls: Any) -> tuple[Step, ...]:
    """The steps of tool calls that have `duration_ms` and, optionally, `start_ms`, counted from the user's message."""
    steps: list[Step] = []
    end_ms = 0.0
    for call in cast("list[Any]", calls or ()):
        duration: Any = call.get("duration_ms") if isinstance(call, Mapping) else None
        if _is_token_count(duration):
            start: Any = cast("Mapping[str, Any]", call).get("start_ms")
            began_ms = float(start) if _is_token_count(start) else end_ms
            steps.append(Step("tool", _parse_tool_call(call).name, round(began_ms, 3), round(float(duration), 3)))
            end_ms = began_ms + float(duration)
    return tuple(steps)


def _parse_arguments(value: Any) -> Any:
    """Chat completions send arguments as JSON in a string. A string that is not a JSON object stays as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        return codec.decode(value)
    except codec.DecodeError:
        return value


def parse_model_calls(usage: Any) -> tuple[ModelCall, ...]:
    """Model calls from one or more usage dicts, with the key names of the common providers."""
    if usage is None:
        return ()
    if isinstance(usage, list | tuple):
        return tuple(call for item in cast("list[Any]", usage) for call in parse_model_calls(item))
    if isinstance(usage, ModelCall):
        return (usage,)
    if not isinstance(usage, Mapping):
        raise AgentFailed(
            f"returned usage of type {_describe_type(usage)} instead of a dict with input_tokens and output_tokens"
        )
    counts = cast("Mapping[str, Any]", usage)
    cost = counts.get("cost_usd")
    input_tokens = _read_count(counts, "input_tokens", "prompt_tokens")
    cached_tokens, written_tokens = _read_cached_count(counts), _read_count(counts, "cache_creation_input_tokens")
    if "prompt_tokens" not in counts:  # Anthropic counts these separately; gateways in OpenAI's form do not
        input_tokens += _read_count(counts, "cache_read_input_tokens") + written_tokens
        input_tokens = min(input_tokens, MAX_TOKEN_COUNT)
    call = ModelCall(
        model=str(counts.get("model") or ""),
        provider=str(counts.get("provider") or ""),
        input_tokens=input_tokens,
        output_tokens=_read_count(counts, "output_tokens", "completion_tokens"),
        cached_tokens=cached_tokens,
        cost_usd=float(cost) if _is_token_count(cost) else None,
    )
    if call.cost_usd is None:
        call = structs.replace(call, cost_usd=compute_reported_cost(call, written_tokens))
    return (call,)


def _read_cached_count(counts: Mapping[str, Any]) -> int:
    """Cached tokens; OpenAI's clients put them one level down, and Anthropic's has another name for them."""
    for details in ("prompt_tokens_details", "input_tokens_details"):
        if isinstance(inner := counts.get(details), Mapping):
            return _read_count(cast("Mapping[str, Any]", inner), "cached_tokens")
    return _read_count(counts, "cached_tokens", "cache_read_input_tokens")


def _read_count(counts: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = counts.get(name)
        if _is_token_count(value):
            return int(value)
    return 0


def _is_token_count(value: Any) -> TypeGuard[float]:
    """Is the value a number between 0 and the maximum, and not NaN?"""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_TOKEN_COUNT


def _parse_path(value: Any) -> tuple[str, ...]:
    if value is not None and not isinstance(value, list | tuple):
        raise AgentFailed(f"returned a path of type {_describe_type(value)} instead of a list of names")
    return tuple(map(str, cast("list[Any]", value or ())))


def _get_text(value: Mapping[str, Any], key: str) -> str | None:
    text = value.get(key)
    return None if text is None else str(text)


def _describe_type(value: Any) -> str:
    return "None" if value is None else with_article(type(value).__name__)
