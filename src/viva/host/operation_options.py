"""Settings for operators of a host: logs, the address for metrics, and how long runs are kept."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from viva.config import Settings
from viva.host.monitoring import STANDARD_ERROR
from viva.text.duration import parse_age


class OperationOptions(Struct, frozen=True, kw_only=True):
    """Log files are absolute paths, or `-` for standard error. `keep_s` is how long finished runs stay; None: for ever."""

    access_log: str | None = None
    audit_log: str | None = None
    metrics_address: tuple[str, int] | None = None
    """A second address, only for metrics, health and readiness. It needs no token."""
    keep_s: float | None = None
    keep_by_tenant: Mapping[str, float] = {}

    def keep_of(self, tenant: str) -> float | None:
        return self.keep_by_tenant.get(tenant, self.keep_s)

    @property
    def shortest_keep_s(self) -> float | None:
        """How long runs stay at least. None: no run is deleted."""
        ages = [*self.keep_by_tenant.values(), *([] if self.keep_s is None else [self.keep_s])]
        return min(ages, default=None)


def load_operation_options(
    settings: Settings, port: int | None = None, keep_s: float | None = None
) -> OperationOptions:
    """The settings of `[serve]` and of each tenant. `keep_s` of the command line wins. Raises BadInput.

    The address for metrics is known by its port, which must not be that of the host.
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
        access_log=_find_log(settings, "access_log"),
        audit_log=_find_log(settings, "audit_log"),
        metrics_address=metrics_address,
        keep_s=keep_s,
        keep_by_tenant=by_tenant,
    )


def _find_log(settings: Settings, name: str) -> str | None:
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
        message = f"{text!r} is no address with a port; write for example 127.0.0.1:9464"
        raise settings.problem(message, "serve", "metrics_address")
    return host.strip("[]"), int(port)
