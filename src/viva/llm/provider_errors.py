"""Whose fault an exception of a Python agent is: the agent's, its model provider's, or nobody can say (N17).

    an error of a model client's package        a connection error, or status 401, 403, 408, 409, 429, 5xx    infra
                                                any other status (400, 404 …)                                  agent
    any other exception                         a connection error, or one of these statuses                   undetermined
    everything else                                                                                            agent

The whole chain counts: causes, contexts (unless suppressed) and members of exception groups.
"""

import re
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

ErrorFault = Literal["agent", "infra", "undetermined"]

MODEL_CLIENT_PACKAGES = frozenset(
    {
        "ai21", "anthropic", "azure.ai", "boto3", "botocore", "cerebras", "cohere", "fireworks", "google.api_core", "google.auth",
        "google.genai", "google.generativeai", "groq", "huggingface_hub", "ibm_watsonx_ai", "langchain_google_genai", "litellm",
        "mistralai", "ollama", "openai", "openrouter", "replicate", "together", "vertexai", "xai_sdk",
    }
)  # fmt: skip
"""Packages of model clients. `provider_packages` in the config adds to them."""

_HTTP_PACKAGES = frozenset(
    {
        "aiohttp", "grpc", "h11", "httpcore", "httpcore2", "httpx", "httpx2", "requests", "urllib", "urllib3", "websockets",
    }
)  # fmt: skip
_CONNECTION_NAME = re.compile(r"Connect|Timeout|Network|Disconnected|RemoteProtocol|Transport|Unreachable")
_PASSING = frozenset({401, 403, 408, 409, 429})
_MOST = 100
"""A chain longer than this is not walked to its end."""


def classify_error(error: BaseException, packages: frozenset[str] = MODEL_CLIENT_PACKAGES) -> ErrorFault:
    """Whose fault it is that an agent raised this."""
    try:
        return _blame(error, packages)
    except KeyboardInterrupt:
        raise
    except BaseException:  # attributes of somebody's exception, which may do anything: they tell nothing then
        return "agent"


def _blame(raised: BaseException, packages: frozenset[str]) -> ErrorFault:
    foreign = False
    for error in _linked(raised):
        status = _status(error)
        troubled = is_provider_status(status) if status is not None else _is_connection_error(error, packages)
        if troubled and _comes_from(error, packages):
            return "infra"
        foreign = foreign or troubled
    return "undetermined" if foreign else "agent"


def is_provider_status(status: int) -> bool:
    """Is this a status that the provider, its gateway or the account is to blame for?"""
    return status in _PASSING or 500 <= status < 600


def _linked(raised: BaseException) -> Iterator[BaseException]:
    """The exception and all that it is linked with, each once: chains can be cycles."""
    seen: set[int] = set()
    waiting = [raised]
    while waiting and len(seen) < _MOST:
        error = waiting.pop(0)
        if id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions
        linked = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        waiting += [linked] if linked is not None else []


def _comes_from(error: BaseException, packages: frozenset[str]) -> bool:
    return any(_is_in(kind, packages) for kind in type(error).__mro__)


def _is_in(kind: type, packages: frozenset[str]) -> bool:
    parts = str(kind.__module__).split(".")
    return any(".".join(parts[:length]) in packages for length in range(1, len(parts) + 1))


def _is_connection_error(error: BaseException, packages: frozenset[str]) -> bool:
    if isinstance(error, ConnectionError | socket.gaierror | ssl.SSLError):
        return True
    return any(
        _CONNECTION_NAME.search(kind.__name__) and _is_in(kind, packages | _HTTP_PACKAGES)
        for kind in type(error).__mro__
    )


def _status(error: BaseException) -> int | None:
    """The HTTP status that an exception carries, in the places where clients put it."""
    if isinstance(error, SystemExit):  # its code is none
        return None
    places: Sequence[Any] = (error, _attribute(error, "response"), _attribute(error, "raw_response"))
    for place in places:
        for name in ("status_code", "http_status", "status", "code"):
            if (status := _as_status(_attribute(place, name))) is not None:
                return status
    response = _attribute(error, "response")  # botocore: a dict
    if isinstance(response, Mapping) and isinstance(metadata := response.get("ResponseMetadata"), Mapping):
        return _as_status(metadata.get("HTTPStatusCode"))
    return None


def _attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name, None)
    except Exception:  # a property of somebody's exception: whatever it raises, it tells no status
        return None


def _as_status(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return int(value) if 100 <= value < 600 else None
