"""Why a request is not answered as it was meant: a status, a code, a sentence, and nothing that somebody else said.

A refusal never quotes a body, a suite, a token or a path of the host's: it is built from our own words and from names.
"""

from collections.abc import Mapping
from typing import Any

from viva.errors import VivaError


class ApiError(VivaError):
    """Becomes the closed envelope `{error, message, details?}`."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = details
        self.headers = headers or {}

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"error": self.code, "message": self.message}
        return {**body, "details": dict(self.details)} if self.details else body


def validation_error(message: str, field: str | None = None, **details: Any) -> ApiError:
    """400: what was asked for cannot be, and which part of it."""
    return ApiError(400, "validation_error", message, {**({"field": field} if field else {}), **details} or None)


def unauthenticated() -> ApiError:
    """The same for a missing key and for a wrong one."""
    message = "give a valid key: Authorization: Bearer KEY"
    return ApiError(401, "unauthenticated", message, headers={"WWW-Authenticate": "Bearer"})


def forbidden(message: str, **details: Any) -> ApiError:
    return ApiError(403, "forbidden", message, details or None)


def not_found(what: str) -> ApiError:
    """Says the same of what belongs to somebody else and of what was never there."""
    return ApiError(404, "not_found", f"there is no such {what}")


def not_provided(capability: str) -> ApiError:
    return ApiError(
        501, "capability_not_provided", f"this host does not provide {capability}", {"capability": capability}
    )
