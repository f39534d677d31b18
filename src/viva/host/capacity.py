"""How much a host takes: the limits of each tenant, and whether it takes new runs at all."""

import errno
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from viva.host.errors import ApiError

RETRY_AFTER_S = 5
_BURST_S = 10
"""A tenant that was quiet may send the requests of so many seconds at once."""


class TenantLimits(Struct, frozen=True, kw_only=True):
    """`[serve.tenant_limits]`, or `[openwop.tenants.NAME.limits]` for one tenant."""

    at_once: int = 8
    """Runs at a time; others wait."""
    max_unfinished: int = 1000
    """Waiting and running runs; more are refused."""
    requests_per_second: int = 100


class HostLimits:
    """The limits of a host and of its tenants."""

    def __init__(
        self,
        *,
        at_once: int,
        max_unfinished: int,
        defaults: Mapping[str, Any],
        by_tenant: Mapping[str, Mapping[str, Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.at_once = at_once
        self.max_unfinished = max_unfinished
        self._default = TenantLimits(**defaults)
        self._by_tenant = {tenant: TenantLimits(**{**defaults, **limits}) for tenant, limits in by_tenant.items()}
        self._clock = clock
        self._requests: dict[str, tuple[float, float]] = {}
        """For each tenant the time of its last request, and how many it might send then."""

    def of_tenant(self, tenant: str) -> TenantLimits:
        return self._by_tenant.get(tenant, self._default)

    def count_request(self, tenant: str) -> None:
        """Raises an ApiError if the tenant sends too many requests."""
        rate = self.of_tenant(tenant).requests_per_second
        now = self._clock()
        before, left = self._requests.get(tenant, (now, float(rate * _BURST_S)))
        left = min(rate * _BURST_S, left + (now - before) * rate)
        if left < 1:
            raise too_many("Too many requests of this tenant", "tenant", max(1, math.ceil((1 - left) / rate)))
        self._requests[tenant] = now, left - 1


def too_many(message: str, scope: Literal["tenant", "global"], retry_after_s: int = RETRY_AFTER_S) -> ApiError:
    details = {"scope": scope, "retryAfter": retry_after_s, "retryAfterMs": retry_after_s * 1000}
    headers = {"Retry-After": str(retry_after_s)}
    return ApiError(429, "rate_limited", f"{message}. Try again later", details, headers)


ReasonCode = Literal["disk_full", "database_unavailable", "draining"]

MESSAGES: dict[ReasonCode, str] = {
    "disk_full": "There is no room on the disk. Runs wait until there is",
    "database_unavailable": "The database cannot be reached. Runs wait until it can",
    "draining": "The host is about to stop. Its unfinished runs continue after the start",
}


class NotReadyReason(Struct, frozen=True):
    """One reason why a host takes no new runs."""

    code: ReasonCode

    @property
    def message(self) -> str:
        return MESSAGES[self.code]


class Readiness(Struct, frozen=True):
    """Why a host takes no new runs; it is ready if there is no reason."""

    reasons: tuple[NotReadyReason, ...] = ()

    @property
    def is_ready(self) -> bool:
        return not self.reasons


def is_disk_full(error: BaseException) -> bool:
    """Did a write fail because there was no room?"""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def has_free_space(folder: Path, min_bytes: int) -> bool:
    """Has the disk of a folder so much room? A folder that cannot be examined counts as one with room."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return True
    return disk.f_bavail * disk.f_frsize >= min_bytes


def not_ready(reason: NotReadyReason) -> ApiError:
    """507 if the disk is full, else 503."""
    status = 507 if reason.code == "disk_full" else 503
    details = {"reason": reason.code, "retryAfter": RETRY_AFTER_S}
    return ApiError(status, reason.code, reason.message, details, {"Retry-After": str(RETRY_AFTER_S)})
