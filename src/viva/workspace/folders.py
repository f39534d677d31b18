"""A folder for each trial: made, filled, watched, and cleaned up; those that a killed process has left are swept.

viva-<case>-<random>/     under the base folder, ours alone
    .viva-workspace       who made it; locked while that process lives. In one that is kept it is called .viva-kept
    work/                 the agent's working directory
    home/                 its HOME
    tmp/                  its TMPDIR
"""

import asyncio
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress

from viva.errors import Undetermined
from viva.model.case import Key, WorkspaceSpec
from viva.model.turn import FileChange, FileImage
from viva.workspace import processes, snapshot
from viva.workspace.copying import MAX_BYTES, MAX_FILES, FolderCopier, find_exposed_files
from viva.workspace.processes import run_to_completion
from viva.workspace.sandbox import Bubblewrap
from viva.workspace.snapshot import ContentStore, FolderSnapshot

MAX_IMAGE_BYTES = 32 * 1024 * 1024
"""So much of one turn's files is kept on a cassette."""
_PREFIX, _MARKER, _KEPT = "viva-", ".viva-workspace", ".viva-kept"
_UNREADABLE = re.compile(r"[^\w.]+")
_LISTED = 10


class LocalWorkspaces:
    """Makes the workspaces of a run (a `Workspaces`).

    `replaying` a cassette, a trial never touches the host's own files: links are copied, and a case that works in place
    works on a copy. `environ` is what git is asked with.
    """

    def __init__(
        self,
        base: str | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        keep_always: bool = False,
        sandbox: Bubblewrap | None = None,
        is_replay: bool = False,
        max_files: int = MAX_FILES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.base = os.path.realpath(base or tempfile.gettempdir())
        self.environ = environ or {}
        self.keep_always = keep_always
        self.sandbox = sandbox
        self.is_replay = is_replay
        self.limits = max_files, max_bytes
        self.contents = ContentStore()
        self._swept = False
        self._places: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def __call__(self, spec: WorkspaceSpec, key: Key) -> AsyncGenerator["TrialWorkspace"]:
        if not self._swept:
            self._swept = True
            await asyncio.to_thread(remove_stale_workspaces, self.base)
        async with self._alone(spec):
            try:
                folder = TrialWorkspace(self, spec, key)
            except OSError as wrong:
                raise Undetermined(f"workspace: {wrong.filename or self.base}: {wrong.strerror}") from wrong
            try:
                await run_to_completion(asyncio.to_thread(folder.fill))
                yield folder
            finally:
                await run_to_completion(asyncio.to_thread(folder.close))

    def _alone(self, spec: WorkspaceSpec) -> AbstractAsyncContextManager[object]:
        """Those who work in place take turns: nobody could tell whose the changes are."""
        if spec.kind != "cwd" or self.is_replay:
            return nullcontext()
        return self._places.setdefault(os.path.realpath(spec.root), asyncio.Lock())


class TrialWorkspace:
    """The workspace of one trial."""

    def __init__(self, folders: LocalWorkspaces, spec: WorkspaceSpec, key: Key) -> None:
        self._folders, self._spec = folders, spec
        name = _UNREADABLE.sub("-", key.case).strip("-.")[:40]
        self._top = tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-", dir=folders.base)
        self._lock = _marked(self._top)
        self._in_place = spec.kind == "cwd" and not folders.is_replay
        self.path = os.path.realpath(spec.root) if self._in_place else f"{self._top}/work"
        self.home = f"{self._top}/home"
        self.tmp = f"{self._top}/tmp"  # noqa: S108 -- below a folder of our own
        self._links: dict[str, str] = {}
        self._hosts: dict[str, FolderSnapshot] = {}
        self._last = snapshot.EMPTY_SNAPSHOT
        self._kept = folders.keep_always
        self._told: tuple[FileChange, ...] | None = None
        self._replayed: list[FileChange] = []
        self._warnings: list[str] = []

    @property
    def link_targets(self) -> Sequence[str]:
        return list(self._links.values())

    @property
    def env(self) -> Mapping[str, str]:
        return self._spec.env

    def sandbox_command(self, argv: Sequence[str]) -> list[str]:
        sandbox = self._folders.sandbox
        if sandbox is None:
            return list(argv)
        # A case that runs beside this one may have put a link there meanwhile.
        linked = (each for each in self.link_targets if os.path.realpath(each) == each)
        return sandbox.wrap_command(argv, path=self.path, writable=(self.path, self.home, self.tmp, *linked))

    def resolve_inside(self, path: str) -> str | None:
        if os.path.isabs(path):
            return None
        real = os.path.realpath(f"{self.path}/{path}")
        allowed = (self.path, *self.link_targets)
        return real if any(real == root or real.startswith(f"{root.rstrip('/')}/") for root in allowed) else None

    async def take_snapshot(self) -> FolderSnapshot:
        return await asyncio.to_thread(self._look)

    async def changes_since(self, since: FolderSnapshot) -> tuple[FileChange, ...]:
        if self._told is not None:
            told, self._told = self._told, None
            return told
        return await asyncio.to_thread(lambda: snapshot.list_file_changes(since, self._look(), self._folders.contents))

    async def files_since(self, since: FolderSnapshot) -> tuple[FileImage, ...]:
        """Undecidable where there is more than a cassette should hold."""

        def taken() -> tuple[FileImage, ...]:
            return snapshot.collect_images(since, self._look(), MAX_IMAGE_BYTES, self._place)

        try:
            return await asyncio.to_thread(taken)
        except snapshot.ImagesTooLarge as large:
            raise Undetermined(
                f"its files came to {large.size:,} bytes, which is more than {MAX_IMAGE_BYTES:,}"
            ) from None

    async def restore_files(self, images: Sequence[FileImage], changes: Sequence[FileChange] | None = None) -> None:
        self._told = None if changes is None else tuple(changes)
        self._replayed += changes or ()
        try:
            await run_to_completion(asyncio.to_thread(snapshot.restore_files, self.path, images))
        except (OSError, ValueError) as wrong:
            raise Undetermined(f"the files of this turn cannot be put into the workspace: {wrong}") from wrong

    async def warnings(self) -> list[str]:
        await asyncio.to_thread(self._look_at_hosts)
        return self._warnings

    def keep(self) -> None:
        self._kept = True

    @property
    def is_kept(self) -> bool:
        """Is there something to look at? The agent may have deleted it."""
        return self._in_place or (self._kept and os.path.isdir(self.path))

    def fill(self) -> None:
        """Puts there what the case wants to find."""
        spec = self._spec
        loader = FolderCopier(self.path, spec.exclude, *self._folders.limits)
        replaying = self._folders.is_replay
        try:
            os.mkdir(self.home, 0o700)
            os.mkdir(self.tmp, 0o700)
            if not self._in_place:
                os.mkdir(self.path)
            if spec.kind == "empty":
                copied = spec.link_mode == "copy" or replaying
                links = loader.add_links(spec, as_copy=copied, complete=spec.link_mode != "copy")
                self._watch(links, really=not copied)
            elif not self._in_place:
                loader.copy_repository(spec.root, self._folders.environ)
        except OSError as wrong:
            raise Undetermined(f"workspace: {wrong.filename}: {wrong.strerror}") from wrong
        if loader.unreadable:
            self._warnings.append(f"not readable, so not in the workspace: {_some(loader.unreadable)}")
        if loader.outside_links:
            self._warnings.append(
                f"not in the workspace, since it leads outside the working folder: {_some(loader.outside_links)}"
            )

    def close(self) -> None:
        """Cleans up, unless somebody wants to look at it: at what was done, not at the HOME with its logins and sessions."""
        try:
            if self.is_kept and not self._in_place:
                remove_tree(self.home)
                remove_tree(self.tmp)
                with suppress(OSError):
                    os.rename(f"{self._top}/{_MARKER}", f"{self._top}/{_KEPT}")  # without its marker it is never swept
            else:
                remove_tree(self._top)
        finally:
            os.close(self._lock)

    def _watch(self, links: Mapping[str, str], *, really: bool) -> None:
        """Through links the agent reaches the host's own files: how they stand now, and what it should not see.

        In a replay they are copies, but what is said of them is the same.
        """
        if self._spec.link_mode == "copy":
            return
        if really:
            self._links = dict(links)
        self._hosts = {path: self._look_at(path, snapshot.EMPTY_SNAPSHOT) for path in links}
        seen = [os.path.relpath(path, self._spec.root) for path in find_exposed_files(links, self._spec.exclude)]
        if seen:
            self._warnings.append(f"the agent could read what it is examined by, through a link: {_some(sorted(seen))}")

    def _look_at(self, path: str, before: FolderSnapshot) -> FolderSnapshot:
        return snapshot.take_snapshot(self._place(path), self._folders.contents, before, self._is_ours)

    def _look_at_hosts(self) -> None:
        changed = [
            f"{word} {snapshot.display_path(f'{path}/{below}' if below else path)}"
            for path, before in self._hosts.items()
            for below, word in self._done_to(path, before)
        ]
        if changed:
            self._warnings.append(f"files of the host were changed through a link: {_some(changed)}")
        self._hosts = {}

    def _done_to(self, path: str, before: FolderSnapshot) -> Iterator[tuple[str, str]]:
        """What became of the files below a link. In a replay, by what was told of them: the host may have changed since."""
        found = snapshot.iter_differences(before, self._look_at(path, before))
        kinds = {below: (was is None, now is None) for below, was, now in found if not below.endswith("/")}
        if self._replayed:
            kinds = {}
            for change in self._replayed:
                real = snapshot.parse_display_path(change.path)
                if real == path or real.startswith(f"{path}/"):
                    first, _ = kinds.get(real[len(path) + 1 :], (change.change == "added", False))
                    kinds[real[len(path) + 1 :]] = first, change.change == "removed"
        for below, (is_new, is_gone) in sorted(kinds.items()):
            if not (is_new and is_gone):
                yield below, "added" if is_new else "removed" if is_gone else "changed"

    def _look(self) -> FolderSnapshot:
        """All files of the folder, and those below its own links as long as these stand."""
        texts = self._folders.contents
        found = snapshot.take_snapshot(self.path, texts, self._last, self._is_ours)
        entries, whole = found.entries, found.is_complete
        for path, target in self._links.items():
            if path in entries and os.path.realpath(f"{self.path}/{path}") == target:
                below = self._look_at(path, _below(self._last, path))
                entries |= {f"{path}/{name}" if name else path: stamp for name, stamp in below.entries.items()}
                whole = whole and below.is_complete
        self._last = FolderSnapshot(entries, whole)
        return self._last

    def _is_ours(self, path: str) -> bool:
        """What Viva itself writes, and the repository's own books when the agent works in it."""
        if path == self._top or path.endswith("/.viva"):
            return True
        return self._in_place and path.endswith("/.git")

    def _place(self, path: str) -> str:
        """Where a path of a mark really is: below a link of the case's own, at its target."""
        for link, target in self._links.items():
            if path == link or path.startswith(f"{link}/"):
                return f"{target}{path[len(link) :]}"
        return f"{self.path}/{path}"


def _below(mark: FolderSnapshot, path: str) -> FolderSnapshot:
    """The part of a mark that is below a link."""
    names = ((name, name[len(path) + 1 :]) for name in mark.entries if name == path or name.startswith(f"{path}/"))
    return FolderSnapshot({short: mark.entries[name] for name, short in names})


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _marked(top: str) -> int:
    """Says whose folder this is, in a file that stays locked as long as this process lives, however it ends."""
    pid = os.getpid()
    marker = os.open(f"{top}/{_MARKER}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.write(marker, f"{pid} {processes.process_start_time(pid)}\n".encode())
    with suppress(OSError):  # a file system without locks: then the process id has to do
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return marker


def remove_stale_workspaces(base: str) -> list[str]:
    """Removes the folders, and ends the processes, that a Viva which was killed has left; never those of one that runs."""
    processes.kill_orphans()
    swept: list[str] = []
    with suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False) and _is_stale(entry.path):
                remove_tree(entry.path)
                swept.append(entry.path)
    return swept


def _is_stale(top: str) -> bool:
    """Is it ours, and is nobody there any more who made it?"""
    try:
        marker = os.open(f"{top}/{_MARKER}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.fstat(marker).st_uid != os.getuid():
            return False
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        pid, began = map(int, os.read(marker, 100).split())
        return processes.process_start_time(pid) != began if began else not _is_there(pid)
    except (OSError, ValueError):  # locked by its owner, or half-written by it just now
        return False
    finally:
        os.close(marker)


def remove_kept_workspace(path: str) -> bool:
    """Removes a workspace that was kept, by the path that its record names. False: there is none of ours at that path."""
    top = os.path.dirname(path)
    if os.path.basename(path) != "work" or not _is_kept(top):
        return False
    remove_tree(top)
    return not os.path.lexists(top)


def find_kept_workspaces(base: str | None = None) -> list[str]:
    """All workspaces that were kept below a folder, of whatever run."""
    folder = os.path.realpath(base or tempfile.gettempdir())
    with suppress(OSError), os.scandir(folder) as entries:
        return sorted(f"{entry.path}/work" for entry in entries if _is_kept(entry.path))
    return []


def _is_kept(top: str) -> bool:
    """A folder of ours, with the marker of one that is kept. A case that worked in place has no such folder."""
    if not os.path.basename(top).startswith(_PREFIX) or os.path.islink(top):
        return False
    try:
        marker = os.lstat(f"{top}/{_KEPT}")
    except OSError:
        return False
    return stat.S_ISREG(marker.st_mode) and marker.st_uid == os.getuid()


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def remove_tree(top: str) -> None:
    """Removes a folder and all in it, also what was made unremovable. What even so stays there is swept another time."""

    def retry(_function: object, path: str, _info: object) -> None:
        with suppress(OSError):
            for each in (os.path.dirname(path), path):
                if stat.S_ISDIR(snapshot.file_mode(each)):
                    os.chmod(each, 0o700)
            if stat.S_ISDIR(snapshot.file_mode(path)):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)

    shutil.rmtree(top, onerror=retry)
