"""OpenWOP packs, as a folder or a `.tgz`: the manifest `pack.json`, and the eval suites that its agents refer to.

A tarball is read in memory and never unpacked: nothing in it can leave its root or fill a disk. What is read is bounded,
and entries that are no plain files or folders (links, devices, pipes) are refused, and so are `..` and absolute names.
"""

import gzip
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from msgspec import Struct

from viva.checks.json import JsonSchema
from viva.errors import BadInput, Problem
from viva.formats.documents import Document, json_document
from viva.formats.openwop import ModelClass, Terms, load_suite
from viva.formats.reading import Reading
from viva.formats.signatures import Signed, signature_note
from viva.model import codec
from viva.model.case import Suite
from viva.schemas.positions import Place
from viva.schemas.words import complaints

MANIFEST = "pack.json"
SUFFIXES = (".tgz", ".tar.gz")
MAX_BYTES = 50 * 1024 * 1024
MAX_ENTRIES = 5000
MAX_DEPTH = 32


class _Part(Struct, frozen=True, rename="camel"):
    """A part of a manifest; keys that Viva does not read are left aside."""


class Handoff(_Part, frozen=True):
    """Files with the JSON Schemas of an agent's input and output."""

    task_schema_ref: str | None = None
    return_schema_ref: str | None = None


class PackAgent(_Part, frozen=True):
    """An agent of a pack."""

    agent_id: str
    model_class: ModelClass | None = None
    system_prompt: str | None = None
    system_prompt_ref: str | None = None
    eval_suite_ref: str | None = None
    tool_allowlist: tuple[str, ...] | None = None
    handoff: Handoff = Handoff()


class Signing(_Part, frozen=True):
    """Where the signature of the manifest stands."""

    public_key_ref: str | None = None
    signature_ref: str | None = None
    method: str = "manual"


class Manifest(_Part, frozen=True):
    """As much of `pack.json` as Viva reads."""

    name: str
    version: str
    agents: tuple[PackAgent, ...] = ()
    signing: Signing | None = None


def is_pack(path: Path) -> bool:
    """A folder with a manifest, or a tarball."""
    return (path / MANIFEST).is_file() if path.is_dir() else path.name.endswith(SUFFIXES)


def load_pack(path: Path, shown: str, reading: Reading, only: str | None = None) -> list[Suite]:
    """The eval suites of a pack. Raises BadInput with every problem at once.

    With `only`, the one in that file of it; none, if this is no pack, or none of its agents refers to that.
    """
    try:
        pack = open_pack(path, shown)
    except BadInput:
        if only is not None:
            return []
        raise
    wanted = _agents_with_suites(pack.manifest, reading.evals.agent_names, only)
    if not wanted and only is not None:
        return []
    if not wanted:
        what = "no agent of it refers to an eval suite (evalSuiteRef)"
        raise BadInput(pack.document.problem((), what, key="agents"))
    notes = (f"{shown}: {pack.manifest.name}@{pack.manifest.version}: {_signature(pack, path, reading)}",)
    suites: list[Suite] = []
    problems: list[Problem] = []
    for at in wanted:
        try:
            suites.append(pack.suite(at, reading, notes))
            notes = ()
        except BadInput as wrong:
            problems += wrong.problems
    if problems:
        raise BadInput(*problems)
    return suites


def _agents_with_suites(manifest: Manifest, known: Mapping[str, str], only: str | None) -> list[int]:
    """The places of the agents whose suites shall run: of several with the same suite one that is known in the config."""
    found: dict[str, int] = {}
    for at, agent in enumerate(manifest.agents):
        if agent.eval_suite_ref is None or only not in (None, name := str(PurePosixPath(agent.eval_suite_ref))):
            continue
        first = found.setdefault(name, at)
        if agent.agent_id in known and manifest.agents[first].agent_id not in known:
            found[name] = at
    return sorted(found.values())


def open_pack(path: Path, shown: str) -> "Pack":
    """A pack whose manifest is valid."""
    files: _Files = _Folder(path, shown) if path.is_dir() else _Tarball(path, shown)
    try:
        document = json_document(files.read(MANIFEST), f"{shown}/{MANIFEST}")
    except ValueError as wrong:
        raise BadInput.saying(str(wrong), f"{shown}/{MANIFEST}") from wrong
    if found := complaints("pack", document.value):
        raise BadInput(*(document.problem(each.path, each.what, key=each.key) for each in found))
    return Pack(shown, files, document, codec.convert(document.value, Manifest))


class Pack:
    """A manifest and the files beside it."""

    def __init__(self, shown: str, files: "_Files", document: Document, manifest: Manifest) -> None:
        self.shown = shown
        self.document = document
        self.manifest = manifest
        self._files = files

    def suite(self, at: int, reading: Reading, notes: tuple[str, ...] = ()) -> Suite:
        """The eval suite of one of its agents."""
        agent, place = self.manifest.agents[at], ("agents", at)
        reference = str(agent.eval_suite_ref)
        raw = self.read(reference, (*place, "evalSuiteRef"))
        return load_suite(json_document(raw, f"{self.shown}/{reference}"), reading, self.terms(at, notes))

    def terms(self, at: int, notes: tuple[str, ...] = ()) -> Terms:
        """What the manifest says of an agent that matters for its suite."""
        agent, place = self.manifest.agents[at], ("agents", at)
        prompts = [agent.system_prompt] if agent.system_prompt else []
        if agent.system_prompt_ref:
            prompts.append(self._text(agent.system_prompt_ref, (*place, "systemPromptRef")))
        return Terms(
            agent_id=agent.agent_id,
            task_schema=self._schema(agent.handoff.task_schema_ref, (*place, "handoff", "taskSchemaRef")),
            return_schema=self._schema(agent.handoff.return_schema_ref, (*place, "handoff", "returnSchemaRef")),
            prompts=tuple(prompts),
            allowed_tools=agent.tool_allowlist,
            notes=notes,
        )

    def read(self, reference: str, place: Place) -> bytes:
        """A file that the manifest refers to, from inside the pack and nowhere else."""
        try:
            return self._files.read(_inside(reference))
        except ValueError as wrong:
            raise BadInput(self.document.problem(place, f"{reference!r} {wrong}")) from wrong

    def _text(self, reference: str, place: Place) -> str:
        try:
            return self.read(reference, place).decode()
        except UnicodeDecodeError as wrong:
            raise BadInput(self.document.problem(place, f"{reference!r} is not UTF-8")) from wrong

    def _schema(self, reference: str | None, place: Place) -> dict[str, Any] | None:
        if reference is None:
            return None
        schema = json_document(self.read(reference, place), f"{self.shown}/{reference}").value
        try:
            JsonSchema(schema=schema)
        except (ValueError, TypeError) as wrong:
            raise BadInput(self.document.problem(place, f"{reference!r}: {wrong}")) from wrong
        return schema


def _inside(name: str) -> str:
    """A name that stays below the root; ValueError says why it does not."""
    path = PurePosixPath(name)
    if path.is_absolute() or "\\" in name or ":" in name.partition("/")[0]:
        raise ValueError("is no path inside the pack: it is absolute, or an address")
    if ".." in path.parts:
        raise ValueError("leaves the pack by '..'")
    if not path.parts or "\x00" in name or len(path.parts) > MAX_DEPTH:
        raise ValueError("is no path of a file")
    return str(path)


class _Folder:
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


class _Tarball:
    """The files of a pack that is a tarball, all of them read before any is used."""

    def __init__(self, path: Path, shown: str) -> None:
        try:
            with path.open("rb") as file, gzip.GzipFile(fileobj=file) as unpacked:
                found = dict(_entries(_Bounded(unpacked)))
        except _Refused as wrong:
            raise BadInput.saying(str(wrong), shown) from wrong
        except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, RecursionError) as wrong:
            # Headers that announce headers, thousands in a row, are read one inside the other.
            raise BadInput.saying(f"is no .tgz that can be read: {wrong}", shown) from wrong
        self._files = _below_manifest(found)
        if MANIFEST not in self._files:
            raise BadInput.saying(f"holds no {MANIFEST} at its root", shown)

    def read(self, name: str) -> bytes:
        if name not in self._files:
            raise ValueError("is not there: the pack has no such file")
        return self._files[name]


_Files = _Folder | _Tarball


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
                name = _inside(member.name)
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


def _signature(pack: Pack, path: Path, reading: Reading) -> str:
    """Whether the pack is signed, in words. Raises BadInput for a signature that does not hold."""
    if (beside := _beside(path)) is not None:
        signed = Signed(f"the whole of {path.name}", path.read_bytes(), beside.read_bytes())
    elif (signing := pack.manifest.signing) is None:
        return "not signed"
    elif signing.method == "sigstore":
        return "signature present, not verified: Sigstore bundles are not looked at"
    elif signing.signature_ref is None:
        return "not signed: `signing` names no signatureRef"
    else:
        signature = pack.read(signing.signature_ref, ("signing", "signatureRef"))
        own = pack.read(signing.public_key_ref, ("signing", "publicKeyRef")) if signing.public_key_ref else None
        signed = Signed(f"{MANIFEST} alone, not its other files", pack.read(MANIFEST, ()), signature, own)
    try:
        return signature_note(signed, reading.evals.trusted_keys)
    except ValueError as wrong:
        raise BadInput.saying(str(wrong), pack.shown) from wrong


def _beside(path: Path) -> Path | None:
    """The signature that lies beside a tarball, as `pack.tgz.sig` or `pack.sig`."""
    if path.is_dir():
        return None
    stem = next(path.name.removesuffix(suffix) for suffix in SUFFIXES if path.name.endswith(suffix))
    found = [path.with_name(f"{name}.sig") for name in (path.name, stem)]
    return next((each for each in found if each.is_file()), None)
