"""OpenWOP packs: the manifest `pack.json`, the eval suites of its agents, and their signature."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct

from viva.checks.json import JsonSchema
from viva.errors import BadInput, Problem
from viva.formats.documents import Document, parse_json_document
from viva.formats.load_options import LoadOptions
from viva.formats.openwop.modes import EvalOptions
from viva.formats.openwop.pack_files import MANIFEST, PackFiles, PackFolder, PackTarball, check_pack_path, read_tarball
from viva.formats.openwop.signatures import SignedContent, parse_digests, verify_signature
from viva.formats.openwop.suite import ManifestInfo, load_suite
from viva.formats.sources import find_pack
from viva.model import codec
from viva.model.case import ModelClass, Suite
from viva.schemas.positions import KeyPath
from viva.schemas.validation import find_violations

DIGESTS = "evals.sha256"
"""Lists the digest of every file that a run reads; `evals.sha256.sig` is its signature."""
TARBALL_SUFFIXES = (".tgz", ".tar.gz")
_MAX_SIGNATURE_BYTES = 4096


class _ManifestPart(Struct, frozen=True, rename="camel"):
    """Part of a manifest; unknown keys are ignored."""


class Handoff(_ManifestPart, frozen=True):
    """Files with the JSON Schemas of an agent's input and output."""

    task_schema_ref: str | None = None
    return_schema_ref: str | None = None


class PackAgent(_ManifestPart, frozen=True):
    """An agent of a pack."""

    agent_id: str
    model_class: ModelClass | None = None
    system_prompt: str | None = None
    system_prompt_ref: str | None = None
    eval_suite_ref: str | None = None
    tool_allowlist: tuple[str, ...] | None = None
    handoff: Handoff = Handoff()


class Signing(_ManifestPart, frozen=True):
    """The file with the signature of the manifest."""

    public_key_ref: str | None = None
    signature_ref: str | None = None
    method: str = "manual"


class SignatureProof(Struct, frozen=True):
    """A valid signature by a trusted key: its description, and the digests it covers (None: all files)."""

    description: str
    digests: Mapping[str, str] | None = None


class Manifest(_ManifestPart, frozen=True):
    """The part of `pack.json` that Viva reads."""

    name: str
    version: str
    agents: tuple[PackAgent, ...] = ()
    signing: Signing | None = None


def is_pack(path: Path) -> bool:
    """Is the path a folder with a manifest, or a tarball?"""
    return (path / MANIFEST).is_file() if path.is_dir() else path.name.endswith(TARBALL_SUFFIXES)


def load_pack(path: Path, display_name: str, options: LoadOptions, only_file: str | None = None) -> list[Suite]:
    """The eval suites of a pack. Raises BadInput with every problem at once.

    With `only_file`, only the suite in that file of the pack; empty if the path is not a pack, or if no agent refers to the file.
    """
    keys = options.eval_options.trusted_keys
    try:
        pack = open_pack(path, display_name, keys if only_file is None else ())
    except BadInput:
        if only_file is not None:
            return []
        raise
    indexes = _find_indexes_of_suite_agents(pack.manifest, options.eval_options.agent_names, only_file)
    if not indexes and only_file is not None:
        return []
    if not indexes:
        what = "no agent of it refers to an eval suite (evalSuiteRef)"
        raise BadInput(pack.document.make_problem((), what, key="agents"))
    if keys and pack.proof is None:
        pack = open_pack(path, display_name, keys)
    name = f"{display_name}: {pack.manifest.name}@{pack.manifest.version}"
    verified = f"{name}: {pack.proof.description}" if pack.proof else None
    notes = () if verified else (f"{name}: {_describe_signature(pack, path)}",)
    suites: list[Suite] = []
    problems: list[Problem] = []
    for at in indexes:
        try:
            suites.append(pack.load_agent_suite(at, options, notes, verified))
            notes, verified = (), None
        except BadInput as error:
            problems += error.problems
    if problems:
        raise BadInput(*problems)
    return suites


def _find_indexes_of_suite_agents(manifest: Manifest, known: Mapping[str, str], only: str | None) -> list[int]:
    """The indexes of the agents whose suites run. If several agents share a suite, an agent of the config is preferred."""
    index_by_suite: dict[str, int] = {}
    for at, agent in enumerate(manifest.agents):
        if agent.eval_suite_ref is None or only not in (None, name := str(PurePosixPath(agent.eval_suite_ref))):
            continue
        first = index_by_suite.setdefault(name, at)
        if agent.agent_id in known and manifest.agents[first].agent_id not in known:
            index_by_suite[name] = at
    return sorted(index_by_suite.values())


def require_signature(path: Path | None, display_name: str, options: EvalOptions) -> None:
    """Raises BadInput for an eval suite outside a signed pack, if the config requires signatures."""
    if options.trusted_keys and path is not None and find_pack(path)[0] is not None:
        what = "lies in a pack, but no agent of the pack refers to it: no signature covers it"
        raise BadInput.of(f"{what} ([openwop] trusted_keys)", display_name)
    if options.require_signature:
        raise BadInput.of("is not in a signed pack, but [openwop] require_signature is set", display_name)


def open_pack(path: Path, display_name: str, trusted_keys: tuple[str, ...] = ()) -> "Pack":
    """Open a pack: the manifest is validated and, if keys are trusted, the signature verified. Raises BadInput."""
    content = None if path.is_dir() else read_tarball(path, display_name)
    files: PackFiles = PackFolder(path) if content is None else PackTarball(content, display_name)
    try:
        raw = files.read(MANIFEST)
        document = parse_json_document(raw, f"{display_name}/{MANIFEST}")
    except ValueError as error:
        raise BadInput.of(str(error), f"{display_name}/{MANIFEST}") from error
    if violations := find_violations("pack", document.value):
        raise BadInput(*(document.make_problem(each.path, each.message, key=each.unknown_key) for each in violations))
    manifest = codec.convert(document.value, Manifest)
    if not trusted_keys:
        return Pack(display_name, files, document, manifest)
    try:
        proof = _verify_signature(_PackBytes(path, files, raw, manifest.signing, content), trusted_keys)
    except ValueError as error:
        raise BadInput.of(f"is refused: {error}", display_name) from error
    return Pack(display_name, files, document, manifest, proof)


class Pack:
    """A manifest with its files and, if verification was requested, the signature proof."""

    def __init__(
        self,
        shown: str,
        files: "PackFiles",
        document: Document,
        manifest: Manifest,
        proof: SignatureProof | None = None,
    ) -> None:
        self.display_name = shown
        self.document = document
        self.manifest = manifest
        self.proof = proof
        self._files = files

    def load_agent_suite(self, at: int, options: LoadOptions, notes: tuple[str, ...], verified: str | None) -> Suite:
        """The eval suite of one of the agents."""
        agent, place = self.manifest.agents[at], ("agents", at)
        reference = str(agent.eval_suite_ref)
        raw = self.read(reference, (*place, "evalSuiteRef"))
        return load_suite(
            parse_json_document(raw, f"{self.display_name}/{reference}"),
            options,
            self.read_manifest_info(at, notes, verified),
        )

    def read_manifest_info(self, at: int, notes: tuple[str, ...] = (), verified: str | None = None) -> ManifestInfo:
        """The parts of the manifest that matter for the suite of an agent."""
        agent, place = self.manifest.agents[at], ("agents", at)
        prompts = [agent.system_prompt] if agent.system_prompt else []
        if agent.system_prompt_ref:
            prompts.append(self._read_text(agent.system_prompt_ref, (*place, "systemPromptRef")))
        return ManifestInfo(
            agent_id=agent.agent_id,
            task_schema=self._read_schema(agent.handoff.task_schema_ref, (*place, "handoff", "taskSchemaRef")),
            return_schema=self._read_schema(agent.handoff.return_schema_ref, (*place, "handoff", "returnSchemaRef")),
            prompts=tuple(prompts),
            allowed_tools=agent.tool_allowlist,
            notes=notes,
            signature_note=verified,
        )

    def read_used_files(self) -> dict[str, bytes]:
        """The manifest and all files of the pack that a run reads, by name."""
        contents = {MANIFEST: self._files.read(MANIFEST)}
        for at, agent in enumerate(self.manifest.agents):
            references = {
                ("evalSuiteRef",): agent.eval_suite_ref,
                ("systemPromptRef",): agent.system_prompt_ref,
                ("handoff", "taskSchemaRef"): agent.handoff.task_schema_ref,
                ("handoff", "returnSchemaRef"): agent.handoff.return_schema_ref,
            }
            for place, reference in references.items():
                if reference is not None:
                    content = self.read(reference, ("agents", at, *place))
                    contents[check_pack_path(reference)] = content
        return contents

    def read(self, reference: str, place: KeyPath) -> bytes:
        """A file that the manifest refers to; it must be inside the pack."""
        try:
            name = check_pack_path(reference)
            content = self._files.read(name)
            if self.proof is not None:
                _check_signed_digest(name, content, self.proof.digests)
        except ValueError as error:
            raise BadInput(self.document.make_problem(place, f"{reference!r} {error}")) from error
        return content

    def _read_text(self, reference: str, place: KeyPath) -> str:
        try:
            return self.read(reference, place).decode()
        except UnicodeDecodeError as error:
            raise BadInput(self.document.make_problem(place, f"{reference!r} is not UTF-8")) from error

    def _read_schema(self, reference: str | None, place: KeyPath) -> dict[str, Any] | None:
        if reference is None:
            return None
        schema = parse_json_document(self.read(reference, place), f"{self.display_name}/{reference}").value
        try:
            JsonSchema(schema=schema)
        except (ValueError, TypeError) as error:
            raise BadInput(self.document.make_problem(place, f"{reference!r}: {error}")) from error
        return schema


def _describe_signature(pack: Pack, path: Path) -> str:
    """A note that says whether a pack is signed, for runs without trusted keys."""
    signing = pack.manifest.signing
    if _find_signature_file(path) is None and (
        signing is None or (signing.method != "sigstore" and signing.signature_ref is None)
    ):
        return "not signed"
    return "signature present, not verified: [openwop] trusted_keys is empty"


class _PackBytes(Struct, frozen=True):
    """The bytes of a pack, read once: the verified bytes are the bytes that are used. `content` is the whole tarball."""

    path: Path
    files: "PackFiles"
    manifest: bytes
    signing: Signing | None
    content: bytes | None


def _verify_signature(pack: _PackBytes, keys: tuple[str, ...]) -> SignatureProof:
    """Verify that a trusted key signed the pack. ValueError says what is missing."""
    path, files, signing = pack.path, pack.files, pack.signing
    if pack.content is not None and (beside := _find_signature_file(path)) is not None:
        with beside.open("rb") as file:
            key = verify_signature(SignedContent(path.name, pack.content, file.read(_MAX_SIGNATURE_BYTES)), keys)
        return SignatureProof(f"signature verified ({key}): {beside.name}, which covers the whole of {path.name}")
    if signing is not None and signing.method == "sigstore":
        raise ValueError(
            "it has a Sigstore bundle, which is not verified; [openwop] trusted_keys needs an Ed25519 signature"
        )
    if signing is None or signing.signature_ref is None:
        raise ValueError("it is not signed, and [openwop] trusted_keys is set")
    own = files.read(check_pack_path(signing.public_key_ref)) if signing.public_key_ref else None
    verify_signature(
        SignedContent(MANIFEST, pack.manifest, files.read(check_pack_path(signing.signature_ref)), own), keys
    )
    try:
        listed, signature = files.read(DIGESTS), files.read(f"{DIGESTS}.sig")
    except ValueError as missing:
        what = f"its signature covers {MANIFEST} alone, not the suite: {DIGESTS} or {DIGESTS}.sig {missing}"
        raise ValueError(f"{what}; `viva pack sign` makes both") from missing
    key = verify_signature(SignedContent(DIGESTS, listed, signature, own), keys)
    try:
        digests = parse_digests(listed)
    except ValueError as error:
        raise ValueError(f"{DIGESTS} {error}") from error
    for name in digests:
        try:
            _check_signed_digest(check_pack_path(name), files.read(check_pack_path(name)), digests)
        except ValueError as error:
            raise ValueError(f"{name!r}, which {DIGESTS} lists, {error}") from error
    return SignatureProof(
        f"signature verified ({key}): {MANIFEST} and the {len(digests)} files that {DIGESTS} lists", digests
    )


def _check_signed_digest(name: str, content: bytes, digests: Mapping[str, str] | None) -> None:
    if digests is None:
        return
    if name not in digests:
        raise ValueError(f"is not listed in {DIGESTS}: the signature does not cover it")
    if sha256(content).hexdigest() != digests[name]:
        raise ValueError(f"is not the file that was signed: its digest is not the one in {DIGESTS}")


def _find_signature_file(path: Path) -> Path | None:
    """The signature file beside a tarball: `pack.tgz.sig` or `pack.sig`."""
    if path.is_dir():
        return None
    stem = next(path.name.removesuffix(suffix) for suffix in TARBALL_SUFFIXES if path.name.endswith(suffix))
    candidates = [path.with_name(f"{name}.sig") for name in (path.name, stem)]
    return next((each for each in candidates if each.is_file()), None)
