"""What all adapters of agent frameworks share: the config entry, the agent, and the session of one conversation.

An adapter is one file: a FrameworkSession that runs one turn, and a FrameworkConfig that makes it a kind of agent. Each
trial has a session of its own. All sessions run on one event loop, which outlives the runs. What happens in a turn goes
into a TurnLog.
"""

import importlib
import inspect
import re
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

from msgspec import UNSET, Struct, UnsetType

from viva.agents.agent_config import AgentConfig, AgentSetup, NonEmpty
from viva.agents.frameworks.turn_log import TurnLog
from viva.agents.python import import_object
from viva.agents.tools import ToolStubs, split_steps
from viva.agents.user_errors import raise_as_faults
from viva.concurrency.shared_loop import run_on_shared_loop
from viva.errors import AgentFailed, BadInput
from viva.llm.provider_errors import MODEL_CLIENT_PACKAGES
from viva.model.case import Feature
from viva.model.message import Message, Reply, ToolCall
from viva.protocols import SessionContext

_OTHER_LOOP = re.compile(r"different (event )?loop|event loop is closed", re.IGNORECASE)
_OTHER_LOOP_HINT = "the object was used on another event loop before: pass a function that creates it, as in -n python:./app.py:make_agent"


class FrameworkSession:
    """One conversation with an object of a framework."""

    title: ClassVar[str]
    package: ClassVar[str]
    """The distribution that has the framework."""
    tested: ClassVar[str]
    """The version that the adapter was tested with."""

    def __init__(
        self, target: Any, context: SessionContext, provider_packages: frozenset[str], tool_context: Any = None
    ) -> None:
        self.target = target
        self.context = context
        self.tool_context = tool_context
        self._provider_packages = provider_packages
        self.pending_calls: tuple[ToolCall, ...] = ()
        self.log: TurnLog
        """What happens in the turn that runs now."""
        fixtures = context.fixtures
        self._stubs = ToolStubs(fixtures.tools) if fixtures is not None and fixtures.stub_all_tools else None

    @classmethod
    @abstractmethod
    def load_types(cls) -> Sequence[type]:
        """The types of the objects that the adapter runs. BadInput if the framework's version does not fit."""

    @classmethod
    def check_target(cls, target: Any) -> None:
        """Raises BadInput if the adapter cannot run this object, or if the framework's version does not fit."""
        types = cls.load_types()
        if not isinstance(target, tuple(types)):
            if inspect.isroutine(target):
                raise cls.refuse(
                    f"{target.__name__} has parameters; name a function without any that creates the object"
                )
            names = " or ".join(dict.fromkeys(each.__name__ for each in types))
            what = f"the class {target.__name__}" if inspect.isclass(target) else type(target).__name__
            raise cls.refuse(f"{what} is no {names}")

    async def start(self) -> None:
        """Prepares the memory of the conversation, with the history of the case in it."""

    @abstractmethod
    async def run_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
        """Sends one message, logs what happens, and returns the reply that the log builds."""

    async def close(self) -> None:
        """Ends what still runs."""

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        progress = self.context.progress
        log = self.log = TurnLog(progress, self._stubs)
        try:
            with raise_as_faults(progress, self._provider_packages):
                reply = await run_on_shared_loop(self.run_turn(message, options))
            self.pending_calls = tuple(call for call in reply.tool_calls if call.pending)
            return reply
        except BaseException as raised:
            progress.partial = log.build_reply()
            if isinstance(raised, AgentFailed) and _OTHER_LOOP.search(raised.message):
                raise AgentFailed(f"{raised.message}; {_OTHER_LOOP_HINT}", deterministic=True) from raised
            if isinstance(raised, AgentFailed) and self._is_misfit(raised.__cause__):
                raise AgentFailed(f"{raised.message}; {self._explain_misfit()}", deterministic=True) from raised
            raise
        finally:
            for call in log.model_calls:
                self.context.meter(call)

    def convert_history(self) -> list[Any]:
        """The history of the case, as messages of the framework."""
        return [each for message in self.context.history for each in self.convert(message)]

    def convert(self, message: Message) -> Iterator[Any]:
        """A message as messages of the framework: tool calls and their results come before the text."""
        asking, answered, text = split_steps(message)
        if asking.content or asking.tool_calls:
            yield self.convert_message(asking)
        if answered:
            yield from self.convert_results(answered)
        if text is not None:
            yield self.convert_message(text)

    def convert_message(self, message: Message) -> Any:
        """A message with its tool calls, in the form of the framework."""
        raise NotImplementedError

    def convert_results(self, calls: Sequence[ToolCall]) -> Iterable[Any]:
        """The results of tool calls, in the form of the framework."""
        raise NotImplementedError

    def refuse_pending(self, reason: str, *calls: ToolCall) -> Sequence[ToolCall]:
        """Logs that the user denied these calls, or all that wait, and returns them."""
        for call in calls or self.pending_calls:
            self.log.start_call(call.id, call.name, call.arguments)
            self.log.refuse_call(call.id, reason)
        return calls or self.pending_calls

    def end_pending(self, call: ToolCall, result: Any) -> None:
        """Logs that the user gave the result of a call that waits."""
        self.log.start_call(call.id, call.name, call.arguments)
        self.log.end_call(call.id, result)

    def require_text(self, message: Message) -> str:
        """The text of a message for a framework to which Viva sends no attachments."""
        if message.attachments:
            raise ValueError(f"Viva sends only text to {self.title}; this message has attachments")
        return message.text

    @property
    def has_stubs(self) -> bool:
        """Must no tool run live?"""
        return self._stubs is not None

    @classmethod
    def refuse(cls, problem: str) -> BadInput:
        return BadInput.of(f"{cls.title}: {problem}")

    @classmethod
    def load(cls, module: str, *names: str) -> Any:
        """Names of a module of the framework. BadInput if it is not installed, or if its version does not have them."""
        try:
            loaded = importlib.import_module(module)
            values = [getattr(loaded, name) for name in names]
        except (ImportError, AttributeError) as error:
            raise cls.refuse(cls._explain_misfit(error)) from error
        return values[0] if len(values) == 1 else values

    @classmethod
    def _explain_misfit(cls, error: Exception | None = None) -> str:
        try:
            problem = f"{cls.package} {version(cls.package)} does not fit{f': {error}' if error else ''}"
        except PackageNotFoundError:
            return f"it is not installed; pip install {cls.package}"
        return f"{problem}; Viva was tested with {cls.package} {cls.tested}"

    @classmethod
    def _is_misfit(cls, error: BaseException | None) -> bool:
        """Does the adapter itself miss something in this version of the framework?"""
        trace = error.__traceback__ if isinstance(error, AttributeError | TypeError) else None
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        return trace is not None and trace.tb_frame.f_globals.get("__name__") == cls.__module__


class FrameworkConfig(AgentConfig, frozen=True, kw_only=True):
    """The fields of agents that are objects of a framework."""

    use: NonEmpty | UnsetType = UNSET
    """A reference such as langgraph:./app.py:graph: the object, or a function without parameters that creates one for each
    conversation."""
    context: NonEmpty | UnsetType = UNSET
    """python:./app.py:make_context: a function without parameters that creates, for each conversation, what the framework
    passes to its tools: `context` in LangGraph and OpenAI Agents, `deps` in pydantic-ai."""

    session: ClassVar[type[FrameworkSession]]

    @classmethod
    def parse_reference(cls, reference: str) -> dict[str, Any] | None:
        return {"use": reference}

    def build(self, setup: AgentSetup) -> "FrameworkAgent":
        if self.use is UNSET:
            raise setup.error("is missing `use`")
        module, target = import_object(self.use.partition(":")[2], str(setup.folder))
        context = None
        if self.context is not UNSET:
            _, context = import_object(self.context.removeprefix("python:"), str(setup.folder))
            if not is_factory(context):
                raise setup.error(f"{self.context} must be a function without parameters", "context")
        return self.wrap_object(target, setup.provider_packages, module, context)

    @classmethod
    def wrap_object(
        cls, target: Any, provider_packages: frozenset[str], module: Any = None, context: Any = None
    ) -> "FrameworkAgent":
        """The agent of an object. `module` is where it comes from, if that is known. BadInput if it does not fit."""
        if not is_factory(target):
            cls.session.check_target(target)
        return FrameworkAgent(target, cls.session, provider_packages, module, context)


class FrameworkAgent(Struct, frozen=True):
    """An object of a framework, or a function that creates one for each conversation."""

    target: Any
    session: type[FrameworkSession]
    provider_packages: frozenset[str] = MODEL_CLIENT_PACKAGES
    module: Any = None
    make_context: Any = None

    @property
    def user_code(self) -> list[Any]:
        return [self.module] if self.module is not None else [self.target] if is_factory(self.target) else []

    @property
    def provides(self) -> frozenset[Feature]:
        return frozenset({"tool_stubs"})

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator[FrameworkSession]:
        with raise_as_faults(context.progress, self.provider_packages):
            session = await run_on_shared_loop(self._start(context))
        try:
            yield session
        finally:
            await run_on_shared_loop(session.close())

    async def _start(self, context: SessionContext) -> FrameworkSession:
        target = await _create(self.target) if is_factory(self.target) else self.target
        tool_context = None if self.make_context is None else await _create(self.make_context)
        session = self.session(target, context, self.provider_packages, tool_context)
        try:
            session.check_target(target)
            await session.start()
        except BadInput as wrong:  # what a function creates, and what a case needs, is known only now
            raise AgentFailed(str(wrong), deterministic=True) from wrong
        return session


def is_factory(value: Any) -> bool:
    return inspect.isroutine(value) and not inspect.signature(value).parameters


async def _create(factory: Any) -> Any:
    created = factory()
    return await created if inspect.isawaitable(created) else created
