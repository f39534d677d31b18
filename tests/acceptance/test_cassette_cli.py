"""Recording and replaying whole runs: agents, simulators, judges and generators; with no network, and to the letter."""

import json
import re
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from project import Project, case, contains, remove_measured_times
from viva.testing import OpenAIServer, ReceivedRequest, StubResponse

CONFIG = """
[connectors.model]
provider = "openai"
base_url = "{url}"
model = "stand-in"
api_key_env = "STAND_IN_KEY"
retries = 0
price = {{ input = 1.0, output = 2.0 }}

[agents.shop]
type = "chat"
connector = "model"
system_file = "system.txt"

[agents.slow]
use = "python:./slow.py:agent"

[agents.gone]
url = "http://127.0.0.1:1/"
retries = 0
"""
SLOW = "import asyncio\nasync def agent(messages):\n    await asyncio.sleep(60)\n"
NO_NETWORK = """
import socket, sys

def refuse(event, arguments):
    inet = event == "socket.__new__" and arguments[1] in (socket.AF_INET, socket.AF_INET6)
    if inet or event in ("socket.connect", "socket.getaddrinfo"):
        open("network-was-used", "a").write(f"{event} {arguments}\\n")
        raise OSError(101, "there is no network here")

sys.addaudithook(refuse)
sys.modules["uvloop"] = None  # its sockets are not seen by the hook
"""


class Models:
    """Plays every model of the run. No answer is ever given twice, so one that comes again was recorded."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._lock = threading.Lock()
        self.broken_once = False

    def __call__(self, received: ReceivedRequest) -> str | StubResponse:
        text = received.body.decode()
        with self._lock:
            number = next(self._numbers)
        if "You play a person" in text:
            return json.dumps({"reasoning": "", "input": f"I am buyer {number}", "goal_achieved": False})
        if "You examine a conversation" in text:
            evidence = [{"turn": 1, "quote": f"order {re.findall(r'order ([0-9]+ for)', text)[-1]}"}]
            return json.dumps(
                {"reason": f"vote {number}", "evidence": evidence, "passed": number % 5 > 0, "score": 1.0}
            )
        if "You write test cases" in text:
            made = [{"id": f"made-{n}", "input": f"made {number}", "assertions": [contains("order")]} for n in (1, 2)]
            return json.dumps({"cases": made})
        if "break once" in text and not self.broken_once:
            self.broken_once = True
            return StubResponse(status=500)
        return f"order {number} for {json.loads(text)['messages'][-1]['content'][-40:]}"


def shop(project: Project, url: str) -> None:
    project.env["STAND_IN_KEY"] = "sk-secret-key"
    project.write("viva.toml", CONFIG.format(url=url))
    project.write("system.txt", "You sell things.")
    project.write("slow.py", SLOW)


@pytest.fixture
def server(project: Project) -> Iterator[OpenAIServer]:
    with OpenAIServer(Models()) as running:
        shop(project, running.url)
        yield running


def offline(project: Project) -> dict[str, str]:
    project.write("offline/sitecustomize.py", NO_NETWORK)
    return {"PYTHONPATH": str(project.folder / "offline")}


def whole_suite(project: Project) -> None:
    judge = {"type": "agent", "criteria": "It is about an order", "votes": 3}
    project.suite(
        {
            "id": "static",
            "turns": [{"input": "one", "assertions": [contains("order")]}, {"input": "two"}],
            "final_assertions": [judge],
        },
        {
            "id": "dynamic",
            "simulator": {"use": "viva.simulator", "options": {"metadata": {"persona": "a buyer"}}},
            "checkpoints": [{"id": "never", "assertion": contains("no such words")}],
            "max_turns": 3,
        },
        {"id": "again", "input": "break once", "assertions": [contains("order")]},
        {"id": "fails", "input": "x", "assertions": [contains("nothing of the kind")]},
    )


RUN = ("-i", "suite.jsonl", "-i", "agents:viva.generator?count=2", "-n", "shop", "--runs", "2")


@pytest.mark.process
def test_a_replay_gives_the_same_report_without_network(project: Project):
    """Agent, simulator, judges with votes, generator, a fault that was retried, and two trials of each; in parallel."""
    whole_suite(project)
    with OpenAIServer(Models()) as server:
        shop(project, server.url)
        project.test(*RUN, "--parallel", "4", "--record", "chat.cassette", "-o", "live.jsonl", code=1)
        assert len(server.requests) > 20
    project.test(
        *RUN, "--parallel", "3", "--replay", "chat.cassette", "-o", "again.jsonl", env=offline(project), code=1
    )
    assert remove_measured_times(project.records("again.jsonl")) == remove_measured_times(project.records("live.jsonl"))
    assert not (project.folder / "network-was-used").exists()
    records = project.records("again.jsonl")
    assert {record["id"] for record in records} == {"static", "dynamic", "again", "fails", "made-1", "made-2"}
    assert [r["attempt"] for r in records if r["id"] == "again"] in ([2, 1], [1, 2])  # the fault is recorded, too
    assert all(record["cost_usd"] > 0 for record in records)


@pytest.mark.process
def test_the_guard_of_the_test_above_sees_the_network(project: Project, server: OpenAIServer):
    project.suite(case("a"))
    assert project.test("-n", "shop", env=offline(project)).code == 1
    assert (project.folder / "network-was-used").exists()


def test_faults_and_time_limits_are_replayed_without_waiting(project: Project, server: OpenAIServer):
    """Each with its blame and its latency, as it was."""
    project.suite(case("turn", turn_timeout="300ms"), case("whole", timeout="300ms"))
    flags = ("-n", "slow", "--retry-faults", "0")
    assert project.test(*flags, "--record", "slow.cassette", "-o", "live.jsonl").code == 1
    assert project.test(*flags, "--replay", "slow.cassette", "-o", "again.jsonl").code == 1
    records = project.records("again.jsonl")
    assert [record["error"] for record in records] == ["timeout after 300ms"] * 2
    assert remove_measured_times(project.records("again.jsonl")) == remove_measured_times(project.records("live.jsonl"))
    project.suite(case("a"))
    flags = ("-n", "gone")
    assert project.test(*flags, "--record", "gone.cassette", "-o", "live.jsonl").code == 1
    assert project.test(*flags, "--replay", "gone.cassette", "-o", "again.jsonl").code == 1
    assert remove_measured_times(project.records("again.jsonl")) == remove_measured_times(project.records("live.jsonl"))
    (record,) = project.records("again.jsonl")
    assert (record["status"], record["fault"], record["attempt"]) == ("error", "infra", 2)


def test_a_hung_judge_is_blamed_again(project: Project, server: OpenAIServer):
    project.write("agent.py", "def agent(messages):\n    return 'hello'\n")
    project.suite({"id": "a", "input": "x", "timeout": "300ms", "assertions": [{"type": "agent", "use": "slow"}]})
    flags = ("--retry-faults", "0", "-n", "python:./agent.py:agent")
    project.test(*flags, "--record", "t.cassette", "-o", "live.jsonl")
    project.test(*flags, "--replay", "t.cassette", "-o", "again.jsonl")
    assert remove_measured_times(project.records("again.jsonl")) == remove_measured_times(project.records("live.jsonl"))
    (record,) = project.records("again.jsonl")
    assert (record["status"], record["fault"]) == ("error", "judge")  # N17


def test_a_change_is_shown_where_it_is(project: Project, server: OpenAIServer):
    """Which case, which turn, whose side: the line, the criteria, or the prompt."""
    judge = {"type": "agent", "criteria": "It is about an order"}
    state = {"id": "t", "turns": [{"input": "one", "assertions": [contains("order")]}, {"input": "two"}]}
    project.suite(state | {"final_assertions": [judge]})
    project.test("-n", "shop", "--record", "c.cassette")

    def divergence() -> str:
        _, (record,) = project.report("-n", "shop", "--replay", "c.cassette", code=1)
        assert record["status"] == "error"
        return record["error"]

    project.suite(state | {"turns": [state["turns"][0], {"input": "three"}], "final_assertions": [judge]})
    said = divergence()
    assert said.startswith(
        "not in the cassette: case 't', trial 1, turn 2: the request to the agent 'shop' has changed: "
    )
    assert said.endswith('message.content: "two" when recorded, "three" now')
    project.suite(state | {"final_assertions": [judge | {"criteria": "It is polite"}]})
    said = divergence()
    assert "turn 2: the request to the judge 'viva.validator' has changed" in said
    assert 'options.metadata.criteria: "It is about an order" when recorded, "It is polite" now' in said
    project.suite(state | {"final_assertions": [judge]})
    project.write("system.txt", "You sell nothing.")
    said = divergence()
    assert "the agent 'shop' has changed since the recording" in said
    assert 'system_file text: "You sell things." when recorded, "You sell nothing." now' in said


def test_what_is_missing_fails_is_skipped_or_asked_for(project: Project, server: OpenAIServer):
    project.suite(case("old", "order one"))
    project.test("-n", "shop", "--record", "c.cassette")
    project.suite(case("old", "order one"), {"id": "new", "input": "y", "assertions": [contains("order")]})
    before = len(server.requests)

    def statuses(missing: str) -> tuple[int, list[str]]:
        ended, records = project.report("-n", "shop", "--replay", "c.cassette", "--replay-missing", missing)
        return ended.code, [record["status"] for record in records]

    assert statuses("error") == (1, ["passed", "error"])
    assert statuses("skip") == (0, ["passed", "skipped"])
    assert len(server.requests) == before
    assert statuses("live") == (0, ["passed", "passed"])
    assert len(server.requests) == before + 1


def test_a_missing_judge_can_be_skipped_too(project: Project, server: OpenAIServer):
    project.suite(case("a", "order"))
    project.test("-n", "shop", "--record", "c.cassette")
    project.suite(case("a", "order", assertions=[{"type": "agent", "criteria": "polite", "votes": 3}]))
    _, (record,) = project.report("-n", "shop", "--replay", "c.cassette", "--replay-missing", "skip")
    assert record["status"] == "skipped"
    assert "the judge 'viva.validator'" in record["error"]


def test_code_of_an_agent_that_changed_is_no_longer_what_was_recorded(project: Project):
    project.suite(case("a"))
    project.test("--record", "c.cassette")
    assert project.test("--replay", "c.cassette").code == 0
    project.write("agent.py", "def agent(messages):\n    return 'something else'\n")
    assert "file agent.py changed" in project.test("--replay", "c.cassette", code=1).out


AT_THE_DOOR = "has changed since the recording: "


def drift(project: Project, *flags: str) -> tuple[list[str], list[dict[str, Any]]]:
    """What a replay says before its first case, and its records."""
    ended, records = project.report(*flags, "--replay", "c.cassette", "-q")
    return [line for line in ended.out.splitlines() if AT_THE_DOOR in line], records


def test_a_missing_reply_is_not_tried_again_and_keeps_the_turns_that_were_there(
    project: Project, server: OpenAIServer
):  # N17: by default faults are retried; a second attempt would find nothing at all
    def suite(wanted: str, **more: Any) -> None:
        sim = {"use": "viva.simulator", "options": {"metadata": {"persona": "a buyer"}}}
        project.suite(
            {"id": "d", "simulator": sim, "checkpoints": [{"id": "c", "assertion": contains(wanted)}], **more}
        )

    suite("no such words", max_turns=2)
    project.test("-n", "shop", "--record", "c.cassette")
    suite("order")  # another assertion alone: reached at once; but `max_turns` is told to the simulator, and it changed
    _, (record,) = project.report("-n", "shop", "--replay", "c.cassette")
    assert "options.metadata.max_turns: 2 when recorded, 20 now" in record["error"]
    suite("order", max_turns=2)
    _, (record,) = project.report("-n", "shop", "--replay", "c.cassette")
    assert (record["status"], record["total_turns"]) == ("passed", 1)

    suite("order", max_turns=2)
    project.test("-n", "shop", "--record", "c.cassette")
    suite("no such words", max_turns=2)  # now the conversation would go on where the recorded one had ended
    _, (record,) = project.report("-n", "shop", "--replay", "c.cassette")
    assert (record["status"], record["fault"], record["attempt"]) == ("error", "infra", 1)
    assert (record["total_turns"], len(record["turns"])) == (1, 1)
    assert "turn 2: the recorded conversation with the simulator 'viva.simulator' ended" in record["error"]
    assert "ended after turn 1" in record["error"]


def test_another_criterion_asks_for_that_judge_only(project: Project, server: OpenAIServer):
    """All replies of the agent, and what other checks say of them, are as they were."""
    judge = {"type": "agent", "criteria": "It is about an order"}
    state = {"id": "t", "turns": [{"input": "one"}, {"input": "two"}]}
    project.suite(state | {"final_assertions": [judge]})
    project.test("-n", "shop", "--record", "c.cassette")
    project.suite(state | {"final_assertions": [judge | {"criteria": "It is polite"}, contains("order"), judge]})
    _, (record,) = project.report("-n", "shop", "--replay", "c.cassette")
    assert (record["status"], record["fault"], record["attempt"], record["total_turns"]) == ("error", "infra", 1, 2)
    assert [each["passed"] for each in record["final_assertions"]] == [None, True, True]
    assert "judge error" not in record["error"]


def test_another_model_is_noticed_by_its_name(project: Project, server: OpenAIServer):
    project.suite(case("a", "order"), case("b", "order", options={"connector": "other"}))
    config = (project.folder / "viva.toml").read_text()
    config += config[: config.index("[agents.shop]")].replace("connectors.model", "connectors.other")
    project.write("viva.toml", config)
    project.test("-n", "shop", "--record", "c.cassette")
    said, records = drift(project, "-n", "shop")
    assert (said, [record["status"] for record in records]) == ([], ["passed", "passed"])
    project.write("viva.toml", config.replace('model = "stand-in"', 'model = "bigger"', 1))
    (said,), (first, second) = drift(project, "-n", "shop")
    assert said.endswith(f'the agent \'shop\' {AT_THE_DOOR}model: "stand-in" when recorded, "bigger" now')
    assert said.partition("the agent")[2] in first["error"]
    assert second["status"] == "error"  # it is the agent that changed, whoever is asked
    at = config.rindex('model = "stand-in"')
    project.write("viva.toml", config[:at] + 'model = "bigger"' + config[at + len('model = "stand-in"') :])
    (said,), (first, second) = drift(project, "-n", "shop")
    assert "connector 'other'" in said
    assert (first["status"], second["status"]) == ("passed", "error")
    assert 'connector.model: "stand-in" when recorded, "bigger" now' in second["error"]


def test_the_model_of_an_unnamed_connector_is_noticed_too(project: Project, server: OpenAIServer):
    """The built-in judge takes the only connector there is."""
    project.suite({"id": "a", "input": "x", "assertions": [{"type": "agent", "criteria": "It is about an order"}]})
    project.test("-n", "shop", "--record", "c.cassette")
    project.write("viva.toml", (project.folder / "viva.toml").read_text().replace("stand-in", "bigger"))
    said, _ = drift(project, "-n", "shop")
    assert sorted(line.partition("the agent ")[2].partition(" has")[0] for line in said) == [
        "'shop'",
        "'viva.validator'",
    ]


def test_a_changed_module_of_an_agent_is_noticed_by_its_file(project: Project):
    """At any depth of the project, also if only a function imports it. Files outside the project are ignored."""
    project.write("agent.py", "from shop import prices\ndef agent(messages):\n    import late\n    return late.say()\n")
    project.write("shop/__init__.py", "")
    project.write("shop/prices.py", "from .deep import rates\n")
    project.write("shop/deep/rates.py", "RATE = 1\n")
    project.write("late.py", "def say():\n    return 'hello'\n")
    project.write("unrelated.py", "")
    project.suite(case("a"))
    project.test("--record", "c.cassette")
    project.write("unrelated.py", "changed = 1\n")
    assert drift(project)[0] == []
    for file, text in (("shop/deep/rates.py", "RATE = 2\n"), ("late.py", "def say():\n    return 'hello' * 1\n")):
        before = (project.folder / file).read_text()
        project.write(file, text)
        (said,), (record,) = drift(project)
        assert said.endswith(f"file {file} changed")
        assert f"file {file} changed" in record["error"]
        project.write(file, before)
    assert drift(project)[0] == []


def test_the_report_shows_live_calls_of_a_replay(project: Project, server: OpenAIServer):
    project.suite(case("old", "order one"))
    project.test("-n", "shop", "--record", "c.cassette")
    project.write("system.txt", "You sell nothing.")
    _, (record,) = project.report("-n", "shop", "--replay", "c.cassette", "--replay-missing", "live")
    assert record["status"] == "passed"
    (warning,) = record["warnings"]
    assert warning.startswith("called live: case 'old', trial 1, turn 1: the agent 'shop' has changed")


def test_no_secret_reaches_a_cassette(project: Project, server: OpenAIServer):
    project.suite({"id": "a", "input": "my key is sk-secret-key", "assertions": [contains("order")]})
    assert project.test("-n", "shop", "--record", "c.cassette").code == 0
    text = (project.folder / "c.cassette").read_text()
    assert "sk-secret-key" not in text
    assert "my key is ***" in text
    assert project.test("-n", "shop", "--replay", "c.cassette").code == 0


def test_a_bad_start_leaves_an_old_cassette_alone(project: Project):
    project.suite(case("a"))
    project.test("--record", "c.cassette")
    before = (project.folder / "c.cassette").read_bytes()
    assert project.test("-i", "absent.jsonl", "--record", "c.cassette").code == 4
    assert project.test("--dry-run", "--record", "c.cassette").code == 0
    assert (project.folder / "c.cassette").read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--record", "a", "--replay", "suite.jsonl"), "--record and --replay exclude each other"),
        (("--replay", "suite.jsonl"), "suite.jsonl:1: is not a line of a cassette"),
        (("--replay", "absent"), "does not exist"),
        (("--record", "absent/c"), "cannot be written"),
    ],
)
def test_what_cannot_be_a_cassette_is_exit_4(project: Project, flags: tuple[str, ...], expected: str):
    project.suite(case("a"))
    assert expected in project.test(*flags, code=4).err  # N35


def test_a_streamed_reply_is_replayed_with_its_parts_and_times(project: Project):
    """The time to the first token is that of the recording, so its check says the same."""
    source = (
        "async def agent(messages):\n    yield 'Let me '\n    yield 'see.'\n    yield {'content': 'Noon.'}\n"
        "    if 'break' in messages[-1]['content']:\n        raise RuntimeError('broken')\n"
    )
    project.write("agent.py", source)
    limit = {"type": "max_first_token", "value": "1h"}
    project.suite(case("a", assertions=[contains("Noon"), limit]), case("b", input="break", assertions=[limit]))
    _, recorded = project.report("--record", "c.cassette")
    _, replayed = project.report("--replay", "c.cassette")
    turns = [[record["turns"][0] for record in remove_measured_times(records)] for records in (recorded, replayed)]
    assert turns[0] == turns[1]
    for turn in turns[1]:
        assert turn["parts"] == ["Let me see.", "Noon."]
        assert turn["first_token_ms"] >= 0
    assert [record["status"] for record in replayed] == ["passed", "failed"]


def test_a_cassette_is_plain_lines_of_json(project: Project):
    project.suite(case("a"))
    project.test("--record", "c.cassette")
    lines = [json.loads(line) for line in Path(project.folder / "c.cassette").read_text().splitlines()]
    assert [line["line"] for line in lines] == ["cassette", "agent", "reply", "trial"]
