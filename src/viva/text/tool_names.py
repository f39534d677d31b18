"""Decides whether two names mean the same tool: one may have a namespace (`openwop:orders.lookup` for `lookup`), and coding
CLIs have different names for the same tool.
"""

import re
from collections.abc import Iterator, Sequence

from viva.model.case import Fixtures
from viva.model.finding import Finding
from viva.model.message import ToolCall

_SEPARATORS = ("__", ".", ":", "/")
_SEPARATOR_PATTERN = re.compile("|".join(map(re.escape, _SEPARATORS)))

CLI_TOOL_NAMES: tuple[tuple[str, ...], ...] = (
    # Gemini CLI, qwen-code; Claude Code; Codex (its stream, its own name); opencode; ACP (kind)
    ("run_shell_command", "Bash", "command_execution", "exec_command", "shell", "bash", "execute"),
    ("write_file", "Write", "file_change", "apply_patch", "write"),
    ("replace", "Edit", "MultiEdit", "file_change", "apply_patch", "edit"),
    ("read_file", "Read", "read"),
    ("list_directory", "LS", "list"),
    ("glob", "Glob"),
    ("grep_search", "search_file_content", "Grep", "grep"),
    ("web_fetch", "WebFetch", "webfetch", "fetch"),
    ("google_web_search", "WebSearch", "web_search", "websearch"),
    ("write_todos", "TodoWrite", "todo_write", "todowrite"),
)
"""Each line has all names of one tool. Codex has one tool for writing and editing."""


def is_name_of_tool(called: str, name: str) -> bool:
    """Does `name` mean the `called` tool, which may have a namespace before `__`, `.`, `:` or `/`?"""
    if called == name:
        return True
    prefix = called.removesuffix(name)
    return prefix != called and any(prefix.endswith(sign) and len(prefix) > len(sign) for sign in _SEPARATORS)


def is_name_of_cli_tool(called: str, name: str) -> bool:
    """Like `is_name_of_tool`, and also true if `name` is what another CLI calls that tool (only without a namespace)."""
    return is_name_of_tool(called, name) or any(called in names and name in names for names in CLI_TOOL_NAMES)


def is_same_tool(one: str, other: str) -> bool:
    """Are two names the same tool, whichever has the namespace and separator? Model APIs allow no `:` or `.` in names."""
    first, second = _SEPARATOR_PATTERN.split(one), _SEPARATOR_PATTERN.split(other)
    if "" in first or "" in second:
        return one == other
    length = min(len(first), len(second))
    return first[-length:] == second[-length:]


def is_same_full_name(one: str, other: str) -> bool:
    """Are two names equal except for their separators?"""
    return _SEPARATOR_PATTERN.split(one) == _SEPARATOR_PATTERN.split(other)


def find_unstubbed_tools(calls: Sequence[ToolCall], fixtures: Fixtures | None) -> Iterator[Finding]:
    """A finding for each call of a tool without a stub, if all tools are stubbed."""
    if fixtures is not None and fixtures.stub_all_tools:
        names = [stub.tool for stub in fixtures.tools]
        for call in calls:
            if not any(is_same_tool(call.name, name) for name in names):
                yield Finding("unstubbed-tool", "low")
