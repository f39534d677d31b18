"""Workspaces: a folder per trial, filled, watched and removed. Folders of killed processes are removed later.

viva-<case>-<random>/     under the base folder
    .viva-workspace       the process that made it; locked while that process runs. Renamed to .viva-kept if kept
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
from viva.model.turn import FileChange, RecordedFile
from viva.workspace import processes, snapshot
from viva.workspace.copying import MAX_BYTES, MAX_FILES, FolderCopier, find_exposed_files
from viva.workspace.processes import run_to_completion
from viva.workspace.sandbox import Bubblewrap
from viva.workspace.snapshot import ContentStore, FolderSnapshot

MAX_RECORDED_BYTES = 32 * 1024 * 1024
"""The limit for the files of one turn on a cassette."""
_PREFIX, _MARKER, _KEPT_MARKER = "viva-", ".viva-workspace", ".viva-kept"
_SPECIAL_CHARACTERS = re.compile(r"[^\w.]+")
_MAX_LISTED = 10


class LocalWorkspaces:
    """Creates the workspaces of a run (a `WorkspaceFactory`).

    In a replay a trial never touches the host's files: links become copies, and a case with `--workspace cwd` gets a
    copy. `environ` is the environment of git. `limits` are the files and bytes of one workspace.
    """

    def __init__(
        self,
        base: str | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        keep_always: bool = False,
        sandbox: Bubblewrap | None = None,
        is_replay: bool = False,
        limits: tuple[int, int] = (MAX_FILES, MAX_BYTES),
    ) -> None:
        self.base = os.path.realpath(base or tempfile.gettempdir())
        self.environ = environ or {}
        self.keep_always = keep_always
        self.sandbox = sandbox
        self.is_replay = is_replay
        self.limits = limits
        self.contents = ContentStore()
        self._has_removed_stale = False
        self._folder_locks: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def __call__(self, spec: WorkspaceSpec, key: Key) -> AsyncGenerator["TrialWorkspace"]:
        if not self._has_removed_stale:
            self._has_removed_stale = True
            await asyncio.to_thread(remove_stale_workspaces, self.base)
        async with self._get_folder_lock(spec):
            try:
                workspace = TrialWorkspace(self, spec, key)
            except OSError as error:
                raise Undetermined(f"workspace: {error.filename or self.base}: {error.strerror}") from error
            try:
                await run_to_completion(asyncio.to_thread(workspace.fill))
                yield workspace
            finally:
                await run_to_completion(asyncio.to_thread(workspace.close))

    def _get_folder_lock(self, spec: WorkspaceSpec) -> AbstractAsyncContextManager[object]:
        """Trials that work in the same folder take turns, so that each change belongs to one trial."""
        if spec.kind != "cwd" or self.is_replay:
            return nullcontext()
        return self._folder_locks.setdefault(os.path.realpath(spec.root), asyncio.Lock())


class TrialWorkspace:
    """The workspace of one trial."""

    def __init__(self, factory: LocalWorkspaces, spec: WorkspaceSpec, key: Key) -> None:
        self._factory, self._spec = factory, spec
        self._trial_folder = _make_trial_folder(key.case, factory.base)
        self._lock = _write_marker(self._trial_folder)
        self._in_place = spec.kind == "cwd" and not factory.is_replay
        self.path = os.path.realpath(spec.root) if self._in_place else f"{self._trial_folder}/work"
        self.home = f"{self._trial_folder}/home"
        self.tmp = f"{self._trial_folder}/tmp"  # noqa: S108 -- inside our own folder
        self._links: dict[str, str] = {}
        self._host_snapshots: dict[str, FolderSnapshot] = {}
        self._last_snapshot = snapshot.EMPTY_SNAPSHOT
        self._keep = factory.keep_always
        self._recorded_changes: tuple[FileChange, ...] | None = None
        self._replayed_changes: list[FileChange] = []
        self._warnings: list[str] = []

    @property
    def link_targets(self) -> Sequence[str]:
        return list(self._links.values())

    @property
    def env(self) -> Mapping[str, str]:
        return self._spec.env

    def sandbox_command(self, argv: Sequence[str]) -> list[str]:
        sandbox = self._factory.sandbox
        if sandbox is None:
            return list(argv)
        # A parallel trial may have put a link there.
        linked = (target for target in self.link_targets if os.path.realpath(target) == target)
        return sandbox.wrap_command(argv, path=self.path, writable=(self.path, self.home, self.tmp, *linked))

    def resolve_inside(self, path: str) -> str | None:
        if os.path.isabs(path):
            return None
        real = os.path.realpath(f"{self.path}/{path}")
        allowed = (self.path, *self.link_targets)
        return real if any(real == root or real.startswith(f"{root.rstrip('/')}/") for root in allowed) else None

    async def take_snapshot(self) -> FolderSnapshot:
        return await asyncio.to_thread(self._take_snapshot)

    async def changes_since(self, since: FolderSnapshot) -> tuple[FileChange, ...]:
        if self._recorded_changes is not None:
            changes, self._recorded_changes = self._recorded_changes, None
            return changes
        return await asyncio.to_thread(
            lambda: snapshot.list_file_changes(since, self._take_snapshot(), self._factory.contents)
        )

    async def files_since(self, since: FolderSnapshot) -> tuple[RecordedFile, ...]:
        """Return the changed files; Undetermined if they are too large for a cassette."""

        def collect() -> tuple[RecordedFile, ...]:
            return snapshot.collect_recorded_files(
                since, self._take_snapshot(), MAX_RECORDED_BYTES, self._locate_real_path
            )

        try:
            return await asyncio.to_thread(collect)
        except snapshot.RecordedFilesTooLarge as error:
            reason = f"the changed files have {error.size:,} bytes, more than the limit of {MAX_RECORDED_BYTES:,}"
            raise Undetermined(reason) from None

    async def restore_files(self, images: Sequence[RecordedFile], changes: Sequence[FileChange] | None = None) -> None:
        self._recorded_changes = None if changes is None else tuple(changes)
        self._replayed_changes += changes or ()
        try:
            await run_to_completion(asyncio.to_thread(snapshot.restore_files, self.path, images))
        except (OSError, ValueError) as error:
            raise Undetermined(
                f"the recorded files of this turn cannot be written to the workspace: {error}"
            ) from error

    async def warnings(self) -> list[str]:
        await asyncio.to_thread(self._check_host_files)
        return self._warnings

    def keep(self) -> None:
        self._keep = True

    @property
    def is_kept(self) -> bool:
        """Does the folder stay after the trial? Not if the agent has deleted it."""
        return self._in_place or (self._keep and os.path.isdir(self.path))

    def fill(self) -> None:
        """Create and fill the folders of the trial."""
        spec = self._spec
        copier = FolderCopier(self.path, spec.exclude, *self._factory.limits)
        try:
            os.mkdir(self.home, 0o700)
            os.mkdir(self.tmp, 0o700)
            if not self._in_place:
                os.mkdir(self.path)
            if spec.kind == "empty":
                as_copy = spec.link_mode == "copy" or self._factory.is_replay
                links = copier.add_links(spec, as_copy=as_copy, complete=spec.link_mode != "copy")
                self._watch_links(links, are_links=not as_copy)
            elif not self._in_place:
                copier.copy_repository(spec.root, self._factory.environ)
        except OSError as error:
            raise Undetermined(f"workspace: {error.filename}: {error.strerror}") from error
        if copier.unreadable:
            self._warnings.append(f"not in the workspace because they cannot be read: {_join_names(copier.unreadable)}")
        if copier.outside_links:
            names = _join_names(copier.outside_links)
            self._warnings.append(f"not in the workspace because they lead outside the working folder: {names}")

    def close(self) -> None:
        """Remove the folders. A kept workspace loses its HOME, which holds logins and sessions."""
        try:
            if self.is_kept and not self._in_place:
                remove_tree(self.home)
                remove_tree(self.tmp)
                with suppress(OSError):
                    os.rename(
                        f"{self._trial_folder}/{_MARKER}", f"{self._trial_folder}/{_KEPT_MARKER}"
                    )  # without the marker it is never removed as stale
            else:
                remove_tree(self._trial_folder)
        finally:
            os.close(self._lock)

    def _watch_links(self, links: Mapping[str, str], *, are_links: bool) -> None:
        """Take snapshots of the host's files behind links, and warn about exposed files.

        In a replay they are copies, with the same warnings.
        """
        if self._spec.link_mode == "copy":
            return
        if are_links:
            self._links = dict(links)
        self._host_snapshots = {path: self._take_link_snapshot(path, snapshot.EMPTY_SNAPSHOT) for path in links}
        exposed = [os.path.relpath(path, self._spec.root) for path in find_exposed_files(links, self._spec.exclude)]
        if exposed:
            self._warnings.append(
                f"the agent could read its own test files through a link: {_join_names(sorted(exposed))}"
            )

    def _take_link_snapshot(self, path: str, before: FolderSnapshot) -> FolderSnapshot:
        return snapshot.take_snapshot(self._locate_real_path(path), self._factory.contents, before, self._is_ignored)

    def _check_host_files(self) -> None:
        changed = [
            f"{change} {snapshot.to_display_path(f'{path}/{below}' if below else path)}"
            for path, before in self._host_snapshots.items()
            for below, change in self._iter_host_changes(path, before)
        ]
        if changed:
            self._warnings.append(f"files of the host were changed through a link: {_join_names(changed)}")
        self._host_snapshots = {}

    def _iter_host_changes(self, path: str, before: FolderSnapshot) -> Iterator[tuple[str, str]]:
        """Yield changes of files below a link; in a replay the recorded ones, because the host may have changed since."""
        differences = snapshot.iterate_differences(before, self._take_link_snapshot(path, before))
        kinds = {below: (was is None, now is None) for below, was, now in differences if not below.endswith("/")}
        if self._replayed_changes:
            kinds = {}
            for change in self._replayed_changes:
                real = snapshot.parse_display_path(change.path)
                if real == path or real.startswith(f"{path}/"):
                    first, _ = kinds.get(real[len(path) + 1 :], (change.change == "added", False))
                    kinds[real[len(path) + 1 :]] = first, change.change == "removed"
        for below, (is_new, is_gone) in sorted(kinds.items()):
            if not (is_new and is_gone):
                yield below, "added" if is_new else "removed" if is_gone else "changed"

    def _take_snapshot(self) -> FolderSnapshot:
        """Take a snapshot of the folder and of the targets of its links, while the links exist."""
        new = snapshot.take_snapshot(self.path, self._factory.contents, self._last_snapshot, self._is_ignored)
        entries, is_complete = new.entries, new.is_complete
        for path, target in self._links.items():
            if path in entries and os.path.realpath(f"{self.path}/{path}") == target:
                below = self._take_link_snapshot(path, _select_below_link(self._last_snapshot, path))
                entries |= {f"{path}/{name}" if name else path: stamp for name, stamp in below.entries.items()}
                is_complete = is_complete and below.is_complete
        self._last_snapshot = FolderSnapshot(entries, is_complete)
        return self._last_snapshot

    def _is_ignored(self, path: str) -> bool:
        """Viva's own folders, and `.git` if the agent works in the repository itself."""
        if path == self._trial_folder or path.endswith("/.viva"):
            return True
        return self._in_place and path.endswith("/.git")

    def _locate_real_path(self, path: str) -> str:
        """Return the real location of a path: below a link, at the target of the link."""
        for link, target in self._links.items():
            if path == link or path.startswith(f"{link}/"):
                return f"{target}{path[len(link) :]}"
        return f"{self.path}/{path}"


def _select_below_link(whole: FolderSnapshot, path: str) -> FolderSnapshot:
    names = (name for name in whole.entries if name == path or name.startswith(f"{path}/"))
    return FolderSnapshot({name[len(path) + 1 :]: whole.entries[name] for name in names})


def _join_names(names: Sequence[str]) -> str:
    more = f", and {len(names) - _MAX_LISTED:,} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more


def _make_trial_folder(case: str, base: str) -> str:
    name = _SPECIAL_CHARACTERS.sub("-", case).strip("-.")[:40]
    return tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-", dir=base)


def create_kept_workspace(case: str) -> str:
    """Create an empty kept workspace, for the files of a workspace of another machine."""
    top = _make_trial_folder(case, os.path.realpath(tempfile.gettempdir()))
    os.close(os.open(f"{top}/{_KEPT_MARKER}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    os.mkdir(f"{top}/work")
    return f"{top}/work"


def _write_marker(top: str) -> int:
    """Write the owner of a folder into a file that stays locked while this process runs."""
    pid = os.getpid()
    marker = os.open(f"{top}/{_MARKER}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.write(marker, f"{pid} {processes.get_process_start_time(pid)}\n".encode())
    with suppress(OSError):  # a file system without locks: the process id is used
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return marker


def remove_stale_workspaces(base: str) -> list[str]:
    """Remove folders and kill processes of Viva processes that were killed, never those of a running one."""
    processes.kill_orphans()
    removed: list[str] = []
    with suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            if (
                entry.name.startswith(_PREFIX)
                and entry.is_dir(follow_symlinks=False)
                and _is_stale_workspace(entry.path)
            ):
                remove_tree(entry.path)
                removed.append(entry.path)
    return removed


def _is_stale_workspace(top: str) -> bool:
    """Return whether Viva made the folder in a process that has ended."""
    try:
        marker = os.open(f"{top}/{_MARKER}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.fstat(marker).st_uid != os.getuid():
            return False
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        pid, start = map(int, os.read(marker, 100).split())
        return processes.get_process_start_time(pid) != start if start else not _is_process_running(pid)
    except (OSError, ValueError):  # locked by its owner, or just being written
        return False
    finally:
        os.close(marker)


def remove_kept_workspace(path: str) -> bool:
    """Remove a kept workspace by the path in its record. Return False if there is none at that path."""
    top = os.path.dirname(path)
    if os.path.basename(path) != "work" or not _is_kept_workspace(top):
        return False
    remove_tree(top)
    return not os.path.lexists(top)


def find_kept_workspaces() -> list[str]:
    """Return all kept workspaces of this machine, of any run."""
    folder = os.path.realpath(tempfile.gettempdir())
    with suppress(OSError), os.scandir(folder) as entries:
        return sorted(f"{entry.path}/work" for entry in entries if _is_kept_workspace(entry.path))
    return []


def _is_kept_workspace(top: str) -> bool:
    """Return whether Viva made the folder, and it has the marker of a kept workspace."""
    if not os.path.basename(top).startswith(_PREFIX) or os.path.islink(top):
        return False
    try:
        marker = os.lstat(f"{top}/{_KEPT_MARKER}")
    except OSError:
        return False
    return stat.S_ISREG(marker.st_mode) and marker.st_uid == os.getuid()


def _is_process_running(pid: int) -> bool:
    with suppress(PermissionError):  # it runs, and belongs to another user
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


def remove_tree(top: str) -> None:
    """Remove a folder with its content, also read-only folders. What remains is removed by a later run."""

    def retry(_function: object, path: str, _info: object) -> None:
        with suppress(OSError):
            for folder in (os.path.dirname(path), path):
                if stat.S_ISDIR(snapshot.get_file_mode(folder)):
                    os.chmod(folder, 0o700)
            if stat.S_ISDIR(snapshot.get_file_mode(path)):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)

    shutil.rmtree(top, onerror=retry)
