"""How one case is run again: the command to type, with what its run was told and the case needs again."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from viva.model.record import TrialRecord
from viva.text.duration import format_duration

_SCRIPTS = "scripts:"  # such a suite is run by its own name, not by the file that holds it
_REGEX_SIGN = re.compile(r"[\\.^$*+?{}\[\]|()]")
_NEEDED = {
    "config": "--config",
    "before": "--before",
    "after": "--after",
    "env_file": "--env-file",
    "format": "--format",
    "connector": "--connector",
    "timeout_s": "--timeout",
    "turn_timeout_s": "--turn-timeout",
    "simulator": "--simulator",
    "evaluator": "--evaluator",
    "agent_model": "--agent-model",
    "workspace": "--workspace",
    "link_mode": "--link-mode",
    "sandbox": "--sandbox",
    "on_missing_input": "--on-missing-input",
    "allow_agent_mismatch": "--allow-agent-mismatch",
}
"""Options of a run that one of its cases needs again. Those on money and repeats are for whoever types to choose."""


def split_source(source: str | None) -> tuple[str | None, int | None]:
    """`tests/a.jsonl:12` as file and line."""
    if not source:
        return None, None
    file, colon, line = source.rpartition(":")
    return (file, int(line)) if colon and line.isascii() and line.isdecimal() else (source, None)


def build_case_filter(record: TrialRecord) -> tuple[str, str] | None:
    """What `-i` and `-k` take to run exactly this case; None for one that no file holds."""
    file, _ = split_source(record.source)
    suite = record.suite if record.suite.startswith(_SCRIPTS) else file
    return (suite, f"^{_REGEX_SIGN.sub(_escaped, record.id)}$") if suite else None


def list_rerun_flags(settings: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Flags of the run that had these settings, each with its value, if it takes one."""
    options: Mapping[str, Any] = settings.get("options") or {}
    for name, flag in _NEEDED.items():
        if (value := options.get(name)) is not None and value is not False:
            yield flag, None if value is True else format_duration(value) if name.endswith("_s") else str(value)


def build_rerun_command(record: TrialRecord, settings: Mapping[str, Any]) -> str | None:
    """What to type to run exactly this case again, against the same agent."""
    found = build_case_filter(record)
    if found is None or (record.status == "skipped" and not record.turns):
        return None
    flags = dict(list_rerun_flags(settings))
    if (evaluator := _evaluator(record)) is not None:
        flags.setdefault("--evaluator", evaluator)
    agent = f" -n {quote_shell(record.agent)}" if record.agent else ""
    more = "".join(f" {flag}" if value is None else f" {flag} {quote_shell(value)}" for flag, value in flags.items())
    return f"viva test -i {quote_shell(found[0])} -k {quote_shell(found[1])} -v{agent}{more}"


def quote_shell(text: str) -> str:
    """A word of a command as a shell reads it, in one line: what cannot be printed is spelled out, as bash and zsh know it."""
    if text.isprintable():
        return shlex.quote(text)
    signs = (each if each.isprintable() and each not in "\\'" else _spelled(each) for each in text)
    return f"$'{''.join(signs)}'"


def _spelled(sign: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in sign.encode("utf-8", "surrogatepass"))


def _evaluator(record: TrialRecord) -> str | None:
    """Who graded a playbook and played the user in it."""
    if "playbook" not in record.tags:
        return None
    asked = (each.get("use") for turn in record.turns for each in turn.assertions)
    return record.simulator or next((use for use in asked if isinstance(use, str)), None)


def _escaped(match: re.Match[str]) -> str:
    return "\\" + match[0]
