"""When two names mean the same tool: one may stand after a namespace, as `openwop:orders.lookup` does for `lookup`."""

_SEPARATORS = ("__", ".", ":", "/")


def is_named(called: str, name: str) -> bool:
    """Is a tool that was called meant by this name? It may stand after a namespace: `files` + `__`, `.`, `:` or `/`."""
    if called == name:
        return True
    space = called.removesuffix(name)
    return space != called and any(space.endswith(sign) and len(space) > len(sign) for sign in _SEPARATORS)


def same_tool(one: str, other: str) -> bool:
    """Whichever of them has the namespace: APIs of models allow no `:` or `.` in the name of a tool."""
    return is_named(one, other) or is_named(other, one)
