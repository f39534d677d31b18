"""Viva tests AI agents through multi-turn conversations.

    import viva
    from viva import check

    result = viva.run("tests/expense.jsonl", "assistants.expense")      # what `viva test` does

    async with viva.Conversation("assistants.expense") as chat:         # or turn by turn
        await chat.say("I want to submit an expense")
        chat.expect(check.contains("type of expense"))

`viva.check` has the assertions, `viva.errors` the exceptions, `viva.plugins` what authors of plugins need.
Names are imported on first use, so `import viva` is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from viva import check as check
    from viva import errors as errors
    from viva import plugins as plugins
    from viva.api.conversation import Conversation as Conversation
    from viva.api.run import run as run
    from viva.model.case import Case as Case
    from viva.model.message import Message as Message
    from viva.model.message import Reply as Reply
    from viva.model.message import ToolCall as ToolCall
    from viva.model.record import TrialRecord as TrialRecord
    from viva.session.messages import AgentReply as AgentReply
    from viva.session.run import RunResult as RunResult
    from viva.session.script_context import AsyncContext as AsyncContext
    from viva.session.script_context import Context as Context
    from viva.session.tester import T as T
    from viva.stats.sequential import SequentialTest as SequentialTest

_MODULES = ("check", "errors", "plugins")
_SOURCES = {
    "AgentReply": "viva.session.messages",
    "AsyncContext": "viva.session.script_context",
    "Case": "viva.model.case",
    "Context": "viva.session.script_context",
    "Conversation": "viva.api.conversation",
    "Message": "viva.model.message",
    "Reply": "viva.model.message",
    "RunResult": "viva.session.run",
    "SequentialTest": "viva.stats.sequential",
    "T": "viva.session.tester",
    "ToolCall": "viva.model.message",
    "TrialRecord": "viva.model.record",
    "run": "viva.api.run",
}

__all__ = ["__version__", *_MODULES, *_SOURCES]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll] -- a test compares it with the imports above


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"viva.{name}")
    if name not in _SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_SOURCES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
