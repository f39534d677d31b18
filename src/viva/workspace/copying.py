"""What is put into a workspace before the agent sees it: a copy of a repository, or links to parts of it."""

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from viva.errors import Undetermined
from viva.model.case import WorkspaceSpec
from viva.workspace.snapshot import display_path, file_mode

MAX_FILES = 100_000
MAX_BYTES = 2 * 1024 * 1024 * 1024
SKIPPED_FOLDERS = frozenset({".git", ".venv", "node_modules", ".viva"})
_GIT = ("git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
"""A repository of somebody else's may be listed; its own programs are not run for that."""


class FolderCopier:
    """Fills one folder within limits. `skipped` are files that could not be read, `outside` links that lead out of what may
    be used: the agent would reach the host's own files through them.
    """

    def __init__(
        self, into: str, leave_out: Sequence[str], max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES
    ) -> None:
        self._into = into
        self._leave_out = frozenset(os.path.realpath(path) for path in leave_out)
        self._own = os.path.dirname(os.path.realpath(into))
        self._root = ""
        self._max_files, self._max_bytes = max_files, max_bytes
        self._files = self._bytes = 0
        self._not_copied = SKIPPED_FOLDERS
        self._source = self._copy = into
        self.unreadable: list[str] = []
        self.outside_links: list[str] = []

    def copy_repository(self, root: str, environ: Mapping[str, str]) -> None:
        """The tracked and the untracked but not ignored files of the repository around `root`; without one, or without git,
        the files of `root` itself.
        """
        top = _git(root, environ, "rev-parse", "--show-toplevel").rstrip("\n")
        self._source = self._root = os.path.realpath(top or root)
        if top:
            self._listed(top, "", environ)
        else:
            self._tree(root, "", ())

    def add_links(self, spec: WorkspaceSpec, *, as_copy: bool, complete: bool = False) -> dict[str, str]:
        """The `link_paths` of a case at their places, and where each leads to. `all_of_it` is copied as a link would show it.

        A copy leaves out the suite's own files, and folders such as `node_modules`, but never what the case itself names.
        """
        found: dict[str, str] = {}
        self._root = os.path.realpath(spec.root)
        if complete:
            self._leave_out, self._not_copied = frozenset(), frozenset({".viva"})
        for path in sorted(self._link_paths(spec), key=lambda path: path.count("/")):
            target, place = f"{os.path.abspath(spec.root)}/{path}", f"{self._into}/{path}"
            if any(_is_in(path, known) for known in found) and (not as_copy or os.path.lexists(place)):
                continue  # it is there already, with the folder around it
            real = os.path.realpath(target)
            if not _is_in(real, self._root):
                self.outside_links.append(path)
                continue
            os.makedirs(os.path.dirname(place), exist_ok=True)
            found[path] = self._source = real
            self._copy = place
            if not as_copy:
                os.symlink(target, place)
            elif stat.S_ISDIR(file_mode(found[path])):
                os.makedirs(place, exist_ok=True)
                self._named_tree(found[path], path)
            else:
                self._file(found[path], path, is_named=True)
        return found

    def _named_tree(self, source: str, path: str) -> None:
        """A folder that the case names. Of one that is usually left out, nothing is left out by its name."""
        usual = self._not_copied
        if not usual.isdisjoint(path.split("/")):
            self._not_copied = frozenset({".viva"})
        try:
            self._tree(source, path, (source,))
        finally:
            self._not_copied = usual

    def _link_paths(self, spec: WorkspaceSpec) -> Iterator[str]:
        for written in spec.link_paths:
            path = os.path.normpath(written)
            if os.path.isabs(path) or path.split("/")[0] == "..":
                raise Undetermined(f"link_paths: {written!r} leads out of the working folder")
            if not os.path.exists(f"{spec.root}/{path}"):
                raise Undetermined(f"link_paths: there is no {written!r} in {os.path.abspath(spec.root)}")
            if not _is_in(os.path.realpath(f"{spec.root}/{path}"), self._root):
                raise Undetermined(f"link_paths: {written!r} leads outside the working folder")
            if path == ".":  # the folder itself stands already: all that is in it, then
                yield from (name for name in sorted(os.listdir(spec.root)) if name != ".viva")
            else:
                yield path

    def _listed(self, top: str, below: str, environ: Mapping[str, str]) -> None:
        """What git lists. A repository inside of it is listed as one folder, so it is asked in turn."""
        names = _git(top, environ, "ls-files", "-co", "--exclude-standard", "-z").split("\0")
        for name in dict.fromkeys(filter(None, names)):
            path = f"{below}{name}".rstrip("/")
            source = f"{top}/{name}".rstrip("/")
            if ".viva" in path.split("/"):
                continue
            if not stat.S_ISDIR(file_mode(source)):
                self._file(source, path)
            elif os.path.lexists(f"{source}/.git"):
                self._listed(source, f"{path}/", environ)

    def _tree(self, source: str, below: str, above: tuple[str, ...]) -> None:
        """A folder and all below it. A link that leads out of it is followed within the working folder, unless it leads back to
        where we came from.
        """
        try:
            entries = sorted(os.scandir(source), key=lambda entry: entry.name)
        except OSError:
            self.unreadable.append(below or ".")
            return
        for entry in entries:
            path = f"{below}/{entry.name}" if below else entry.name
            real = os.path.realpath(entry.path)
            if entry.name in self._not_copied or real == self._own or self._is_left_out(real):
                continue
            leads_out = entry.is_symlink() and above and not _is_in(real, above[0])
            if leads_out and not _is_in(real, self._root):
                self.outside_links.append(path)
                continue
            if entry.is_dir(follow_symlinks=bool(leads_out)):
                if real not in above or not entry.is_symlink():
                    os.makedirs(f"{self._into}/{path}", exist_ok=True)
                    self._tree(entry.path, path, (*above, real) if above else ())
            else:
                self._file(real if leads_out else entry.path, path)

    def _file(self, source: str, path: str, *, is_named: bool = False) -> None:
        """One file, or a link as it is. Sockets, pipes and devices stay where they are. One that the case names is never left out."""
        place, mode = f"{self._into}/{path}", file_mode(source)
        if not is_named and self._is_left_out(os.path.realpath(source)):
            return
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            return
        self._count(os.lstat(source).st_size)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        try:
            if stat.S_ISLNK(mode):
                self._link(source, path)
            else:
                shutil.copyfile(source, place, follow_symlinks=False)
                shutil.copystat(source, place, follow_symlinks=False)
        except OSError as wrong:
            if wrong.errno not in _NOT_OURS:  # a full disk: half a repository is no workspace
                raise
            self.unreadable.append(display_path(path))

    def _link(self, source: str, path: str) -> None:
        """A link that leads to the same place in the copy as it does in the original; none that leads out of it."""
        real = os.path.realpath(source)
        if not _is_in(real, self._source):
            self.outside_links.append(path)
            return
        place, text = f"{self._into}/{path}", os.readlink(source)
        folder = os.path.dirname(place)
        leads_to = os.path.normpath(os.path.join(os.path.realpath(os.path.dirname(source)), text))
        if self._copied(leads_to) != os.path.normpath(os.path.join(folder, text)):
            text = os.path.relpath(self._copied(real), folder)
        os.symlink(text, place)

    def _copied(self, path: str) -> str:
        """Where the copy of a path of the original is."""
        return os.path.normpath(f"{self._copy}/{os.path.relpath(path, self._source)}")

    def _is_left_out(self, real: str) -> bool:
        return bool(self._leave_out) and any(_is_in(real, path) for path in self._leave_out)

    def _count(self, size: int) -> None:
        self._files += 1
        self._bytes += size
        if self._files > self._max_files:
            raise Undetermined(f"the workspace would be a copy of more than {self._max_files:,} files; {_INSTEAD}")
        if self._bytes > self._max_bytes:
            raise Undetermined(f"the workspace would be a copy of more than {self._max_bytes:,} bytes; {_INSTEAD}")


_NOT_OURS = frozenset({errno.EACCES, errno.EPERM, errno.ENOENT, errno.ELOOP, errno.ESTALE})
"""Why one file cannot be read, or is gone meanwhile."""
_INSTEAD = "link what is needed (tmpdir with link_paths), ignore the rest in git, or use --workspace cwd"


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _git(folder: str, environ: Mapping[str, str], *arguments: str) -> str:
    """What git says; nothing where there is no git, or no repository."""
    env = {
        name: value for name, value in environ.items() if not name.startswith("GIT_")
    }  # a hook of git may have set them
    try:
        ended = subprocess.run(
            [*_GIT, *arguments], cwd=folder, env=env, capture_output=True, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        return ""
    except OSError as wrong:
        raise Undetermined(f"workspace: {folder}: {wrong.strerror}") from wrong
    if ended.returncode and arguments[0] != "rev-parse":
        raise Undetermined(
            f"workspace: git {arguments[0]} in {folder}: {ended.stderr.decode(errors='replace').strip()}"
        )
    return os.fsdecode(ended.stdout) if not ended.returncode else ""


def find_exposed_files(links: Mapping[str, str], leave_out: Sequence[str]) -> list[str]:
    """Files that the agent should not see, but can, through a link."""
    there = [path for path in leave_out if os.path.exists(path)]
    return [path for path in there if any(_is_in(os.path.realpath(path), target) for target in links.values())]
