"""`viva view` over HTTP: access, data, live runs and starting runs."""

import contextlib
import json
import os
import re
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from project import Project, case, contains
from running_viewer import AGENT, WAITING, ViewerProcess, run_viewer, start_waiting_run

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def shared_viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewerProcess]:
    """A viewer of two runs, with its link opened."""
    project = Project(tmp_path_factory.mktemp("seen"))
    project.suite(case("a"), case("b", assertions=[contains("nothing like it")]), case("c", tags=["slow"]))
    assert project.test("--runs", "2").code == 1
    assert project.test("-k", "^[ac]$").code == 0
    with run_viewer(project) as viewer:
        viewer.open_link()
        yield viewer


def test_the_link_works_once_and_gives_a_cookie_that_scripts_cannot_read(project: Project):
    with run_viewer(project) as viewer:
        before = viewer.get("/")
        first = viewer.open_link()
        cookie, viewer.cookie = viewer.cookie, ""
        second = viewer.open_link()
        viewer.cookie = cookie
        inside = viewer.get("/api/status")
    assert (before.status, b"viva view" in before.body) == (401, True)
    assert first.status == 303
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(first.headers["set-cookie"].split("; "))
    assert second.status == 403
    assert "set-cookie" not in second.headers
    assert inside.json["allow_run"] is False


def test_cookies_of_other_servers_are_ignored(shared_viewer: ViewerProcess):
    """Cookies ignore ports, and some are malformed."""
    odd = 'prefs={"theme": "dark, light"}; =; \x7f=1; {}; '
    assert shared_viewer.get("/api/status", Cookie=odd + shared_viewer.cookie).status == 200
    assert shared_viewer.get("/api/status", Cookie=odd).status == 401


def test_prefetching_does_not_use_up_the_link(project: Project):
    with run_viewer(project) as viewer:
        link = f"/?{viewer.address.query}"
        assert viewer.send("HEAD", link).status == 403
        assert viewer.get(link, Sec_Purpose="prefetch").status == 403
        assert viewer.get("/?token=guessed").status == 403
        assert viewer.open_link().status == 303


@pytest.mark.parametrize("path", ["/api/status", "/api/runs", "/api/runs/latest", "/api/history", "/nowhere"])
def test_without_the_cookie_there_is_no_access(shared_viewer: ViewerProcess, path: str):
    cookie, shared_viewer.cookie = shared_viewer.cookie, ""
    try:
        assert shared_viewer.get(path).status == 401
        assert shared_viewer.get(path, Cookie="viva-00000000=guess; broken\x7f=1").status == 401
    finally:
        shared_viewer.cookie = cookie


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil", ""])
def test_other_host_names_are_refused(shared_viewer: ViewerProcess, host: str):
    """DNS rebinding: a site that resolves its name to this machine gets nothing."""
    assert shared_viewer.get("/api/runs", Host=host).status == 421


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:7", "LOCALHOST"])
def test_loopback_names_are_accepted_with_any_port(shared_viewer: ViewerProcess, host: str):
    """The other end of a tunnel may have another port."""
    assert shared_viewer.get("/api/status", Host=host).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
    ],
    ids=str,
)
def test_pages_of_other_origins_get_no_data(shared_viewer: ViewerProcess, headers: dict[str, str]):
    assert shared_viewer.get("/api/runs", **headers).status == 403


def test_every_response_has_security_headers(shared_viewer: ViewerProcess):
    for path, csp in (
        ("/", "script-src 'sha256-"),
        ("/api/runs", "default-src 'none'"),
        ("/api/none", "default-src 'none'"),
    ):
        headers = shared_viewer.get(path).headers
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert csp in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "server" not in headers


def test_runs_are_listed_newest_first_with_their_summaries(shared_viewer: ViewerProcess):
    newest, oldest = shared_viewer.get("/api/runs").json
    assert (newest["summary"]["passed"], oldest["summary"]["failed"]) == (2, 1)
    assert not newest["live"]
    assert shared_viewer.get("/api/status").json["live"] == []


def test_an_overview_has_a_row_for_each_case(shared_viewer: ViewerProcess):
    shown = shared_viewer.get("/api/runs/latest~1").json
    assert [(row["id"], row["status"], len(row["trials"])) for row in shown["cases"]] == [
        ("a", "passed", 2),
        ("b", "failed", 2),
        ("c", "passed", 2),
    ]
    assert shown["summary"]["failed"] == 1
    assert shown["run"] == shared_viewer.get(f"/api/runs/{shown['run']}").json["run"]


def test_the_trials_of_a_case_are_the_records_of_the_report(shared_viewer: ViewerProcess):
    rows = shared_viewer.get("/api/runs/latest~1").json["cases"]
    trials = shared_viewer.get(f"/api/runs/latest~1/cases/{rows[1]['index']}").json["trials"]
    assert [(trial["id"], trial["trial"]) for trial in trials] == [("b", 1), ("b", 2)]
    assert trials[0]["turns"][0]["output"] == "hello"


def test_conversations_are_searched_on_the_server(shared_viewer: ViewerProcess):
    found = shared_viewer.get("/api/runs/latest~1/search?q=nothing%20HELLO").json
    rows = shared_viewer.get("/api/runs/latest~1").json["cases"]
    assert [case["index"] for case in found] == [rows[1]["index"]]
    assert [(hit["place"], hit["kind"]) for hit in found[0]["hits"]][:2] == [("turn-1", "user"), ("turn-1", "reply")]
    assert shared_viewer.get("/api/runs/latest~1/search?q=").json == []
    assert shared_viewer.get(f"/api/runs/latest~1/search?q={'x' * 1001}").status == 400


def test_the_records_of_a_run_are_downloaded_as_lines(shared_viewer: ViewerProcess):
    answer = shared_viewer.get("/api/runs/latest~1/records")
    assert re.search(r'attachment; filename="[\w-]+\.jsonl"', answer.headers["content-disposition"])
    records = [json.loads(line) for line in answer.body.splitlines()]
    assert [(record["id"], record["trial"]) for record in records] == [(name, n) for name in "abc" for n in (1, 2)]


def test_a_comparison_equals_the_command_output(shared_viewer: ViewerProcess):
    two = shared_viewer.get("/api/compare?base=latest~1&head=latest").json
    compared = two["comparison"]
    assert {each["case"]: each["change"] for each in compared["cases"]} == {
        "a": "still passing",
        "b": "gone",
        "c": "still passing",
    }
    assert shared_viewer.get("/api/compare?base=latest").status == 400
    assert shared_viewer.get("/api/compare?base=latest&head=nosuch").status == 404
    assert shared_viewer.get("/api/compare?base=latest&head=latest&head_agent=nosuch").status == 404
    matrix = shared_viewer.get("/api/matrix?run=latest&run=latest~1").json
    assert len(matrix["columns"]) == len(matrix["matrix"]["columns"]) == 2
    assert shared_viewer.get("/api/matrix").status == 400


def test_history_has_each_run_with_its_pass_rate(shared_viewer: ViewerProcess):
    history = shared_viewer.get("/api/history").json
    (line,) = history["lines"]
    assert [(point["passed"], point["decided"]) for point in line["points"]] == [(2, 3), (2, 2)]
    assert all(point["p95_ms"] > 0 and point["low"] < point["pass_rate"] for point in line["points"])


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs/nosuch",
        "/api/runs/latest~99",
        "/api/runs/latest/cases/999",
        "/api/runs/latest/cases/-1",
        "/api/runs/latest/cases/x",
        f"/api/runs/latest/cases/{'9' * 5000}",
        "/api/runs/nosuch/events",
        "/api/runs/..%2F..%2F..%2Fetc%2Fpasswd",
        "/api/runs/%2e%2e",
        "/api/runs/../../../../etc/passwd",
        "/api/runs/..",
        "/api/runs/.%00",
        "/api/runs/%2Fetc/cases/0",
        "/static/page.html",
        "//etc/passwd",
    ],
)
def test_unknown_resources_are_404_as_json(shared_viewer: ViewerProcess, path: str):
    response = shared_viewer.get(path)
    assert response.status == 404, response
    assert response.json["error"]
    assert b"root:" not in response.body


def test_a_name_cannot_reach_a_journal_elsewhere(shared_viewer: ViewerProcess, tmp_path: Path):
    """Names are looked up in the index; other folders are not found."""
    (tmp_path / "journal.jsonl").write_text("{}\n")
    up = "..%2F" * 12
    assert shared_viewer.get(f"/api/runs/{up}{str(tmp_path).strip('/').replace('/', '%2F')}").status == 404


def test_labels_are_kept_beside_the_run_with_who_and_when(project: Project):
    """A read-only viewer takes them: they start nothing, and change no verdict. Secrets are removed from notes."""
    project.suite(case("a", assertions=[contains("hello"), contains("zzz")]))
    project.write("viva.toml", '[connectors.c]\nprovider = "openai"\nmodel = "m"\napi_key_env = "MY_KEY"\n')
    project.env["MY_KEY"] = "sk-verysecretkey12345"
    project.test(code=1)
    with run_viewer(project) as viewer:
        viewer.open_link()
        run = viewer.get("/api/runs").json[0]["id"]
        path = f"/api/runs/{run}/cases/0/labels"
        before = viewer.get(f"/api/runs/{run}").body
        assert viewer.get(f"/api/runs/{run}/labels").json["summary"] == {"labels": [], "judges": None, "all": None}
        assert viewer.post(path, {"label": "agree", "check": "1-1"}).status == 201
        note = "key sk-verysecretkey12345 leaked"
        given = viewer.post(path, {"label": "disagree", "check": "1-2", "note": note}).json
        first, second = given["summary"]["labels"]
        assert (first["check"], first["verdict"], first["who"]) == ("1-1", "passed", given["who"])
        assert (second["name"], second["verdict"], second["label"]) == ('contains "zzz"', "failed", "disagree")
        assert "verysecret" not in second["note"]
        assert "leaked" in second["note"]
        assert given["summary"]["all"]["false_failures"] == 1
        assert viewer.post(path, {"label": None, "check": "1-2"}).json["summary"]["labels"] == [first]
        kept = project.folder / ".viva" / "runs" / run / "labels.jsonl"
        assert (len(kept.read_text().splitlines()), stat.S_IMODE(kept.stat().st_mode)) == (3, 0o600)
        (point,) = viewer.get("/api/labels").json
        assert (point["run"], point["all"]["agreed"]) == (run, 1)
        assert viewer.get(f"/api/runs/{run}").body == before
        for body, status, message in (
            ({"label": "agree", "check": "9-1"}, 422, "no check '9-1'"),
            ({"label": "agree", "check": "../x"}, 422, "no check '../x'"),
            ({"label": "agree", "trial": 4}, 422, "no trial 4"),
            ({"label": "yes"}, 400, "yes"),
            ({"label": "agree", "note": "x" * 10_001}, 422, "longer than"),
        ):
            refused = viewer.post(path, body)
            assert (refused.status, message in refused.json["error"]) == (status, True), refused
        assert viewer.send("POST", path, {"label": "agree"}).status == 403, "without the page's origin"


def test_a_read_only_viewer_starts_nothing(shared_viewer: ViewerProcess):
    assert shared_viewer.post("/api/runs/latest/cases/0/rerun").status == 403
    assert shared_viewer.post("/api/runs/latest/rerun").status == 403
    assert shared_viewer.post("/api/runs", {"inputs": ["suite.jsonl"]}).status == 403
    assert len(shared_viewer.get("/api/runs").json) == 2


def next_record(events: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    """The record of the next trial that ends."""
    return next(event["record"] for _, event in events if event["event"] == "trial_ended")


def test_a_run_of_another_process_streams_in(project: Project):
    """Finished cases come first, then each case as it ends, then the end."""
    with run_viewer(project) as viewer:
        viewer.open_link()
        running = start_waiting_run(project, case("first"), case("second", said="wait for go"))
        run = viewer.get("/api/status").json["live"][0]
        events = viewer.events(f"/api/runs/{run}/events")
        assert next(events)[1]["event"] == "run_started"
        assert next_record(events)["id"] == "first"
        assert [shown["id"] for shown in viewer.get(f"/api/runs/{run}").json["cases"]] == ["first"]
        while (live := viewer.get(f"/api/runs/{run}/live").json)["view"] is None:
            pass
        ((trial,), progress) = live["view"]["trials"], live["progress"]
        assert (trial["case"], trial["waiting_for"], trial["turns"][0]["input"]) == ("second", "agent", "wait for go")
        assert (progress["trials"], progress["done"], progress["passed"]) == (2, 1, 1)
        assert viewer.get("/api/runs").json[0]["progress"]["running"] == 1
        files = [project.folder / ".viva" / "runs" / run / name for name in ("live.json", "watched")]
        assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
        project.write("go", "")
        assert next_record(events)["id"] == "second"
        assert next(events)[1]["event"] == "run_ended"
        (last,) = events
        assert last == ("end", {"run": run, "killed": False, "exit_code": 0, "stopped": None, "stop_message": None})
        running.communicate(timeout=300)
        assert viewer.get("/api/status").json["live"] == []
        assert viewer.get(f"/api/runs/{run}/live").json is None
        assert not [file for file in files if file.exists()], "no file of it stays"


def test_the_stream_of_a_killed_run_ends(project: Project):
    with run_viewer(project) as viewer:
        viewer.open_link()
        running = start_waiting_run(project, case("first"), case("second", said="wait for ever"))
        run = viewer.get("/api/status").json["live"][0]
        events = viewer.events(f"/api/runs/{run}/events")
        assert next_record(events)["id"] == "first"
        running.kill()
        running.communicate()
        *_, (name, end) = events
        assert (name, end["killed"]) == ("end", True)
        assert f"viva test --resume {run}" in end["stop_message"]
        assert "ended" not in viewer.get(f"/api/runs/{run}").json


def test_the_viewer_ends_at_once_with_an_open_stream(project: Project):
    project.write("agent.py", WAITING)
    project.suite(case("only", said="wait for go"))
    running = project.start("test", "-i", "suite.jsonl", "-n", AGENT, "--json")
    assert running.stdout is not None
    run = json.loads(running.stdout.readline())["run"]
    with run_viewer(project) as viewer:  # run_viewer limits the time of its end
        viewer.open_link()
        events = viewer.events(f"/api/runs/{run}/events")
    assert "end" not in [name for name, _ in events]
    project.write("go", "")
    running.communicate(timeout=300)
    assert running.returncode == 0


def test_slow_clients_do_not_delay_the_end(project: Project):
    """An incomplete request and an unread stream: the viewer ends in seconds, without error output."""
    project.suite(case("long", said="word " * 400_000))
    project.test("-q")
    with contextlib.ExitStack() as left_behind, run_viewer(project, "--allow-run") as viewer:  # fails on error output
        viewer.open_link()
        start = f"HTTP/1.1\r\nHost: {viewer.address.netloc}\r\nCookie: {viewer.cookie}\r\nOrigin: {viewer.origin}\r\n"
        for request in (
            f"POST /api/runs {start}Content-Length: 9\r\n\r\n{{",
            f"GET /api/runs/latest/events {start}\r\n",
        ):
            client = left_behind.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", viewer.address.port or 0))
            client.sendall(request.encode())
        assert viewer.get("/api/status").status == 200


@pytest.fixture(scope="module")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewerProcess]:
    """A viewer that may start runs. Each test uses its own runs."""
    project = Project(tmp_path_factory.mktemp("allowed"))
    project.suite(case("a"), case("b.+"), case("c"))
    project.write("other.toml", f'[agents.echo]\nuse = "{AGENT}"\n')
    assert project.test("--config", "other.toml", "-n", "echo", "--runs", "2", "-k", "^(a|b.*)$").code == 0
    with run_viewer(project, "--allow-run") as viewer:
        viewer.open_link()
        yield viewer


def ended(viewer: ViewerProcess, run: str) -> list[str]:
    """The cases of a run, after its end."""
    *_, (name, _end) = viewer.events(f"/api/runs/{run}/events")
    assert name == "end"
    return [row["id"] for row in viewer.get(f"/api/runs/{run}").json["cases"]]


def test_a_case_is_rerun_alone(allowed: ViewerProcess):
    """With the settings of its run: the agent is in another config."""
    assert allowed.get("/api/status").json["allow_run"] is True
    first = first_run(allowed)
    index = allowed.get(f"/api/runs/{first}").json["cases"][1]["index"]
    response = allowed.post(f"/api/runs/{first}/cases/{index}/rerun")
    assert response.status == 201, response
    assert ended(allowed, response.json["run"]) == ["b.+"]
    command = allowed.get(f"/api/runs/{first}/cases/{index}").json["command"]
    assert command == r"viva test -i suite.jsonl -k '^b\.\+$' -v -n echo --config other.toml"


def first_run(viewer: ViewerProcess) -> str:
    return viewer.get("/api/runs").json[-1]["id"]


def test_a_whole_run_is_rerun(allowed: ViewerProcess):
    response = allowed.post(f"/api/runs/{first_run(allowed)}/rerun")
    assert response.status == 201, response
    assert ended(allowed, response.json["run"]) == ["a", "b.+"]
    assert [len(row["trials"]) for row in allowed.get(f"/api/runs/{response.json['run']}").json["cases"]] == [2, 2]


def test_a_run_of_known_inputs_is_started(project: Project):
    project.suite(case("a"), case("b"), case("c"))
    assert project.test("-k", "b").code == 0
    with run_viewer(project, "--allow-run") as viewer:
        viewer.open_link()
        response = viewer.post("/api/runs", {"inputs": ["suite.jsonl"], "agent": AGENT, "only": "^[ac]$"})
        assert response.status == 201, response
        assert ended(viewer, response.json["run"]) == ["a", "c"]


def test_started_runs_use_the_config_of_the_viewer(project: Project):
    """The folder of the config is the project: its runs, suites and agents."""
    inner = Project(project.folder / "inner")
    inner.write("other.toml", f'[agents.echo]\nuse = "{AGENT}"\n')
    inner.suite(case("a"))
    with run_viewer(project, "--allow-run", "--config", "inner/other.toml") as viewer:
        viewer.open_link()
        response = viewer.post("/api/runs", {"inputs": ["suite.jsonl"], "agent": "echo"})
        assert response.status == 201, response
        assert ended(viewer, response.json["run"]) == ["a"]
    assert (inner.folder / ".viva").is_dir()
    assert not (project.folder / ".viva").exists()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"inputs": []}, "inputs: is empty"),
        ({"inputs": ["--config=/etc/passwd"]}, "not a file of this project"),
        ({"inputs": ["../../../../../etc/passwd"]}, "not a file of this project"),
        ({"inputs": ["/etc/passwd"]}, "not a file of this project"),
        ({"inputs": ["scripts:os.system"]}, "not a file of this project"),
        ({"inputs": ["suite.jsonl"], "agent": "python:./other.py:agent"}, "not in the config"),
        ({"inputs": ["suite.jsonl"], "runs": 0}, "from 1 to 1000"),
        ({"inputs": ["suite.jsonl"], "only": "("}, "only:"),
        ({"inputs": ["suite.jsonl"]}, "no agent given"),
    ],
    ids=str,
)
def test_unknown_inputs_are_refused(allowed: ViewerProcess, wanted: object, message: str):
    before = len(allowed.get("/api/runs").json)
    response = allowed.post("/api/runs", wanted)
    assert (response.status, message in response.json["error"]) == (422, True), response
    assert len(allowed.get("/api/runs").json) == before


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"inputs": 5}', b'{"inputs": ["a"], "more": 1}'])
def test_an_invalid_run_request_is_refused(allowed: ViewerProcess, body: bytes):
    assert allowed.post("/api/runs", body).status == 400


def test_only_the_page_itself_can_start_runs(allowed: ViewerProcess):
    """Requests with the cookie but without the page's origin are refused."""
    before = len(allowed.get("/api/runs").json)
    path = "/api/runs/latest/cases/0/rerun"
    assert allowed.send("POST", path).status == 403
    assert allowed.send("POST", path, Origin="http://evil.example").status == 403
    assert allowed.send("POST", path, Origin=allowed.origin, Sec_Fetch_Site="same-site").status == 403
    assert allowed.post("/api/runs", b" " * 100_000).status == 413
    assert len(allowed.get("/api/runs").json) == before


def test_started_runs_end_with_the_viewer(project: Project):
    """As with Ctrl-C: finished trials are kept, and the run is interrupted."""
    project.write("agent.py", WAITING)
    project.suite(case("done"), case("never", said="wait for ever"))
    project.write("viva.toml", f'[agents.patient]\nuse = "{AGENT}"\n')
    with run_viewer(project, "--allow-run") as viewer:
        viewer.open_link()
        run = viewer.post("/api/runs", {"inputs": ["suite.jsonl"], "agent": "patient"}).json["run"]
        assert next_record(viewer.events(f"/api/runs/{run}/events"))["id"] == "done"
    (row,) = project.list_runs()
    assert (row["id"], row["stopped"], row["summary"]["passed"]) == (run, "interrupted", 1)


def test_a_run_of_the_command_line_opens_in_the_browser(project: Project):
    project.suite(case("a"))
    project.test()
    opened = project.folder / "opened"
    browser = project.write("browser.sh", f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    process = project.start("view", "latest", env={"BROWSER": str(browser)})
    assert process.stdout is not None
    process.stdout.readline()
    link = process.stdout.readline().strip()
    assert process.stdout.readline() == "Stop it with Ctrl-C\n"
    while not opened.exists():
        os.sched_yield()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    run = project.list_runs()[0]["id"]
    assert link.endswith(f"#/runs/{run}")
    assert opened.read_text().strip() == link


def test_invalid_arguments_are_usage_errors(project: Project):
    assert "there is no run 'nosuch'" in project.viva("view", "nosuch").err
    with run_viewer(project) as viewer:
        taken = project.viva("view", "--port", str(viewer.address.port))
    assert (taken.code, "in use" in taken.err) == (4, True)


def test_a_missing_extra_is_named(project: Project):
    project.write("starlette.py", "raise ModuleNotFoundError(\"No module named 'starlette'\", name='starlette')\n")
    ended_ = project.viva("view", "--no-open", env={"PYTHONPATH": str(project.folder)}, code=4)
    assert "pip install 'viva-eval[serve]'" in ended_.err
