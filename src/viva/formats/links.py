"""Checks `link_paths`: paths of the working folder that a case links into its workspace."""

from pathlib import Path, PurePath


def explain_bad_link(path: str, root: str) -> str | None:
    """Why a path of the working folder cannot be linked; None if it can."""
    parts = PurePath(path).parts
    if not path.strip() or "\0" in path:
        return f"{path!r} names nothing"
    if PurePath(path).is_absolute():
        return f"{path!r} is absolute; give a path relative to the working folder"
    if ".." in parts:
        return f"{path!r} leaves the working folder"
    host = Path(root, path)
    try:
        if host.exists():
            real, inside = host.resolve(), Path(root).resolve()
            if not real.is_relative_to(inside):
                return f"{path!r} leads outside the working folder, to {real}; name a path that stays inside"
            return None
        if host.is_symlink():
            return f"{path!r} is a broken symbolic link"
    except (OSError, UnicodeError) as wrong:  # too long, not allowed, or no name at all
        return f"{path!r} cannot be read: {wrong}"
    return f"there is no {path!r} in the working folder {root}"
