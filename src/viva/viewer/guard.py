"""Who may ask the viewer: the browser that opened the one-time link, from pages of this very server, by a loopback name.

A page of another site can make a browser send requests here, and can point a name of its own at 127.0.0.1. So every
request has to come by a loopback name, not from another origin, and with the cookie that the one-time link was given for.
"""

import hmac
import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOOPBACK = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::\d{1,5})?", re.IGNORECASE | re.ASCII)
_SAFE = frozenset({"GET", "HEAD"})
_HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_NOTHING_ALLOWED = "default-src 'none'; frame-ancestors 'none'"
_CLOSED = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Viva</title>
<h1>{title}</h1><p>{text}</p><p><a href="./">Try again</a></p></html>
"""


class Guard:
    """Stands before the app and answers itself where a request is not welcome. The token of the link works once."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._session = secrets.token_urlsafe(32)
        self.token: str | None = secrets.token_urlsafe(32)
        # Cookies do not know ports: two viewers on one machine must not take each other's.
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
                headers.setdefault("content-security-policy", _NOTHING_ALLOWED)
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that goes no further."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not _LOOPBACK.fullmatch(host):
            return _refuse(421, "this server answers to loopback names only")
        if not self._is_from_here(scope["method"], scope["path"], headers, host):
            return _refuse(403, "requests from other sites are refused")
        if scope["path"] == "/" and (given := _token_in(scope["query_string"])) is not None:
            return self._exchange(given, scope["method"], headers)
        if not self._is_known(headers):
            if scope["path"] == "/":
                return _closed(401, "This page is closed", "Open it by the link that <code>viva view</code> prints.")
            return _refuse(401, "open the link that `viva view` prints first")
        return None

    @staticmethod
    def _is_from_here(method: str, path: str, headers: Headers, host: str) -> bool:
        """Not from a page of another origin. Another port of this machine is another origin, too."""
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host}".lower():
            return False
        site = headers.get("sec-fetch-site")
        if method not in _SAFE:  # a browser always says where such a request comes from
            return origin is not None and site in (None, "same-origin")
        if site in (None, "same-origin", "none"):
            return True
        # A link to the page itself may stand anywhere; without the cookie there is nothing to see.
        return (
            path == "/" and headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        )

    def _exchange(self, given: str, method: str, headers: Headers) -> Response:
        """The token for a cookie. A browser that only looks ahead, or asks for the headers alone, does not use it up."""
        if method != "GET" or headers.get("sec-purpose"):
            return _refuse(403, "the link is for opening")
        if self.token is None or not hmac.compare_digest(given.encode(), self.token.encode()):
            if self._is_known(headers):
                return RedirectResponse("./", 303)  # the same browser opens the same link again
            return _closed(403, "This link has been used", "It works once. Start <code>viva view</code> again.")
        self.token = None
        response = RedirectResponse("./", 303)
        response.set_cookie(self._cookie, self._session, path="/", httponly=True, samesite="strict")
        return response

    def _is_known(self, headers: Headers) -> bool:
        found = cookie_parser(headers.get("cookie", "")).get(self._cookie, "")
        return hmac.compare_digest(found.encode(), self._session.encode())


def _token_in(query: bytes) -> str | None:
    found = re.search(rb"(?:^|&)token=([\w.-]*)", query)
    return found[1].decode() if found else None


def _refuse(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status)


def _closed(status: int, title: str, text: str) -> Response:
    return HTMLResponse(_CLOSED.format(title=title, text=text), status)
