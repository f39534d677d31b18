"""The files of an OpenWOP pack, as a folder or a `.tgz`.

A tarball is read in memory and never unpacked: nothing in it can leave its root or fill a disk. What is read is bounded,
and entries that are not plain files or folders (links, devices, pipes) are refused, and so are `..` and absolute names.
"""

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from viva.errors import BadInput

MANIFEST = "pack.json"
MAX_BYTES = 50 * 1024 * 1024
MAX_ENTRIES = 5000
MAX_DEPTH = 32


def check_pack_path(name: str) -> str:
    """A normalized name below the root; ValueError if it leaves the root."""
    path = PurePosixPath(name)
    if path.is_absolute() or "\\" in name or ":" in name.partition("/")[0]:
        raise ValueError("is not a path inside the pack: it is absolute, or a URL")
    if ".." in path.parts:
        raise ValueError("leaves the pack by '..'")
    if not path.parts or "\x00" in name or len(path.parts) > MAX_DEPTH:
        raise ValueError("is not a valid path of a file")
    return str(path)


class PackFolder:
    """The files of a pack in a folder. Links are refused, as in a tarball."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def read(self, name: str) -> bytes:
        try:
            return self._read_plain_file(name)
        except OSError as error:
            raise ValueError(f"cannot be read: {error.strerror}") from error

    def _read_plain_file(self, name: str) -> bytes:
        path = self._root
        for part in PurePosixPath(name).parts:
            path /= part
            if path.is_symlink():
                raise ValueError("is a link or behind a link; a pack may contain only regular files")
        if not path.is_file():
            raise ValueError("does not exist in the pack")
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"is larger than {MAX_BYTES // 2**20} MB")
        return path.read_bytes()


class PackTarball:
    """The files of a pack in a tarball, all read before any is used."""

    def __init__(self, content: bytes, display_name: str) -> None:
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as unpacked:
                files = dict(_read_entries(_LimitedReader(unpacked)))
        except _ArchiveRefused as error:
            raise BadInput.of(str(error), display_name) from error
        except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, RecursionError) as error:
            # Headers that announce headers, thousands in a row, are read one inside the other.
            raise BadInput.of(f"cannot be read as .tgz: {error}", display_name) from error
        self._files = _make_relative_to_manifest(files)
        if MANIFEST not in self._files:
            raise BadInput.of(f"does not contain {MANIFEST} at its root", display_name)

    def read(self, name: str) -> bytes:
        if name not in self._files:
            raise ValueError("does not exist in the pack")
        return self._files[name]


PackFiles = PackFolder | PackTarball


class _ArchiveRefused(Exception):  # noqa: N818 -- it never leaves this file
    """The archive is refused; the message says why."""


class _LimitedReader:
    """Limits the output of a decompressor: a small file may expand to a huge one."""

    def __init__(self, stream: BinaryIO | gzip.GzipFile) -> None:
        self._stream = stream
        self._left = MAX_BYTES

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise _ArchiveRefused(f"holds more than {MAX_BYTES // 2**20} MB")
        return data


def _read_entries(stream: _LimitedReader) -> Iterator[tuple[str, bytes]]:
    seen: set[str] = set()
    with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[arg-type] -- it only reads
        for count, member in enumerate(archive, 1):
            if count > MAX_ENTRIES:
                raise _ArchiveRefused(f"holds more than {MAX_ENTRIES} entries")
            if PurePosixPath(member.name) == PurePosixPath():  # the root itself
                continue
            try:
                name = check_pack_path(member.name)
            except ValueError as error:
                raise _ArchiveRefused(f"entry {member.name!r} {error}") from error
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():
                raise _ArchiveRefused(f"entry {member.name!r} is {_describe_entry(member)}; a pack holds plain files")
            if name in seen:
                raise _ArchiveRefused(f"entry {member.name!r} is there twice")
            seen.add(name)
            content = archive.extractfile(member)
            yield name, content.read() if content is not None else b""


def _describe_entry(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return "a link"
    return "a device" if member.ischr() or member.isblk() else "a pipe" if member.isfifo() else "no plain file"


def _make_relative_to_manifest(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files relative to the manifest, which is at the root or in a single top folder."""
    tops = {name.partition("/")[0] for name in files}
    if MANIFEST not in files and len(tops) == 1:
        top = f"{tops.pop()}/"
        return {name.removeprefix(top): content for name, content in files.items()}
    return dict(files)


def read_tarball(path: Path, display_name: str) -> bytes:
    """Read the whole file once: the verified bytes are the ones that are used."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadInput.of(f"cannot be read as .tgz: {error}", display_name) from error
    if len(content) > MAX_BYTES:
        raise BadInput.of(f"is larger than {MAX_BYTES // 2**20} MB", display_name)
    return content
