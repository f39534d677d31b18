"""When two names mean the same tool: one may stand after a namespace, as `openwop:orders.lookup` does for `lookup`."""

import re

_SEPARATORS = ("__", ".", ":", "/")
_PARTS = re.compile("|".join(map(re.escape, _SEPARATORS)))


def is_named(called: str, name: str) -> bool:
    """Is a tool that was called meant by this name? It may stand after a namespace: `files` + `__`, `.`, `:` or `/`."""
    if called == name:
        return True
    space = called.removesuffix(name)
    return space != called and any(space.endswith(sign) and len(space) > len(sign) for sign in _SEPARATORS)


def same_tool(one: str, other: str) -> bool:
    """Whichever of them has the namespace, and however it is set off: APIs of models allow no `:` or `.` in a name."""
    ours, theirs = _PARTS.split(one), _PARTS.split(other)
    if "" in ours or "" in theirs:
        return one == other
    length = min(len(ours), len(theirs))
    return ours[-length:] == theirs[-length:]
