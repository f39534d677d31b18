"""An agent that is Python code: `python:pkg.module:attr` or `python:./agent.py:attr`.

    def agent(messages, options): ...       a function; sync ones run in a thread
    class Agent: def reply(self, ...)       an object with `reply`; a class makes one object for each case
    def make_agent(): return Agent()        a factory (no parameters) makes one object for each case

A reply may be streamed: by a generator or async generator of texts, and of dicts for everything else.
An object made for one case is closed (`close` or `aclose`) when the case has ended.

Parameters named `message`, `messages`, `options`, `tools`, `memory`, `workspace`, `session_id` or `metadata` get that value;
others get messages, then options, in order. `message`, or a first parameter with the type `str`, is the text of the user's last
message. Stubbed tools and memory are also in `options["fixtures"]`.
"""

import asyncio
import importlib
import importlib.util
import inspect
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from msgspec import UNSET, Struct, UnsetType, structs

from viva import catalog
from viva.agents.agent_config import AgentSetup, ConnectedConfig, NonEmpty
from viva.agents.frameworks.recognition import can_reply, explain_no_agent, find_framework
from viva.agents.python_streams import is_stream, make_stream_reader
from viva.agents.replies import convert_typed_object, describe_unknown_keys, parse_piece, parse_reply, to_plain_copy
from viva.agents.streamed_reply import StreamedReply
from viva.agents.tools import CannedTools
from viva.agents.user_errors import raise_as_faults
from viva.concurrency.loops import await_with_timed_steps
from viva.concurrency.threads import DedicatedThread
from viva.errors import AgentFailed, BadInput, TrialFault, is_ctrl_c, with_article
from viva.llm.provider_errors import MODEL_CLIENT_PACKAGES
from viva.model import codec
from viva.model.case import Feature
from viva.model.message import Message, Reply
from viva.model.progress import CallProgress
from viva.model.tracebacks import format_error, format_error_place
from viva.protocols import Agent, AgentSession, SessionContext
from viva.text.similar_names import find_similar_names

_PARAMETERS = frozenset({"message", "messages", "options", "tools", "memory", "workspace", "session_id", "metadata"})

CLOSE_TIMEOUT_S = 5.0


class PythonConfig(ConnectedConfig, frozen=True, kw_only=True):
    """A Python function, object, class or factory. It gets its connector's name in its options."""

    use: NonEmpty | UnsetType = UNSET
    """A reference: python:pkg.module:attr or python:./file.py:attr."""
    takes_fixtures: bool = False
    """The agent uses the stubbed tools and memory in `options["fixtures"]`, though its function has no parameters for them."""
    mcp_stub: bool = False
    """Serve the `fixtures.tools` of a case to it as an MCP server, at `options["mcp_url"]`."""

    @classmethod
    def parse_reference(cls, reference: str) -> dict[str, Any]:
        return {"use": reference}

    def build(self, setup: AgentSetup) -> Agent:
        if self.use is UNSET:
            raise setup.error("is missing `use`")
        reference = self.use.removeprefix("python:")
        module, target = import_object(reference, str(setup.folder))
        if (framework := find_framework(target)) is not None:
            return framework.wrap_object(target, setup.provider_packages, module)
        _check_target(reference, target)
        return PythonAgent(target, self.takes_fixtures, setup.provider_packages)

    def build_options(self, setup: AgentSetup) -> dict[str, Any]:
        connector = setup.connector.name if setup.connector else self.connector
        return dict(self.options) if self.connector is UNSET else {"connector": connector, **self.options}


class PythonAgent(Struct, frozen=True):
    """A Python object that replies. With `takes_fixtures`, it gets stubbed tools and memory in its options.

    An exception of one of the `provider_packages` is the fault of the model provider, not of the agent.
    """

    target: Any
    takes_fixtures: bool = False
    provider_packages: frozenset[str] = MODEL_CLIENT_PACKAGES

    @property
    def user_code(self) -> list[Any]:
        return [self.target]

    @property
    def provides(self) -> frozenset[Feature]:
        names = _list_parameters(_find_function(self.target))
        features: set[Feature] = {"workspace"}
        if self.takes_fixtures or "tools" in names:
            features.add("tool_stubs")
        if self.takes_fixtures or "memory" in names:
            features.add("memory")
        return frozenset(features)

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator[AgentSession]:
        thread = DedicatedThread()
        code = _UserCode(thread, context.progress, self.provider_packages)
        is_owned = inspect.isclass(self.target) or is_factory(self.target)
        try:
            instance = await code.call(self.target) if is_owned else self.target
            if (framework := find_framework(instance)) is not None:
                agent = framework.wrap_object(lambda: instance, self.provider_packages)  # checked as of the trial
                async with agent.open(context) as session:
                    yield session
                return
            try:
                yield PythonSession(_find_callable(instance), context, code)
            except BaseException:
                with suppress(TrialFault):  # the first error counts
                    await _close_instance(code, instance, is_owned=is_owned)
                raise
            await _close_instance(code, instance, is_owned=is_owned)
        finally:
            thread.release()


async def _close_instance(code: "_UserCode", instance: Any, *, is_owned: bool) -> None:
    """Closes an object that was made for one case: `close` or `aclose`."""
    close = getattr(instance, "aclose", None) or getattr(instance, "close", None)
    if not is_owned or not callable(close):
        return
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await code.call(close)
    except TimeoutError:
        raise AgentFailed(f"its {getattr(close, '__name__', 'close')} took more than {CLOSE_TIMEOUT_S:g}s") from None


class _UserCode(Struct, frozen=True):
    """Calls user code: async code on the event loop, other code in the session's thread."""

    thread: DedicatedThread
    progress: CallProgress
    provider_packages: frozenset[str]

    async def call(self, function: Callable[..., Any], *ordered: Any, **named: Any) -> Any:
        """The returned value. An exception is the agent's failure, or its provider's."""
        with raise_as_faults(self.progress, self.provider_packages):
            if _is_async_callable(_find_function(function) if inspect.isclass(function) else function):
                returned = function(*ordered, **named)
            else:
                returned = await self.thread.run(lambda: function(*ordered, **named))
            return (
                await await_with_timed_steps(returned, self.progress.record_block)
                if inspect.isawaitable(returned)
                else returned
            )


def _is_async_callable(call: Any) -> bool:
    return any(map(inspect.iscoroutinefunction, (call, type(call).__call__))) or inspect.isasyncgenfunction(call)


def _message_to_dict(message: Message) -> dict[str, Any]:
    """A plain dict that always has `role` and `content`."""
    return {"role": message.role, "content": "", **codec.to_plain(message)}


class PythonSession:
    """One conversation. Each turn calls the agent's function with all messages as plain dicts."""

    def __init__(self, call: Callable[..., Any], context: SessionContext, code: _UserCode) -> None:
        self._call = call
        self._context = context
        self._code = code
        self._messages: list[dict[str, Any]] = [_message_to_dict(message) for message in context.history]
        self._ordered, self._named = _choose_arguments(call)
        self._text = ""
        self._warned: set[str] = set()
        fixtures = context.fixtures
        self._tools = CannedTools(fixtures.tools) if fixtures and (fixtures.stub_all_tools or fixtures.tools) else None

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        self._messages.append(_message_to_dict(message))
        self._text = message.text
        ordered, named = self._build_arguments(deepcopy(dict(options)))  # the agent may change them
        streamed, started = StreamedReply(), time.perf_counter()
        try:
            returned = await self._code.call(self._call, *ordered, **named)
            if is_stream(returned):
                streamed = StreamedReply(self._context.progress, started)
                await self._code.call(make_stream_reader(returned, partial(self._add_piece, streamed)))
                returned = streamed.build()
            reply = self._copy_reply(returned)
        except BaseException:
            with suppress(AgentFailed):  # what happened until then, if JSON can hold it
                if (until_now := self._copy_reply(streamed.build())) != Reply():
                    self._context.progress.partial = until_now
            raise
        for call in reply.calls:
            self._context.meter(call)
        message_sent = {
            "role": "assistant",
            "content": reply.content,
            "data": reply.data,
            "tool_calls": codec.to_plain(reply.tool_calls),
        }
        self._messages.append(
            {key: value for key, value in message_sent.items() if key in ("role", "content") or value}
        )
        return reply

    def _add_piece(self, streamed: StreamedReply, piece: Any) -> None:
        if isinstance(piece, str):
            streamed.add_text(piece)
        else:
            self._warn_of_unknown_keys(piece)
            streamed.add_piece(parse_piece(piece))

    def _copy_reply(self, returned: Any) -> Reply:
        """A copy of the reply, which later changes of the agent's objects do not affect. It must be valid JSON."""
        try:
            reply = self._add_tool_calls(self._parse_returned(returned))
            if type(returned) is str and not reply.tool_calls:
                returned.encode()
                return reply
            return to_plain_copy(reply)
        except AgentFailed:
            raise
        except BaseException as error:  # user objects may raise anything
            if is_ctrl_c(error):
                raise
            raise AgentFailed(f"returned what JSON cannot hold: {format_error(error)}") from error

    def _add_tool_calls(self, reply: Reply) -> Reply:
        """Adds the canned tools that were used in this turn, if the agent does not report them itself."""
        if self._tools is None or not self._tools.calls:
            return reply
        used, self._tools.calls = tuple(self._tools.calls), []
        return reply if reply.tool_calls else structs.replace(reply, tool_calls=used)

    def _list_messages(self) -> list[dict[str, Any]]:
        """The messages so far; for a helper, those of the conversation that it helps with."""
        if self._context.conversation is not None:
            return [_message_to_dict(message) for message in self._context.conversation()]
        return [dict(message) for message in self._messages]

    def _parse_returned(self, returned: Any) -> Reply:
        """A helper may return any value; the agent under test must return a reply."""
        returned = convert_typed_object(returned)
        if self._context.role == "agent" or isinstance(returned, str | Reply):
            self._warn_of_unknown_keys(returned)
            return parse_reply(returned)
        if isinstance(returned, Mapping) and "content" in returned:
            return parse_reply(cast("Any", returned))
        return Reply(data=returned)

    def _warn_of_unknown_keys(self, returned: Any) -> None:
        """Warns of unknown keys, once for each session."""
        if isinstance(returned, Mapping):
            new = [text for text in describe_unknown_keys(cast("Any", returned)) if text not in self._warned]
            self._warned.update(new)
            self._context.progress.warnings += new

    def _build_arguments(self, options: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        context, fixtures = self._context, self._context.fixtures
        memory = list(fixtures.memory) if fixtures else None
        if fixtures is not None:
            options["fixtures"] = {"tools": self._tools, "memory": memory}
        if context.mcp_url:
            options["mcp_url"] = context.mcp_url
        values: dict[str, Any] = {
            "message": self._text,
            "options": options,
            "tools": self._tools,
            "memory": memory,
            "workspace": context.workspace.path if context.workspace else None,
            "session_id": options.get("session_id"),
            "metadata": options.get("metadata"),
        }
        if "messages" in self._ordered or "messages" in self._named:  # a copy of a long conversation takes time
            values["messages"] = self._list_messages()
        return [values[name] for name in self._ordered], {name: values[name] for name in self._named}


def _choose_arguments(call: Any) -> tuple[list[str], list[str]]:
    """The names of the values that the function gets by position, and of those that it gets by keyword."""
    parameters, text_parameter = _list_parameters(call), _find_text_parameter(call)
    ordered: list[str] = []
    queue = ["options"] if "message" in parameters or text_parameter else ["messages", "options"]
    for name, kind in parameters.items():
        if kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
            continue
        known = name if name in _PARAMETERS else queue[0] if queue else None
        known = "message" if name == text_parameter else known
        if known is None:
            break
        if known in queue:
            queue.remove(known)
        ordered.append(known)
        if kind is inspect.Parameter.VAR_POSITIONAL:
            break
    named = [
        name for name, kind in parameters.items() if kind is inspect.Parameter.KEYWORD_ONLY and name in _PARAMETERS
    ]
    return ordered, named


def _list_parameters(call: Any) -> dict[str, Any]:
    """The parameters that Viva fills, with their kinds. One with a default is filled only if Viva knows its name."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # built-ins have no signature
        return {"messages": inspect.Parameter.POSITIONAL_ONLY}
    return {p.name: p.kind for p in parameters if p.default is inspect.Parameter.empty or p.name in _PARAMETERS}


def _find_text_parameter(call: Any) -> str | None:
    """The first parameter, if its type is `str` and its name is none of ours: `def reply(question: str)`."""
    try:
        first = next(iter(inspect.signature(call).parameters.values()), None)
    except (TypeError, ValueError):
        return None
    return first.name if first and first.annotation in (str, "str") and first.name not in _PARAMETERS else None


def is_factory(value: Any) -> bool:
    """Is it a function without parameters, which creates the object?"""
    return inspect.isroutine(value) and not inspect.signature(value).parameters


def _find_function(target: Any) -> Any:
    """The function that will be called, as far as it is known before a factory has run."""
    if inspect.isclass(target):
        return getattr(target, "reply", None) or target.__call__
    return target if inspect.isroutine(target) else getattr(target, "reply", target)


def _find_callable(instance: Any) -> Callable[..., Any]:
    reply = getattr(instance, "reply", None)
    if callable(reply):
        return reply
    if callable(instance):
        return instance
    raise AgentFailed(f"{with_article(type(instance).__name__)} cannot reply: it is not callable and has no `reply`")


def import_target(reference: str, folder: str) -> Any:
    """Imports `pkg.module:attr` or `./file.py:attr`, looked for from `folder`. BadInput if that object cannot reply."""
    _, target = import_object(reference, folder)
    _check_target(reference, target)
    return target


def _check_target(reference: str, target: Any) -> None:
    if not can_reply(target):
        raise BadInput.of(f"python:{reference} is {explain_no_agent(target)}")


def import_object(reference: str, folder: str) -> tuple[ModuleType, Any]:
    """The module of a reference, and the object that the reference names in it."""
    place, _, attribute = reference.rpartition(":")
    if not place or not attribute:
        raise BadInput.of(
            f"python:{reference} does not name an attribute; write python:pkg.module:attr or python:./file.py:attr"
        )
    is_file = place.endswith(".py") or "/" in place
    module = _import_file(place, folder) if is_file else _import_name(place, attribute, folder)
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            near = find_similar_names(part, dir(target))
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            if getattr(module, "__name__", "") == "__main__":
                hint = "; the program that runs has to define it above the call of viva.run" + hint
            raise BadInput.of(f"python:{reference}: {place} has no {part!r}{hint}")
        target = getattr(target, part)
    return module, target


def _import_file(place: str, folder: str) -> ModuleType:
    path = os.path.normpath(os.path.join(folder, place))  # noqa: PTH118 -- keeps `..` as the user wrote it
    if not os.path.isfile(path):  # noqa: PTH113
        raise BadInput.of(f"python:{place}: there is no file {path}")
    if (module := catalog.find_loaded_module(path)) is not None:
        return module
    # Modules beside the file can be imported, as when it is run as a program.
    _add_to_sys_path(os.path.dirname(path))  # noqa: PTH120
    name, root = _find_module_name(path)
    is_free = not catalog.is_module_name_taken(name.partition(".")[0])
    try:
        with catalog.import_from_folders((root,), name):
            # By its own name, so that `import agent` in a test gives the same copy.
            return importlib.import_module(name) if is_free else _load_file(path)
    except (BadInput, KeyboardInterrupt):
        raise
    except BaseException as raised:  # user code may raise anything, also SystemExit
        raise _build_import_error(place, raised) from raised


def _find_module_name(path: str) -> tuple[str, str]:
    """The name by which other code imports the file, and the folder that this needs on the path."""
    name, folder = Path(path).stem, Path(path).parent
    while (folder / "__init__.py").is_file():
        name, folder = f"{folder.name}.{name}", folder.parent
    return name, str(folder)


def _load_file(path: str) -> ModuleType:
    """Loads a file under a made-up module name, because another module has the name that follows from the file."""
    name = "viva_agent_" + "".join(c if c.isalnum() else "_" for c in path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _import_name(place: str, attribute: str, folder: str) -> ModuleType:
    loaded = sys.modules.get(place)
    if loaded is not None and hasattr(loaded, attribute.partition(".")[0]):
        return loaded  # not waiting for the end of its import: the module itself may wait for this conversation
    try:
        _add_to_sys_path(folder)
        if (program := catalog.find_running_program(place)) is not None:
            return program
        with catalog.mark_import(place):
            return importlib.import_module(place)
    except (BadInput, KeyboardInterrupt):
        raise
    except BaseException as raised:  # user code may raise anything, also SystemExit
        raise _build_import_error(place, raised) from raised


def _build_import_error(place: str, raised: BaseException) -> BadInput:
    at = format_error_place(raised)
    return BadInput.of(f"python:{place} does not import: {format_error(raised)}" + (f" ({at})" if at else ""))


def _add_to_sys_path(folder: str) -> None:
    """Adds a folder to `sys.path` for good: the agent may import modules beside its file later."""
    folder = folder or os.getcwd()  # noqa: PTH109
    if folder not in sys.path:
        sys.path.insert(0, folder)
