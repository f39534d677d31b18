"""Snapshots of a folder, and the differences between two, by file metadata and by the content of small files.

Links are not followed; sockets, pipes and devices are never opened.
"""

import difflib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Literal

from msgspec import Struct

from viva.model.ellipsis import cut_end
from viva.model.turn import FileChange, RecordedFile

MAX_READ_BYTES = 256 * 1024
"""Files up to this size are compared by content, larger ones by size and time."""
MAX_STORED_BYTES = 64 * 1024 * 1024
"""The text in memory for diffs, for all trials of a run together."""
MAX_DIFF_CHARACTERS = 8000
MAX_TOTAL_DIFF_CHARACTERS = 100_000
MAX_DIFF_LINES = 4000
MAX_LISTED = 500
MAX_ENTRIES = 200_000
_RECENT_CHANGE_NS = 100_000_000
"""File systems count time in ticks: a file changed just now may change again and have the same time."""

EntryKind = Literal["file", "link", "folder", "other"]


class FileStamp(Struct, frozen=True):
    """The state of one entry. Equal stamps mean an unchanged file, unless `is_too_recent`. `digest` is empty if it was not read."""

    kind: EntryKind
    size: int
    times: tuple[int, int, int]
    is_executable: bool
    digest: str = ""
    link: str = ""
    is_too_recent: bool = False
    is_binary: bool = False

    def is_unchanged(self, size: int, times: tuple[int, int, int], executable: bool) -> bool:
        return self.kind == "file" and (self.size, self.times, self.is_executable) == (size, times, executable)

    def matches(self, other: "FileStamp") -> bool:
        if self.kind != other.kind or self.is_executable != other.is_executable or self.link != other.link:
            return False
        if self.kind != "file":
            return True
        if self.digest and other.digest:
            return self.digest == other.digest
        return (self.size, self.times) == (other.size, other.times)


class FolderSnapshot(Struct, frozen=True):
    """The state of all entries of a folder by path; paths of folders end in `/`. Without `is_complete` there were too many entries to watch."""

    entries: dict[str, FileStamp]
    is_complete: bool = True


EMPTY_SNAPSHOT = FolderSnapshot({})


class ContentStore:
    """File contents by digest. Trials with the same repository share them."""

    def __init__(self, max_bytes: int = MAX_STORED_BYTES) -> None:
        self._bytes_left = max_bytes
        self._contents: dict[str, bytes] = {}

    def add(self, digest: str, content: bytes) -> None:
        if digest not in self._contents and len(content) <= self._bytes_left:
            self._contents[digest] = content
            self._bytes_left -= len(content)

    def get(self, digest: str) -> bytes | None:
        return self._contents.get(digest)


def take_snapshot(
    root: str,
    texts: ContentStore,
    before: FolderSnapshot = EMPTY_SNAPSHOT,
    skip: Callable[[str], bool] = lambda _path: False,
) -> FolderSnapshot:
    """Take a snapshot of everything below `root`, or of the file `root`. Files unchanged since `before` are not read again.

    A folder that is gone or became a link is empty. `skip` excludes folders by their full path.
    """
    stamps: dict[str, FileStamp] = {}
    now_ns = time.time_ns()
    if not stat.S_ISDIR(mode := get_file_mode(root)):
        stamp = _create_stamp(root, before.entries.get(""), texts, now_ns) if stat.S_ISREG(mode) else None
        return FolderSnapshot({} if stamp is None else {"": stamp})
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(f"{root}/{folder}") as entries:
                for entry in entries:
                    path = f"{folder}{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        if not skip(f"{root}/{path}"):
                            waiting.append(f"{path}/")
                            stamps[f"{path}/"] = _FOLDER_STAMP
                    elif (stamp := _create_stamp(entry.path, before.entries.get(path), texts, now_ns)) is not None:
                        stamps[path] = stamp
        except OSError:  # removed, or not readable
            continue
        if len(stamps) > MAX_ENTRIES:
            return FolderSnapshot(stamps, is_complete=False)
    return FolderSnapshot(stamps)


_FOLDER_STAMP = FileStamp("folder", 0, (0, 0, 0), is_executable=False)


def get_file_mode(path: str) -> int:
    """Return the mode of a path without following links; 0 if nothing is there."""
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def _create_stamp(path: str, before: FileStamp | None, texts: ContentStore, now_ns: int) -> FileStamp | None:
    try:
        about = os.lstat(path)
        if stat.S_ISLNK(about.st_mode):
            return FileStamp("link", 0, (0, 0, 0), is_executable=False, link=os.readlink(path))
    except OSError:
        return None
    executable = bool(about.st_mode & stat.S_IXUSR)
    if not stat.S_ISREG(about.st_mode):
        return FileStamp("other", 0, (0, 0, 0), is_executable=executable)
    times = (about.st_mtime_ns, about.st_ctime_ns, about.st_ino)
    if before is not None and not before.is_too_recent and before.is_unchanged(about.st_size, times, executable):
        return before
    racy = max(times[:2]) > now_ns - _RECENT_CHANGE_NS
    content = read_file(path) if about.st_size <= MAX_READ_BYTES else None
    if content is None:
        return FileStamp("file", about.st_size, times, executable, is_too_recent=racy)
    digest = blake2b(content, digest_size=16).hexdigest()
    if not (binary := b"\0" in content):
        texts.add(digest, content)
    return FileStamp("file", about.st_size, times, executable, digest, is_too_recent=racy, is_binary=binary)


def read_file(path: str, limit: int = MAX_READ_BYTES) -> bytes | None:
    """Return the content of a regular file; None for anything else, or if it cannot be read or is larger."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_size > limit:
            return None
        with open(file, "rb", closefd=False) as opened:
            content = opened.read(limit + 1)
        return content if len(content) <= limit else None
    except OSError:
        return None
    finally:
        os.close(file)


def iterate_differences(
    before: FolderSnapshot, after: FolderSnapshot
) -> Iterator[tuple[str, FileStamp | None, FileStamp | None]]:
    """Yield each differing path in order, with its state before and after."""
    for path in sorted(before.entries.keys() | after.entries.keys()):
        was, now = before.entries.get(path), after.entries.get(path)
        if was is None or now is None or not was.matches(now):
            yield path, was, now


def list_file_changes(before: FolderSnapshot, after: FolderSnapshot, texts: ContentStore) -> tuple[FileChange, ...]:
    """Return added, changed and removed files, with text diffs up to a limit."""
    if not (before.is_complete and after.is_complete):
        return (FileChange(f"(more than {MAX_ENTRIES:,} files: too many to watch)", "changed"),)
    changes: list[FileChange] = []
    diff_left = MAX_TOTAL_DIFF_CHARACTERS
    more = 0
    for path, was, now in iterate_differences(before, after):
        if path.endswith("/"):
            continue
        if len(changes) >= MAX_LISTED:
            more += 1
            continue
        diff = _describe_change(was, now, texts) if diff_left > 0 else "not shown: the limit for diffs is reached"
        diff_left -= len(diff)
        kind = "added" if was is None else "removed" if now is None else "changed"
        changes.append(FileChange(to_display_path(path), kind, diff))
    if more:
        changes.append(FileChange(f"({more:,} more files)", "changed"))
    return tuple(changes)


def _describe_change(was: FileStamp | None, now: FileStamp | None, texts: ContentStore) -> str:
    """Return a unified diff, or a short description if there are no lines to show."""
    if any(each is not None and each.kind != "file" for each in (was, now)):
        return f"{_describe_entry(was)} → {_describe_entry(now)}" if was and now else _describe_entry(was or now)
    if was is not None and now is not None and was.digest and was.digest == now.digest:
        return "now executable" if now.is_executable else "no longer executable"
    old, new = (b"" if each is None else texts.get(each.digest) for each in (was, now))
    if old is None or new is None:
        return f"{_describe_entry(was)} → {_describe_entry(now)}" if was and now else _describe_entry(was or now)
    before, after = (text.decode(errors="replace").splitlines() for text in (old, new))
    if len(before) + len(after) > MAX_DIFF_LINES and before and after:
        return f"{len(before):,} lines → {len(after):,} lines"
    lines = list(difflib.unified_diff(before, after, lineterm="", n=2))[2:]
    text = "\n".join(lines)
    return (
        text
        if len(text) <= MAX_DIFF_CHARACTERS
        else f"{cut_end(text, MAX_DIFF_CHARACTERS)}\n({len(text):,} characters in all)"
    )


def _describe_entry(stamp: FileStamp | None) -> str:
    if stamp is None:
        return "nothing"
    match stamp.kind:
        case "link":
            return f"a link to {to_display_path(stamp.link)}"
        case "other":
            return "a socket, pipe or device"
        case "folder":
            return "a folder"
        case "file":
            word = "large " if stamp.size > MAX_READ_BYTES else "binary " if stamp.is_binary else ""
            return f"{word}file of {stamp.size:,} bytes"


class RecordedFilesTooLarge(Exception):  # noqa: N818 -- never leaves this package
    """The changed files are too large for a cassette."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


def collect_recorded_files(
    before: FolderSnapshot, after: FolderSnapshot, max_bytes: int, locate: Callable[[str], str]
) -> tuple[RecordedFile, ...]:
    """Return the changed files with their content; `locate` maps paths. Sockets, pipes and devices are left out."""
    differences = list(iterate_differences(before, after))
    total = sum(now.size for _, _, now in differences if now is not None)
    if total > max_bytes or not (before.is_complete and after.is_complete):
        raise RecordedFilesTooLarge(total)
    images: list[RecordedFile] = []
    for path, _, now in differences:
        name = to_display_path(path)
        if now is None:
            images.append(RecordedFile(name))
        elif now.kind == "link":
            images.append(RecordedFile(name, link=to_display_path(now.link)))
        elif now.kind == "folder":
            images.append(RecordedFile(name, folder=True))
        elif now.kind == "file" and (content := read_file(locate(path), max_bytes)) is not None:
            images.append(RecordedFile(name, content, executable=now.is_executable))
    return tuple(images)


def to_display_path(path: str) -> str:
    r"""Return a path as valid text: bytes that are not UTF-8 become `\xff`, and backslashes are doubled."""
    path = path.replace("\\", "\\\\")
    try:
        path.encode()
    except UnicodeEncodeError:
        return "".join(f"\\x{ord(c) - 0xDC00:02x}" if "\udc80" <= c <= "\udcff" else c for c in path)
    return path


def parse_display_path(text: str) -> str:
    """Undo `to_display_path`."""
    raw = text.encode()
    if b"\\" not in raw:
        return text
    pieces = raw.split(b"\\\\")
    for i, piece in enumerate(pieces):
        first, *rest = piece.split(b"\\x")
        pieces[i] = first + b"".join(bytes.fromhex(each[:2].decode()) + each[2:] for each in rest)
    return os.fsdecode(b"\\".join(pieces))


def restore_files(root: str, images: Sequence[RecordedFile]) -> None:
    """Write recorded files. Removed files go first, deepest first; entries in the way are removed. No link is followed."""
    for image in sorted(images, key=lambda image: image.path, reverse=True):
        if image.content is None and image.link is None and not image.folder:
            place = _locate_recorded_file(root, image.path)
            if _is_below_folders(root, place):
                _remove_entry(place, only_if_empty=image.path.endswith("/"))
    for image in images:
        place = _locate_recorded_file(root, image.path)
        if image.folder:
            _make_folders(root, place)
        elif image.link is not None or image.content is not None:
            _make_folders(root, os.path.dirname(place))
            _remove_entry(place)
            _write_recorded_file(place, image)


def _write_recorded_file(place: str, image: RecordedFile) -> None:
    if image.link is not None:
        os.symlink(parse_display_path(image.link), place)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(place, flags, 0o755 if image.executable else 0o644), "wb") as file:
        file.write(image.content or b"")


def _locate_recorded_file(root: str, text: str) -> str:
    path = parse_display_path(text).rstrip("/")
    if not path or path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"{text!r} is outside the workspace")
    return f"{root}/{path}"


def _is_below_folders(root: str, place: str) -> bool:
    """Return whether all parents up to the root are folders and not links."""
    above = os.path.dirname(place)
    return above == root or (stat.S_ISDIR(get_file_mode(above)) and _is_below_folders(root, above))


def _make_folders(root: str, place: str) -> None:
    if place != root:
        _make_folders(root, os.path.dirname(place))
    if not stat.S_ISDIR(get_file_mode(place)):
        _remove_entry(place)
        os.mkdir(place)


def _remove_entry(place: str, *, only_if_empty: bool = False) -> None:
    mode = get_file_mode(place)
    if not mode:
        return
    if not stat.S_ISDIR(mode):
        os.unlink(place)
    elif not only_if_empty:
        shutil.rmtree(place)
    else:
        with suppress(OSError):  # it holds entries that the cassette does not have
            os.rmdir(place)
