"""Access control of the viewer: only the browser that opened the one-time link, by a loopback name, from its own pages.

A page of another site can make a browser send requests to the viewer, and can resolve its own name to 127.0.0.1. So every
request must use a loopback name, must not come from another origin, and must have the cookie of the one-time link.
"""

import hmac
import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOOPBACK = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::\d{1,5})?", re.IGNORECASE | re.ASCII)
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_DENY_ALL_POLICY = "default-src 'none'; frame-ancestors 'none'"
_ERROR_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Viva</title>
<h1>{title}</h1><p>{text}</p><p><a href="./">Try again</a></p></html>
"""


class Guard:
    """ASGI middleware that answers requests without access itself. The token in the printed link works once."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._session = secrets.token_urlsafe(32)
        self.token: str | None = secrets.token_urlsafe(32)
        # Cookies ignore ports: each viewer on a machine needs its own name.
        self._cookie = f"viva-{secrets.token_hex(4)}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("content-security-policy", _DENY_ALL_POLICY)
            await send(message)

        await (self._check_access(scope) or self._app)(scope, receive, send_guarded)

    def _check_access(self, scope: Scope) -> Response | None:
        """The response to a request without access, or to the one-time link; None for a request with access."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not _LOOPBACK.fullmatch(host):
            return _make_refusal(421, "This server accepts only loopback host names")
        if not self._is_same_origin(scope["method"], scope["path"], headers, host):
            return _make_refusal(403, "Requests from other sites are refused")
        if scope["path"] == "/" and (token := _find_token(scope["query_string"])) is not None:
            return self._exchange_token(token, scope["method"], headers)
        if not self._has_cookie(headers):
            if scope["path"] == "/":
                return _make_error_page(401, "No access", "Open the link that <code>viva view</code> prints.")
            return _make_refusal(401, "No access. Open the link that `viva view` prints")
        return None

    @staticmethod
    def _is_same_origin(method: str, path: str, headers: Headers, host: str) -> bool:
        """Is the request from a page of this server? A page on another port is of another origin."""
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host}".lower():
            return False
        site = headers.get("sec-fetch-site")
        if method not in _SAFE_METHODS:  # browsers always send the origin of such a request
            return origin is not None and site in (None, "same-origin")
        if site in (None, "same-origin", "none"):
            return True
        # Other sites may link to the page itself: it shows nothing without the cookie.
        return (
            path == "/" and headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        )

    def _exchange_token(self, token: str, method: str, headers: Headers) -> Response:
        """Exchanges the token for a cookie. The token stays valid after prefetch and HEAD requests."""
        if method != "GET" or headers.get("sec-purpose"):
            return _make_refusal(403, "Open the link in a browser")
        if self.token is None or not hmac.compare_digest(token.encode(), self.token.encode()):
            if self._has_cookie(headers):
                return RedirectResponse("./", 303)  # the same browser opens the same link again
            return _make_error_page(
                403, "Link already used", "The link works once. Start <code>viva view</code> again."
            )
        self.token = None
        response = RedirectResponse("./", 303)
        response.set_cookie(self._cookie, self._session, path="/", httponly=True, samesite="strict")
        return response

    def _has_cookie(self, headers: Headers) -> bool:
        cookie = cookie_parser(headers.get("cookie", "")).get(self._cookie, "")
        return hmac.compare_digest(cookie.encode(), self._session.encode())


def _find_token(query: bytes) -> str | None:
    match = re.search(rb"(?:^|&)token=([\w.-]*)", query)
    return match[1].decode() if match else None


def _make_refusal(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status)


def _make_error_page(status: int, title: str, text: str) -> Response:
    return HTMLResponse(_ERROR_PAGE.format(title=title, text=text), status)
