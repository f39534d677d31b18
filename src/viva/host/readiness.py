"""Whether a host takes new runs, and why not."""

import errno
import os
from pathlib import Path
from typing import Literal

from msgspec import Struct

from viva.host.errors import ApiError
from viva.host.limits import RETRY_AFTER_S

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
