"""A host on a real socket for tests, and a client that validates every response with the official schemas."""

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jsonschema_rs

from viva.agents.openwop_client import HostClient
from viva.host.server import build_server
from viva.host.setup import ServeFlags, load_setup
from viva.llm.transport import HttpTransport
from viva.model.connector import Secret

OFFICIAL = Path(__file__).resolve().parents[2] / "shared" / "specs" / "openwop"
ACME, OTHER, READER = "acme-token-0123456789", "other-token-0123456789", "other-reader-0123456789"
ECHO = "local.acme.echo"
SUITE = "acme.evals.basic@1.0.0"
OUTCOMES = ("run.completed", "run.failed", "run.cancelled")

AGENTS = """
import asyncio, pathlib
from viva.model.message import ModelCall, Reply, ToolCall

def echo(messages, options):
    return messages[-1]["content"]

def second(messages, options):
    return "something else"

def leaking(messages, options):
    return "it is sk-proj-Q7mZt2Kx9LwR4vBn8JcH5pYd"

async def hang(messages, options):
    await asyncio.Event().wait()

def broken(messages, options):
    raise RuntimeError("boom " + messages[-1]["content"])

def cut_off(messages, options):
    raise ConnectionError("boom")

def shaky(messages, options):
    if messages[-1]["content"] == "a" and pathlib.Path(__file__).with_name("down").exists():
        raise ConnectionError("boom")
    return messages[-1]["content"]

class ProviderDown(ConnectionError):
    __module__ = "openai"

def keyless(messages, options):
    raise ProviderDown("boom")

def costly(messages, options):
    calls = (ModelCall("m-1", "openai", 10, 5, cost_usd=0.25), ModelCall("m-1", "openai", 3, 2, cost_usd=0.5))
    return Reply(messages[-1]["content"], calls=calls)

def unpriced(messages, options):
    return Reply(messages[-1]["content"], calls=(ModelCall("m-2", "openai", 10, 5),))

def refusing(messages, options):
    return Reply("no", finish_reason="content_filter")

def grabbing(messages, options):
    return Reply(messages[-1]["content"], tool_calls=(ToolCall("shell", {"cmd": "ls"}, result="x"),))

def stubbed(messages, options, tools=None, memory=None):
    if tools is None:
        return "live"
    return {"data": {"found": tools.call("kb:search", q="x"), "memory": memory}}

def structured(messages, options):
    if "raise" in messages[-1]["content"]:
        raise RuntimeError("boom")
    if "refuse" in messages[-1]["content"]:
        return Reply("I cannot help with that", finish_reason="content_filter")
    return Reply("", data={"answer": "yes"} if "good" in messages[-1]["content"] else {"wrong": True})
"""

MOODY = """
import asyncio, random

async def moody(messages, options):
    await asyncio.sleep(0.05 + random.random() * 0.3)
    return random.choice([messages[-1]["content"], "something else"])
"""

CONFIG = """
[defaults]
timeout = "30s"

[agents.echo]
use = "python:./agents.py:echo"
agent_id = "local.acme.echo"

[agents.second]
use = "python:./agents.py:second"
model_class = "coding"

[agents.leaking]
use = "python:./agents.py:leaking"

[agents.hang]
use = "python:./agents.py:hang"

[agents.broken]
use = "python:./agents.py:broken"

[agents.cut_off]
use = "python:./agents.py:cut_off"

[agents.keyless]
use = "python:./agents.py:keyless"

[agents.shaky]
use = "python:./agents.py:shaky"

[agents.costly]
use = "python:./agents.py:costly"

[agents.unpriced]
use = "python:./agents.py:unpriced"

[agents.refusing]
use = "python:./agents.py:refusing"

[agents.grabbing]
use = "python:./agents.py:grabbing"
tools = ["search"]

[agents.stubbed]
use = "python:./agents.py:stubbed"

[agents.structured]
use = "python:./agents.py:structured"
agent_id = "local.acme.structured.default"

[openwop]
suites = [{suites}]

[openwop.tenants.acme]
tokens = ["acme-token-0123456789"]
suites = ["evals/private.json"]

[openwop.tenants.other]
tokens = ["other-token-0123456789"]
read_tokens = ["other-reader-0123456789"]

[serve]
{serve}
"""


def golden_task(name: str, task_input: Any, value: Any, strategy: str = "exact", **more: Any) -> dict[str, Any]:
    """A task with one expected response."""
    expected = {"kind": "golden", "match": {"strategy": strategy, "value": value}}
    return {"taskId": name, "input": task_input, "expected": expected, **more}


def build_suite(name: str, *tasks: dict[str, Any], modes: tuple[str, ...] = ("golden",), **more: Any) -> dict[str, Any]:
    return {"suiteId": f"acme.evals.{name}", "version": "1.0.0", "modes": list(modes), "tasks": list(tasks), **more}


BASIC = build_suite(
    "basic", golden_task("one", "hello", "hello"), golden_task("two", "hello world", "nope", "contains")
)
PRIVATE = build_suite("private", golden_task("one", "hello", "hello"))


def write_project(folder: Path, *suites: Mapping[str, Any], serve: str = "", packs: tuple[str, ...] = ()) -> None:
    """A project with agents of all kinds, the basic suite, a private suite of acme, and more suites."""
    (folder / "evals").mkdir(exist_ok=True)
    (folder / "agents.py").write_text(AGENTS)
    names = [f"evals/{each['suiteId'].rpartition('.')[2]}.json" for each in (BASIC, *suites)]
    for name, each in zip([*names, "evals/private.json"], [BASIC, *suites, PRIVATE], strict=True):
        (folder / name).write_text(json.dumps(each))
    listed = ", ".join(f'"{name}"' for name in (*names, *packs))
    (folder / "viva.toml").write_text(CONFIG.replace("{suites}", listed).replace("{serve}", serve))


class HostResponse:
    def __init__(self, status: int, headers: Mapping[str, str], raw: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.raw = raw

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    def __repr__(self) -> str:
        return f"{self.status} {self.raw[:500]!r}"


class Client:
    """Sends requests to a host, and validates responses with the official schemas, if they are present."""

    def __init__(self, port: int, token: str | None = ACME) -> None:
        self.port = port
        self.token = token
        self.received: list[bytes] = []
        """Every response, with its headers."""

    def with_token(self, token: str | None) -> "Client":
        return Client(self.port, token)

    def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, timeout_s: float = 300
    ) -> HostResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
            connection.request(method, path, raw, self.headers(headers))
            response = connection.getresponse()
            found = HostResponse(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()
        self.received.append(repr(found.headers).encode() + found.raw)
        check_official(method, path, found)
        return found

    def headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        own = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return {**own, "Content-Type": "application/json", **(more or {})}

    def get(self, path: str, **headers: str) -> HostResponse:
        return self.send("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path: str, body: Any, key: str | None = None) -> HostResponse:
        return self.send("POST", path, body, {"Idempotency-Key": key} if key else None)

    def start_eval(self, ref: str = SUITE, agent: str = ECHO, **configurable: Any) -> HostResponse:
        body: dict[str, Any] = {"mode": "eval", "evalSuiteRef": ref, "agentId": agent}
        return self.post("/v1/runs", {**body, "configurable": configurable} if configurable else body)

    def start_eval_with_key(self, key: str) -> HostResponse:
        return self.post("/v1/runs", {"mode": "eval", "evalSuiteRef": SUITE, "agentId": ECHO}, key)

    def wait_for_events(self, run: str) -> list[dict[str, Any]]:
        """All events of a run, after its end."""
        received: list[dict[str, Any]] = []
        silent = 0
        while silent < 10:
            last = received[-1]["sequence"] if received else -1
            response = self.get(f"/v1/runs/{quote(run)}/events/poll?lastSequence={last}&timeout=20")
            assert response.status == 200, response
            received += response.json["events"]
            if response.json["isComplete"]:
                return received
            silent = 0 if response.json["events"] else silent + 1
        raise AssertionError(f"{run} does not end: {[each['type'] for each in received]}")

    def run_eval(self, ref: str = SUITE, agent: str = ECHO, **configurable: Any) -> tuple[str, list[dict[str, Any]]]:
        """Runs an eval to its end; returns its id and events."""
        created = self.start_eval(ref, agent, **configurable)
        assert created.status == 201, created
        run = created.json["runId"]
        return run, self.wait_for_events(run)

    def get_summary(self, run: str) -> dict[str, Any]:
        response = self.get(f"/v1/runs/{run}/eval-summary")
        assert response.status == 200, response
        return response.json

    def read_stream(self, run: str, query: str = "", last: str | None = None) -> list[dict[str, Any]]:
        """The frames of a stream until the host closes it: id, event, data."""
        more = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last is not None else {})}
        response = self.send("GET", f"/v1/runs/{run}/events{query}", headers=more)
        assert response.status == 200, response
        return parse_frames(response.raw.decode())

    @contextmanager
    def open_stream(self, run: str, query: str = "", last: str | None = None) -> Generator[http.client.HTTPResponse]:
        """A stream that is read while it is open."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(
                "GET", f"/v1/runs/{run}/events{query}", headers=self.headers({"Last-Event-ID": last} if last else None)
            )
            yield connection.getresponse()
        finally:
            connection.close()


def parse_frames(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for block in text.split("\n\n"):
        lines = [line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            found.append(dict(lines))  # type: ignore[arg-type]
    return found


def event_types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def find_run_files(folder: Path, run: str) -> list[str]:
    """The names of files and folders with the id of a run, also while a host deletes some of them."""
    return [name for _, folders, files in os.walk(folder) for name in (*folders, *files) if run in name]


@contextmanager
def run_host(folder: Path, *, conformance: bool = False) -> Generator[Client]:
    """Runs a host in this process."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(512)
        port = listening.getsockname()[1]
        setup = load_setup(folder / "viva.toml", folder, ServeFlags(port=port, conformance_routes=conformance))
        ready = threading.Event()
        server = build_server(setup, ready.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            assert ready.wait(300)
            yield Client(port)
        finally:
            server.handle_exit(signal.SIGTERM, None)
            thread.join(300)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def start_host(
    folder: Path, port: int, *flags: str, sandbox: tuple[str, ...] = ()
) -> Generator[tuple[Client, "subprocess.Popen[str]"]]:
    """Runs `viva serve` in a process of its own, which a sandbox may confine."""
    process = subprocess.Popen(
        [*sandbox, sys.executable, "-m", "viva", "serve", "--port", str(port), *flags],
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "OpenWOP host at" in line, line + process.stdout.read()
        yield Client(int(re.findall(r":(\d+)", line)[-1])), process
    except BaseException:
        process.kill()
        print(f"output of the host, exit code {process.wait(300)}:", process.stdout and process.stdout.read())
        raise
    finally:
        process.kill()
        process.wait(300)
        if process.stdout is not None:
            process.stdout.close()


class Reader(threading.Thread):
    """Follows a run across restarts of its host."""

    def __init__(self, port: int, run: str) -> None:
        super().__init__()
        self._url = f"http://127.0.0.1:{port}"
        self.run_id = run
        self.seen: list[dict[str, Any]] = []

    def run(self) -> None:
        asyncio.run(self._follow())

    async def _follow(self) -> None:
        http = HttpTransport()
        client = HostClient(url=self._url, token=Secret(ACME), http=http)
        try:
            async for event in client.iterate_events(self.run_id, "debug"):
                self.seen.append(event)
        finally:
            await http.close()


@cache
def validator(name: str, part: str = "") -> Any:
    def beside(uri: str) -> Any:
        return json.loads((OFFICIAL / uri.rpartition("/")[2]).read_text())

    schema = json.loads((OFFICIAL / name).read_text())
    if part:
        schema = {"$defs": schema["$defs"], "$ref": f"#/$defs/{part}"}
    return jsonschema_rs.validator_for(schema, retriever=beside, validate_formats=True)


_reported: set[str] = set()


def check_schema(name: str, value: Any, part: str = "") -> None:
    """Raises if the official schema does not allow the value. Prints a note if the schema is not present."""
    if not OFFICIAL.is_dir():
        if name not in _reported:
            _reported.add(name)
            print(
                f"\nNOT CHECKED: responses against the official {name}: {OFFICIAL} is missing",
                file=sys.stderr,
                flush=True,
            )
        return
    validator(name, part).validate(value)


@cache
def payload_schemas() -> dict[str, str]:
    index = json.loads((OFFICIAL / "run-event-payloads.schema.json").read_text())["$defs"]["_typeIndex"]["properties"]
    return {kind: each["$ref"].rpartition("/")[2] for kind, each in index.items()}


def check_event(event: dict[str, Any]) -> None:
    check_schema("run-event.schema.json", event)
    if OFFICIAL.is_dir() and event["type"] in payload_schemas():
        check_schema("run-event-payloads.schema.json", event["payload"], payload_schemas()[event["type"]])
    if event["type"] == "run.completed" and "suiteId" in event["payload"].get("outputs", {}):
        check_schema("eval-summary.schema.json", event["payload"]["outputs"])


def check_official(method: str, path: str, response: HostResponse) -> None:
    """Validates a response with the schema of its endpoint."""
    bare = path.partition("?")[0]
    parts = bare.strip("/").split("/")
    if bare == "/readyz":  # it is not of OpenWOP
        return
    if response.status >= 400:
        check_schema("error-envelope.schema.json", response.json)
    elif response.status == 304:
        assert response.raw == b""
    elif bare == "/.well-known/openwop":
        check_schema("capabilities.schema.json", response.json)
    elif method == "POST" and bare == "/v1/runs":
        check_schema("derived/create-run-response.schema.json", response.json)
    elif bare == "/v1/agents":
        check_schema("agent-inventory-response.schema.json", response.json)
    elif parts[:2] == ["v1", "agents"]:
        check_schema("agent-inventory-response.schema.json", response.json, "AgentInventoryEntry")
    elif parts[:2] == ["v1", "runs"]:
        _check_run(method, parts, response)


def _check_run(method: str, parts: list[str], response: HostResponse) -> None:
    what = "/".join(parts[3:])
    if what == "events/poll":
        for event in response.json["events"]:
            check_event(event)
    elif what == "events":
        for frame in parse_frames(response.raw.decode()):
            data = json.loads(frame["data"])
            if frame["event"] == "state.snapshot":
                check_schema("run-snapshot.schema.json", data)
            else:
                for event in data if isinstance(data, list) else [data]:
                    check_event(event)
    elif what == "eval-summary":
        check_schema("eval-summary.schema.json", response.json)
    elif what == "annotations":
        for each in [response.json] if method == "POST" else response.json["annotations"]:
            check_schema("annotation.schema.json", each)
    elif parts[2].endswith(":diff"):
        check_schema("run-diff-response.schema.json", response.json)
    elif not what:
        check_schema("run-snapshot.schema.json", response.json)
