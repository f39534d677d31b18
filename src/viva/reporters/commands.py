"""Builds the commands that reports print, to run cases again."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from viva.model.event import RunStarted
from viva.model.record import TrialRecord

_SCRIPTS = "scripts:"  # such a suite is run by its name, not by its file
_MAX_NAMED_CASES = 10
_REGEX_CHARACTER = re.compile(r"[\\.^$*+?{}\[\]|()]")


def split_source(source: str | None) -> tuple[str | None, int | None]:
    """Splits `tests/a.jsonl:12` into file and line."""
    if not source:
        return None, None
    file, colon, line = source.rpartition(":")
    return (file, int(line)) if colon and re.fullmatch(r"[0-9]{1,9}", line) else (source, None)


def build_case_filter(record: TrialRecord) -> tuple[str, str] | None:
    """The values of `-i` and `-k` that select only this case; None for a case that is in no file."""
    file, _ = split_source(record.source)
    suite = record.suite if record.suite.startswith(_SCRIPTS) else file
    return (suite, f"^{_escape_pattern(record.id)}$") if suite else None


def list_rerun_flags(settings: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """The flags of a run that its rerun commands repeat, each with its value or None."""
    return iter(settings.get("rerun_flags", ()))


def build_rerun_command(record: TrialRecord, settings: Mapping[str, Any]) -> str | None:
    """The command that runs only this case again, with the same agent; a `viva.run` call if the run had Python objects."""
    selector = build_case_filter(record)
    if selector is None or (record.status == "skipped" and not record.turns):
        return None
    if settings.get("has_objects"):
        return f"viva.run(..., only={selector[1]!r})"
    flags = dict(list_rerun_flags(settings))
    if (evaluator := _find_evaluator(record)) is not None:
        flags.setdefault("--evaluator", evaluator)
    agent = f" -n {quote_shell(record.agent)}" if record.agent else ""
    return f"viva test -i {quote_shell(selector[0])} -k {quote_shell(selector[1])} -v{agent}{_format_flags(flags)}"


def build_rerun_failed_command(started: RunStarted, failed: Sequence[TrialRecord]) -> str | None:
    """The command that runs the failed cases again; None if a case is in no file or the run had Python objects."""
    if not all(map(build_case_filter, failed)) or started.settings.get("has_objects"):
        return None
    inputs = "".join(f" -i {quote_shell(text)}" for text in started.inputs)
    agents = "".join(f" -n {quote_shell(agent)}" for agent in started.agents)
    command = f"viva test{inputs}{agents}{_format_flags(dict(list_rerun_flags(started.settings)))}"
    if started.settings.get("journal"):
        return f"{command} --last-failed"
    ids = dict.fromkeys(record.id for record in failed)  # once, if it failed on several agents or in several suites
    if len(ids) > _MAX_NAMED_CASES:
        return None
    pattern = "|".join(map(_escape_pattern, ids))
    return f"{command} -k {quote_shell(f'^({pattern})$')}"


def _format_flags(flags: Mapping[str, str | None]) -> str:
    words = (word for flag, value in flags.items() for word in (flag, value) if word is not None)
    return "".join(f" {quote_shell(word)}" for word in words)


def _escape_pattern(text: str) -> str:
    return _REGEX_CHARACTER.sub(r"\\\g<0>", text)


def quote_shell(text: str) -> str:
    """Quotes a word for the shell, in one line: unprintable characters are escaped as in bash and zsh."""
    if text.isprintable():
        return shlex.quote(text)
    parts = (char if char.isprintable() and char not in "\\'" else _escape_bytes(char) for char in text)
    return f"$'{''.join(parts)}'"


def _escape_bytes(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogatepass"))


def _find_evaluator(record: TrialRecord) -> str | None:
    """The agent that evaluated a playbook and played its user."""
    if "playbook" not in record.tags:
        return None
    agents = (assertion.get("use") for turn in record.turns for assertion in turn.assertions)
    return record.simulator or next((agent for agent in agents if isinstance(agent, str)), None)
