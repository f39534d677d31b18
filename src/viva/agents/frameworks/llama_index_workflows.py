"""What an own `Workflow` of LlamaIndex takes and gives: the field of its StartEvent, its answers to questions, and its result."""

import ast
import inspect
import textwrap
from asyncio import CancelledError
from collections.abc import Generator
from contextlib import contextmanager
from functools import wraps
from types import MethodType
from typing import Any

from viva.agents.frameworks.framework_agent import copy_with
from viva.model.tracebacks import format_error

_TEXT_FIELDS = ("user_msg", "input", "message", "query", "question")
NO_TEXT_FIELD = """it cannot be told which field of its StartEvent takes the user's message; name a function that fills it:
    async def agent(messages):
        return await my_workflow.run(topic=messages[-1]["content"])"""


def find_text_field(load: Any, workflow: Any) -> str | None:
    """The field of the workflow's StartEvent that takes the user's message; None if that is not clear."""
    start, plain = workflow.start_event_class, load("llama_index.core.workflow", "StartEvent")
    if start is plain:
        required, optional = _list_read_fields(workflow, start)
    else:
        fields = start.model_fields
        required = [name for name, field in fields.items() if field.is_required()]
        optional = [name for name, field in fields.items() if field.annotation in (str, str | None)]
        if any(fields[name].annotation is not str for name in required):
            return None
    names = required or [name for name in optional if name in _TEXT_FIELDS] or optional
    return names[0] if len(names) == 1 else None


def _list_read_fields(workflow: Any, start: type) -> tuple[list[str], list[str]]:
    """The fields of a plain StartEvent that the source of the first steps reads: as `event.name`, and by `event.get("name")`."""
    required, optional = dict[str, None](), dict[str, None]()
    for step in workflow._get_steps().values():  # noqa: SLF001
        if start not in step._step_config.accepted_events:  # noqa: SLF001
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(step)))
        except (OSError, TypeError, SyntaxError):  # the source is not there
            continue
        event = step._step_config.event_name  # noqa: SLF001
        for node in ast.walk(tree):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr="get"), args=[ast.Constant(value=str(field)), *_]
                ) if name == event:
                    optional[field] = None
                case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(field))) if name == event:
                    required[field] = None
                case ast.Attribute(value=ast.Name(id=name), attr=field) if name == event and not hasattr(start, field):
                    required[field] = None
                case _:
                    pass
    return list(required), list(optional)


def guard_steps(workflow: Any) -> Any:
    """A copy of a workflow whose steps raise only exceptions: a run waits forever for a step that raises SystemExit."""
    steps = workflow._get_steps()  # noqa: SLF001
    guarded = {
        name: MethodType(_guard(step.__func__), workflow) for name, step in steps.items() if inspect.ismethod(step)
    }
    return copy_with(workflow, **guarded)


def _guard(step: Any) -> Any:
    @wraps(step)
    async def run(*values: Any, **named: Any) -> Any:
        with _raise_only_exceptions():
            return await step(*values, **named)

    @wraps(step)
    def run_sync(*values: Any, **named: Any) -> Any:
        with _raise_only_exceptions():
            return step(*values, **named)

    return run if inspect.iscoroutinefunction(step) else run_sync


@contextmanager
def _raise_only_exceptions() -> Generator[None]:
    try:
        yield
    except (Exception, CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # user code may raise anything
        raise RuntimeError(format_error(error)) from error


def make_answer(load: Any, workflow: Any, answer: Any) -> Any:
    """The event that answers a question: of the class that the workflow's steps take, in its one text field or `response`."""
    base = load("llama_index.core.workflow", "HumanResponseEvent")
    kinds = [each for each in workflow.events if issubclass(each, base)] or [base]
    texts = [name for name, field in kinds[0].model_fields.items() if field.annotation is str]
    return kinds[0](**{texts[0] if len(texts) == 1 else "response": answer})


def read_result(load: Any, result: Any) -> Any:
    """The text or the structured value of a workflow's result, which may be its own StopEvent."""
    types, stop = load("llama_index.core.base.llms", "types"), load("llama_index.core.workflow", "StopEvent")
    if isinstance(result, stop):
        values = result.model_dump(mode="json") | result.to_dict()
        result = next(iter(values.values())) if len(values) == 1 else values
    if isinstance(result, types.ChatResponse):
        result = result.message
    if isinstance(result, types.ChatMessage):
        return result.content or ""
    if isinstance(result, types.CompletionResponse):
        return result.text
    return "" if result is None else result
