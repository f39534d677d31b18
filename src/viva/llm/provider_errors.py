"""Whose fault an exception of a Python agent is: the agent's, its model provider's, or undetermined (N17).

    an error of a model client's package        a connection error, or status 401, 403, 408, 409, 429, 5xx    infra
                                                any other status (400, 404 …)                                  agent
    any other exception                         a connection error, or one of these statuses                   undetermined
    everything else                                                                                            agent

The whole chain counts: causes, contexts (unless suppressed) and members of exception groups.
"""

import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from viva.errors import is_ctrl_c
from viva.model.tracebacks import iterate_linked_errors

ErrorFault = Literal["agent", "infra", "undetermined"]

MODEL_CLIENT_PACKAGES = frozenset(
    {
        "ai21", "anthropic", "azure.ai", "boto3", "botocore", "cerebras", "cohere", "fireworks", "google.api_core", "google.auth",
        "google.genai", "google.generativeai", "groq", "huggingface_hub", "ibm_watsonx_ai", "langchain_google_genai", "litellm",
        "mistralai", "ollama", "openai", "openrouter", "replicate", "together", "vertexai", "xai_sdk",
    }
)  # fmt: skip
"""`provider_packages` in the config adds to these."""

_HTTP_PACKAGES = frozenset(
    {
        "aiohttp", "grpc", "h11", "httpcore", "httpcore2", "httpx", "httpx2", "requests", "urllib", "urllib3", "websockets",
    }
)  # fmt: skip
_CONNECTION_NAME = re.compile(r"Connect|Timeout|Network|Disconnected|RemoteProtocol|Transport|Unreachable")
_PROVIDER_STATUSES = frozenset({401, 403, 408, 409, 429})


class ErrorOrigin(Struct, frozen=True):
    """Whose fault an exception of an agent is, and the exception in its chain that says so."""

    fault: ErrorFault
    error: BaseException


def classify_error(raised: BaseException, packages: frozenset[str] = MODEL_CLIENT_PACKAGES) -> ErrorOrigin:
    """Whose fault an exception of an agent is."""
    try:
        return _classify_error_chain(raised, packages)
    except BaseException as error:  # the exception's attributes are foreign code, which may raise anything
        if is_ctrl_c(error):
            raise
        return ErrorOrigin("agent", raised)


def _classify_error_chain(raised: BaseException, packages: frozenset[str]) -> ErrorOrigin:
    origin = ErrorOrigin("agent", raised)
    for error in iterate_linked_errors(raised):
        status = _find_http_status(error)
        is_provider_trouble = (
            is_provider_status(status) if status is not None else _is_connection_error(error, packages)
        )
        if is_provider_trouble and _is_from_package(error, packages):
            return ErrorOrigin("infra", error)
        if is_provider_trouble and origin.fault == "agent":
            origin = ErrorOrigin("undetermined", error)
    return origin


def is_provider_status(status: int) -> bool:
    """Is this a failure of the provider, its gateway or the account?"""
    return status in _PROVIDER_STATUSES or 500 <= status < 600


def _is_from_package(error: BaseException, packages: frozenset[str]) -> bool:
    return any(_is_in_package(kind, packages) for kind in type(error).__mro__)


def _is_in_package(kind: type, packages: frozenset[str]) -> bool:
    parts = str(kind.__module__).split(".")
    return any(".".join(parts[:length]) in packages for length in range(1, len(parts) + 1))


def _is_connection_error(error: BaseException, packages: frozenset[str]) -> bool:
    if isinstance(error, ConnectionError | socket.gaierror | ssl.SSLError):
        return True
    return any(
        _CONNECTION_NAME.search(kind.__name__) and _is_in_package(kind, packages | _HTTP_PACKAGES)
        for kind in type(error).__mro__
    )


def _find_http_status(error: BaseException) -> int | None:
    """The HTTP status of an exception, in the places where clients put it."""
    if isinstance(error, SystemExit):  # its code is not an HTTP status
        return None
    objects: Sequence[Any] = (error, _read_attribute(error, "response"), _read_attribute(error, "raw_response"))
    for place in objects:
        for name in ("status_code", "http_status", "status", "code"):
            if (status := _parse_http_status(_read_attribute(place, name))) is not None:
                return status
    response = _read_attribute(error, "response")  # botocore: a dict
    if isinstance(response, Mapping) and isinstance(metadata := response.get("ResponseMetadata"), Mapping):
        return _parse_http_status(metadata.get("HTTPStatusCode"))
    return None


def _read_attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name, None)
    except Exception:  # a property is foreign code, which may raise anything
        return None


def _parse_http_status(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return int(value) if 100 <= value < 600 else None
