"""Errors of the API: a status, a code, a message and details.

An error never quotes a request body, a suite, a token or a path of the host.
"""

from collections.abc import Mapping
from typing import Any

from viva.errors import VivaError


class ApiError(VivaError):
    """Becomes the response body `{error, message, details?}`."""

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
    return ApiError(400, "validation_error", message, {**({"field": field} if field else {}), **details} or None)


def unauthenticated() -> ApiError:
    """401. A missing token and a wrong one give the same error, so that it reveals nothing."""
    message = "Missing or invalid token. Send the header Authorization: Bearer TOKEN"
    return ApiError(401, "unauthenticated", message, headers={"WWW-Authenticate": "Bearer"})


def forbidden(message: str, **details: Any) -> ApiError:
    return ApiError(403, "forbidden", message, details or None)


def not_found(resource: str) -> ApiError:
    """404. An unknown resource and one of another tenant give the same error."""
    return ApiError(404, "not_found", f"{resource} not found")


def not_provided(capability: str) -> ApiError:
    message = f"This host does not provide {capability}"
    return ApiError(501, "capability_not_provided", message, {"capability": capability})
