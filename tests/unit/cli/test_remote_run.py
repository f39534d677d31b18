"""`viva test --host` with a host that sends anything."""

import json
from typing import Any

import pytest

from project import Project
from viva.testing import HttpServer, ReceivedRequest, StubResponse, json_response

TOKEN = "tok-0123456789"
TEXT = f"\x1b[2J\x07 {TOKEN}"
COMPLETED = {"type": "run.completed", "sequence": 9, "payload": {}}
FAILED = {"type": "run.failed", "sequence": 9, "payload": {"error": {"message": TEXT}}}
SCORED = {"type": "eval.scored", "sequence": 1, "payload": {"taskId": TEXT, "passed": False, "score": 1.0}}


@pytest.mark.parametrize(
    ("created", "events", "code"),
    [
        (json_response({"runId": TEXT}, 201), [COMPLETED], 4),
        (json_response({"message": TEXT}, 400), [], 4),
        (json_response({"message": TEXT}, 401), [], 1),
        (json_response({"runId": "r"}, 201), [SCORED, COMPLETED], 4),
        (json_response({"runId": "r"}, 201), [FAILED], 1),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_no_text_of_a_host_controls_the_terminal_or_shows_the_token(
    project: Project, created: StubResponse, events: list[Any], code: int, flags: tuple[str, ...]
):  # 12.3, 12.9
    def answer(received: ReceivedRequest) -> StubResponse:
        if received.method == "POST":
            return created
        if received.path.endswith("eval-summary"):
            return json_response({"suiteId": TEXT})
        chunks = tuple(b"data: %b\n\n" % json.dumps(event).encode() for event in events)
        return StubResponse(chunks=chunks, headers={"Content-Type": "text/event-stream"})

    project.env["OPENWOP_TOKEN"] = TOKEN
    with HttpServer(answer) as host:
        run = ("test", "-i", "acme.evals.good@1.0.0", "-n", "core.bot", "--host", host.url, "--modes", "golden")
        ended = project.viva(*run, *flags)
    assert ended.code == code, ended
    assert not {"\x1b", "\x07"} & {*ended.out, *ended.err}, ended
    assert TOKEN not in ended.out + ended.err, ended
