"""Checks of a request before its route: the host that it names, its origin, and how its body is framed.

A request that a proxy and this host could read in two ways is refused with 400, and its connection is closed.
"""

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from viva.host.errors import ApiError, forbidden, not_found, validation_error
from viva.host.routes import respond_json

METRICS_PATHS = ("/metrics", "/healthz", "/readyz")
"""All that the address for metrics serves."""


class RequestChecks:
    """Answers a request that fails a check; passes on all others."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            error = _find_error(Request(scope))
            if error is not None:
                await respond_json(error.to_json(), error.status, error.headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def is_metrics_address(request: Request) -> bool:
    """Did the request arrive on the address for metrics?"""
    address = request.app.state.host.operations.metrics_address
    server = request.scope.get("server")
    return address is not None and server is not None and server[1] == address[1]


def _find_error(request: Request) -> ApiError | None:
    headers, host = request.headers, request.app.state.host
    if is_metrics_address(request) and request.url.path not in METRICS_PATHS:
        return not_found("endpoint")
    if "content-length" in headers and "transfer-encoding" in headers:
        return _refuse_framing("A request has either Content-Length or Transfer-Encoding, not both")
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        return _refuse_framing("This host takes bodies without Content-Encoding only")
    if not host.known_hosts.includes(headers.get("host", "")):
        return validation_error("The header Host does not name this host", "Host")
    origin = headers.get("origin")
    if origin is not None and _netloc(origin) not in (headers.get("host"), _netloc(host.options.public_url)):
        return forbidden("Requests from pages of other origins are refused")
    return None


def _refuse_framing(message: str) -> ApiError:
    return ApiError(400, "validation_error", message, headers={"Connection": "close"})


def _netloc(url: str) -> str | None:
    try:
        return urlsplit(url).netloc
    except ValueError:
        return None
