"""An agent that is Python code: `python:pkg.module:attr` or `python:./agent.py:attr`.

    def agent(messages, options): ...       a function; sync ones run in a thread
    class Agent: def reply(self, ...)       an object with `reply`; a class gives one object a case
    def make_agent(): return Agent()        a factory (no parameters) gives one object a case

An object made for one case is closed (`close` or `aclose`) when the case has ended.

Parameters are given by name where they have one of ours (`messages`, `options`, `tools`, `memory`, `workspace`,
`session_id`, `metadata`), and otherwise in the order messages, options. Tools and memory that stand in for the live
ones are also in `options["fixtures"]`, for an agent whose function is not ours to read.
"""

import asyncio
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from difflib import get_close_matches
from types import ModuleType
from typing import Any, cast

from msgspec import UNSET, Struct, UnsetType, structs

from viva.agents.agent_config import AgentSetup, ConnectedConfig, NonEmpty
from viva.agents.replies import describe_unknown_keys, parse_reply
from viva.agents.tools import CannedTools
from viva.concurrency.loops import time_steps
from viva.concurrency.threads import DedicatedThread, is_being_cancelled
from viva.errors import AgentFailed, BadInput, TrialFault, Undetermined, Unreachable
from viva.llm.provider_errors import MODEL_CLIENT_PACKAGES, classify_error
from viva.model import codec
from viva.model.case import Feature
from viva.model.message import Message, Reply
from viva.model.progress import CallProgress
from viva.model.tracebacks import describe_error, error_place, error_text
from viva.protocols import SessionContext
from viva.text.grammar import with_article

_BY_NAME = frozenset({"messages", "options", "tools", "memory", "workspace", "session_id", "metadata"})

CLOSE_TIMEOUT_S = 5.0
_FAULTS: Mapping[str, type[TrialFault]] = {"agent": AgentFailed, "infra": Unreachable, "undetermined": Undetermined}


class PythonConfig(ConnectedConfig, frozen=True, kw_only=True):
    """A Python function, object, class or factory. It gets its connector's name in its options."""

    use: NonEmpty | UnsetType = UNSET
    """A reference: python:pkg.module:attr or python:./file.py:attr."""
    takes_fixtures: bool = False
    """The agent uses the stubbed tools and memory in `options["fixtures"]`, though its function has no parameters for them."""

    @classmethod
    def parse_reference(cls, reference: str) -> dict[str, Any] | None:
        return {"use": reference} if reference.startswith("python:") else None

    def build(self, setup: AgentSetup) -> "PythonAgent":
        if self.use is UNSET:
            raise setup.error("misses `use`")
        target = import_target(self.use.removeprefix("python:"), str(setup.folder))
        return PythonAgent(target, self.takes_fixtures, setup.provider_packages)

    def build_options(self, setup: AgentSetup) -> dict[str, Any]:
        connector = setup.connector.name if setup.connector else self.connector
        return dict(self.options) if self.connector is UNSET else {"connector": connector, **self.options}


class PythonAgent(Struct, frozen=True):
    """A Python object that replies. With `takes_fixtures` it reads stubs from its options.

    Errors of the `provider_packages` are those of its model's provider.
    """

    target: Any
    takes_fixtures: bool = False
    provider_packages: frozenset[str] = MODEL_CLIENT_PACKAGES

    @property
    def user_code(self) -> list[Any]:
        return [self.target]

    @property
    def provides(self) -> frozenset[Feature]:
        names = _parameters(_speaker(self.target))
        taken: set[Feature] = {"workspace"}
        if self.takes_fixtures or "tools" in names:
            taken.add("tool_stubs")
        if self.takes_fixtures or "memory" in names:
            taken.add("memory")
        return frozenset(taken)

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator["PythonSession"]:
        thread = DedicatedThread()
        code = _UserCode(thread, context.progress, self.provider_packages)
        made = inspect.isclass(self.target) or _is_factory(self.target)
        try:
            speaker = await code.call(self.target) if made else self.target
            try:
                yield PythonSession(_call_of(speaker), context, code)
            except BaseException:
                with suppress(TrialFault):  # what went wrong before is what counts
                    await _closed(code, speaker, made=made)
                raise
            await _closed(code, speaker, made=made)
        finally:
            thread.release()


async def _closed(code: "_UserCode", speaker: Any, *, made: bool) -> None:
    """An object that was made for one case may want to tidy up: `close` or `aclose`."""
    close = getattr(speaker, "aclose", None) or getattr(speaker, "close", None)
    if not made or not callable(close):
        return
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await code.call(close)
    except TimeoutError:
        raise AgentFailed(f"its {getattr(close, '__name__', 'close')} took more than {CLOSE_TIMEOUT_S:g}s") from None


class _UserCode(Struct, frozen=True):
    """Calls the agent's own code: async on the loop, anything else in the session's thread."""

    thread: DedicatedThread
    progress: CallProgress
    provider_packages: frozenset[str]

    async def call(self, function: Callable[..., Any], *ordered: Any, **named: Any) -> Any:
        """What the function returns. What it raises is the agent's failure, or its provider's."""
        try:
            if _is_async(_speaker(function) if inspect.isclass(function) else function):
                returned = function(*ordered, **named)
            else:
                returned = await self.thread.run(lambda: function(*ordered, **named))
            return await time_steps(returned, self.progress.add_block) if inspect.isawaitable(returned) else returned
        except TrialFault:
            raise
        except asyncio.CancelledError as raised:
            if is_being_cancelled():
                raise
            raise AgentFailed("it cancelled itself") from raised
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as raised:  # other people's code: whatever it is
            self.progress.tracebacks += describe_error(raised, "agent")
            raise _FAULTS[classify_error(raised, self.provider_packages)](error_text(raised)) from raised


def _is_async(call: Any) -> bool:
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)


def _as_dict(message: Message) -> dict[str, Any]:
    """A plain dict that always has `role` and `content`, also where nothing was said."""
    return {"role": message.role, "content": "", **codec.to_plain(message)}


class PythonSession:
    """One conversation: the history as plain dicts, and the agent's function called with all of it each turn."""

    def __init__(self, call: Callable[..., Any], context: SessionContext, code: _UserCode) -> None:
        self._call = call
        self._context = context
        self._code = code
        self._messages: list[dict[str, Any]] = [_as_dict(message) for message in context.history]
        self._names = _parameters(call)
        self._warned: set[str] = set()
        fixtures = context.fixtures
        self._tools = CannedTools(fixtures.tools) if fixtures and (fixtures.stub_all_tools or fixtures.tools) else None

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        self._messages.append(_as_dict(message))
        ordered, named = self._arguments(deepcopy(dict(options)))  # what it does with them is its own affair
        try:
            reply = self._heard_reply(await self._code.call(self._call, *ordered, **named))
        except BaseException:
            if self._tools is not None and self._tools.calls:  # what it had done by then was done
                self._context.progress.partial = Reply(tool_calls=tuple(self._tools.calls))
            raise
        for call in reply.calls:
            self._context.meter(call)
        said = {
            "role": "assistant",
            "content": reply.content,
            "data": reply.data,
            "tool_calls": codec.to_plain(reply.tool_calls),
        }
        self._messages.append({key: value for key, value in said.items() if key in ("role", "content") or value})
        return reply

    def _heard_reply(self, returned: Any) -> Reply:
        """The reply as it is now: what the agent does with its objects later changes nothing. What JSON cannot say is rubbish."""
        try:
            reply = self._with_calls(self._reply(returned))
            if type(returned) is str and not reply.tool_calls:
                returned.encode()
                return reply
            return _kept(reply)
        except AgentFailed:
            raise
        except Exception as wrong:  # objects of any class, with methods of any kind
            raise AgentFailed(f"returned what JSON cannot hold: {error_text(wrong)}") from wrong

    def _with_calls(self, reply: Reply) -> Reply:
        """With the canned tools that it used in this turn, where it does not report them itself."""
        if self._tools is None or not self._tools.calls:
            return reply
        used, self._tools.calls = tuple(self._tools.calls), []
        return reply if reply.tool_calls else structs.replace(reply, tool_calls=used)

    def _heard(self) -> list[dict[str, Any]]:
        """The history; for a helper, the conversation that it helps with."""
        if self._context.conversation is not None:
            return [_as_dict(message) for message in self._context.conversation()]
        return [dict(message) for message in self._messages]

    def _reply(self, returned: Any) -> Reply:
        """What a helper returns is its answer, whatever it is; the agent under test has to keep to the shape of a reply."""
        if self._context.role == "agent" or isinstance(returned, str | Reply):
            self._warn_of_keys(returned)
            return parse_reply(returned)
        if isinstance(returned, Mapping) and "content" in returned:
            return parse_reply(cast("Any", returned))
        return Reply(data=returned)

    def _warn_of_keys(self, returned: Any) -> None:
        """Keys that nobody reads, each once a session."""
        if isinstance(returned, Mapping):
            new = [each for each in describe_unknown_keys(cast("Any", returned)) if each not in self._warned]
            self._warned.update(new)
            self._context.progress.warnings += new

    def _arguments(self, options: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        context, fixtures = self._context, self._context.fixtures
        memory = list(fixtures.memory) if fixtures else None
        if fixtures is not None:
            options["fixtures"] = {"tools": self._tools, "memory": memory}
        offered: dict[str, Any] = {
            "messages": self._heard(),
            "options": options,
            "tools": self._tools,
            "memory": memory,
            "workspace": context.workspace.path if context.workspace else None,
            "session_id": options.get("session_id"),
            "metadata": options.get("metadata"),
        }
        ordered: list[Any] = []
        queue = ["messages", "options"]
        for name, kind in self._names.items():
            if kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
                continue
            known = name if name in _BY_NAME else queue[0] if queue else None
            if known is None:
                break
            if known in queue:
                queue.remove(known)
            ordered.append(offered[known])
            if kind is inspect.Parameter.VAR_POSITIONAL:
                break
        named = {
            n: offered[n] for n, kind in self._names.items() if kind is inspect.Parameter.KEYWORD_ONLY and n in _BY_NAME
        }
        return ordered, named


def _kept(reply: Reply) -> Reply:
    """A copy of the reply in plain values. Raises whatever its objects raise, and ValueError for what JSON has no word for."""
    encoded = codec.encode(reply)
    used = [(call.arguments, call.result) for call in reply.tool_calls]
    if b"null" in encoded and codec.has_nan([reply.data, used]):  # which is what they would become
        raise ValueError("a number that is NaN or infinite")
    return codec.decode(encoded, type=Reply)


def _parameters(call: Any) -> dict[str, Any]:
    """Names of the parameters that we may fill, with their kinds; those with a default of their own only if we know them."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # built-ins have no signature
        return {"messages": inspect.Parameter.POSITIONAL_ONLY}
    return {p.name: p.kind for p in parameters if p.default is inspect.Parameter.empty or p.name in _BY_NAME}


def _is_factory(value: Any) -> bool:
    return inspect.isroutine(value) and not inspect.signature(value).parameters


def _speaker(target: Any) -> Any:
    """The function that will be called, as far as it can be known before a factory has run."""
    if inspect.isclass(target):
        return getattr(target, "reply", None) or target.__call__
    return target if inspect.isroutine(target) else getattr(target, "reply", target)


def _call_of(speaker: Any) -> Callable[..., Any]:
    reply = getattr(speaker, "reply", None)
    if callable(reply):
        return reply
    if callable(speaker):
        return speaker
    raise AgentFailed(
        f"{with_article(type(speaker).__name__)} cannot be talked to: it is not callable and has no `reply`"
    )


def import_target(reference: str, folder: str) -> Any:
    """Imports `pkg.module:attr` or `./file.py:attr`, looked for from `folder`."""
    place, _, attribute = reference.rpartition(":")
    if not place or not attribute:
        raise BadInput.of(
            f"python:{reference} names no attribute; write python:pkg.module:attr or python:./file.py:attr"
        )
    module = _from_file(place, folder) if place.endswith(".py") or "/" in place else _from_name(place, folder)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, dir(found), 3)
            raise BadInput.of(
                f"python:{reference}: {place} has no {part!r}"
                + (f"; did you mean {' or '.join(near)}?" if near else "")
            )
        found = getattr(found, part)
    if not callable(found) and not callable(getattr(found, "reply", None)):
        raise BadInput.of(
            f"python:{reference} is {with_article(type(found).__name__)}: neither callable nor an object with `reply`"
        )
    return found


def _from_file(place: str, folder: str) -> ModuleType:
    path = os.path.normpath(os.path.join(folder, place))  # noqa: PTH118 -- a reference is text, `..` in it is the user's own
    if not os.path.isfile(path):  # noqa: PTH113
        raise BadInput.of(f"python:{place}: there is no file {path}")
    name = "viva_agent_" + "".join(c if c.isalnum() else "_" for c in path)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader = spec.loader
    try:
        # Its neighbours import as they do when the file is run by itself.
        _with_path(os.path.dirname(path), lambda: loader.exec_module(module))  # noqa: PTH120
    except Exception as raised:  # the agent's module is other people's code: name it, whatever it raised
        sys.modules.pop(name, None)
        raise _not_importable(place, raised) from raised
    return module


def _from_name(place: str, folder: str) -> ModuleType:
    try:
        return _with_path(folder, lambda: importlib.import_module(place))
    except Exception as raised:  # the agent's module is other people's code: name it, whatever it raised
        raise _not_importable(place, raised) from raised


def _not_importable(place: str, raised: Exception) -> BadInput:
    at = error_place(raised)
    return BadInput.of(f"python:{place} does not import: {error_text(raised)}" + (f" ({at})" if at else ""))


def _with_path(folder: str, load: Callable[[], Any]) -> Any:
    folder = folder or os.getcwd()  # noqa: PTH109
    if folder in sys.path:
        return load()
    # The folder stays on the path: an agent may import its neighbours late, on its first call.
    sys.path.insert(0, folder)
    return load()
