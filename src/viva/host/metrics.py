"""The metrics of a host as Prometheus text."""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import viva
from viva.host.connections import ConnectionRegistry
from viva.host.host import Host

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STARTED_AT = time.time()
Samples = Iterable[tuple[Mapping[str, object], float]]


def format_metrics(host: Host, connections: ConnectionRegistry) -> str:
    monitor, queues = host.monitor, host.store.list_queues()
    requests = [({"method": method, "code": code}, count) for (method, code), count in sorted(monitor.requests.items())]
    ended = [({"kind": kind, "status": status}, count) for (kind, status), count in sorted(host.runs.ended.items())]
    closed = [({"reason": reason}, count) for reason, count in sorted(connections.closed_early.items())]
    count = sum(monitor.requests.values())
    families = (
        _family("viva_build_info", "gauge", "The version of Viva.", [({"version": viva.__version__}, 1)]),
        _family("viva_ready", "gauge", "Whether the host takes new runs.", [({}, host.readiness().is_ready)]),
        _family("viva_http_requests_total", "counter", "Requests by method and status.", requests),
        _family("viva_http_request_seconds_sum", "counter", "The time of all requests.", [({}, monitor.request_seconds)]),
        _family("viva_http_request_seconds_count", "counter", "How many requests were timed.", [({}, count)]),
        _family("viva_runs_running", "gauge", "Runs that execute, by tenant.", [({"tenant": each.tenant}, each.running) for each in queues]),
        _family("viva_runs_waiting", "gauge", "Runs that wait, by tenant.", [({"tenant": each.tenant}, each.waiting) for each in queues]),
        _family("viva_runs_ended_total", "counter", "Runs that ended on this host.", ended),
        _family("viva_connections", "gauge", "Open connections.", [({}, len(connections))]),
        _family("viva_connections_anonymous", "gauge", "Open connections without a valid token.", [({}, connections.anonymous_count)]),
        _family("viva_connections_closed_total", "counter", "Connections that the host closed itself.", closed),
        _family("process_start_time_seconds", "gauge", "When the process started.", [({}, _STARTED_AT)]),
        _family("process_resident_memory_bytes", "gauge", "Memory of the process.", [({}, _read_memory())]),
    )  # fmt: skip
    return "".join(families)


def _family(name: str, kind: str, description: str, samples: Samples) -> str:
    lines = [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{_format_labels(labels)} {_format_number(value)}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _format_labels(labels: Mapping[str, object]) -> str:
    pairs = [f'{name}="{_escape(str(value))}"' for name, value in labels.items()]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _format_number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _read_memory() -> float:
    """The resident memory, where the system tells it; else 0."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
