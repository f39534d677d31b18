"""Lists how two runs differ in agent, model, prompt, settings, suites and commit."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from msgspec import Struct

from viva.history.index import History, RunRow, read_run_start
from viva.model import codec
from viva.model.event import AGENTS_KEY, RunStarted

_ABSENT = object()
_FILES = "files"
_IGNORED_OPTIONS = frozenset(
    {
        "agents",
        "agent",
        "folder",
        "outputs",
        "cases",
        "eval_summary",
        "selected_cases",
        "shard_cases",
        "config",
        "history",
    }
    | {"reporter", "record", "rerun_of", "dry_run", "inputs"}
)
"""Options that do not count as a difference, or that have a line of their own."""


class RunDifference(Struct, frozen=True, omit_defaults=True):
    """One setting that differs between two runs; None on the side of a run that does not have it."""

    name: str
    base: str | None
    head: str | None


class RunSide(Struct, frozen=True, kw_only=True):
    """One of two compared runs: its compared agent, and all its agents."""

    run: str
    at: str
    agent: str
    agents: list[str]


def describe_side(row: RunRow, agent: str) -> RunSide:
    return RunSide(run=row.id, at=row.at, agent=agent, agents=row.agents)


def list_differences(history: History, base: RunSide, head: RunSide) -> list[RunDifference]:
    """The differences between two runs; none if a journal is missing."""
    before, after = (read_run_start(history.journal_path(side.run)) for side in (base, head))
    if before is None or after is None:
        return []
    pairs = [
        ("agent", base.agent, head.agent),
        ("model", before.origin.model, after.origin.model),
        ("commit", _format_commit(before), _format_commit(after)),
        ("input", ", ".join(before.inputs), ", ".join(after.inputs)),
        ("Viva", before.viva, after.viva),
    ]
    differences = [RunDifference(name, was or None, now or None) for name, was, now in pairs if was != now]
    model = [RunDifference("agent model", each.base, each.head) for each in differences if each.name == "model"]
    definitions = _get_agent_definition(before, base.agent), _get_agent_definition(after, head.agent)
    # The model is listed already, by another name.
    differences += [each for each in _compare_values(*definitions, "agent") if each not in model]
    differences += _compare_values(_get_suite_versions(before), _get_suite_versions(after), "suite")
    differences += _compare_values(_get_options(before), _get_options(after), "setting")
    return differences


def _format_commit(started: RunStarted) -> str:
    return " ".join(filter(None, (started.origin.commit[:10], started.origin.branch)))


def _get_agent_definition(started: RunStarted, agent: str) -> Mapping[str, Any]:
    """The definition of an agent; only its digest if an older Viva made the run."""
    definitions: Mapping[str, Any] = started.settings.get(AGENTS_KEY, {})
    digests: Mapping[str, Any] = started.settings.get("fingerprint", {}).get("agents", {})
    return definitions.get(agent) or {"definition": digests.get(agent, "")}


def _get_suite_versions(started: RunStarted) -> Mapping[str, Any]:
    digests: Mapping[str, str] = started.settings.get("fingerprint", {}).get("suites", {})
    return {name: f"version {digest[:8]}" for name, digest in digests.items()}


def _get_options(started: RunStarted) -> Mapping[str, Any]:
    options: Mapping[str, Any] = started.settings.get("options", {})
    return {
        name: value for name, value in options.items() if name not in _IGNORED_OPTIONS and value not in (None, [], ())
    }


def _compare_values(before: Any, after: Any, path: str) -> Iterator[RunDifference]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        was, now = cast("Mapping[str, Any]", before), cast("Mapping[str, Any]", after)
        for key in dict.fromkeys([*was, *now]):
            name = f"{path} file {key}" if path.endswith(_FILES) else f"{path} {key}"
            yield from _compare_values(
                was.get(key, _ABSENT), now.get(key, _ABSENT), name.replace(f"{_FILES} file", "file")
            )
    elif _ABSENT in (before, after) or codec.encode_canonically(before) != codec.encode_canonically(after):
        is_digest = path.startswith(("agent file", "agent definition"))
        yield RunDifference(path, _to_text(before, is_digest=is_digest), _to_text(after, is_digest=is_digest))


def _to_text(value: Any, *, is_digest: bool = False) -> str | None:
    if value is _ABSENT:
        return None
    if isinstance(value, str) and is_digest:
        return value[:8]
    return value if isinstance(value, str) else codec.compact_json(value)
