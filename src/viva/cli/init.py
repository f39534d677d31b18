"""`viva init`: creates a small project that runs at once."""

from pathlib import Path

import click

from viva.errors import BadInput
from viva.schemas.validation import read_schema

EPILOG = """\b
Examples:
  viva init                                                          in the working folder
  viva init my-agent-tests && cd my-agent-tests && viva test tests/  in a new folder
"""

CONFIG_TEXT = """\
# The config of `viva test`: agents, and connectors to models.
# `viva schema config` prints all keys; `viva agents` shows which agents can be reached.

[defaults]
agent = "greeter"

[agents.greeter]
use = "python:./agent.py:reply"
description = "Says hello and tells the time of day"

# An OpenAI-compatible model as an agent:
# [connectors.local]
# base_url = "http://localhost:11434/v1"
# model = "llama3.2"
#
# [agents.chat]
# type = "chat"
# connector = "local"
# system = "You are a helpful assistant."
"""

AGENT_TEXT = '''\
"""An agent is a function of the conversation so far. Replace this one with yours."""


def reply(messages, options):
    text = messages[-1]["content"].lower()
    if "time" in text:
        return {"content": "It is noon.", "tool_calls": [{"name": "clock", "arguments": {}, "result": "12:00"}]}
    if "hello" in text or "hi" in text.split():
        return {"content": "Hello! What is your name?", "awaiting_input": True}
    return f"Nice to meet you, {messages[-1]['content']}."
'''

SUITE_TEXT = """\
# yaml-language-server: $schema=../viva.schema.json
- id: greets
  name: Says hello and asks for a name
  input: Hello!
  assertions:
    - type: contains
      value: Hello
    - type: regex
      pattern: name\\?$

- id: remembers
  name: A conversation of two turns
  turns:
    - input: Hello!
      assertions:
        - { type: contains, value: name }
    - input: Ada
      assertions:
        - { type: contains, value: Ada }

- id: tells-the-time
  name: Uses its tool
  input: What time is it?
  assertions:
    - { type: tool_called, name: clock }
    - { type: max_latency, value: 2s }
"""


@click.command(epilog=EPILOG)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())
def command(folder: Path) -> int:
    """Create a small project in FOLDER (default: here): a config, an agent and a suite. Existing files are not changed."""
    files = {
        "viva.toml": CONFIG_TEXT.encode(),
        "agent.py": AGENT_TEXT.encode(),
        "tests/greeter.yaml": SUITE_TEXT.encode(),
        "viva.schema.json": read_schema("native"),
    }
    for name, content in files.items():
        path = folder / name
        if path.exists():
            print(f"kept   {path}")
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise BadInput.of(f"cannot be written: {error.strerror}", str(path)) from error
        print(f"wrote  {path}")
    where = "" if folder == Path() else f"cd {folder} && "
    print(f"\nNow run: {where}viva test -i tests/ -v")
    return 0
