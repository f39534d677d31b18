"""Deletes runs: their rows in the store, their journals, and the files of their summaries."""

import asyncio
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from viva.concurrency.threads import run_in_thread
from viva.errors import BadInput
from viva.host.host import Host
from viva.host.runs import log_error
from viva.host.store import FINAL_STATUSES, Run

PASS_S = 600.0
"""How often a host looks for runs that are too old."""
_BATCH = 100
_RUN_NAME = re.compile(r"run-[0-9a-f]{24}")


async def delete_runs(host: Host, runs: Sequence[Run]) -> None:
    """Deletes finished runs. The rows go first: what is left of a deletion that was cut off is found by its age."""
    for start in range(0, len(runs), _BATCH):
        names = [run.id for run in runs[start : start + _BATCH]]
        host.store.delete_runs(names)
        await run_in_thread(lambda names=names: _delete_files(host, names))


async def delete_tenant_runs(host: Host, tenant: str) -> int:
    """Deletes all runs of a tenant and its stored responses. The caller has made sure that all are finished."""
    count = 0
    while runs := [run for _, run in host.store.list_runs(tenant, tuple(FINAL_STATUSES), limit=_BATCH)]:
        await delete_runs(host, runs)
        count += len(runs)
    host.store.delete_responses(tenant)
    return count


async def delete_old_runs(host: Host, now: float) -> int:
    """Deletes the finished runs that are older than they may be, and files of runs that are gone."""
    count, shortest_s = 0, host.operations.shortest_keep_s
    if shortest_s is not None:
        before = now - shortest_s, ""  # a run that was created later has not ended earlier
        while page := host.store.list_runs(None, tuple(FINAL_STATUSES), before, _BATCH):
            before = page[-1][0], page[-1][1].id
            old = [run for _, run in page if _is_old(host, run, now)]
            await delete_runs(host, old)
            count += len(old)
            await asyncio.sleep(0)  # other requests come first
    await _delete_leftovers(host, now)
    return count


async def watch_retention(host: Host) -> None:
    """Deletes old runs from time to time, until it is cancelled."""
    while True:
        try:
            count = await delete_old_runs(host, time.time())
            if count:
                host.monitor.audit("delete_old_runs", count=count)
        except Exception as error:  # a full disk or a lost database: the next pass tries again
            log_error("retention", error)
        await asyncio.sleep(PASS_S)


def _is_old(host: Host, run: Run, now: float) -> bool:
    keep_s = host.operations.keep_of(run.tenant)
    ended = datetime.fromisoformat(run.completed_at or run.created_at).astimezone(UTC).timestamp()
    return keep_s is not None and ended <= now - keep_s


def _delete_files(host: Host, names: Sequence[str]) -> None:
    for name in names:
        with suppress(
            BadInput
        ):  # a journal that is still in use, or an index that is damaged: the next pass tries again
            host.history.remove_run(name)
        (_summaries(host) / name).unlink(missing_ok=True)


async def _delete_leftovers(host: Host, now: float) -> None:
    """Files of hosted runs that are gone: another host deleted the run, or a deletion was cut off."""
    deleted, keep_s = host.store.list_deletions(), host.operations.keep_s
    if not deleted and keep_s is None:
        return
    for path, changed_at in await run_in_thread(lambda: _list_files(host)):
        is_old = keep_s is not None and changed_at <= now - keep_s
        if path.name in deleted or (is_old and not host.store.has_run(path.name)):
            await run_in_thread(lambda path=path: _delete_leftover(host, path))


def _list_files(host: Host) -> list[tuple[Path, float]]:
    folders = (host.history.home / "runs", _summaries(host))
    paths = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    return [(path, path.stat().st_mtime) for path in paths if _RUN_NAME.fullmatch(path.name)]


def _delete_leftover(host: Host, path: Path) -> None:
    _delete_files(host, [path.name])
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)


def _summaries(host: Host) -> Path:
    return host.settings.data_folder / "host" / "summaries"
