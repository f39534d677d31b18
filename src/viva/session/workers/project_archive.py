"""Packs the files of a project into an archive, for workers that do not share its folder.

The archive has the files that git tracks or does not ignore; without git, all files. `.env` files and `.viva` are left out,
because they hold secrets and results; so are links that lead outside.
"""

import gzip
import hashlib
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Iterator
from io import BytesIO
from pathlib import Path

from viva.errors import BadInput, Problem
from viva.record.atomic_files import replace_file

_MAX_BYTES = 64 * 1024 * 1024
_MAX_STORED_ARCHIVES = 4
_FILE_TIME = 946_684_800
"""The first of January 2000: ZIP archives have no times before 1980."""
_SHARE_FOLDER = "let the workers share the folder and pass --cluster-folder"
LEAK_MESSAGE = "holds a secret, and secrets are not sent to a cluster; use an environment variable"
_SKIPPED_NAMES = frozenset({".git", ".viva", ".venv", "__pycache__", "node_modules"})


def pack_project(
    root: Path, secret_file: Path | None, needed: Iterable[Path] = (), secrets: Collection[str] = ()
) -> bytes:
    """The archive of a folder, without the `secret_file` of `--env-file`. Raises BadInput if its files are too large, if one cannot
    be read or holds one of the `secrets`, or if one of the `needed` files would be left out.
    """
    try:
        return _pack_files(root, secret_file, needed, secrets)
    except OSError as error:
        raise BadInput.of(
            f"{error.filename or root}: cannot be read, so it cannot be sent to workers: {error.strerror or error}; add it to "
            f".gitignore, or {_SHARE_FOLDER}"
        ) from error


def _pack_files(root: Path, secret_file: Path | None, needed: Iterable[Path], secrets: Collection[str]) -> bytes:
    excluded = _resolve(secret_file) if secret_file is not None else None
    paths = [path for path in sorted(_list_packed_files(root)) if _resolve(path) != excluded]
    _check_needed_files(root, needed, paths)
    out = BytesIO()
    size = 0
    problems: list[Problem] = []
    with (
        gzip.GzipFile(
            fileobj=out, mode="wb", compresslevel=1, mtime=0
        ) as packed,  # the same files give the same digest
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in paths:
            size += path.lstat().st_size
            if size > _MAX_BYTES:
                raise BadInput.of(
                    f"the files of {root} are more than {_MAX_BYTES >> 20} MB, too many to send to workers; {_SHARE_FOLDER}, or add "
                    "large files to .gitignore"
                )
            name = path.relative_to(root).as_posix()
            content = b"" if path.is_symlink() else path.read_bytes()
            archive.addfile(_create_entry(path, name, content), BytesIO(content))
            if line := find_secret_line(content, secrets):
                problems.append(Problem(name, line, "", f"{LEAK_MESSAGE}, or {_SHARE_FOLDER}"))
    if problems:
        raise BadInput(*problems)
    return out.getvalue()


def _create_entry(path: Path, name: str, content: bytes) -> tarfile.TarInfo:
    """The entry without owner and time: another checkout of the same files then gives the same digest."""
    entry = tarfile.TarInfo(name)
    entry.mtime, entry.mode, entry.size = _FILE_TIME, stat.S_IMODE(path.lstat().st_mode), len(content)
    if path.is_symlink():
        entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
    return entry


def _check_needed_files(root: Path, needed: Iterable[Path], packed: Iterable[Path]) -> None:
    """Raises BadInput with the files of the project that the run has read, but that are not packed."""
    known = {_resolve(path) for path in packed}
    paths = [_resolve(path.parent) / path.name for path in needed]
    missing = [path for path in paths if path.is_relative_to(root) and _resolve(path) not in known]
    if missing:
        reason = f"workers do not get this file: git ignores it, or it is a link that leads outside; {_SHARE_FOLDER}"
        names = dict.fromkeys(path.relative_to(root).as_posix() for path in missing)
        raise BadInput(*(Problem(name, 0, "", reason) for name in names))


def find_secret_line(content: bytes, secrets: Collection[str]) -> int:
    """The number of the first line that holds a secret; 0 if there is none."""
    positions = [start for secret in secrets if (start := content.find(secret.encode(errors="surrogateescape"))) >= 0]
    return content.count(b"\n", 0, min(positions)) + 1 if positions else 0


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
    """The files, and the links that stay inside the folder."""
    has_git = any((folder / ".git").exists() for folder in (root, *root.parents))
    for name in _list_git_files(root) if has_git else _walk_folder(root):
        path = root / name
        is_secret = any(part == ".env" or part.startswith(".env.") for part in Path(name).parts)
        if is_secret or _SKIPPED_NAMES.intersection(Path(name).parts):
            continue
        if _leads_inside(root, path) if path.is_symlink() else path.is_file():
            yield path


def _resolve(path: Path) -> Path:
    return Path(os.path.realpath(path))  # `Path.resolve` raises an error for a link that leads to itself


def _leads_inside(root: Path, link: Path) -> bool:
    target = link.readlink()
    place = Path(os.path.normpath(link.parent / target))
    return not target.is_absolute() and place.is_relative_to(root) and _resolve(link).is_relative_to(root)


def _list_git_files(root: Path) -> Iterator[str]:
    """The files that git tracks or does not ignore, also in repositories inside. Raises BadInput if git fails: other files may
    hold secrets.
    """
    listing = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    # An agent may have changed the repository's config: no program that it names is run.
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(root), *listing]
    try:
        result = subprocess.run(command, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        detail = (
            error.stderr.decode(errors="replace").strip()
            if isinstance(error, subprocess.CalledProcessError)
            else str(error)
        )
        raise BadInput.of(f"git cannot list the files of {root} to send to workers: {detail}") from error
    for name in result.stdout.decode(errors="surrogateescape").split("\0"):
        path = Path(name)
        if name and (root / path / ".git").exists() and not (root / path).is_symlink():
            yield from ((path / inner).as_posix() for inner in _list_git_files(root / path))
        elif name:
            yield name


def _walk_folder(root: Path) -> Iterator[str]:
    for path in root.iterdir():
        if path.name in _SKIPPED_NAMES:
            continue
        if path.is_dir() and not path.is_symlink():
            yield from (f"{path.name}/{inner}" for inner in _walk_folder(path))
        else:
            yield path.name
