"""Packs the files of a project into an archive, for workers that do not share its folder.

The archive has the files that git tracks or does not ignore; without git, all files. `.env` files and `.viva` are left out,
because they hold secrets and results.
"""

import gzip
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from viva.errors import BadInput
from viva.record.atomic_files import replace_file

_MAX_BYTES = 64 * 1024 * 1024
_MAX_STORED_ARCHIVES = 4
_FILE_TIME = 946_684_800
"""The first of January 2000: ZIP archives have no times before 1980."""
_SKIPPED_NAMES = frozenset({".git", ".viva", ".venv", "__pycache__", "node_modules"})


def pack_project(root: Path, secret_file: Path | None) -> bytes:
    """The archive of a folder, without the `secret_file` of `--env-file`. Raises BadInput if its files are too large, or one
    cannot be read.
    """
    try:
        return _pack_files(root, secret_file)
    except OSError as error:
        raise BadInput.of(
            f"{error.filename or root}: cannot be read, so it cannot be sent to workers: {error.strerror or error}; add it to "
            ".gitignore, or let the workers share the folder and pass --cluster-folder"
        ) from error


def _pack_files(root: Path, secret_file: Path | None) -> bytes:
    out = BytesIO()
    size = 0
    with (
        gzip.GzipFile(
            fileobj=out, mode="wb", compresslevel=1, mtime=0
        ) as packed,  # the same files give the same digest
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted(_list_packed_files(root)):
            if secret_file is not None and path.samefile(secret_file):
                continue
            size += path.stat().st_size
            if size > _MAX_BYTES:
                raise BadInput.of(
                    f"the files of {root} are more than {_MAX_BYTES >> 20} MB, too many to send to workers; let them share the "
                    "folder and pass --cluster-folder, or add large files to .gitignore"
                )
            archive.add(path, path.relative_to(root).as_posix(), recursive=False, filter=_forget_origin)
    return out.getvalue()


def _forget_origin(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """The entry without owner and time: another checkout of the same files then gives the same digest."""
    return entry.replace(mtime=_FILE_TIME, uid=0, gid=0, uname="", gname="", deep=False)


def unpack_project(archive: bytes, parent: Path) -> Path:
    """Unpack an archive into a new private folder. The caller removes it."""
    folder = Path(tempfile.mkdtemp(prefix="viva-project-", dir=parent))
    try:
        with tarfile.open(fileobj=BytesIO(archive), mode="r:gz") as files:
            files.extractall(folder, filter="data")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder.resolve()


def digest_archive(archive: bytes) -> str:
    return hashlib.sha256(archive).hexdigest()


class ArchiveCache:
    """Stores archives on a worker, in files named by their digest, so that each archive is sent to it once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, digest: str) -> bytes | None:
        path = self._folder / f"{digest}.tar.gz"
        try:
            archive = path.read_bytes()
            path.touch()
        except OSError:
            return None
        return archive if digest_archive(archive) == digest else None

    def add(self, archive: bytes) -> None:
        """Store an archive and delete all but the newest few. On a full disk nothing is stored: the next run sends it again."""
        try:
            replace_file(self._folder / f"{digest_archive(archive)}.tar.gz", archive, private=True)
            stored = sorted(self._folder.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in stored[_MAX_STORED_ARCHIVES:]:
                path.unlink()
        except OSError:
            pass


def _list_packed_files(root: Path) -> Iterator[Path]:
    has_git = any((folder / ".git").exists() for folder in (root, *root.parents))
    for name in _list_git_files(root) if has_git else _walk_folder(root):
        path = root / name
        is_secret = any(part == ".env" or part.startswith(".env.") for part in Path(name).parts)
        if (
            not is_secret
            and not _SKIPPED_NAMES.intersection(Path(name).parts)
            and path.is_file()
            and not path.is_symlink()
        ):
            yield path


def _list_git_files(root: Path) -> list[str]:
    """The files that git tracks or does not ignore. Raises BadInput if git fails: other files may hold secrets."""
    # An agent may have changed the repository's config: no program that it names is run.
    command = [
        "git",
        "-c",
        "core.fsmonitor=false",
        "-C",
        str(root),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    try:
        result = subprocess.run(command, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        detail = (
            error.stderr.decode(errors="replace").strip()
            if isinstance(error, subprocess.CalledProcessError)
            else str(error)
        )
        raise BadInput.of(f"git cannot list the files of {root} to send to workers: {detail}") from error
    return [name for name in result.stdout.decode(errors="surrogateescape").split("\0") if name]


def _walk_folder(root: Path) -> Iterator[str]:
    for path in root.iterdir():
        if path.name in _SKIPPED_NAMES or path.is_symlink():
            continue
        if path.is_dir():
            yield from (f"{path.name}/{inner}" for inner in _walk_folder(path))
        else:
            yield path.name
