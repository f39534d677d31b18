"""Finds the project files of a Python agent: its own file and everything it imports from the project, transitively.

Imports are read from the source, so imports inside functions count. Modules imported by a computed name are not found.
Files of Viva and of installed packages are left out.
"""

import ast
import inspect
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

_INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages", "node_modules"})
_VIVA_FOLDER = Path(__file__).parents[1]
_PARSING = threading.Lock()
"""CPython before 3.13 raises SystemError if several threads parse at the same time: they share a counter of the depth."""


def digest_source_files(targets: Iterable[Any], project: Path) -> dict[str, str]:
    """A digest for each source file behind some functions, classes or objects, by its path relative to the project."""
    project = project.resolve()
    digests: dict[Path, str] = {}
    due = [path for target in targets if (path := _find_source_file(target)) is not None]
    roots = _list_import_roots(project, due)
    while due:
        path = due.pop()
        if path in digests:
            continue
        try:
            source = path.read_bytes()
        except OSError:
            continue
        digests[path] = blake2b(source.replace(b"\r\n", b"\n"), digest_size=8).hexdigest()
        due += _find_imported_files(source, path, roots)
    return {_format_relative_path(path, project): digests[path] for path in sorted(digests)}


def _find_source_file(target: Any) -> Path | None:
    is_source = inspect.ismodule(target) or inspect.isclass(target) or inspect.isroutine(target)
    kind = target if is_source else type(target)
    try:
        file = inspect.getsourcefile(kind)
    except TypeError:  # it was not read from a file
        return None
    return Path(file).resolve() if file and Path(file).is_file() else None


def _list_import_roots(project: Path, files: Sequence[Path]) -> list[Path]:
    """The folders in which imported modules are searched: the agent's, the project's, and those of the project on sys.path."""
    on_path = [Path(entry or os.curdir).resolve() for entry in sys.path]
    ours = [entry for entry in on_path if entry.is_relative_to(project) and not _is_installed(entry)]
    return list(dict.fromkeys([*(file.parent for file in files), project, *ours]))


def _is_installed(path: Path) -> bool:
    return (
        bool(_INSTALLED_FOLDERS & set(path.parts))
        or path.is_relative_to(sys.prefix)
        or path.is_relative_to(_VIVA_FOLDER)
    )


def _find_imported_files(source: bytes, path: Path, roots: Sequence[Path]) -> Iterator[Path]:
    try:
        with _PARSING:
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # importing the file will report it
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield from _find_module_files(name.name.split("."), roots)
        elif isinstance(node, ast.ImportFrom):
            folders = roots
            if node.level:
                folders = [path.parents[node.level - 1]] if node.level <= len(path.parents) else []
            parts = node.module.split(".") if node.module else []
            yield from _find_module_files(parts, folders)
            for name in node.names:  # each may be a module, too
                yield from _find_module_files([*parts, name.name], folders)


def _find_module_files(parts: Sequence[str], roots: Sequence[Path]) -> Iterator[Path]:
    """The files of a module and of the packages around it; nothing if the module is not in the project."""
    for root in roots:
        module_files: list[Path] = []
        folder = root
        for part in parts:
            package = folder / part / "__init__.py"
            module = folder / f"{part}.py"
            folder /= part
            if package.is_file():
                module_files.append(package)
            elif module.is_file():
                module_files.append(module)
            elif not folder.is_dir():
                break
        files = [file.resolve() for file in module_files if not _is_installed(file)]
        if files:
            yield from files
            return


def _format_relative_path(path: Path, project: Path) -> str:
    return Path(os.path.relpath(path, project)).as_posix()
