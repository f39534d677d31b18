"""`viva.SyncConversation`: a conversation for code that cannot await."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from viva.api.conversation import Conversation
from viva.api.project import AgentInput
from viva.check import AgentFunction, AssertionInput
from viva.model.case import TurnScope
from viva.model.message import Message
from viva.model.turn import Verdict
from viva.session.loop import CallOutcome, LoopThread, catch_outcome
from viva.session.messages import AgentReply, AttachmentInput, MessageInput

R = TypeVar("R")
_WorkRequest = tuple[Callable[[], Awaitable[Any]], "asyncio.Future[CallOutcome[Any]]"]


class SyncConversation:
    """One session with an agent, controlled by your code, without `await`. It works where an event loop runs, too.

        with viva.SyncConversation("assistants.expense", timeout="30s") as chat:
            reply = chat.say("I want to submit an expense")
            chat.expect(viva.check.contains("type of expense"))
            chat.judge("The assistant stays polite")

    The parameters are those of `viva.Conversation`.
    """

    def __init__(
        self,
        agent: AgentInput = None,
        *,
        options: Mapping[str, Any] | None = None,
        history: MessageInput = (),
        config: str | Path | None = None,
        connector: str | None = None,
        timeout: str | float | None = None,
        folder: str | Path | None = None,
    ) -> None:
        self._conversation = Conversation(
            agent,
            options=options,
            history=history,
            config=config,
            connector=connector,
            timeout=timeout,
            folder=folder,
        )
        self._open: _OpenSession | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        __tracebackhide__ = True
        thread = LoopThread()
        try:
            self._open = _OpenSession(self._conversation, thread, thread.close)
        except BaseException:
            thread.close()
            raise
        return self

    def open_in(self, thread: LoopThread) -> Self:
        """Open the conversation on the loop of an existing thread. `close` ends the conversation, but not the thread."""
        __tracebackhide__ = True
        self._open = _OpenSession(self._conversation, thread, lambda: None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def say(
        self,
        message: MessageInput,
        *,
        attachments: Sequence[AttachmentInput] = (),
        options: Mapping[str, Any] | None = None,
        timeout: str | float | None = None,
    ) -> AgentReply:
        """Send a message and return the reply: `reply = chat.say("Hello", attachments=["receipt.png"])`."""
        __tracebackhide__ = True
        say = self._conversation.say
        return self._run_in_session(lambda: say(message, attachments=attachments, options=options, timeout=timeout))

    def expect(self, *assertions: AssertionInput, scope: TurnScope = "turn") -> None:
        """Check assertions on the last reply: `chat.expect(viva.check.contains("Hello"), lambda turn: turn.awaiting)`.

        Raises as `Conversation.expect` does.
        """
        __tracebackhide__ = True
        self._conversation.expect(*assertions, scope=scope)

    def judge(
        self,
        criteria: str | AssertionInput,
        *,
        use: str | AgentFunction | None = None,
        min_score: float | None = None,
        votes: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        scope: TurnScope = "turn",
    ) -> Verdict:
        """Ask a judge: `chat.judge("The reply is polite", votes=3)`."""
        __tracebackhide__ = True
        judge = self._conversation.judge
        return self._run_in_session(
            lambda: judge(criteria, use=use, min_score=min_score, votes=votes, metadata=metadata, scope=scope)
        )

    @property
    def messages(self) -> list[Message]:
        """All messages so far, including the history."""
        return self._conversation.messages

    @property
    def transcript(self) -> str:
        """The conversation so far, as readable text."""
        return self._conversation.transcript

    def close(self) -> None:
        """End the session. `expect`, `messages` and `transcript` still work."""
        opened, self._open = self._open, None
        if opened is not None:
            self._is_closed = True
            opened.close()

    def _run_in_session(self, work: Callable[[], Awaitable[R]]) -> R:
        __tracebackhide__ = True
        if self._is_closed:
            raise RuntimeError("the conversation is closed; expect, messages and transcript still work")
        if self._open is None:
            raise RuntimeError("the conversation is not open: write `with viva.SyncConversation(…) as chat:`")
        return self._open.run(work)


class _OpenSession:
    """An open conversation. All its calls run in one task, because an agent session may have to be closed by the task that opened it."""

    def __init__(self, conversation: Conversation, thread: LoopThread, on_close: Callable[[], None]) -> None:
        __tracebackhide__ = True
        self._conversation = conversation
        self._thread = thread
        self._on_close = on_close
        self._requests: asyncio.Queue[_WorkRequest | None] = asyncio.Queue()
        self._task = thread.run_blocking(self._start_task())

    def run(self, work: Callable[[], Awaitable[R]]) -> R:
        __tracebackhide__ = True
        return self._thread.run_blocking(self._request_result(work)).get()

    def close(self) -> None:
        try:
            self._thread.run_blocking(self._stop_task())
        finally:
            self._on_close()

    async def _start_task(self) -> "asyncio.Task[None]":
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(self._serve_requests(opened))
        await asyncio.wait((opened, task), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task  # raises why it could not be opened
        return task

    async def _serve_requests(self, opened: "asyncio.Future[None]") -> None:
        async with self._conversation:
            opened.set_result(None)
            while (request := await self._requests.get()) is not None:
                work, future = request
                outcome = await catch_outcome(work())  # whatever the agent raises, the caller must not wait forever
                if not future.cancelled():
                    future.set_result(outcome)

    async def _request_result(self, work: Callable[[], Awaitable[Any]]) -> CallOutcome[Any]:
        future: asyncio.Future[CallOutcome[Any]] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait((work, future))
        try:
            await asyncio.wait((future, self._task), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # Ctrl-C in the thread that waits: `close` must not wait for the reply either
            self._task.cancel()
            raise
        if not future.done():
            if self._task.cancelled():
                raise RuntimeError("the session with the agent was interrupted")
            await self._task  # the session has ended: raises why
            raise RuntimeError("the session with the agent has ended")
        return future.result()

    async def _stop_task(self) -> None:
        self._requests.put_nowait(None)
        await asyncio.wait((self._task,))
        if not self._task.cancelled():
            await self._task  # raises what closing the session raised
