"""Executes the runs of a host: starts them when there is a free slot, ends each exactly once, cancels and resumes them.

The workflows of a host are here too. Except for `viva.agent`, their nodes do nothing or wait: clients use them to test
the API.
"""

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from itertools import pairwise
from typing import Any

from viva.host.errors import ApiError, validation_error
from viva.host.events import (
    EventDraft,
    RunLog,
    RunLogs,
    node_completed,
    node_started,
    run_cancelled,
    run_failed,
    run_started,
    utc_timestamp,
)
from viva.host.store import Run, RunKind, RunStatus, Store

RETRY_AFTER_S = 5
NOOP, DELAY, AGENT_WORKFLOW = "core.noop", "core.delay", "viva.agent"
MAX_DELAY_MS = 60_000
_DEFAULT_DELAY_MS = 1000
RunFunction = Callable[[Run, RunLog], Awaitable[None]]


class RunError(Exception):
    """A run that cannot be completed. `message` holds no text of a suite or an agent."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class RunManager:
    """All runs of a host. `max_running` of them execute in parallel; the others wait.

    `on_end` is called with the id of each run that no longer executes.
    """

    def __init__(
        self,
        store: Store,
        logs: RunLogs,
        run_functions: Mapping[RunKind, RunFunction],
        *,
        max_running: int,
        max_unfinished: int,
        on_end: Callable[[str], object],
    ) -> None:
        self.store = store
        self.logs = logs
        self._run_functions = run_functions
        self._slots = asyncio.Semaphore(max_running)
        self._max_unfinished = max_unfinished
        self._on_end = on_end
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled_by: dict[str, str] = {}

    def check_capacity(self) -> None:
        if len(self._tasks) >= self._max_unfinished:
            details = {"scope": "global", "retryAfter": RETRY_AFTER_S, "retryAfterMs": RETRY_AFTER_S * 1000}
            message = "Too many unfinished runs. Try again later"
            raise ApiError(429, "rate_limited", message, details, {"Retry-After": str(RETRY_AFTER_S)})

    def start(self, run: Run) -> None:
        task = asyncio.create_task(self._execute(run), name=run.id)
        self._tasks[run.id] = task
        task.add_done_callback(lambda _: self._remove(run.id))

    def _remove(self, run: str) -> None:
        self._tasks.pop(run, None)
        self._cancelled_by.pop(run, None)
        self._on_end(run)

    async def wait_for_end(self, run: Run) -> Run:
        task = self._tasks.get(run.id)
        if task is not None:
            await asyncio.wait((task,))
        return self.store.find_run(run.id, run.tenant) or run

    def resume_unfinished(self) -> None:
        """Continues the runs that were unfinished when the host stopped."""
        for run in self.store.load_unfinished_runs():
            if run.status == "cancelling":
                self.end(run, self.logs.open_log(run.id), "cancelled", [run_cancelled("system")])
            else:
                self.start(run)

    def cancel(self, run: Run, cancelled_by: str) -> Run:
        """Cancels a run once: a second cancellation would interrupt its clean-up."""
        if run.id in self._cancelled_by:
            return run
        task = self._tasks.get(run.id)
        if task is None:
            self.end(run, self.logs.open_log(run.id), "cancelled", [run_cancelled(cancelled_by)])
            return run
        self._cancelled_by[run.id] = cancelled_by
        run.status = "cancelling"
        self.store.save_run(run)
        task.cancel()
        return run

    async def close(self) -> None:
        """Interrupts all runs; the next start of the host resumes them."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def end(self, run: Run, log: RunLog, status: RunStatus, drafts: list[EventDraft]) -> None:
        """Saves the last events and the final state of a run in one transaction."""
        run.status = status
        run.completed_at = utc_timestamp()
        if not log.events:
            drafts = [run_started(run.workflow, run.tenant), *drafts]
            run.started_at = run.started_at or run.completed_at
        log.append(drafts, run)

    async def _execute(self, run: Run) -> None:
        log = self.logs.open_log(run.id)
        try:
            async with self._slots:
                if not log.events:
                    run.status, run.started_at = "running", utc_timestamp()
                    log.append([run_started(run.workflow, run.tenant)], run)
                await self._run_functions[run.kind](run, log)
        except asyncio.CancelledError:
            cancelled_by = self._cancelled_by.pop(run.id, None)
            if cancelled_by is not None and not log.is_finished:
                self.end(run, log, "cancelled", [run_cancelled(cancelled_by)])
            # Without `cancelled_by` the host shuts down; its next start resumes the run.
        except RunError as error:
            self._fail(run, log, error.code, error.message)
        except Exception as error:  # a bug in one run must not end the host
            log_error(f"run {run.id}", error)
            self._fail(run, log, "internal_error", "Internal error of the host")

    def _fail(self, run: Run, log: RunLog, code: str, message: str) -> None:
        if not log.is_finished:
            run.error = {"code": code, "message": message}
            self.end(run, log, "failed", [run_failed(code, message)])


def log_error(context: str, error: BaseException) -> None:
    """Prints the place of an exception, without its message: that may quote an agent or a suite."""
    lines = [f"{context}: {type(error).__name__}"]
    lines += [f"  {at.filename}:{at.lineno} in {at.name}" for at in traceback.extract_tb(error.__traceback__)[-6:]]
    print(*lines, sep="\n", file=sys.stderr, flush=True)  # noqa: T201 -- the log of the host


def _workflow(name: str, title: str, nodes: tuple[str, ...], *variables: dict[str, Any], kind: str = NOOP) -> Any:
    return {
        "id": name,
        "name": title,
        "version": "1.0",
        "nodes": [
            {"id": node, "typeId": kind, "name": node, "position": {"x": 0, "y": 0}, "config": {}, "inputs": {}}
            for node in nodes
        ],
        "edges": [
            {"id": f"{a}-{b}", "source": a, "target": b, "sourceNodeId": a, "targetNodeId": b}
            for a, b in pairwise(nodes)
        ],
        "triggers": [{"id": "manual", "type": "manual", "enabled": True}],
        "variables": list(variables),
        "metadata": {"tags": ["viva"] if kind == AGENT_WORKFLOW else ["conformance"]},
        "settings": {"timeout": 10000 if kind == NOOP else 300_000},
    }


def _by_id(*workflows: dict[str, Any]) -> Mapping[str, dict[str, Any]]:
    return {workflow["id"]: workflow for workflow in workflows}


def _variable(name: str, kind: str, description: str, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "type": kind, "description": description, "required": required}


_DELAY_MS = _variable("delayMs", "number", "Delay in milliseconds, at most a minute.")
_ADVERTISED = _by_id(
    _workflow("conformance-noop", "No operation", ("noop",)),
    _workflow(
        "conformance-idempotent",
        "No operation, with a nonce",
        ("noop",),
        _variable("nonce", "string", "Distinguishes requests.", required=True),
    ),
)
ADVERTISED_WORKFLOWS = tuple(_ADVERTISED)
WORKFLOWS = {
    **_ADVERTISED,
    AGENT_WORKFLOW: _workflow(
        AGENT_WORKFLOW,
        "Call an agent once",
        ("agent",),
        _variable("input", "object", "The task: a text or any value."),
        _variable("messages", "array", "Or a conversation; the last message is the user's."),
        kind=AGENT_WORKFLOW,
    ),
}
CONFORMANCE_WORKFLOWS = _by_id(
    _workflow("conformance-agent-reasoning", "No operation", ("reasoner",)),
    _workflow("conformance-dispatch-loop", "No operation, three times", ("supervisor", "dispatch", "worker")),
    _workflow("conformance-delay", "Wait", ("delay",), _DELAY_MS, kind=DELAY),
    _workflow("conformance-cancellable", "Wait, or be cancelled", ("delay",), _DELAY_MS, kind=DELAY),
)
"""Available with conformance routes only, and not advertised: two of them do nothing where other hosts reason, and a host
that advertises the waiting ones claims pause and bulk cancel, which this host does not provide.
"""


def validate_inputs(workflow: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    required = [variable["name"] for variable in workflow["variables"] if variable["required"]]
    if missing := [name for name in required if name not in inputs]:
        raise validation_error(f"Missing inputs of the workflow: {', '.join(missing)}", "inputs", missing=missing)
    delay = inputs.get("delayMs", 0) if _DELAY_MS in workflow["variables"] else 0
    if type(delay) not in (int, float) or not 0 <= delay <= MAX_DELAY_MS:
        raise validation_error(f"delayMs must be a number from 0 to {MAX_DELAY_MS}", "inputs.delayMs")


def select_inputs(workflow: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that the nodes use; others are not stored."""
    return {"delayMs": inputs["delayMs"]} if _DELAY_MS in workflow["variables"] and "delayMs" in inputs else {}


async def run_workflow(workflow: Mapping[str, Any], inputs: Mapping[str, Any], log: RunLog) -> None:
    """Executes the nodes that were not completed before a restart of the host."""
    started, completed = (
        {event.node_id for event in log.events_of_type(f"node.{kind}")} for kind in ("started", "completed")
    )
    for node in workflow["nodes"]:
        name, kind = str(node["id"]), str(node["typeId"])
        if name in completed:
            continue
        if kind == DELAY:
            if name not in started:
                log.append([node_started(name, kind)])
            await asyncio.sleep(inputs.get("delayMs", _DEFAULT_DELAY_MS) / 1e3)
            log.append([node_completed(name)])
        else:
            log.append([node_started(name, kind), node_completed(name)])
