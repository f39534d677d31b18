"""A project with a few agents, for the Python side of Viva."""

from pathlib import Path

import pytest

CONFIG = """
[agents."assistants.expense"]
use = "python:./vv_agents.py:assistant"
options = { tone = "dry" }

[agents."workers.judge"]
use = "python:./vv_agents.py:judge"

[agents.broken]
use = "python:./vv_agents.py:broken"

[agents.unreachable]
url = "http://127.0.0.1:1/"
"""

AGENTS = '''
heard = []


def assistant(messages, options):
    """Repeats what it hears, counts, and shows what it was given."""
    text = messages[-1]["content"]
    if text == "who asks?":
        return {"content": "Which one would you like?", "awaiting_input": True}
    calls = [{"name": "submit", "arguments": {"amount": 3500}}] if "submit" in str(text) else []
    return {"content": f"You said: {text}", "data": {"messages": len(messages), "options": options}, "tool_calls": calls}


def judge(messages, options):
    """Says yes to what holds `said`, and keeps what it was asked."""
    asked = options["metadata"]
    heard.append({"messages": messages, "metadata": asked})
    if asked.get("criteria") == "break":
        raise RuntimeError("the judge is ill")
    passed = "said" in asked["output"]
    return {"passed": passed, "score": 0.8 if passed else 0.1, "reason": f"about {asked['criteria']}", "suggestions": ["be brief"]}


def broken(messages):
    raise ValueError("boom")
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "viva.toml").write_text(CONFIG)
    (tmp_path / "vv_agents.py").write_text(AGENTS)
    return tmp_path
