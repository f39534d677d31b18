"""Agents of smolagents, which answer with a tool of their own, and tell the model of other tools in the user's messages."""

import asyncio
import re
from typing import Any

from smolagents import OpenAIModel, ToolCallingAgent, tool

from apps import tools as plain
from apps.tools import BOOKED, INSTRUCTIONS, STARTED
from viva.model.message import ToolCall
from viva.testing import ModelRequest, OpenAIServer, Say

__all__ = ["BOOKED", "INSTRUCTIONS", "STARTED"]
SERVER = OpenAIServer
MODEL, PROVIDER = "gpt-4o-mini", "openai"
PATH = ("assistant",)
HANDLES_TOOL_ERRORS = True
TAKES_IMAGES = False
_model: list[Any] = []


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: One.
        b: The other.
    """
    return plain.add(a, b)


@tool
def broken() -> str:
    """Raises an error."""
    return plain.broken()


@tool
def unreachable() -> str:
    """Asks a server that is down."""
    return plain.unreachable()


@tool
def hang() -> str:
    """Never returns."""
    return asyncio.run(plain.hang())


@tool
def hang_in_thread() -> str:
    """Never returns, and cannot be cancelled."""
    return plain.hang_in_thread()


@tool
def book(a: int) -> str:
    """Books a number of days.

    Args:
        a: Days.
    """
    return plain.book(a)


@tool
def misbehave(a: int) -> str:
    """Does the misdeed of that number.

    Args:
        a: Its number.
    """
    return plain.misbehave(a)


TOOLS = [add, broken, unreachable, hang, hang_in_thread, book, misbehave]


def connect(server: OpenAIServer) -> None:
    options: Any = {"client_kwargs": {"max_retries": 0}, "retry": False}
    _model[:] = [OpenAIModel("gpt-4o-mini", api_base=server.url, api_key="k", **options)]


def read_request(request: ModelRequest) -> tuple[str, list[str], int]:
    """What the user wrote last, the tools that were called since, and how often the user wrote."""
    texts = [each.text for each in request.messages]
    tasks = [(at, each.split("New task:\n")[-1]) for at, each in enumerate(texts) if "New task:\n" in each]
    at, task = tasks[-1]
    called = [name for text in texts[at:] for name in re.findall(r"'name': '(\w+)'", text)]
    failed = ["broken"] if "Error:" in texts[-1] and not called else []
    return task, [*called, *failed], len(tasks)


def get_model() -> Any:
    return _model[0]


def say(text: str) -> Any:
    return Say(tool_calls=[ToolCall("final_answer", {"answer": text})])


def say_trip(trip: dict[str, Any]) -> Any:
    return Say(tool_calls=[ToolCall("final_answer", {"answer": trip})])


def make_agent() -> Any:
    return ToolCallingAgent(
        TOOLS, _model[0], name="assistant", instructions=INSTRUCTIONS, max_steps=4, verbosity_level=0
    )


make_planning_agent = make_agent
