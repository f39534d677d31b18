"""Monitoring of a host: counters, an access log, an audit log and the log of errors. None has content of requests.

The access log and the audit log have one line of JSON for each entry. It has the operation instead of the path, and the
id of the token.
"""

import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from viva.config import Settings
from viva.errors import BadInput
from viva.host.events import to_plain_name, utc_timestamp
from viva.model import codec
from viva.record.private_files import open_private
from viva.text.duration import parse_age

if TYPE_CHECKING:  # commands without the extra `serve` write to the audit log too
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class OperationOptions(Struct, frozen=True, kw_only=True):
    """Options of logs, metrics and retention. Log files are absolute paths, or `-` for standard error."""

    access_log: str | None = None
    audit_log: str | None = None
    metrics_address: tuple[str, int] | None = None
    """A second address that serves only metrics, health and readiness, without a token."""
    keep_s: float | None = None
    """How long finished runs are kept. None: forever."""
    keep_by_tenant: Mapping[str, float] = {}

    def keep_s_of(self, tenant: str) -> float | None:
        """How long the finished runs of a tenant are kept."""
        return self.keep_by_tenant.get(tenant, self.keep_s)

    @property
    def shortest_keep_s(self) -> float | None:
        """The shortest time that runs of any tenant are kept. None: no run is deleted."""
        ages = [*self.keep_by_tenant.values(), *([] if self.keep_s is None else [self.keep_s])]
        return min(ages, default=None)


def load_operation_options(
    settings: Settings, port: int | None = None, keep_s: float | None = None
) -> OperationOptions:
    """Loads the options from `[serve]` and the tables of tenants. Raises BadInput.

    `keep_s` from the command line overrides the config. `port` is that of the host; metrics need another one.
    """
    serve = settings.serve
    by_tenant = {
        name: _parse_age(settings, tenant["keep"], "openwop", "tenants", name, "keep")
        for name, tenant in settings.openwop.tenants.items()
        if "keep" in tenant
    }
    if keep_s is None and "keep" in serve:
        keep_s = _parse_age(settings, serve["keep"], "serve", "keep")
    metrics_address = _parse_address(settings, serve["metrics_address"]) if "metrics_address" in serve else None
    if metrics_address is not None and metrics_address[1] == port:
        raise settings.problem("needs another port than the host itself", "serve", "metrics_address")
    return OperationOptions(
        access_log=_resolve_log_path(settings, "access_log"),
        audit_log=_resolve_log_path(settings, "audit_log"),
        metrics_address=metrics_address,
        keep_s=keep_s,
        keep_by_tenant=by_tenant,
    )


def _resolve_log_path(settings: Settings, name: str) -> str | None:
    path = settings.serve.get(name)
    return path if path is None or path == STANDARD_ERROR else str(settings.folder / path)


def _parse_age(settings: Settings, value: Any, *place: str) -> float:
    try:
        return parse_age(str(value))
    except ValueError as error:
        raise settings.problem(str(error), *place) from error


def _parse_address(settings: Settings, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        message = f"{text!r} is not an address with a port; write for example 127.0.0.1:9464"
        raise settings.problem(message, "serve", "metrics_address")
    return host.strip("[]"), int(port)


STANDARD_ERROR = "-"
RUN_ID_KEY = "viva.run"
"""The key in the ASGI scope of a request for the id of the run that it has created."""


class JsonLog:
    """A log file, which is opened again after logrotate has renamed it. The path `-` is standard error."""

    def __init__(self, path: str) -> None:
        self._path = None if path == STANDARD_ERROR else Path(path)
        self._file = -1
        if self._path is not None:
            try:
                self._open(self._path)
            except OSError as error:
                raise BadInput.of(f"cannot be written: {error.strerror}", path) from error

    def write(self, entry: Mapping[str, Any]) -> None:
        """Writes one line. Errors are ignored: a full disk must not stop requests."""
        line = codec.encode({"at": utc_timestamp(), **entry}) + b"\n"
        with suppress(OSError):
            if self._path is None:
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()
                return
            if self._is_replaced(self._path):
                self._open(self._path)
            os.write(self._file, line)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self, path: Path) -> None:
        self.close()
        self._file = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def _is_replaced(self, path: Path) -> bool:
        try:
            there, here = path.stat(), os.fstat(self._file)
        except OSError:
            return True
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)


def log_error(context: str, error: BaseException) -> None:
    """Prints type and place of an exception. Its message is left out, since it may quote an agent or a suite."""
    lines = [f"{context}: {type(error).__name__}"]
    lines += [f"  {at.filename}:{at.lineno} in {at.name}" for at in traceback.extract_tb(error.__traceback__)[-6:]]
    log_line("\n".join(lines))


def log_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 -- the log of the host


class Monitor:
    """The counters and logs of a host."""

    def __init__(self, access_log: str | None = None, audit_log: str | None = None) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        """How many requests there were, by method and status."""
        self.request_seconds = 0.0
        self._access = JsonLog(access_log) if access_log else None
        self._audit = JsonLog(audit_log) if audit_log else None

    def count_request(self, method: str, status: int, seconds: float, entry: Mapping[str, Any]) -> None:
        self.requests[method, status] += 1
        self.request_seconds += seconds
        if self._access is not None:
            self._access.write(entry)
        is_change = method not in ("GET", "HEAD", "OPTIONS")
        if is_change or status in (401, 403):
            self.audit(str(entry.get("operation") or "unknown"), **entry)

    def audit(self, action: str, **fields: Any) -> None:
        """Writes an entry to the audit log, if there is one. Only known fields are kept."""
        if self._audit is not None:
            known_fields = ("client", "tenant", "token", "run", "status", "count", "before")
            self._audit.write({"action": action, **{name: fields[name] for name in known_fields if name in fields}})

    def close(self) -> None:
        for log in (self._access, self._audit):
            if log is not None:
                log.close()


class RequestMonitor:
    """ASGI middleware that counts and logs each request."""

    def __init__(self, app: "ASGIApp") -> None:
        self._app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, size = time.perf_counter(), 0, 0

        async def count_and_send(message: "Message") -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, count_and_send)
        finally:
            seconds = time.perf_counter() - started
            entry = describe_request(scope) | {"status": status, "ms": round(seconds * 1e3, 1), "bytes": size}
            scope["app"].state.host.monitor.count_request(_normalize_method(scope["method"]), status, seconds, entry)


def _normalize_method(method: str) -> str:
    return method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS") else "other"


def describe_request(scope: "Scope") -> dict[str, Any]:
    """Returns the log entry of a request: client, operation, run, tenant and token. Path, query and body are left out."""
    endpoint = scope.get("endpoint")
    principal = scope.get("state", {}).get("principal")
    path_params = scope.get("path_params", {})
    run = scope.get(RUN_ID_KEY) or path_params.get("runId")
    tenant = (principal.tenant if principal else None) or path_params.get("tenant")  # an administrator has none
    entry = {
        "client": scope["client"][0] if scope.get("client") else None,
        "method": _normalize_method(scope["method"]),
        "operation": getattr(endpoint, "__name__", None),
        "run": to_plain_name(run) if run else None,
        "tenant": to_plain_name(tenant) if tenant else None,
        "token": principal.name if principal else None,
    }
    return {name: value for name, value in entry.items() if value not in (None, "")}
