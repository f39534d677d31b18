"""Checks before a request reaches its endpoint: the Host and Origin headers, and framing that proxies may read otherwise."""

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from viva.host.errors import ApiError, forbidden, not_found, validation_error
from viva.model import codec
from viva.text.addresses import is_loopback

_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class KnownHosts:
    """The names and addresses under which clients may reach a host."""

    def __init__(self, bind_address: str, public_url: str, names: Iterable[str] = ()) -> None:
        self._names = {bind_address.lower(), *(name.lower() for name in names), urlsplit(public_url).hostname or ""}
        if is_loopback(bind_address):
            self._names.update(_LOCAL_NAMES)
        # A page that a browser was sent to under a foreign name has that name as its Host, never an address.
        self._takes_any_address = bind_address in ("0.0.0.0", "::")  # noqa: S104 -- compared, not bound

    def includes(self, header: str) -> bool:
        """Is that value of the header Host one of them? The port does not matter: it may be forwarded."""
        try:
            name = "" if set("/?#@\\") & set(header) else urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        return name in self._names or (self._takes_any_address and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


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
                response = Response(codec.encode(error.to_json()), error.status, error.headers, "application/json")
                await response(scope, receive, send)
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
