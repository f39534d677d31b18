"""The fixture `viva` of the pytest plugin."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from viva import check, errors
from viva.api.conversation import Conversation
from viva.api.project import AgentInput
from viva.api.pytest_session import PytestSession, replace_flags_by_pytest_flags
from viva.api.run import RunInputs, arun, run
from viva.api.run_options import RunKeywords, RunOptions
from viva.api.sync_conversation import SyncConversation
from viva.errors import BadInput
from viva.model.message import Reply, ToolCall
from viva.model.turn import Verdict
from viva.session.messages import MessageInput
from viva.session.run_result import RunResult


class VivaFixture:
    """The fixture `viva`: runs suites, opens conversations, and has the names of the module `viva`.

    def test_refund(viva):
        chat = viva.chat("assistants.support", timeout="30s")
        reply = chat.say("I want my money back")
        chat.expect(viva.check.contains("order number"), viva.check.tool_not_called("refund"))
        chat.judge("The assistant stays polite")

    def test_suite(viva):
        result = viva.run("cases/refund.jsonl")
        assert result, result
    """

    check = check
    errors = errors
    Conversation = Conversation
    SyncConversation = SyncConversation
    RunOptions = RunOptions
    Reply = Reply
    ToolCall = ToolCall
    Verdict = Verdict
    BadInput = BadInput
    AgentFailed = errors.AgentFailed

    def __init__(self, session: PytestSession, folder: Path, get_agent: Callable[[], Any]) -> None:
        self._session = session
        self._folder = folder
        self._get_agent = get_agent
        """Asks the project for its default agent: see the fixture `viva_agent`."""
        self._chats: list[SyncConversation] = []

    def run(self, inputs: RunInputs, agent: AgentInput = None, **keywords: Unpack[RunKeywords]) -> RunResult:
        """Like `viva.run`, with paths and config relative to the test's folder, and without history."""
        __tracebackhide__ = True
        try:
            return run(inputs, self._choose_agent(agent), **self._add_defaults(keywords))
        except BadInput as error:
            raise replace_flags_by_pytest_flags(error) from None

    async def arun(self, inputs: RunInputs, agent: AgentInput = None, **keywords: Unpack[RunKeywords]) -> RunResult:
        """Like `run`, for async tests: runs on their event loop."""
        __tracebackhide__ = True
        try:
            return await arun(inputs, self._choose_agent(agent), **self._add_defaults(keywords))
        except BadInput as error:
            raise replace_flags_by_pytest_flags(error) from None

    def chat(
        self,
        agent: AgentInput = None,
        *,
        options: Mapping[str, Any] | None = None,
        history: MessageInput = (),
        timeout: str | float | None = None,
    ) -> SyncConversation:
        """Open a conversation, which is closed at the end of the fixture's scope."""
        __tracebackhide__ = True
        chat = SyncConversation(
            self._choose_agent(agent), options=options, history=history, timeout=timeout, folder=self._folder
        )
        try:
            self._chats.append(chat.open_in(self._session.loop))
        except BadInput as error:
            raise replace_flags_by_pytest_flags(error) from None
        return chat

    def close(self) -> None:
        """End all conversations; the fixture does it at the end of its scope."""
        for chat in self._chats:
            chat.close()

    def _choose_agent(self, agent: Any) -> Any:
        if agent is not None:
            return agent
        return self._session.agent if self._session.agent is not None else self._get_agent()

    def _add_defaults(self, keywords: RunKeywords) -> RunKeywords:
        options = keywords.get("options") or RunOptions()
        folder = options.folder if options.folder != Path() else self._folder
        return {"history": False, **keywords, "options": replace(options, folder=folder)}
