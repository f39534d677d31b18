"""A project with a bit of everything that a page shows, made from the expense example; and one full of planted texts."""

import json
import shutil
from pathlib import Path
from typing import Any

from project import Project, case, contains

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
    def confirms(self, heard):
        hasty = pathlib.Path("mood").read_text() == "hasty"
        return HastyAssistant.confirms(self, heard) if hasty else super().confirms(heard)

def quoting(messages, options):
    return {
        "passed": False, "score": 0.25,
        "reason": "It goes straight to the money, and does not say why it asks.",
        "evidence": [{"turn": 1, "quote": "How much was it, in US dollars?"}],
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
  turns:
    - input: I had lunch with a client
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


def planted_project(folder: Path, *, huge: bool = True) -> Project:
    """An agent that answers with texts that would do harm if they were anything but text; they stand everywhere else, too."""
    project = Project(folder)
    project.write("agent.py", AGENT)
    cases = [planted(name, text) for name, text in PLANTED.items()]
    if huge:
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


def many_project(folder: Path, count: int) -> Project:
    """A run of many cases, as a journal that was not run: a tenth failed, one in a hundred is an error."""
    project = Project(folder)
    project.write("suite.jsonl", "".join(json.dumps(numbered(n)) + "\n" for n in range(count)))
    return project


def numbered(n: int) -> dict[str, Any]:
    said = f"Question {n}: what does the policy say about item {n % 97}? " + "Please be precise. " * 5
    return case(
        f"case-{n:05}", said=said, tags=[f"area-{n % 7}"], assertions=[contains("lost" if n % 10 == 3 else "item")]
    )
