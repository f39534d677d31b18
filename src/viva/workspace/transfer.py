"""Packs a kept workspace into bytes, to send it from a worker to the machine of the run, and unpacks it there.

An agent filled it, so nothing in it is trusted: pipes, devices and links that lead outside are not sent.
"""

import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from io import BytesIO

from viva.workspace.folders import create_kept_workspace, remove_kept_workspace
from viva.workspace.safe_open import open_regular_file

MAX_BYTES = 32 * 1024 * 1024
MAX_ENTRIES = 10_000
_MAX_TAR_BYTES = MAX_BYTES + MAX_ENTRIES * 4096
"""With the headers of all entries, the long ones of long names too."""


class WorkspaceTooLarge(Exception):  # noqa: N818 -- it is an answer
    """The workspace is too large to be sent."""


def pack_workspace(path: str) -> tuple[bytes, int]:
    """The files of a folder as an archive, and how many entries were left out. Raises WorkspaceTooLarge."""
    out = BytesIO()
    size = left_out = 0
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
        for number, name in enumerate(_list_entries(path)):
            if number == MAX_ENTRIES:
                raise WorkspaceTooLarge
            place = os.path.join(path, name)
            info = _describe_entry(place, name)
            if info is None:
                left_out += 1
            elif not info.isreg():
                archive.addfile(info)
            else:
                try:
                    with open(open_regular_file(place), "rb") as file:
                        info.size = os.fstat(file.fileno()).st_size
                        size += info.size
                        if size > MAX_BYTES:
                            raise WorkspaceTooLarge
                        archive.addfile(info, file)
                except OSError:  # it cannot be read, or is no longer there
                    left_out += 1
    return out.getvalue(), left_out


def _list_entries(path: str) -> Iterator[str]:
    """All names below a folder. Links are not followed."""
    for folder, folders, files in os.walk(path):
        for name in sorted((*folders, *files)):
            yield os.path.relpath(os.path.join(folder, name), path)


def _describe_entry(place: str, name: str) -> tarfile.TarInfo | None:
    """The header of an entry, without its owner; None for an entry that is not sent."""
    try:
        status = os.lstat(place)
        target = os.readlink(place) if stat.S_ISLNK(status.st_mode) else ""
    except OSError:
        return None
    info = tarfile.TarInfo(name)
    info.mtime, info.mode = int(status.st_mtime), status.st_mode & 0o755 | 0o600
    if target:
        leads = os.path.normpath(os.path.join(os.path.dirname(name), target))
        if os.path.isabs(target) or leads == ".." or leads.startswith("../"):
            return None
        info.type, info.linkname = tarfile.SYMTYPE, target
    elif stat.S_ISDIR(status.st_mode):
        info.type, info.mode = tarfile.DIRTYPE, info.mode | 0o700
    elif not stat.S_ISREG(status.st_mode):
        return None
    return info


def _skip_unsafe(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    """Leaves out what would be written outside of the folder, by way of several links for example."""
    try:
        return tarfile.data_filter(member, path)
    except tarfile.FilterError:
        return None


def _decompress(archive: bytes) -> bytes:
    """The tar file in an archive. Raises WorkspaceTooLarge before it takes more memory than any workspace needs."""
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # gzip
    content = unpacker.decompress(archive, _MAX_TAR_BYTES)
    if unpacker.unconsumed_tail:
        raise WorkspaceTooLarge
    if not unpacker.eof:
        raise ValueError("it is incomplete")
    return content


def unpack_workspace(archive: bytes, case: str) -> str:
    """Unpack an archive into a kept workspace of this machine. Returns its path. Raises OSError, or WorkspaceTooLarge."""
    path = create_kept_workspace(case)
    try:
        content = BytesIO(_decompress(archive))
        with tarfile.open(fileobj=content, mode="r:") as files:
            members = files.getmembers()
            if len(members) > MAX_ENTRIES or sum(member.size for member in members) > MAX_BYTES:
                raise WorkspaceTooLarge
            files.extractall(path, members, filter=_skip_unsafe)  # noqa: S202 -- the filter is that of `data`
    except (tarfile.TarError, zlib.error, ValueError) as error:
        remove_kept_workspace(path)
        raise OSError(f"the workspace that a worker sent cannot be unpacked: {error}") from error
    except BaseException:
        remove_kept_workspace(path)
        raise
    return path
