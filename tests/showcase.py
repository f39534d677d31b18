"""A project with a bit of everything that a page shows, made from the expense example; and one full of planted texts."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import structs

from project import Project, case, contains
from unit.reporters.samples import summary
from viva.model.case import Baseline, Threshold
from viva.model.event import RunEnded, RunStarted, SuiteSummary, TrialEnded
from viva.model.record import CheckpointRecord, ToolCallRecord, TrialRecord, TurnRecord
from viva.model.turn import FileChange
from viva.record.journal import Journal
from viva.reporters.html import HtmlReport

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "expense"

METERED = """
import pathlib
import time
from assistant import ExpenseAssistant
from buggy import HastyAssistant

def metered(kind):
    class Metered(kind):
        \"\"\"Says what its model calls have cost, as an agent on a model would.\"\"\"
        def reply(self, messages, options):
            reply = super().reply(messages, options)
            read = sum(len(str(message["content"])) for message in messages)
            wrote = len(reply["content"]) // 4 + 20
            time.sleep(read / 20_000)
            cost_usd = read * 3e-6 + wrote * 15e-6
            return reply | {"usage": {"input_tokens": read, "output_tokens": wrote, "cost_usd": cost_usd}}
    return Metered

Careful, Hasty = metered(ExpenseAssistant), metered(HastyAssistant)

class Moody(Careful):
    \"\"\"Hasty where a file says so: the same agent, another day.\"\"\"
    def confirms(self, parsed):
        hasty = pathlib.Path("mood").read_text() == "hasty"
        return HastyAssistant.confirms(self, parsed) if hasty else super().confirms(parsed)

def quoting(messages, options):
    return {
        "passed": False, "score": 0.25,
        "reason": "It goes straight to the money, and does not say why it asks.",
        "evidence": [
            {"turn": 0, "quote": "Good morning! What can I do for you?"},
            {"turn": 1, "quote": "How much was it, in US dollars?"},
        ],
        "suggestions": ["Thank the user first", "Say what the amount is for"],
    }

def broken(messages, options):
    raise RuntimeError("the judge's model is overloaded")
"""

CONFIG = """
[defaults]
agent = "assistants.careful"

[agents."assistants.careful"]
use = "python:./metered.py:Careful"

[agents."assistants.hasty"]
use = "python:./metered.py:Hasty"

[agents."assistants.moody"]
use = "python:./metered.py:Moody"

[agents."workers.test.validator"]
use = "python:./validator.py:validate"

[agents.quoting]
use = "python:./metered.py:quoting"

[agents.broken]
use = "python:./metered.py:broken"
"""

SERVICE = """
- id: polite
  name: The assistant is polite
  tags: [tone, judged]
  options: { locale: en-GB }
  metadata: { owner: service desk }
  turns:
    - input:
        - { role: user, content: Good morning }
        - { role: assistant, content: "Good morning! What can I do for you?" }
        - { role: user, content: I had lunch with a client }
      options: { draft: true }
      assertions: { type: agent, use: "agents:quoting", metadata: { criteria: "The reply is friendly and says why it asks" } }
- id: judged-by-nobody
  name: A judge that breaks is not the agent's failure
  tags: [judged]
  input: I had lunch with a client
  assertions: { type: agent, use: "agents:broken", metadata: { criteria: "The reply is friendly" } }
- id: left-alone
  name: The assistant waits for an answer that nobody gives
  input: I had lunch with a client
- id: later
  name: Foreign currencies
  tags: [money]
  skip: waits for the new rates
  input: Taxi in Oslo, 240 NOK
  assertions: { type: contains, value: NOK }
"""


def expense_project(folder: Path) -> Project:
    """The expense example with an agent that has a price, a judge that quotes, and outcomes of every kind."""
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", ".viva"))
    project = Project(folder)
    project.write("metered.py", METERED)
    project.write("viva.toml", CONFIG)
    project.write("service/service.yaml", SERVICE)
    project.write("mood", "careful")
    return project


DETAILED = """
import json
import sys

REFUND = '''# Your refund

It was **refunded** on Monday, see [the policy](https://example.org/policy) and ![x](http://evil.example/x.png).

| item | price |
| --- | --- |
| boot | 40 EUR |

```python
total = 40
```
We are sorry for the trouble.
'''

seen = []

def look_up(order):
    print("looking up", order)
    return {"W1": 40}[order]

def agent(messages, options):
    said = messages[-1]["content"]
    if said == "crash":
        print("slow path", file=sys.stderr)
        return look_up("W9")
    if said.startswith("refuse"):
        raise ConnectionError(f"refused by 10.0.0.{said[7:]}")
    if said == "data":
        text = json.dumps({"order": {"id": "W1", "state": "sent"}})
        return {"content": text, "tool_calls": [{"name": "load_order", "arguments": {"order": "W1"}, "error": "locked"}]}
    if said == "flaky":
        seen.append(said)
        return "yes" if len(seen) % 4 else "no"
    if said == "refund":
        call = {"name": "look_up_order", "arguments": {"order": "W1-pineapple"}, "result": {"total": 40}, "duration_ms": 3}
        return {"content": REFUND, "tool_calls": [call], "usage": {"input_tokens": 5, "output_tokens": 5, "cost_usd": 0.25}}
    number = int(said)
    calls = [{"name": "count", "arguments": {"n": number}}] if number % 10 == 5 else []
    return {"content": f"Number {number} of many. " + "kumquat" * (number == 333), "tool_calls": calls}

def judge(messages, options):
    good = "polite" in options["metadata"]["criteria"]
    quote = "We are sorry for the trouble." if good else "sorry for the trouble"
    return {"passed": good, "score": 0.9 if good else 0.2, "reason": "it says sorry" if good else "no time is named",
            "evidence": [{"turn": 1, "quote": quote}]}
"""


def detailed_project(folder: Path) -> Project:
    """Failures of every kind: a crash, refused connections, a rubric, a long conversation; and a flaky case."""
    project = Project(folder)
    project.write("agent.py", DETAILED)
    rubric = {
        "type": "rubric",
        "use": "agents:python:./agent.py:judge",
        "criteria": [{"criterion": "It is polite", "weight": 2}, "It names the day and the hour"],
    }
    long = [{"input": str(n), "assertions": [contains("Number" if n < 500 else "missing")]} for n in range(1, 501)]
    project.suite(
        {"id": "crash", "tags": ["own"], "input": "crash", "assertions": [contains("40")]},
        *(
            {"id": f"refused-{n}", "tags": ["net"], "input": f"refuse {n}", "assertions": [contains("x")]}
            for n in range(16)
        ),
        {
            "id": "rubric",
            "turns": [{"input": "data", "assertions": [contains("W1")]}, {"input": "refund", "assertions": [rubric]}],
        },
        {"id": "a-long-conversation-of-five-hundred-turns", "turns": long},
    )
    project.write("flaky.yaml", "- id: flaky\n  input: flaky\n  assertions: { type: contains, value: 'yes' }\n")
    return project


EVERYTHING = ("-i", "tests", "-i", "planted", "-i", "service")

PLANTED = {
    "script": "<script>window.pwned = 'script'</script>",
    "closing": "</script></pre></div><script>window.pwned = 'closing'</script>",
    "image": "<img src=x onerror=\"window.pwned = 'image'\"><svg onload=\"window.pwned = 'svg'\">",
    "link": "[click](javascript:window.pwned='link') <a href=\"javascript:window.pwned='a'\">x</a>",
    "comment": "<!--<script>--><!-- viva:records --><!--viva:overview--> ]]> --!>",
    "frame": '<iframe srcdoc="<script>parent.pwned = 1</script>"></iframe><base href="http://evil.example/">',
    "ansi": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x00 \x9b2J",
    "right-to-left": "safe \u202egnp.exe\u202c \u2066hidden\u2069 \ufeff \u200b",
    "separators": "line\u2028separator\u2029paragraph",
    "template": "{{constructor.constructor('window.pwned=1')()}} ${window.pwned=1} %s",
}


def planted_project(folder: Path) -> Project:
    """An agent that answers with texts that would do harm if they were anything but text; they stand everywhere else, too."""
    project = Project(folder)
    project.write("agent.py", AGENT)
    cases = [planted(name, text) for name, text in PLANTED.items()]
    cases.append(case("five-megabytes", said="huge", assertions=[contains("not there")]))
    project.suite(*cases)
    return project


AGENT = """
def agent(messages, options):
    said = messages[-1]["content"]
    if said == "huge":
        said = "<b>lorem ipsum</b> " * 290_000
    return {
        "content": said,
        "tool_calls": [{"name": said[:200], "arguments": {said[:200]: said[:200]}, "result": said[:200], "id": "1"}],
    }
"""


def planted(name: str, text: str) -> dict[str, Any]:
    checks = [{**contains("not there"), "message": text}, {"type": "equals", "value": f"{text}!"}]
    return {"id": f"{name} {text}", "name": text, "tags": [text], "input": text, "assertions": checks}


def planted_record(name: str, text: str) -> TrialRecord:
    """A trial that has the text in every field that an agent, a helper or the author of a suite can fill."""
    assertion = {
        "type": text,
        "label": text,
        "message": text,
        "reason": text,
        "expected": text,
        "actual": f"{text}!",
        "evidence": [{"turn": 1, "quote": text}],
        "suggestions": [text],
        "score": 0.5,
        "passed": False,
        text: text,
    }
    attached = [
        {"type": "image", "source": text, "name": text, "media_type": text},
        {"type": text, "source": f"data:{text}"},
    ]
    turn = TurnRecord(
        turn=1,
        input=text,
        input_source="simulated",
        output=text,
        awaiting_input=True,
        tool_calls=[ToolCallRecord(text, {text: text}, text, {text: [text]}, text)],
        assertions=[assertion],
        duration_ms=1.0,
        awaiting_reason="content_is_question",
        awaiting_confidence=0.5,
        input_hint=text,
        data={text: text},
        attachments=attached,
        options={text: text},
        error=text,
        finish_reason=text,
        files=(FileChange(text, "changed", f"@@ {text}\n-{text}\n+{text}"), FileChange(f"{text}2", "removed")),
        comment=text,
    )
    return TrialRecord(
        id=f"{name} {text}",
        name=text,
        status="failed",
        turns=[turn],
        final_assertions=[assertion],
        total_turns=1,
        duration_ms=1.0,
        suite=text,
        trial=1,
        attempt=2,
        fault="agent",
        fault_evidence=[f"after turn 1: {text}", f"{text} and more"],
        error=text,
        hint=text,
        assertion_errors=[text],
        checkpoints=[
            CheckpointRecord(text, text, True, False, reason=text, unmet_after=(text,), assertion=assertion),
            CheckpointRecord(f"{text}2", text, True, True, turn=1, reason=text, assertion=assertion),
        ],
        goal_achieved=True,
        goal_reason=text,
        turns_not_run=[text],
        tags=(text,),
        history=[
            {"role": text, "content": text, "name": text},
            {"role": "user", "content": [{"type": "text", "text": text}, *attached]},
        ],
        options={text: text},
        metadata={text: text},
        agent=text,
        simulator=text,
        session_id=text,
        started_at=text,
        source=f"{text}:3",
        warnings=[text],
        notes=[text],
        workspace=text,
    )


def planted_runs(folder: Path) -> Project:
    """Two runs, kept as if they had been run, with planted texts in every field; and the report of the second one."""
    project = Project(folder)
    everything = "".join(PLANTED.values())
    records = [planted_record(name, text) for name, text in PLANTED.items()]
    for run, kept in (("20260101-000000-0001", records), ("20260101-000100-0002", [passing(records[0]), *records[1:]])):
        started = RunStarted(
            run, "2026-01-01T00:00:00Z", everything, everything, (everything,), len(kept), len(kept), 1
        )
        standing = SuiteSummary(
            suite=everything,
            score=0.0,
            passed=False,
            cases=1,
            passed_cases=0,
            threshold=Threshold(pass_score=0.5, baseline=Baseline(everything, 1.0)),
            unmet=(everything,),
            regression=everything,
            worse_cases=(everything,),
        )
        counts = summary(total=len(kept), failed=len(kept), total_turns=len(kept), suites=(standing,))
        ended = RunEnded(run, "2026-01-01T00:00:30Z", 1, counts, "budget", everything)
        journal = Journal(folder / ".viva" / "runs" / run / "journal.jsonl")
        report = HtmlReport(folder / "report.html", journal)
        for event in (started, *(TrialEnded(record.key, at, 1, record) for at, record in enumerate(kept)), ended):
            journal.append(event)
            report.receive((event,))
        journal.close()
    return project


def passing(record: TrialRecord) -> TrialRecord:
    return structs.replace(record, status="passed", fault=None)


def many_report(folder: Path, count: int) -> Path:
    """A report of many invented cases: a tenth failed."""
    journal = Journal(folder / "journal.jsonl")
    report = HtmlReport(folder / "report.html", journal)
    for event in many_events("r1", count):
        journal.append(event)
        report.receive((event,))
    journal.close()
    return folder / "report.html"


def many_runs(folder: Path, count: int) -> Project:
    """A project with one run of many cases."""
    run = "20260101-000000-0001"
    journal = Journal(folder / ".viva" / "runs" / run / "journal.jsonl")
    for event in many_events(run, count):
        journal.append(event)
    journal.close()
    return Project(folder)


def many_events(run: str, count: int) -> Iterator[RunStarted | TrialEnded | RunEnded]:
    yield RunStarted(run, "2026-01-01T00:00:00Z", "0", "echo", ("suite.jsonl",), count, count, 4)
    for at in range(count):
        record = numbered(at)
        yield TrialEnded(record.key, at, 1, record)
    failed = len(range(3, count, 10))
    counts = summary(total=count, passed=count - failed, failed=failed, total_turns=count, checks=count)
    yield RunEnded(run, "2026-01-01T00:01:00Z", 1, counts)


def numbered(n: int) -> TrialRecord:
    said = f"Question {n}: what does the policy say about item {n % 97}? " + "Please be precise. " * 5
    assertion = contains("lost" if n % 10 == 3 else "item")
    checked = {**assertion, "label": f'contains "{assertion["value"]}"', "passed": n % 10 != 3}
    if n % 10 == 3:
        checked |= {"reason": f'"lost" is not in "{said}"', "expected": "lost", "actual": said}
    turn = TurnRecord(1, said, "static", said, False, [], [checked], 1.0)
    status = "failed" if n % 10 == 3 else "passed"
    name = f"case-{n:05}"
    return TrialRecord(
        name,
        name,
        status,
        [turn],
        [],
        1,
        1.5,
        "suite.jsonl",
        1,
        1,
        checks=1,
        tags=(f"area-{n % 7}",),
        fault="agent" if n % 10 == 3 else None,
    )
