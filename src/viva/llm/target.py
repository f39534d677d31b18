"""Where a request goes, computed once for each URL and set of headers: origin, proxy, and the bytes of its head.

Messages name host and port, never a header, key, password or query.
"""

import base64
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from msgspec import Struct

from viva import __version__
from viva.errors import ConnectFailed
from viva.protocols import Request
from viva.text.addresses import is_loopback
from viva.text.duration import format_duration
from viva.text.pattern import LazyPattern

CONNECT_TIMEOUT_S = 30.0
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HEADERS_OF_CLIENT = frozenset({"host", "content-length", "transfer-encoding", "connection"})
_TOKEN_NAME = LazyPattern(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HOST_NAME = LazyPattern(r"[\w.:%-]+", re.ASCII)
_PLAIN_HOST = LazyPattern(r"(?:[\w-]{1,63}\.)*[\w-]{1,63}", re.ASCII)
_FORBIDDEN_IN_HEADER = LazyPattern(r"[\x00-\x08\x0a-\x1f\x7f]")
_UNQUOTED_CHARACTERS = "/%:=&?~#+!$,;'@()*[]"

FindProxy = Callable[[str, str, int], str | None]


class Proxy(Struct, frozen=True):
    """An HTTP proxy. A password is in `headers` only."""

    url: str
    host_port: str
    headers: Mapping[str, str]


class Target(Struct, frozen=True, dict=True):
    """A URL that is ready for requests. `request_head` ends before the value of Content-Length."""

    host: str
    port: int
    tls: bool
    url: str
    headers: Mapping[str, str]
    request_head: bytes
    proxy: Proxy | None

    @cached_property
    def origin(self) -> tuple[str, int, bool]:
        return self.host, self.port, self.tls

    @property
    def host_port(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @cached_property
    def parsed_url(self) -> Any:
        """The URL for aiohttp, without quoting it again."""
        from yarl import URL

        return URL(self.url, encoded=True)


def find_url_problem(url: str) -> str | None:
    """Why a URL cannot be used, with a suggestion but without passwords and queries. A URL that starts with an unset
    variable is not checked.
    """
    if url.startswith("$"):
        return None
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as wrong:
        return f"is not a valid address: {wrong}"
    if parts.scheme in _DEFAULT_PORTS:
        return None if host else f"does not name a host; write {parts.scheme}://HOST"
    bare = url.partition("?")[0].rpartition("@")[2]
    if "://" in url:
        return f"starts with {parts.scheme}://; only http:// and https:// can be reached"
    return f"is missing http:// or https://; did you mean http://{bare.lstrip('/')}?"


def resolve_target(request: Request, find_proxy: FindProxy) -> Target:
    """Computes where a request goes. Messages about invalid URLs and headers do not contain their values."""
    try:
        parts = urlsplit(request.url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConnectFailed(f"the address is not valid: {error}") from error
    if parts.scheme not in _DEFAULT_PORTS or not host:
        raise ConnectFailed(
            f"the address has to start with http:// or https:// and name a host, not {parts.scheme or 'nothing'}:"
        )
    if not _TOKEN_NAME.fullmatch(request.method):
        raise ConnectFailed(f"{request.method!r} is not an HTTP method")
    port = port or _DEFAULT_PORTS[parts.scheme]
    name = _encode_host(host, port)
    shown = f"[{name}]" if ":" in name else name
    netloc = shown if port == _DEFAULT_PORTS[parts.scheme] else f"{shown}:{port}"
    path = quote(parts.path or "/", safe=_UNQUOTED_CHARACTERS) + (
        f"?{quote(parts.query, safe=_UNQUOTED_CHARACTERS)}" if parts.query else ""
    )
    headers = _build_headers(request.headers, parts.username, parts.password)
    proxy = _resolve_proxy(parts.scheme, name, port, find_proxy)
    if proxy is not None and parts.scheme == "http":  # with TLS the proxy only sees CONNECT
        headers |= proxy.headers
    return Target(
        host=name,
        port=port,
        tls=parts.scheme == "https",
        url=urlunsplit((parts.scheme, netloc, "", "", "")) + path,
        headers=headers,
        request_head=_build_request_head(request.method, path, netloc, headers),
        proxy=proxy,
    )


def find_environment_proxy(scheme: str, host: str, port: int) -> str | None:
    """The proxy by HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY. Loopback never uses one."""
    if is_loopback(host):
        return None
    from urllib.request import getproxies, proxy_bypass  # slow to import; a local run needs none

    if proxy_bypass(f"{host}:{port}"):
        return None
    proxies = getproxies()
    return proxies.get(scheme) or proxies.get("all")


def describe_connection_error(error: BaseException) -> str:
    """The reason of a failed connection."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted: {error.verify_message} (SSL_CERT_FILE can name a private CA)"
        case ssl.SSLError():
            return f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
        case socket.gaierror():
            return f"the host name was not found ({error.strerror})"
        case ConnectionRefusedError():
            return "connection refused"
        case TimeoutError():
            return f"no connection within {format_duration(CONNECT_TIMEOUT_S)}"
        case ConnectionResetError() | BrokenPipeError():
            return "connection reset"
        case OSError():
            return error.strerror or str(error) or type(error).__name__
        case _:
            return str(error) or type(error).__name__


def _encode_host(host: str, port: int) -> str:
    try:  # the codec is slow to import, and most names do not need it
        name = host if ":" in host or _PLAIN_HOST.fullmatch(host) else host.encode("idna").decode()
    except UnicodeError:
        name = ""
    if not _HOST_NAME.fullmatch(name):
        raise ConnectFailed(f"{host}:{port}: the host name is not valid")
    return name


def _build_headers(headers: Mapping[str, str], user: str | None, password: str | None) -> dict[str, str]:
    """The headers to send. Names are compared without case; the last one wins."""
    merged = {"user-agent": ("User-Agent", f"viva/{__version__}"), "accept-encoding": ("Accept-Encoding", "identity")}
    if user is not None:
        merged["authorization"] = ("Authorization", _format_basic_auth(user, password))
    for name, value in headers.items():
        if not _TOKEN_NAME.fullmatch(name) or _FORBIDDEN_IN_HEADER.search(value.strip()):
            raise ConnectFailed(f"the header {name!r} contains a character that cannot be sent")
        if name.lower() not in _HEADERS_OF_CLIENT:
            merged[name.lower()] = (name, value.strip())
    return dict(merged.values())


def _build_request_head(method: str, path: str, netloc: str, headers: Mapping[str, str]) -> bytes:
    lines = [
        f"{method.upper()} {path} HTTP/1.1",
        f"Host: {netloc}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\nContent-Length: ").encode()


def _resolve_proxy(scheme: str, host: str, port: int, find_proxy: FindProxy) -> Proxy | None:
    url = find_proxy(scheme, host, port)
    if not url:
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    host_port = f"{parts.hostname}:{parts.port or _DEFAULT_PORTS.get(parts.scheme, 1080)}"
    if parts.scheme not in _DEFAULT_PORTS:
        raise ConnectFailed(
            f"{host}:{port}: the proxy {host_port} has the scheme {parts.scheme}; only HTTP proxies can be used"
        )
    headers = (
        {"Proxy-Authorization": _format_basic_auth(parts.username, parts.password)}
        if parts.username is not None
        else {}
    )
    return Proxy(f"{parts.scheme}://{host_port}", host_port, headers)


def _format_basic_auth(user: str, password: str | None) -> str:
    return "Basic " + base64.b64encode(f"{unquote(user)}:{unquote(password or '')}".encode()).decode()
