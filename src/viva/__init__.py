"""Viva tests AI agents through multi-turn conversations.

    import viva
    from viva import check

    result = viva.run("tests/expense.jsonl", "assistants.expense")      # what `viva test` does
    assert result, result

    with viva.SyncConversation("assistants.expense") as chat:           # or turn by turn
        chat.say("I want to submit an expense")
        chat.expect(check.contains("type of expense"), lambda turn: turn.awaiting)

In async code, `await viva.arun(…)` and `async with viva.Conversation(…)` do the same on the caller's event loop.
`viva.check` has the assertions, `viva.errors` all exceptions, `viva.plugins` what authors of plugins need, `viva.types`
the types for annotations. Names are imported on first use, so `import viva` is cheap.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # like that of `typing`, whose import takes longer than the rest of this file
if TYPE_CHECKING:
    from viva import check as check
    from viva import errors as errors
    from viva import plugins as plugins
    from viva import types as types
    from viva.api.conversation import Conversation as Conversation
    from viva.api.run import arun as arun
    from viva.api.run import run as run
    from viva.api.run_options import RunOptions as RunOptions
    from viva.api.sync_conversation import SyncConversation as SyncConversation
    from viva.errors import AgentFailed as AgentFailed
    from viva.errors import BadInput as BadInput
    from viva.model.message import Reply as Reply
    from viva.model.message import ToolCall as ToolCall
    from viva.model.turn import Verdict as Verdict
    from viva.session.run_result import RunResult as RunResult

_MODULES = ("check", "errors", "plugins", "types")
_SOURCES = {
    "AgentFailed": "viva.errors",
    "BadInput": "viva.errors",
    "Conversation": "viva.api.conversation",
    "Reply": "viva.model.message",
    "RunOptions": "viva.api.run_options",
    "RunResult": "viva.session.run_result",
    "SyncConversation": "viva.api.sync_conversation",
    "ToolCall": "viva.model.message",
    "Verdict": "viva.model.turn",
    "arun": "viva.api.run",
    "run": "viva.api.run",
}

__all__ = ["__version__", *_MODULES, *_SOURCES]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll] -- a test compares it with the imports above


if not TYPE_CHECKING:  # type checkers would take it for a promise that every name exists

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _MODULES:
            return import_module(f"viva.{name}")
        if name not in _SOURCES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_SOURCES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
