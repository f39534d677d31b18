"""Logs what a framework does during a turn, as it happens: a turn that raises or times out has it up to then."""

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from msgspec import UNSET, Struct, structs

from viva.agents.frameworks.model_usage import read_usage
from viva.agents.step_log import StepLog
from viva.agents.tools import ToolStubs, format_result
from viva.concurrency.threads import ThreadAbandoned
from viva.errors import to_valid_text
from viva.llm.price import compute_reported_cost
from viva.model import codec
from viva.model.message import Message, ModelCall, Reply, ToolCall
from viva.model.progress import CallProgress
from viva.model.tracebacks import build_tracebacks, format_error

_YES = frozenset(
    {
        "accept", "allow", "approve", "approved", "confirm", "confirmed", "do", "go", "ok", "okay", "proceed", "sure", "y", "yeah",
        "yep", "yes",
    }
)  # fmt: skip
_NO = frozenset({"cancel", "don't", "never", "no", "not", "stop"})


class Decision(Struct, frozen=True):
    """The user's answer to a tool call that waits for approval. `text` is what the user wrote."""

    is_approved: bool
    text: str


def read_decision(message: Message, options: Mapping[str, Any]) -> Decision:
    """The option `approval` decides (`approve` or `deny`), else the first word. Anything else denies, with the text as reason."""
    if (choice := options.get("approval")) in ("approve", "deny"):
        return Decision(choice == "approve", message.text)
    words = message.text.replace("’", "'").lower().split()
    first = words[0].strip(".,:;!?\"'()") if words else ""
    return Decision(first in _YES and not _NO & set(words[1:3]), message.text)


def read_answer(message: Message, options: Mapping[str, Any], yes: Any = True, no: Any = False) -> Any:
    """The answer to a question of the agent: the option `resume`, the decision of the option `approval`, or the text."""
    if "resume" in options:
        return options["resume"]
    if "approval" in options:
        return yes if read_decision(message, options).is_approved else no
    return message.text


class TurnLog:
    """The messages, tool calls, model calls and path of one turn, in order. Calls are known by their ids."""

    def __init__(self, progress: CallProgress, stubs: ToolStubs | None = None) -> None:
        self._progress = progress
        self._stubs = stubs
        self._messages: list[str] = []
        self._calls: dict[str, ToolCall] = {}
        self._steps = StepLog()
        self.model_calls: list[ModelCall] = []
        self.model_error: Exception | None = None
        self._numbers = itertools.count(1)
        self.path: list[str] = []
        self._waiting_to_run: list[str] = []
        self._lock = threading.Lock()

    def enter_node(self, name: str) -> None:
        """Adds a node or agent to the path. One that goes on after its tools is not added again."""
        if not self.path or self.path[-1] != name:
            self.path.append(name)

    def add_message(self, text: str) -> None:
        """Logs a message of the agent. Several in a turn are the parts of its reply."""
        if text:
            self._messages.append(text)

    def drop_message(self) -> None:
        """Removes the last message: it was the text of structured output."""
        del self._messages[-1:]

    def start_call(self, call_id: str, name: str, arguments: Any = None) -> None:
        """Logs a tool call when the model asks for it or when the tool starts, whichever comes first."""
        if call_id not in self._calls:
            self._calls[call_id] = ToolCall(name, _decode_arguments(arguments), call_id)
            self._steps.start_tool(call_id, name)

    def add_requested_call(self, call_id: str, name: str, arguments: Any) -> None:
        """Logs a call that the model asks for, where the tool is not told the id of its call: see `start_requested_call`."""
        if call_id not in self._calls:
            self.start_call(call_id, name, arguments)
            self._waiting_to_run.append(call_id)

    def start_requested_call(self, name: str, arguments: Any) -> str:
        """Logs that a tool starts, and returns the id of the call that the model asked for, or a new id if code of the agent calls it.

        Tools that the model asked for together may start in any order, in threads.
        """
        with self._lock:
            requested = [each for each in self._waiting_to_run if self._calls[each].name == name]
            if not requested:
                call_id = self.create_call_id()
                self.start_call(call_id, name, arguments)
                return call_id
            plain = _decode_arguments(arguments)
            call_id = next((each for each in requested if self._calls[each].arguments == plain), requested[0])
            self._waiting_to_run.remove(call_id)
            return call_id

    def fail_requested_calls(self, error: str) -> None:
        """Logs that the requested calls do not run: the tool does not exist, or the arguments do not fit."""
        for call_id in self._waiting_to_run:
            self.fail_call(call_id, error)
        self._waiting_to_run.clear()

    def end_call(self, call_id: str, result: Any) -> None:
        """Logs the result of a tool. After an error or a canned answer it is ignored: it is what the model is told of that."""
        if self.lacks_result(call_id):
            self._steps.end_tool(call_id)
            self._update_call(call_id, result=to_plain_value(result), pending=False)

    def end_or_fail_call(self, call_id: str, value: Any, *, is_error: bool) -> None:
        """Logs the result of a tool or, with `is_error`, the error that the framework reports."""
        (self.fail_call if is_error else self.end_call)(call_id, value)

    def fail_call(self, call_id: str, error: BaseException | str) -> None:
        """Logs the error of a tool; of several errors the first counts. The framework may tell the model, and go on."""
        if call_id not in self._calls or self._calls[call_id].error is not None:
            return
        self._steps.end_tool(call_id)
        if isinstance(error, str):
            self._update_call(call_id, error=error, pending=False)
        else:
            self._progress.tracebacks += build_tracebacks(error, f"tool {self._calls[call_id].name}")
            self._update_call(call_id, error=format_error(error), pending=False)

    def fail_named_calls(self, error: BaseException) -> None:
        """Logs an error that names the tool of a call without a result in its text."""
        for call_id, call in self._calls.items():
            if self.lacks_result(call_id) and call.name in str(error):
                self.fail_call(call_id, error.__cause__ or error)

    async def run_tool(
        self, call_id: str, name: str, arguments: Any, run: Callable[[], Awaitable[Any]], waiting: Any = ()
    ) -> Any:
        """Runs a tool and logs its outcome. A stubbed tool does not run: its canned answer comes as text.

        `waiting` are the exceptions by which a tool says that its call waits. Any exception is raised again.
        """
        self.start_call(call_id, name, arguments)
        if self._stubs is not None:
            return format_result(self.answer_call(call_id, name))
        with self._log_tool_error(call_id, waiting):
            result = await run()
        self.end_call(call_id, result)
        return result

    def run_sync_tool(self, name: str, arguments: Any, run: Callable[[], Any]) -> Any:
        """Like `run_tool`, for a tool that runs in a thread. A canned result is not made a text: code of the agent may use it."""
        call_id = self.start_requested_call(name, arguments)
        if self._stubs is not None:
            canned = self.answer_call(call_id, name)
            return canned.result if canned.error is None else format_result(canned)
        with self._log_tool_error(call_id):
            result = run()
        self.end_call(call_id, result)
        return result

    @contextmanager
    def _log_tool_error(self, call_id: str, waiting: Any = ()) -> Generator[None]:
        """Logs the exception of a tool that runs in the `with` block."""
        try:
            yield
        except waiting:
            self.mark_call_pending(call_id)
            raise
        except (asyncio.CancelledError, GeneratorExit, ThreadAbandoned):
            raise
        except BaseException as error:  # user code may raise anything
            self.fail_call(call_id, error)
            if isinstance(error, Exception):
                raise
            raise RuntimeError(
                format_error(error)
            ) from error  # some frameworks wait forever for a task that ends with it

    @contextmanager
    def store_model_error(self) -> Generator[None]:
        """Keeps an exception of the model, called in the `with` block: some frameworks raise only its text."""
        try:
            yield
        except Exception as error:
            self.model_error = error
            raise

    def create_call_id(self) -> str:
        """An id for a call of a framework that gives none."""
        return f"viva_{next(self._numbers)}"

    def refuse_call(self, call_id: str, reason: str) -> None:
        """Logs that the user denied a call, so that the tool did not run."""
        self._update_call(call_id, error=reason, refused=True, pending=False)

    def mark_call_pending(self, call_id: str, name: str = "", arguments: Any = None) -> None:
        """Logs that a call waits for an approval, or for a result from outside."""
        self.start_call(call_id, name, arguments)
        self._update_call(call_id, pending=True)

    @property
    def has_stubs(self) -> bool:
        """Do canned answers replace all tools?"""
        return self._stubs is not None

    def mark_unfinished_pending(self, names: Collection[str] = ()) -> None:
        """Logs that every call without a result waits, or those of tools with these names."""
        for call_id, call in self._calls.items():
            if self.lacks_result(call_id) and (not names or call.name in names):
                self._update_call(call_id, pending=True)

    def drop_call(self, call_id: str) -> None:
        """Removes a call that was not of a tool: some frameworks send structured output as a call."""
        self._calls.pop(call_id, None)

    def drop_calls_of(self, name: str) -> None:
        """Removes all calls of this name. See `drop_call`."""
        self._calls = {call_id: call for call_id, call in self._calls.items() if call.name != name}

    def lacks_result(self, call_id: str) -> bool:
        call = self._calls.get(call_id)
        return call is not None and call.result is UNSET and call.error is None

    def answer_call(self, call_id: str, name: str, arguments: Any = None) -> ToolCall:
        """The call with its canned result or error."""
        assert self._stubs is not None
        self.start_call(call_id, name, arguments)
        call = self._calls[call_id] = self._stubs.answer_call(self._calls[call_id])
        return call

    def add_model_call(self, model: Any, provider: Any, usage: Any) -> None:
        """Logs a call of a model, with the usage that the framework or the provider reports."""
        call = ModelCall(to_valid_text(str(model or "")), to_valid_text(str(provider or "")), *read_usage(usage))
        cost = compute_reported_cost(call) if call.input_tokens else None  # a streamed call may report no usage
        self.model_calls.append(structs.replace(call, cost_usd=cost))

    def build_output_reply(self, output: Any) -> Reply:
        """The reply of an agent whose output is a text or a structured value."""
        return self.build_reply(str(output)) if isinstance(output, str) else self.build_reply(data=output)

    def build_reply(self, content: str = "", data: Any = None, input_hint: str | None = None) -> Reply:
        """The reply, with `content` as its last message unless that is logged. With a hint, or with calls that wait, the agent
        awaits input.
        """
        messages = tuple(self._messages)
        if content and content not in messages[-1:]:
            messages += (content,)
        calls = tuple(self._calls.values())
        is_waiting = input_hint is not None or any(call.pending for call in calls)
        return Reply(
            content="\n".join(messages),
            parts=messages if len(messages) > 1 else (),
            data=None if data is None else to_plain_value(data),
            tool_calls=calls,
            declared_state="awaiting" if is_waiting else None,
            protocol_state="input-required" if is_waiting else None,
            input_hint=input_hint or (_describe_waiting(calls) if is_waiting else None),
            calls=tuple(self.model_calls),
            path=tuple(self.path),
            steps=self._steps.build(),
        )

    def _update_call(self, call_id: str, **fields: Any) -> None:
        if call_id in self._calls:
            self._calls[call_id] = structs.replace(self._calls[call_id], **fields)


def replace_surrogates(reply: Reply) -> Reply:
    """The reply with halves of surrogate pairs as escapes: JSON cannot hold them."""
    return codec.convert(_make_valid(codec.to_builtins(reply)), Reply)


def _make_valid(value: Any) -> Any:
    match value:
        case str():
            return to_valid_text(value)
        case dict():
            return {_make_valid(key): _make_valid(item) for key, item in cast("dict[Any, Any]", value).items()}
        case list() | tuple():
            return [_make_valid(item) for item in cast("Sequence[Any]", value)]
        case _:
            return value


def _describe_waiting(calls: Sequence[ToolCall]) -> str:
    waiting = [f"{call.name}({codec.compact_json(call.arguments or {})})" for call in calls if call.pending]
    return f"approve or deny: {', '.join(waiting)}"


def _decode_arguments(value: Any) -> Any:
    """The arguments of a call as plain values. Some frameworks give them as JSON in a string."""
    if isinstance(value, str):
        try:
            return codec.decode(value) if value.strip() else {}
        except codec.DecodeError:
            return value
    return to_plain_value(value)


def to_plain_value(value: Any) -> Any:
    """A value of foreign code as plain JSON values. One that JSON cannot hold becomes the name of its type."""
    try:
        return codec.to_plain_checked(_dump(value))
    except Exception:  # user objects may raise anything
        return codec.to_plain(str(type(value)))


def _dump(value: Any) -> Any:
    """Pydantic models as dicts, at any depth."""
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): _dump(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_dump(item) for item in cast("Sequence[Any]", value)]
    return value


def decode_json_text(text: Any) -> Any:
    """The value of a text that is a JSON object or array; any other value unchanged."""
    if not isinstance(text, str) or not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return codec.decode(text)
    except codec.DecodeError:
        return text
