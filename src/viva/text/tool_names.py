"""When two names mean the same tool: one may stand after a namespace, as `openwop:orders.lookup` does for `lookup`; and
coding CLIs call the same tool by different names.
"""

import re

_SEPARATORS = ("__", ".", ":", "/")
_PARTS = re.compile("|".join(map(re.escape, _SEPARATORS)))

CLI_TOOLS: tuple[tuple[str, ...], ...] = (
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
"""Each line is one tool by all its names. Codex has one tool for writing and for editing."""


def matches_tool(called: str, name: str) -> bool:
    """Is a tool that was called meant by this name? It may stand after a namespace: `files` + `__`, `.`, `:` or `/`."""
    if called == name:
        return True
    space = called.removesuffix(name)
    return space != called and any(space.endswith(sign) and len(space) > len(sign) for sign in _SEPARATORS)


def matches_cli_tool(called: str, name: str) -> bool:
    """Is it named so, or is it what another CLI calls the same tool? Other names count only without a namespace."""
    return matches_tool(called, name) or any(called in names and name in names for names in CLI_TOOLS)


def is_same_tool(one: str, other: str) -> bool:
    """Whichever of them has the namespace, and however it is set off: APIs of models allow no `:` or `.` in a name."""
    ours, theirs = _PARTS.split(one), _PARTS.split(other)
    if "" in ours or "" in theirs:
        return one == other
    length = min(len(ours), len(theirs))
    return ours[-length:] == theirs[-length:]
