"""The history of a team: journals in a folder or bucket that all of its machines can reach, by fsspec.

    journals/DIGEST.RANDOM.jsonl.gz     a journal; DIGEST is the SHA-256 of its content
    runs/TIME.RUN.DIGEST.KIND.json      says which journal a run has, when it ended, and whether it has its texts

A journal is written first, under a name that no other writer uses; then the entry that points to it. So a push that is
interrupted leaves nothing that anyone reads, two at once do not disturb each other, and nothing is ever renamed, changed or
deleted. What is read is compared with its digest.
"""

import gzip
import hashlib
import re
import secrets
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from msgspec import Struct, structs

from viva.errors import BadInput, RemoteFailed
from viva.history.index import PULLED_FILE, History, match_run_id
from viva.history.without_text import read_events_without_text
from viva.model import codec
from viva.model.event import AnyEvent, RunEnded, RunStarted
from viva.record.atomic_files import open_replacement, replace_file
from viva.record.foreign_journals import check_event, compute_unpacked_limit
from viva.record.journal import has_run_ended, read_events
from viva.record.locks import is_journal_in_use
from viva.record.private_files import make_data_folder, make_private_folder
from viva.text.credentials import mask_url_credentials

RemoteEntryKind = Literal["whole", "counts"]
"""Does an entry have the texts of the run, or only its results and counts?"""
PushResult = Literal["pushed", "present", "unfinished"]
_ENTRY_FILE_NAME = re.compile(
    r"(?P<time>\d{8}T\d{9})\.(?P<run>[\w-]+)\.(?P<digest>[0-9a-f]{64})\.(?P<kind>whole|counts)\.json"
)
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"}
_SSH_PACKAGES = {"ssh": "paramiko", "sftp": "paramiko"}
_MAX_REASON = 300
_BLOCK = 1 << 20


class RemoteEntry(Struct, frozen=True):
    """A run of the remote history, as the name of its entry says."""

    time: str
    run: str
    digest: str
    kind: RemoteEntryKind
    path: str

    @classmethod
    def parse(cls, path: str) -> "RemoteEntry | None":
        """Parses the path of an entry's file; None if the path is not one of an entry."""
        match = _ENTRY_FILE_NAME.fullmatch(path.rpartition("/")[2])
        return (
            cls(match["time"], match["run"], match["digest"], cast("RemoteEntryKind", match["kind"]), path)
            if match
            else None
        )


class EntryContent(Struct, frozen=True):
    """The content of an entry, and of the file beside a pulled journal."""

    journal: str
    """The name of the journal's file."""
    digest: str
    run: str
    ended: str
    """When the run ended: of two journals of a run that was resumed, the later one counts."""
    agent: str
    exit_code: int
    kind: RemoteEntryKind


class RemoteHistory:
    """A remote history. Raises BadInput for a URL that cannot be used, RemoteFailed if the remote cannot be read or written."""

    def __init__(
        self, url: str, options: Mapping[str, Any] | None = None, redact: Callable[[str], str] = mask_url_credentials
    ) -> None:
        self.name = mask_url_credentials(url)
        self._redact = redact
        try:
            import fsspec  # an extra
        except ImportError as missing:
            raise BadInput.of(
                f"{self.name}: a remote history needs the extra `remote`: pip install 'viva-eval[remote]'"
            ) from missing
        scheme = urlsplit(url).scheme if "://" in url else "file"
        self._is_folder = scheme in ("file", "local")
        defaults = {"auto_mkdir": True} if self._is_folder else {}
        place = self._remove_host(url) if url.startswith(("file:", "local:")) else url
        try:
            self._files, root = fsspec.core.url_to_fs(place, **{**defaults, **(options or {})})
        except ImportError as missing:
            package = (_PACKAGES | _SSH_PACKAGES).get(scheme, str(missing.name))
            raise BadInput.of(
                f"{self.name}: {scheme}:// needs the package {package}: pip install {package}"
            ) from missing
        except (ValueError, TypeError) as error:
            raise BadInput.of(
                f"{self.name}: is not a place that fsspec can use: {self._describe_without_credentials(error)}"
            ) from error
        except Exception as error:  # a file system of any author; some connect at once
            raise RemoteFailed(
                f"{self.name}: cannot connect to it: {self._describe_without_credentials(error)}"
            ) from error
        self._root = str(root).rstrip("/")

    def _remove_host(self, url: str) -> str:
        """The URL of a folder without `localhost`. fsspec would take a host for a folder."""
        scheme, host, path, *_ = urlsplit(url)
        if host not in ("", "localhost") or not path.startswith("/"):
            raise BadInput.of(f"{self.name}: is not a folder of this machine; write {scheme}:///absolute/path")
        return url.replace("//localhost/", "///", 1) if host else url

    def list_entries(self) -> list[RemoteEntry]:
        """All entries, newest first. A remote without runs has none."""
        with self._explain_errors("list"):
            self._files.invalidate_cache()
            try:
                files: list[dict[str, Any]] = self._files.ls(f"{self._root}/runs", detail=True)
            except FileNotFoundError:
                return []
        paths = [str(file["name"]) for file in files if file["size"]]  # an empty one is still being written, or was not
        entries = [entry for path in paths if (entry := RemoteEntry.parse(path)) is not None]
        return sorted(entries, key=lambda entry: (entry.time, entry.run), reverse=True)

    def find_run(self, name: str) -> str:
        """The id of a run by its id, the start of its id, `latest` or `latest~2`. BadInput if there is none."""
        return match_run_id(name, list(dict.fromkeys(entry.run for entry in self.list_entries())), self.name)

    def push(
        self, history: History, runs: Iterable[str], *, without_text: bool = False
    ) -> Generator[tuple[str, PushResult]]:
        """Copy runs that have ended to the remote, with their texts or without. Yields the result for each run."""
        kind: RemoteEntryKind = "counts" if without_text else "whole"
        entries = self.list_entries()
        present = {entry.digest for entry in entries}
        whole_runs = {entry.run for entry in entries if entry.kind == "whole"}
        with tempfile.TemporaryDirectory(prefix="viva-push-") as scratch:
            for run in runs:
                journal = history.journal_path(run)
                if has_run_ended(journal) is not True or is_journal_in_use(journal):
                    yield run, "unfinished"
                elif (without_text and run in whole_runs) or _compute_digest(journal, kind) in present:
                    yield run, "present"
                else:
                    self._upload(journal, kind, Path(scratch))
                    yield run, "pushed"

    def _upload(self, journal: Path, kind: RemoteEntryKind, scratch: Path) -> None:
        packed, entry = scratch / "journal.gz", scratch / "entry.json"
        digest = _compress_journal(journal, kind, packed)
        started, ended = _read_first_and_last_event(journal)
        name = f"{digest}.{secrets.token_hex(4)}.jsonl.gz"
        content = EntryContent(name, digest, started.run, ended.at, started.agent, ended.exit_code, kind)
        entry.write_bytes(codec.encode(content) + b"\n")
        time = re.sub(r"[^\dT]", "", ended.at[:23])
        with self._explain_errors("write to"):
            self._files.put_file(str(packed), f"{self._root}/journals/{name}")
            self._files.put_file(str(entry), f"{self._root}/runs/{time}.{started.run}.{digest}.{kind}.json")

    def pull(self, history: History, runs: Sequence[str] | None = None) -> Generator[str]:
        """Copy runs from the remote to this machine, by default all. Yields the ids of the copied runs.

        A run of this machine is never replaced. A pulled run is replaced if the remote has a later journal or its texts.
        """
        by_run: dict[str, list[RemoteEntry]] = {}
        remote_entries = self.list_entries()
        if not remote_entries and self._is_folder and not Path(self._root).exists():
            raise BadInput.of(f"{self.name}: the folder does not exist; `viva runs push` creates it")
        for entry in remote_entries:
            if runs is None or entry.run in runs:
                by_run.setdefault(entry.run, []).append(entry)
        for run, entries in by_run.items():
            if self._pull_run(history, run, entries):
                yield run

    def _pull_run(self, history: History, run: str, entries: Sequence[RemoteEntry]) -> bool:
        journal = history.journal_path(run)
        marker = journal.with_name(PULLED_FILE)
        if journal.exists() and not marker.exists():
            return False  # it is a run of this machine
        here = codec.decode_own(marker.read_bytes(), type=EntryContent).digest if marker.exists() else None
        if [entry.digest for entry in entries] == [here]:
            return False
        contents = [content for entry in entries if (content := self._read_entry(entry)) is not None]
        best = max(contents, key=lambda content: (content.kind == "whole", content.ended), default=None)
        if best is None or best.digest == here:
            return False
        make_data_folder(history.home)
        make_private_folder(journal.parent)
        if here is None:  # without the marker, the journal would count as a run of this machine
            replace_file(marker, codec.encode(structs.replace(best, digest="")) + b"\n", private=True)
        self._download(best, journal)
        replace_file(marker, codec.encode(best) + b"\n", private=True)
        history.index_run(run)
        return True

    def _read_entry(self, entry: RemoteEntry) -> EntryContent | None:
        """None if the entry is still being written."""
        with self._explain_errors("read from"):
            raw: bytes = self._files.cat_file(entry.path)
        try:
            content = codec.decode(raw, type=EntryContent)
        except codec.DecodeError:
            return None
        is_consistent = (content.run, content.digest) == (entry.run, entry.digest)
        return content if is_consistent and re.fullmatch(r"[0-9a-f.]+\.jsonl\.gz", content.journal) else None

    def _download(self, content: EntryContent, journal: Path) -> None:
        """Replace the local journal by the remote one. RemoteFailed if its digest or run differ from the entry."""
        digest = hashlib.sha256()
        place = f"{self._root}/journals/{content.journal}"
        with (
            open_replacement(journal, private=True) as out,
            self._explain_errors("read from"),
            self._files.open(place, "rb") as packed,
            gzip.GzipFile(fileobj=packed) as lines,
        ):
            runs: set[str] = set()
            decoder = codec.Decoder[AnyEvent](AnyEvent, codec.OWN_MAX_DEPTH)
            try:
                for line in _read_lines(lines, compute_unpacked_limit(self._files.size(place) or 0)):
                    digest.update(line)
                    out.write(line)
                    event = decoder.decode(line)
                    check_event(event)
                    runs |= {event.run} if isinstance(event, RunStarted | RunEnded) else set()
            except codec.DecodeError:
                runs = set()
            if digest.hexdigest() != content.digest or runs != {content.run}:
                raise RemoteFailed(f"{self.name}: the journal of run {content.run} is damaged; push that run again")

    def _describe_without_credentials(self, error: Exception) -> str:
        """The message of a client in one line, without credentials."""
        text = " ".join(self._redact(mask_url_credentials(str(error))).split()) or type(error).__name__
        return text[:_MAX_REASON]

    @contextmanager
    def _explain_errors(self, action: str) -> Generator[None]:
        """Turns any error of a file system into a RemoteFailed."""
        try:
            yield
        except RemoteFailed:
            raise
        except PermissionError as error:
            raise RemoteFailed(
                f"{self.name}: no permission to {action} it: {self._describe_without_credentials(error)}"
            ) from error
        except Exception as error:  # clients of file systems raise errors of their own
            raise RemoteFailed(
                f"{self.name}: cannot {action} it: {self._describe_without_credentials(error)}"
            ) from error


def _read_journal_content(journal: Path, kind: RemoteEntryKind) -> Iterator[bytes]:
    if kind == "counts":
        yield from (codec.encode(event) + b"\n" for event in read_events_without_text(journal))
    else:
        with journal.open("rb") as file:
            yield from iter(lambda: file.read(_BLOCK), b"")


def _read_lines(file: gzip.GzipFile, limit: int) -> Iterator[bytes]:
    """The lines of a file of at most `limit` bytes. Raises ValueError for a larger one."""
    while line := file.readline(limit + 1):
        limit -= len(line)
        if limit < 0:
            raise ValueError("a journal unpacks to far more than one of its size")
        yield line


def _compute_digest(journal: Path, kind: RemoteEntryKind) -> str:
    digest = hashlib.sha256()
    for block in _read_journal_content(journal, kind):
        digest.update(block)
    return digest.hexdigest()


def _compress_journal(journal: Path, kind: RemoteEntryKind, packed: Path) -> str:
    """Compress a journal. Returns the digest of its content."""
    digest = hashlib.sha256()
    with gzip.open(packed, "wb", compresslevel=6) as out:
        for block in _read_journal_content(journal, kind):
            digest.update(block)
            out.write(block)
    return digest.hexdigest()


def _read_first_and_last_event(journal: Path) -> tuple[RunStarted, RunEnded]:
    """The first and the last event of a run that has ended."""
    started: RunStarted | None = None
    ended: RunEnded | None = None
    for event in read_events(journal):
        if isinstance(event, RunStarted):
            started = event
        elif isinstance(event, RunEnded):
            ended = event
    if started is None or ended is None:
        raise BadInput.of("has no start or no end", str(journal))
    return started, ended
