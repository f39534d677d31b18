"""Limits of each tenant: how many runs it may have, and how many requests it may send."""

import math
import time
from collections.abc import Callable, Mapping
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
