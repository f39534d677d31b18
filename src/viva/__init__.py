"""Viva examines AI agents by talking to them.

    import viva

    result = viva.run("tests/expense.jsonl", "assistants.expense")      # what `viva test` does

    async with viva.Conversation("assistants.expense") as chat:         # or turn by turn
        await chat.say("I want to submit an expense")
        chat.expect(viva.contains("type of expense"))

Names are imported when they are first used, so `import viva` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from viva.api.conversation import Conversation as Conversation
    from viva.api.run import run as run
    from viva.catalog import register as register
    from viva.check import all_of as all_of
    from viva.check import any_of as any_of
    from viva.check import contains as contains
    from viva.check import equals as equals
    from viva.check import json_path as json_path
    from viva.check import json_schema as json_schema
    from viva.check import judge as judge
    from viva.check import max_cost as max_cost
    from viva.check import max_latency as max_latency
    from viva.check import max_tokens as max_tokens
    from viva.check import max_turns as max_turns
    from viva.check import not_ as not_
    from viva.check import not_contains as not_contains
    from viva.check import regex as regex
    from viva.check import rubric as rubric
    from viva.check import script as script
    from viva.check import tool_called as tool_called
    from viva.check import tool_not_called as tool_not_called
    from viva.check import tool_result as tool_result
    from viva.check import tool_sequence as tool_sequence
    from viva.check import type_is as type_is
    from viva.errors import AgentFailed as AgentFailed
    from viva.errors import BadInput as BadInput
    from viva.errors import CheckError as CheckError
    from viva.errors import HelperFailed as HelperFailed
    from viva.errors import RunStopped as RunStopped
    from viva.errors import Undetermined as Undetermined
    from viva.errors import Unreachable as Unreachable
    from viva.errors import VivaError as VivaError
    from viva.model.case import Case as Case
    from viva.model.message import Message as Message
    from viva.model.message import Reply as Reply
    from viva.model.message import ToolCall as ToolCall
    from viva.model.record import TrialRecord as TrialRecord
    from viva.model.turn import Verdict as Verdict
    from viva.protocols import Agent as Agent
    from viva.protocols import AgentSession as AgentSession
    from viva.protocols import SessionContext as SessionContext
    from viva.session.messages import AgentReply as AgentReply
    from viva.session.run import RunResult as RunResult
    from viva.session.script_context import AsyncContext as AsyncContext
    from viva.session.script_context import Context as Context
    from viva.session.tester import T as T
    from viva.state.trial_state import CheckContext as CheckContext
    from viva.stats.sequential import SequentialTest as SequentialTest

_HOMES = {
    "viva.catalog": ["register"],
    "viva.errors": [
        *("AgentFailed", "BadInput", "CheckError", "HelperFailed"),
        *("RunStopped", "Undetermined", "Unreachable", "VivaError"),
    ],
    "viva.model.case": ["Case"],
    "viva.model.message": ["Message", "Reply", "ToolCall"],
    "viva.model.record": ["TrialRecord"],
    "viva.model.turn": ["Verdict"],
    "viva.state.trial_state": ["CheckContext"],
    "viva.protocols": ["Agent", "AgentSession", "SessionContext"],
    "viva.api.run": ["run"],
    "viva.api.conversation": ["Conversation"],
    "viva.session.script_context": ["AsyncContext", "Context"],
    "viva.check": [
        *("judge", "all_of", "any_of", "contains", "equals", "json_path", "json_schema", "max_cost"),
        *("max_latency", "max_tokens", "max_turns", "not_", "not_contains", "regex", "rubric", "script"),
        *("tool_called", "tool_not_called", "tool_result", "tool_sequence", "type_is"),
    ],
    "viva.session.run": ["RunResult"],
    "viva.session.messages": ["AgentReply"],
    "viva.session.tester": ["T"],
    "viva.stats.sequential": ["SequentialTest"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME_OF]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll] -- a test holds it to the imports above


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
