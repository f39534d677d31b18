"""Fills a workspace before the agent sees it: with a copy of a repository, or with links to parts of it."""

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from viva.errors import Undetermined
from viva.model.case import WorkspaceSpec
from viva.workspace.snapshot import get_file_mode, to_display_path

MAX_FILES = 100_000
MAX_BYTES = 2 * 1024 * 1024 * 1024
SKIPPED_FOLDERS = frozenset({".git", ".venv", "node_modules", ".viva"})
_GIT = ("git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
"""The command line of git: it lists repositories of other owners too, and runs no program that they configure."""


class FolderCopier:
    """Fills one folder within limits.

    `unreadable` are files that could not be read. `outside_links` lead out of the allowed folder and are not created: the
    agent would reach the host's files through them.
    """

    def __init__(
        self, target: str, exclude: Sequence[str], max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES
    ) -> None:
        self._target = target
        self._excluded = frozenset(os.path.realpath(path) for path in exclude)
        self._own_folder = os.path.dirname(os.path.realpath(target))
        self._root = ""
        self._max_files, self._max_bytes = max_files, max_bytes
        self._files = self._bytes = 0
        self._skipped_names = SKIPPED_FOLDERS
        self._source_root = self._copy_root = target
        self.unreadable: list[str] = []
        self.outside_links: list[str] = []

    def copy_repository(self, root: str, environ: Mapping[str, str]) -> None:
        """Copy the files of the repository around `root` that git does not ignore; without git, the files of `root`."""
        top = _run_git(root, environ, "rev-parse", "--show-toplevel").rstrip("\n")
        self._source_root = self._root = os.path.realpath(top or root)
        if top:
            self._copy_git_files(top, "", environ)
        else:
            self._copy_tree(root, "", ())

    def add_links(self, spec: WorkspaceSpec, *, as_copy: bool, complete: bool) -> dict[str, str]:
        """Add the `link_paths` of a case, and return the target of each. With `complete` a copy holds all files that a link would show.

        Other copies skip the files of the suite and folders like `node_modules`, except where the case names them.
        """
        targets: dict[str, str] = {}
        self._root = os.path.realpath(spec.root)
        if complete:
            self._excluded, self._skipped_names = frozenset(), frozenset({".viva"})
        for path in sorted(self._list_link_paths(spec), key=lambda path: path.count("/")):
            source, place = f"{os.path.abspath(spec.root)}/{path}", f"{self._target}/{path}"
            if any(_is_inside(path, parent) for parent in targets) and (not as_copy or os.path.lexists(place)):
                continue  # it is part of a folder that was added
            real = os.path.realpath(source)
            if not _is_inside(real, self._root):
                self.outside_links.append(path)
                continue
            os.makedirs(os.path.dirname(place), exist_ok=True)
            targets[path] = self._source_root = real
            self._copy_root = place
            if not as_copy:
                os.symlink(source, place)
            elif stat.S_ISDIR(get_file_mode(targets[path])):
                os.makedirs(place, exist_ok=True)
                self._copy_named_tree(targets[path], path)
            else:
                self._copy_file(targets[path], path, is_named=True)
        return targets

    def _copy_named_tree(self, source: str, path: str) -> None:
        """Copy a folder that the case names. If folders of that name are usually skipped, nothing in it is skipped."""
        skipped_names = self._skipped_names
        if not skipped_names.isdisjoint(path.split("/")):
            self._skipped_names = frozenset({".viva"})
        try:
            self._copy_tree(source, path, (source,))
        finally:
            self._skipped_names = skipped_names

    def _list_link_paths(self, spec: WorkspaceSpec) -> Iterator[str]:
        for link_path in spec.link_paths:
            path = os.path.normpath(link_path)
            if os.path.isabs(path) or path.split("/")[0] == "..":
                raise Undetermined(f"link_paths: {link_path!r} leads out of the working folder")
            if not os.path.exists(f"{spec.root}/{path}"):
                raise Undetermined(f"link_paths: there is no {link_path!r} in {os.path.abspath(spec.root)}")
            if not _is_inside(os.path.realpath(f"{spec.root}/{path}"), self._root):
                raise Undetermined(f"link_paths: {link_path!r} leads outside the working folder")
            if path == ".":  # the folder itself exists: add its entries
                yield from (name for name in sorted(os.listdir(spec.root)) if name != ".viva")
            else:
                yield path

    def _copy_git_files(self, top: str, below: str, environ: Mapping[str, str]) -> None:
        """Copy what git lists. A nested repository is listed as one folder and listed in turn."""
        names = _run_git(top, environ, "ls-files", "-co", "--exclude-standard", "-z").split("\0")
        for name in dict.fromkeys(filter(None, names)):
            path = f"{below}{name}".rstrip("/")
            source = f"{top}/{name}".rstrip("/")
            if ".viva" in path.split("/"):
                continue
            if not stat.S_ISDIR(get_file_mode(source)):
                self._copy_file(source, path)
            elif os.path.lexists(f"{source}/.git"):
                self._copy_git_files(source, f"{path}/", environ)

    def _copy_tree(self, source: str, below: str, above: tuple[str, ...]) -> None:
        """Copy a folder. A link that leads out of it is followed within the working folder, unless it leads to a parent folder."""
        try:
            entries = sorted(os.scandir(source), key=lambda entry: entry.name)
        except OSError:
            self.unreadable.append(below or ".")
            return
        for entry in entries:
            path = f"{below}/{entry.name}" if below else entry.name
            real = os.path.realpath(entry.path)
            if entry.name in self._skipped_names or real == self._own_folder or self._is_excluded(real):
                continue
            leads_out = entry.is_symlink() and above and not _is_inside(real, above[0])
            if leads_out and not _is_inside(real, self._root):
                self.outside_links.append(path)
                continue
            if entry.is_dir(follow_symlinks=bool(leads_out)):
                if real not in above or not entry.is_symlink():
                    os.makedirs(f"{self._target}/{path}", exist_ok=True)
                    self._copy_tree(entry.path, path, (*above, real) if above else ())
            else:
                self._copy_file(real if leads_out else entry.path, path)

    def _copy_file(self, source: str, path: str, *, is_named: bool = False) -> None:
        """Copy one file or link, but no socket, pipe or device. A file that the case names is never excluded."""
        place, mode = f"{self._target}/{path}", get_file_mode(source)
        if not is_named and self._is_excluded(os.path.realpath(source)):
            return
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            return
        self._count_file_within_limits(os.lstat(source).st_size)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        try:
            if stat.S_ISLNK(mode):
                self._copy_link(source, path)
            else:
                shutil.copyfile(source, place, follow_symlinks=False)
                shutil.copystat(source, place, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _SKIPPABLE_ERRORS:  # for example a full disk
                raise
            self.unreadable.append(to_display_path(path))

    def _copy_link(self, source: str, path: str) -> None:
        """Copy a link so that it leads to the same place in the copy. A link out of the original is not copied."""
        real = os.path.realpath(source)
        if not _is_inside(real, self._source_root):
            self.outside_links.append(path)
            return
        place, text = f"{self._target}/{path}", os.readlink(source)
        folder = os.path.dirname(place)
        leads_to = os.path.normpath(os.path.join(os.path.realpath(os.path.dirname(source)), text))
        if self._map_to_copy(leads_to) != os.path.normpath(os.path.join(folder, text)):
            text = os.path.relpath(self._map_to_copy(real), folder)
        os.symlink(text, place)

    def _map_to_copy(self, path: str) -> str:
        """Return the path in the copy of a path in the original."""
        return os.path.normpath(f"{self._copy_root}/{os.path.relpath(path, self._source_root)}")

    def _is_excluded(self, real: str) -> bool:
        return bool(self._excluded) and any(_is_inside(real, path) for path in self._excluded)

    def _count_file_within_limits(self, size: int) -> None:
        self._files += 1
        self._bytes += size
        if self._files > self._max_files:
            raise Undetermined(f"the workspace would hold more than {self._max_files:,} files; {_LIMIT_HINT}")
        if self._bytes > self._max_bytes:
            raise Undetermined(f"the workspace would hold more than {self._max_bytes:,} bytes; {_LIMIT_HINT}")


_SKIPPABLE_ERRORS = frozenset({errno.EACCES, errno.EPERM, errno.ENOENT, errno.ELOOP, errno.ESTALE})
"""Errors of one file that cannot be read or disappeared."""
_LIMIT_HINT = "link what is needed (tmpdir with link_paths), ignore the rest in git, or use --workspace cwd"


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _run_git(folder: str, environ: Mapping[str, str], *arguments: str) -> str:
    """Return the output of git; empty without git or without a repository."""
    # A git hook sets GIT_ variables.
    env = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    try:
        process = subprocess.run(
            [*_GIT, *arguments], cwd=folder, env=env, capture_output=True, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise Undetermined(f"workspace: {folder}: {error.strerror}") from error
    if process.returncode and arguments[0] != "rev-parse":
        raise Undetermined(
            f"workspace: git {arguments[0]} in {folder}: {process.stderr.decode(errors='replace').strip()}"
        )
    return os.fsdecode(process.stdout) if not process.returncode else ""


def find_exposed_files(links: Mapping[str, str], exclude: Sequence[str]) -> list[str]:
    """Return excluded files that the agent can read through a link."""
    existing = [path for path in exclude if os.path.exists(path)]
    return [path for path in existing if any(_is_inside(os.path.realpath(path), target) for target in links.values())]
