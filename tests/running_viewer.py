"""`viva view` as a process, and a client that behaves like a browser: it opens the link once and keeps the cookie."""

import contextlib
import http.client
import json
import re
import signal
import subprocess
from collections.abc import Generator, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from project import Project


class ViewerResponse:
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"{self.status} {self.body[:2000]!r}"


class ViewerProcess:
    """A running viewer. `link` is the printed link, which is not opened yet."""

    def __init__(self, process: subprocess.Popen[str], link: str) -> None:
        self.process = process
        self.link = link
        self.address = urlsplit(link)
        self.origin = f"http://{self.address.netloc}"
        self.cookie = ""

    def open_link(self) -> ViewerResponse:
        """Opens the link as a browser does, and keeps the cookie."""
        response = self.send("GET", f"/?{self.address.query}")
        self.cookie = response.headers.get("set-cookie", "").partition(";")[0]
        return response

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> ViewerResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.address.port or 0, timeout=300)
        with contextlib.closing(connection):
            raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, raw, self._headers(headers))
            response = connection.getresponse()
            kept = {name.lower(): value for name, value in response.getheaders()}
            return ViewerResponse(response.status, kept, response.read())

    def get(self, path: str, **headers: str) -> ViewerResponse:
        return self.send("GET", path, **headers)

    def post(self, path: str, body: Any = None) -> ViewerResponse:
        return self.send("POST", path, body, Origin=self.origin)

    def events(self, path: str) -> Iterator[tuple[str, Any]]:
        """The messages of a stream until the server ends it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.address.port or 0, timeout=300)
        connection.request("GET", path, headers=self._headers({}))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return self._messages(connection, response)

    @staticmethod
    def _messages(
        connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> Iterator[tuple[str, Any]]:
        with contextlib.closing(connection):
            name = ""
            for line in response:
                key, _, value = line.decode().rstrip("\n").partition(": ")
                if key == "event":
                    name = value
                elif key == "data":
                    yield name, json.loads(value)
                    name = ""

    def _headers(self, given: Mapping[str, str]) -> dict[str, str]:
        cookie = {"Cookie": self.cookie} if self.cookie else {}
        return cookie | {name.replace("_", "-"): value for name, value in given.items()}


WAITING = """
import pathlib, time
def agent(messages, options):
    text = messages[-1]["content"]
    while text.startswith("wait for ") and not pathlib.Path(text[9:]).exists():
        time.sleep(0.01)
    return text
"""
"""An agent that waits at `wait for NAME` until there is a file of that name."""
AGENT = "python:./agent.py:agent"


def start_waiting_run(project: Project, *cases: Mapping[str, Any]) -> subprocess.Popen[str]:
    """Starts a run with the agent that waits, and returns when the case `first` has ended."""
    project.write("agent.py", WAITING)
    project.suite(*cases)
    running = project.start("test", "-i", "suite.jsonl", "-n", AGENT, "--parallel", "1")
    assert running.stdout is not None
    while "first" not in running.stdout.readline():
        assert running.poll() is None
    return running


@contextlib.contextmanager
def run_viewer(project: Project, *arguments: str) -> Generator[ViewerProcess]:
    """Runs `viva view`, and ends it as Ctrl-C does."""
    process = project.start("view", "--no-open", *arguments)
    try:
        assert process.stdout is not None
        text = ""
        while (found := re.search(r"http://\S+", text)) is None:
            line = process.stdout.readline()
            assert line, f"it ended: {text}{process.communicate()[1]}"
            text += line
        yield ViewerProcess(process, found[0])
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
        assert (process.returncode, err) == (0, ""), out + err
    finally:
        process.kill()
        process.communicate()
