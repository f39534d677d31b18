"""The files of examples/deploy, as far as this machine has the programs for them."""

import json
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.client import HTTPResponse, HTTPSConnection
from pathlib import Path

import click
import pytest

from running_host import ACME, Client, free_port, start_host, write_project
from viva.cli import serve

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "examples" / "deploy"
NGINX = shutil.which("nginx")


def say_not_run(what: str, program: str, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\nNOT RUN: {what}: there is no {program} here", file=sys.stderr, flush=True)


def read_commands() -> list[list[str]]:
    """How the unit and the container start a host."""
    unit = re.findall(r"^ExecStart=(.+)$", (DEPLOY / "viva-serve.service").read_text(), re.MULTILINE)
    container = (DEPLOY / "Containerfile").read_text()
    parts = [
        json.loads(part)
        for name in ("ENTRYPOINT", "CMD")
        for part in re.findall(rf"^{name} (\[.+\])$", container, re.MULTILINE)
    ]
    return [*map(shlex.split, unit), [word for part in parts for word in part]]


def test_the_commands_of_unit_and_container_are_valid():
    commands = read_commands()
    assert len(commands) == 2
    for command in commands:
        assert [Path(command[0]).name, command[1]] == ["viva", "serve"]
        context = click.Context(serve.command)
        serve.command.parse_args(context, list(command[2:]))
        assert (context.params["drain"], context.params["keep"]) == (30.0, 30 * 86400)


def test_the_container_does_not_run_as_root_and_has_the_health_of_its_own_port():
    text = (DEPLOY / "Containerfile").read_text()
    steps = re.findall(r"^([A-Z]+) (.+)$", text, re.MULTILINE)
    names = [name for name, _ in steps]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert dict(steps)["USER"] == "viva"
    port = dict(steps)["EXPOSE"]
    assert f"http://127.0.0.1:{port}/healthz" in text
    assert f'"--port", "{port}"' in text


def test_systemd_accepts_the_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    if shutil.which("systemd-analyze") is None:
        say_not_run("the unit of systemd", "systemd-analyze", capsys)
        return
    text = (DEPLOY / "viva-serve.service").read_text()
    unit = tmp_path / "viva-serve.service"
    unit.write_text(text.replace("/opt/viva/bin/viva", str(Path(sys.executable).with_name("viva"))))
    checked = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=300, check=False
    )
    about_it = [line for line in checked.stderr.splitlines() if "viva-serve" in line]
    assert about_it == []
    assert "network-online.target" in text


@contextmanager
def run_nginx(folder: Path, port: int, host_port: int) -> Generator[None]:
    """A real nginx with the configuration of the example, on another port and with a certificate made here."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=evals.example.com",
         "-addext", "subjectAltName=DNS:evals.example.com", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    text = (DEPLOY / "nginx.conf").read_text()
    for old, new in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("server 127.0.0.1:8765", f"server 127.0.0.1:{host_port}"),
        ("/etc/ssl/evals.example.com.pem", f"{folder}/cert.pem"),
        ("/etc/ssl/evals.example.com.key", f"{folder}/key.pem"),
        ("/etc/nginx/viva-proxy.inc", f"{DEPLOY}/viva-proxy.inc"),
    ):
        assert old in text
        text = text.replace(old, new)
    paths = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;"
        f"events {{}} http {{ access_log off; {paths} {text} }}"
    )
    process = subprocess.Popen([str(NGINX), "-p", folder, "-c", folder / "nginx.conf"], stderr=subprocess.PIPE)
    try:
        yield
    finally:
        process.terminate()
        process.communicate(timeout=300)


class ProxyClient:
    """Sends requests through the proxy."""

    def __init__(self, folder: Path, port: int) -> None:
        self._port = port
        self._tls = ssl.create_default_context(cafile=str(folder / "cert.pem"))
        self._tls.check_hostname = False

    @contextmanager
    def send(
        self, method: str, path: str, body: object = None, source: str = "127.0.0.1", **headers: str
    ) -> Generator[HTTPResponse]:
        connection = self._connect(source)
        own = {"Host": "evals.example.com", "Authorization": f"Bearer {ACME}", **headers}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), own)
            yield connection.getresponse()
        finally:
            connection.close()

    def _connect(self, source: str) -> HTTPSConnection:
        deadline = time.monotonic() + 30
        while True:
            connection = HTTPSConnection(
                "127.0.0.1", self._port, timeout=30, context=self._tls, source_address=(source, 0)
            )
            try:
                connection.connect()
            except ConnectionRefusedError:  # it has not started yet
                assert time.monotonic() < deadline
            else:
                return connection


def test_a_host_works_behind_nginx(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Links, streams and addresses of clients are right; headers of clients about themselves do not count."""
    if NGINX is None:
        say_not_run("the proxy", "nginx", capsys)
        return
    port, host_port = free_port(), free_port()
    public_url = f"https://evals.example.com:{port}"
    write_project(
        tmp_path, serve=f'trusted_proxies = ["127.0.0.1"]\naccess_log = "access.jsonl"\npublic_url = "{public_url}"'
    )
    (tmp_path / "nginx").mkdir()
    with start_host(tmp_path, host_port), run_nginx(tmp_path / "nginx", port, host_port):
        proxy = ProxyClient(tmp_path / "nginx", port)
        body = {"mode": "eval", "evalSuiteRef": "acme.evals.basic@1.0.0", "agentId": "local.viva.hang"}
        spoofed = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Host": "evil.example"}
        with proxy.send("POST", "/v1/runs", body, "127.0.0.2", **spoofed) as response:
            created = json.loads(response.read())
        assert created["eventsUrl"] == f"{public_url}/v1/runs/{created['runId']}/events"
        with proxy.send("GET", f"/v1/runs/{created['runId']}/events") as response:
            assert response.readline() == b"id: 0\n"  # before the run has ended
        for path, source, status in (
            ("/metrics", "127.0.0.1", 404),
            ("/v1/admin/runs", "127.0.0.2", 403),
            ("/v1/admin/runs", "127.0.0.1", 403),  # the answer of the host: the token has no scope admin
            ("/healthz", "127.0.0.2", 200),
        ):
            with proxy.send("GET", path, source=source) as response:
                assert (path, response.status) == (path, status)
        Client(host_port).post(f"/v1/runs/{created['runId']}/cancel", {})
    entries = [json.loads(line) for line in (tmp_path / "access.jsonl").read_text().splitlines()]
    assert {entry["client"] for entry in entries if entry.get("operation") == "create_run"} == {"127.0.0.2"}
