"""The files of an OpenWOP pack, as a folder or a `.tgz`.

A tarball is read in memory and never unpacked: nothing in it can leave its root or fill a disk. What is read is bounded,
and entries that are no plain files or folders (links, devices, pipes) are refused, and so are `..` and absolute names.
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
    """A name that stays below the root; ValueError says why it does not."""
    path = PurePosixPath(name)
    if path.is_absolute() or "\\" in name or ":" in name.partition("/")[0]:
        raise ValueError("is no path inside the pack: it is absolute, or an address")
    if ".." in path.parts:
        raise ValueError("leaves the pack by '..'")
    if not path.parts or "\x00" in name or len(path.parts) > MAX_DEPTH:
        raise ValueError("is no path of a file")
    return str(path)


class PackFolder:
    """The files of a pack that is a folder. Links are refused: a tarball could not hold them either."""

    def __init__(self, root: Path, shown: str) -> None:
        self._root = root.resolve()
        self._shown = shown

    def read(self, name: str) -> bytes:
        try:
            return self._plain_file(name)
        except OSError as wrong:
            raise ValueError(f"cannot be read: {wrong.strerror}") from wrong

    def _plain_file(self, name: str) -> bytes:
        path = self._root
        for part in PurePosixPath(name).parts:
            path /= part
            if path.is_symlink():
                raise ValueError("is a link, or lies behind one; a pack holds plain files")
        if not path.is_file():
            raise ValueError("is not there: the pack has no such file")
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"is larger than {MAX_BYTES // 2**20} MB")
        return path.read_bytes()


class PackTarball:
    """The files of a pack that is a tarball, all of them read before any is used."""

    def __init__(self, content: bytes, shown: str) -> None:
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as unpacked:
                found = dict(_entries(_Bounded(unpacked)))
        except _Refused as wrong:
            raise BadInput.of(str(wrong), shown) from wrong
        except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, RecursionError) as wrong:
            # Headers that announce headers, thousands in a row, are read one inside the other.
            raise BadInput.of(f"is no .tgz that can be read: {wrong}", shown) from wrong
        self._files = _below_manifest(found)
        if MANIFEST not in self._files:
            raise BadInput.of(f"holds no {MANIFEST} at its root", shown)

    def read(self, name: str) -> bytes:
        if name not in self._files:
            raise ValueError("is not there: the pack has no such file")
        return self._files[name]


PackFiles = PackFolder | PackTarball


class _Refused(Exception):  # noqa: N818 -- it never leaves this file
    """An archive that Viva does not read, and why."""


class _Bounded:
    """What comes out of a decompressor, up to a limit: a small file may hold a huge one."""

    def __init__(self, stream: BinaryIO | gzip.GzipFile) -> None:
        self._stream = stream
        self._left = MAX_BYTES

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise _Refused(f"holds more than {MAX_BYTES // 2**20} MB")
        return data


def _entries(stream: _Bounded) -> Iterator[tuple[str, bytes]]:
    seen: set[str] = set()
    with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[arg-type] -- it only reads
        for count, member in enumerate(archive, 1):
            if count > MAX_ENTRIES:
                raise _Refused(f"holds more than {MAX_ENTRIES} entries")
            if PurePosixPath(member.name) == PurePosixPath():  # the root itself
                continue
            try:
                name = check_pack_path(member.name)
            except ValueError as wrong:
                raise _Refused(f"entry {member.name!r} {wrong}") from wrong
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():
                raise _Refused(f"entry {member.name!r} is {_kind(member)}; a pack holds plain files")
            if name in seen:
                raise _Refused(f"entry {member.name!r} is there twice")
            seen.add(name)
            content = archive.extractfile(member)
            yield name, content.read() if content is not None else b""


def _kind(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return "a link"
    return "a device" if member.ischr() or member.isblk() else "a pipe" if member.isfifo() else "no plain file"


def _below_manifest(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """As seen from the manifest: at the root or, as many tools pack, in one folder that holds all."""
    tops = {name.partition("/")[0] for name in files}
    if MANIFEST not in files and len(tops) == 1:
        top = f"{tops.pop()}/"
        return {name.removeprefix(top): content for name, content in files.items()}
    return dict(files)


def read_tarball(path: Path, shown: str) -> bytes:
    """All of the file, once: what is verified is what is read."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as wrong:
        raise BadInput.of(f"is no .tgz that can be read: {wrong}", shown) from wrong
    if len(content) > MAX_BYTES:
        raise BadInput.of(f"is larger than {MAX_BYTES // 2**20} MB", shown)
    return content
