"""What all adapters of agent frameworks share: the config entry, the agent, and the session of one conversation.

An adapter is one file: a FrameworkSession that runs one turn, and a FrameworkConfig that makes it a kind of agent. Each
trial has a session of its own. All sessions run on one event loop, which outlives the runs. What happens in a turn goes
into a TurnLog.
"""

import copy
import importlib
import inspect
import re
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

from msgspec import UNSET, Struct, UnsetType

from viva.agents.agent_config import AgentConfig, AgentSetup, NonEmpty
from viva.agents.frameworks.recognition import FUNCTION_EXAMPLE
from viva.agents.frameworks.turn_log import Decision, TurnLog, decode_json_text, read_decision, replace_surrogates
from viva.agents.python import import_object, is_factory
from viva.agents.tools import ToolStubs, split_at_tool_results
from viva.agents.user_errors import raise_as_faults
from viva.concurrency.shared_loop import run_on_shared_loop
from viva.errors import AgentFailed, BadInput
from viva.llm.provider_errors import MODEL_CLIENT_PACKAGES
from viva.model import codec
from viva.model.case import Feature
from viva.model.message import Message, Reply, ToolCall
from viva.model.progress import CallProgress
from viva.model.tracebacks import format_error
from viva.protocols import SessionContext

_OTHER_LOOP = re.compile(r"different (event )?loop|event loop is closed", re.IGNORECASE)
_OTHER_LOOP_HINT = "the object was used on another event loop before: pass a function that creates it, as in -n python:./app.py:make_agent"
_MARK = "is_intercepted_by_viva"
_NO_CONTEXT_HINT = "its context is None: `context` of its entry in viva.toml names a function that creates one"

current_session: ContextVar["FrameworkSession | None"] = ContextVar("current_session", default=None)
"""The session whose turn runs: for code that a framework calls without naming the session, such as agents that a tool runs."""


class FrameworkSession:
    """One conversation with an object of a framework."""

    title: ClassVar[str]
    """The name of the framework in messages."""
    package: ClassVar[str]
    """The distribution that has the framework."""
    tested_version: ClassVar[str]
    """The version that the adapter was tested with."""
    types: ClassVar[tuple[str, ...]]
    """The types of the objects that the adapter runs, each as `module:Name`."""
    context_field: ClassVar[str] = ""
    """The attribute in which an object says what context it needs."""
    required_names: ClassVar[tuple[str, ...]] = ()
    """Other names that the adapter needs, each as `module:Name`: a version without them is refused before anything runs."""

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
    def check_target(cls, target: Any) -> None:
        """Raises BadInput if the adapter cannot run this object, or if the framework's version does not fit."""
        types = tuple(cls.load(*place.split(":")) for place in cls.types)
        for place in cls.required_names:
            cls.load(*place.split(":"))
        if not isinstance(target, types):
            if inspect.isroutine(target):
                raise cls.build_error(
                    f"{target.__name__} has parameters; name a function without any that creates the object"
                )
            names = " or ".join(dict.fromkeys(each.__name__ for each in types))
            if inspect.isclass(target):
                raise cls.build_error(f"{target.__name__} is a class, not an object of {names}")
            raise cls.build_error(
                f"{type(target).__name__} is not {names}; name a function that runs it:\n{FUNCTION_EXAMPLE}"
            )

    async def start(self) -> None:
        """Prepares the memory of the conversation, with the history of the case in it."""

    @abstractmethod
    async def run_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
        """Sends one message, logs what happens, and returns the reply that the log builds."""

    async def close(self) -> None:
        """Ends a run of the framework that still goes on."""

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        progress = self.context.progress
        log = self.log = TurnLog(progress, self._stubs)
        try:
            with raise_as_faults(progress, self._provider_packages):
                reply = await run_on_shared_loop(self._run_current_turn(message, options))
                _check_is_text(reply)
            self.pending_calls = tuple(call for call in reply.tool_calls if call.pending)
            return reply
        except BaseException as raised:
            progress.partial = replace_surrogates(log.build_reply())
            if isinstance(raised, AgentFailed) and _OTHER_LOOP.search(raised.message):
                raise AgentFailed(f"{raised.message}; {_OTHER_LOOP_HINT}", deterministic=True) from raised
            if isinstance(raised, AgentFailed) and self._is_misfit(raised.__cause__):
                raise AgentFailed(f"{raised.message}; {self._explain_version_misfit()}", deterministic=True) from raised
            if isinstance(raised, AgentFailed) and "NoneType" in raised.message and self._lacks_context:
                raise AgentFailed(f"{raised.message}; {_NO_CONTEXT_HINT}", deterministic=True) from raised
            raise
        finally:
            for call in log.model_calls:
                self.context.meter(call)

    @property
    def _lacks_context(self) -> bool:
        """Does the object say that it needs a context, and the config gives none?"""
        declared = getattr(self.target, self.context_field, None) if self.context_field else None
        return self.tool_context is None and declared not in (None, type(None))

    async def _run_current_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
        current_session.set(self)  # the tasks and threads of the turn inherit it
        return await self.run_turn(message, options)

    def convert_history(self) -> list[Any]:
        """The history of the case, as messages of the framework."""
        return [each for message in self.context.history for each in self.convert_to_messages(message)]

    def convert_to_messages(self, message: Message) -> Iterator[Any]:
        """A message as messages of the framework: tool calls and their results come before the text."""
        asking, answered, text = split_at_tool_results(message)
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

    def answer_pending_calls(
        self, message: Message, options: Mapping[str, Any], outside: Container[str] = ()
    ) -> tuple[Decision, Any]:
        """Logs the user's answer to the calls that wait, and returns it: the decision and a result.

        The result (the option `resume`, or the text, which may be JSON) is that of the calls with the ids `outside`, which do
        not run in the framework; the others wait for an approval.
        """
        decision, result = read_decision(message, options), options.get("resume", decode_json_text(message.text))
        for call in self.pending_calls:
            if call.id in outside or not decision.is_approved:
                self.log.start_call(call.id, call.name, call.arguments)
            if call.id in outside:
                self.log.end_call(call.id, result)
            elif not decision.is_approved:
                self.log.refuse_call(call.id, decision.text)
        return decision, result

    def require_text(self, message: Message) -> str:
        """The text of a message for a framework to which Viva sends no attachments."""
        if message.attachments:
            raise ValueError(f"Viva sends only text to {self.title}; this message has attachments")
        return message.text

    @property
    def has_stubs(self) -> bool:
        """Do canned answers replace all tools?"""
        return self._stubs is not None

    @classmethod
    def build_error(cls, problem: str) -> BadInput:
        return BadInput.of(f"{cls.title}: {problem}")

    @classmethod
    def load(cls, module: str, *names: str) -> Any:
        """Imports names from a module of the framework. BadInput if it is not installed, or if its version lacks a name."""
        try:
            loaded = importlib.import_module(module)
            values = [getattr(loaded, name) for name in names]
        except (ImportError, AttributeError) as error:
            raise cls.build_error(cls._explain_version_misfit(error)) from error
        return values[0] if len(values) == 1 else values

    @classmethod
    def _explain_version_misfit(cls, error: Exception | None = None) -> str:
        try:
            problem = f"{cls.package} {version(cls.package)} does not fit{f': {error}' if error else ''}"
        except PackageNotFoundError:
            return f"it is not installed; pip install {cls.package}"
        return f"{problem}; Viva was tested with {cls.package} {cls.tested_version}"

    @classmethod
    def _is_misfit(cls, error: BaseException | None) -> bool:
        """Does the adapter itself miss something in this version of the framework?"""
        trace = error.__traceback__ if isinstance(error, AttributeError | TypeError) else None
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        return trace is not None and trace.tb_frame.f_globals.get("__name__") == cls.__module__


def _check_is_text(reply: Reply) -> None:
    """Raises AgentFailed for a reply that JSON cannot hold: half of a surrogate pair, which models write as an escape."""
    try:
        codec.encode(reply)
    except ValueError as error:
        raise AgentFailed(f"returned what JSON cannot hold: {format_error(error)}") from error


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
            with raise_as_faults(context.progress, self.provider_packages):
                await run_on_shared_loop(session.close())

    async def _start(self, context: SessionContext) -> FrameworkSession:
        target = await _call_factory(self.target) if is_factory(self.target) else self.target
        tool_context = None if self.make_context is None else await _call_factory(self.make_context)
        session = self.session(target, context, self.provider_packages, tool_context)
        try:
            session.check_target(target)
            await session.start()
        except BadInput as wrong:  # what a function creates, and what a case needs, is known only now
            raise AgentFailed(str(wrong), deterministic=True) from wrong
        return session


def get_current_log() -> TurnLog:
    """The log of the turn that runs now; one that is not read if the user's own code uses the object."""
    session = current_session.get()
    return TurnLog(CallProgress()) if session is None else session.log


def intercept(owner: type, name: str, instead: Callable[..., Any]) -> None:
    """From now on calls of a method go to `instead` while a turn runs: with the session, the method, the object, and the arguments.

    For what a framework reports nowhere, such as agents that a tool runs. In the user's own code nothing changes.
    """
    method = getattr(owner, name)
    if hasattr(method, _MARK):
        return  # it is done

    @wraps(method)
    def call(*values: Any, **named: Any) -> Any:
        session = current_session.get()
        return method(*values, **named) if session is None else instead(session, method, *values, **named)

    setattr(call, _MARK, True)
    setattr(owner, name, call)


def copy_with(value: Any, **attributes: Any) -> Any:
    """A shallow copy of an object of the framework, with other values or methods under these names."""
    clone = copy.copy(value)
    for name, attribute in attributes.items():
        setattr(clone, name, attribute)
    return clone


async def _call_factory(factory: Any) -> Any:
    created = factory()
    return await created if inspect.isawaitable(created) else created
