"""For authors of plugins: how to register a component, and what components derive from or implement.

    from viva import plugins

    @plugins.register("check", "max_words")
    class MaxWords(plugins.LocalCheck, frozen=True, kw_only=True):
        value: int
        ...

A plugin is a module that `plugins` in `viva.toml` or an entry point of the group `viva` names.
"""

from viva.catalog import register
from viva.checks.base_check import LocalCheck
from viva.model.component import Component
from viva.model.turn import Verdict
from viva.protocols import Agent, AgentSession, Check, SessionContext, Sink
from viva.reporters.report import Report
from viva.state.trial_state import CheckContext

__all__ = [
    "Agent",
    "AgentSession",
    "Check",
    "CheckContext",
    "Component",
    "LocalCheck",
    "Report",
    "SessionContext",
    "Sink",
    "Verdict",
    "register",
]
