"""Guards a run against an agent of a plugin, whose code may raise and return anything."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from viva.agents.replies import to_plain_copy
from viva.agents.user_errors import raise_as_faults
from viva.errors import AgentFailed, is_ctrl_c, to_valid_text
from viva.model import codec
from viva.model.case import Feature
from viva.model.message import Message, Reply
from viva.model.tracebacks import format_error
from viva.protocols import Agent, AgentSession, SessionContext


def is_plugin_agent(agent: Agent) -> bool:
    """Is it not an agent of Viva?"""
    return type(agent).__module__.partition(".")[0] != "viva"


class PluginAgent:
    """An agent of a plugin. What it raises is its failure, and so is what it returns unless that is a valid reply."""

    def __init__(self, agent: Agent, provider_packages: frozenset[str]) -> None:
        self._agent = agent
        self._provider_packages = provider_packages

    def __getattr__(self, name: str) -> Any:
        """Its other attributes, such as `user_code`."""
        return getattr(self._agent, name)

    @property
    def provides(self) -> frozenset[Feature]:
        return self._agent.provides

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator["PluginSession"]:
        with raise_as_faults(context.progress, self._provider_packages):
            opened = self._agent.open(context)
            session = await opened.__aenter__()
        try:
            yield PluginSession(session, context, self._provider_packages)
        except BaseException as error:
            with suppress(Exception):  # it counts why the conversation ended
                await opened.__aexit__(type(error), error, error.__traceback__)
            raise
        with raise_as_faults(context.progress, self._provider_packages):
            await opened.__aexit__(None, None, None)


class PluginSession:
    """One conversation with an agent of a plugin."""

    def __init__(self, session: AgentSession, context: SessionContext, provider_packages: frozenset[str]) -> None:
        self._session = session
        self._progress = context.progress
        self._provider_packages = provider_packages

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        try:
            with raise_as_faults(self._progress, self._provider_packages):
                reply = await self._session.send(message, options)
            return _copy_reply(reply)
        finally:
            self._drop_invalid_progress()

    def _drop_invalid_progress(self) -> None:
        progress = self._progress
        progress.warnings = [to_valid_text(str(each)) for each in progress.warnings]
        try:
            codec.encode(progress.partial)
        except (ValueError, RecursionError):
            progress.partial = None


def _copy_reply(reply: Any) -> Reply:
    if not isinstance(reply, Reply):
        raise AgentFailed(f"returned {type(reply).__name__} instead of a Reply")
    try:
        return to_plain_copy(reply)
    except BaseException as error:  # user objects may raise anything
        if is_ctrl_c(error):
            raise
        raise AgentFailed(f"returned what JSON cannot hold: {format_error(error)}") from error
