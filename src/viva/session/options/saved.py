"""What the journal saves of a run's options: to resume the run, and to print the command that runs one case again."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from msgspec import structs

from viva.errors import BadInput, Problem
from viva.model import codec
from viva.record.redaction import Redactor
from viva.session.options.run_options import RUN_OPTIONS, WORKERS, AllRunOptions, Option
from viva.text.credentials import MASK, mask_agent_reference, mask_url_credentials
from viva.text.duration import format_duration

AGENT_OPTION_FLAGS: Mapping[str, str] = {
    option.name: option.flag for option in RUN_OPTIONS.values() if option.on_resume == "reference"
}
"""Options that name agents, possibly by a URL or command with secrets in it, and their flags."""

_NAMED_ON_WORKERS: Mapping[str, str] = {
    **dict.fromkeys(("agents", "simulator", "evaluator"), "python:FILE.py:NAME"),
    **dict.fromkeys(("before", "after"), "MODULE:FUNCTION"),
}
"""Options whose values are agents or functions that workers use, and how they are named."""


def build_saved_settings(options: AllRunOptions, redactor: Redactor) -> dict[str, Any]:
    """The entries of the journal's settings: the options, the flags that run one case again, and whether Python objects are used."""
    saved = dump_options(options, redactor)
    return {
        "options": saved,
        "rerun_flags": list(_list_rerun_flags(saved)),
        "has_objects": _has_python_objects(options),
    }


def _has_python_objects(options: AllRunOptions) -> bool:
    """Does the run use agents, cases or functions of a Python program, which a command line cannot name?"""
    named = (*options.agents, options.before, options.after)
    return bool(options.cases or options.functions) or not all(isinstance(each, str | None) for each in named)


def dump_options(options: AllRunOptions, redactor: Redactor) -> dict[str, Any]:
    """The options as JSON values, without Python objects. Secrets in inputs, cases and agent references are masked.

    Paths and names are not masked: the run cannot be resumed without them.
    """
    values = _collect_resumable_values(options)
    values["inputs"] = tuple(map(mask_url_credentials, options.inputs))
    values["cases"] = redactor.redact(codec.to_plain(options.cases))
    for name in AGENT_OPTION_FLAGS:
        values[name] = _map_agent_references(values[name], mask_agent_reference)
    if list_agent_references(options.agents) != list(options.agents):
        del values["agents"]  # objects of this process
    return {name: codec.to_builtins(value) for name, value in values.items() if value is None or not callable(value)}


def list_agent_references(value: Any) -> list[str]:
    """The names and references of agents in the value of an option. Agents that are Python objects are left out."""
    return [item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, str)]


def _map_agent_references(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, tuple):
        return tuple(_map_agent_references(item, change) for item in cast("tuple[Any, ...]", value))
    return change(value) if isinstance(value, str) else value


def _collect_resumable_values(options: AllRunOptions) -> dict[str, Any]:
    values = {name: getattr(options, name) for name, option in RUN_OPTIONS.items() if option.on_resume != "drop"}
    return values | {"folder": options.folder.resolve()}


def dump_worker_options(options: AllRunOptions, root: Path) -> dict[str, Any]:
    """The options of a run for its workers, as JSON values. Raises BadInput for Python objects, which cannot be sent.

    Options that only the coordinator uses are left out. Paths inside the project are relative to its `root`, which may be
    elsewhere on the workers.
    """
    functions = {
        name for name in options.functions or () if name != options.reporter
    }  # a reporter runs in this process
    for name, example in _NAMED_ON_WORKERS.items():
        value = getattr(options, name)
        values = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
        if not all(isinstance(each, str | None) for each in values) or functions.intersection(values):
            raise BadInput.of(
                f"The {name.removesuffix('s')} is a Python object of this process, which workers cannot get. Give its name: {example}"
            )
    if functions:
        raise BadInput.of(
            "The cases hold Python functions of this process, which workers cannot get. Name them: MODULE:FUNCTION"
        )
    shares_folder = options.cluster is None or options.cluster_folder
    options = structs.replace(options, history=False, env_file=options.env_file if shares_folder else None)
    resumable = _collect_resumable_values(options)
    values = {name: value for name, value in resumable.items() if not RUN_OPTIONS[name].coordinator_only}
    values["cases"] = codec.to_plain(options.cases)
    for name, value in values.items():
        if isinstance(value, Path):
            path = value.absolute()
            values[name] = path.relative_to(root) if path.is_relative_to(root) else path
    return {name: codec.to_builtins(value) for name, value in values.items()}


def restore_worker_options(saved: Mapping[str, Any], root: Path, subfolder: str) -> AllRunOptions:
    """The options of a run in a worker, for the project in the folder `root`."""
    options = restore_options(saved)
    paths = {name: root / value for name in RUN_OPTIONS if isinstance(value := getattr(options, name), Path)}
    return structs.replace(options, **(paths | {"folder": root / subfolder}))


def _list_rerun_flags(saved: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    for name, option in RUN_OPTIONS.items():
        value = saved.get(name)
        if not option.is_repeated or value is None or value == option.default:
            continue
        if option.type is bool:
            yield option.flags[-1], None
        elif option.is_list and option.parse is not None:
            yield option.flags[-1], ",".join(value)
        else:
            for item in value if option.is_list else (value,):
                yield option.flags[-1], format_duration(item) if option.is_duration else str(item)


def restore_options(saved: Mapping[str, Any]) -> AllRunOptions:
    """The options of a run, from the values that its journal saved. Raises BadInput for values of other types."""
    values = {"inputs": [], **saved}
    if (agent := values.pop("agent", None)) is not None:  # a run had one agent, before it could have several
        values["agents"] = [agent]
    return AllRunOptions(
        **{
            name: _restore_value(option, values[name])
            for name, option in RUN_OPTIONS.items()
            if name in values and option.on_resume != "drop"
        }
    )


def _restore_value(option: Option, value: Any) -> Any:
    if value is None:
        return None
    is_text = option.item_type is Path or option.name in ("before", "after")  # functions are not saved
    kind = str if is_text else option.item_type
    try:
        value = codec.convert(value, tuple[kind, ...] if option.is_list else kind)
    except codec.DecodeError as error:
        raise BadInput.of(f"the journal has another value of {option.name} than a run saves: {error}") from error
    if option.item_type is Path:
        return tuple(map(Path, value)) if option.is_list else Path(value)
    return value


def apply_resume_flags(options: AllRunOptions, flags: AllRunOptions) -> AllRunOptions:
    """The options of a resumed run, with those flags of the new command that may replace saved options. Paths are made absolute."""
    changes: dict[str, Any] = {}
    for name, option in RUN_OPTIONS.items():
        value = getattr(flags, name)
        if option.on_resume != "replace" or not value:
            continue
        if option.item_type is Path:
            value = tuple(path.absolute() for path in value) if option.is_list else value.absolute()
        changes[name] = value
    if flags.has_workers:  # one kind of workers replaces the other
        changes = {name: option.default for name, option in RUN_OPTIONS.items() if option.group == WORKERS} | changes
    return structs.replace(options, **changes)


def restore_agents_with_secrets(options: AllRunOptions, references: Mapping[str, Any]) -> AllRunOptions:
    """The options of a resumed run with the agents that were passed again because their references contain secrets.

    Raises BadInput for agents that are missing, not needed, or differ from before.
    """
    restored: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, flag in AGENT_OPTION_FLAGS.items():
        before, now = getattr(options, name), references.get(name)
        has_secret = any(MASK in reference for reference in list_agent_references(before))
        shown = f" {flag} ".join(list_agent_references(before))
        message = None
        if not now:
            message = (
                f"The run had {flag} {shown}, and secrets are not saved: pass {flag} again" if has_secret else None
            )
        elif not has_secret:
            message = f"A resumed run keeps its settings; remove {flag}"
        elif _map_agent_references(now, mask_agent_reference) != before:
            message = f"{flag} differs from that of the run: {shown}"
        else:
            restored[name] = now
        if message is not None:
            problems.append(Problem("", 0, "", message))
    if problems:
        raise BadInput(*problems)
    return structs.replace(options, **restored)
