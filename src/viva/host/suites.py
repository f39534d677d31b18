"""The eval suites of a host: those of all tenants, and those of one tenant, which others cannot detect."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from viva.concurrency.threads import run_in_thread
from viva.config import Settings
from viva.errors import BadInput
from viva.formats.documents import parse_json_document
from viva.formats.openwop.modes import EvalOptions
from viva.formats.openwop.packs import Pack, is_pack, open_pack, require_signature
from viva.formats.openwop.suite import EvalSuite, ManifestInfo, parse_suite
from viva.host.errors import ApiError, validation_error
from viva.session.run_plan import LoadedInputs


class HostedSuite(Struct, frozen=True, kw_only=True):
    """A suite that clients name by id and version, or by its path in the config or the manifest."""

    path: Path
    ref: str
    tenant: str | None = None
    agent_id: str | None = None
    """The agent of the pack that the suite belongs to."""
    trusted_keys: tuple[str, ...] = ()
    """Keys of which one must have signed the pack; without keys any pack is accepted."""

    def describe_path(self, folder: Path) -> str:
        """Its path from the folder of the project, which other hosts have elsewhere."""
        return os.path.relpath(self.path, folder)

    def load(self) -> tuple[EvalSuite, ManifestInfo]:
        """Reads the current file. Raises BadInput."""
        if self.agent_id is None:
            try:
                raw = self.path.read_bytes()
            except OSError as error:
                raise BadInput.of(f"cannot be read: {error.strerror}", str(self.path)) from error
            return parse_suite(parse_json_document(raw, str(self.path)))[0], ManifestInfo()
        pack = open_pack(self.path, str(self.path), self.trusted_keys)
        for at, agent in enumerate(pack.manifest.agents):
            if agent.agent_id == self.agent_id and agent.eval_suite_ref == self.ref:
                raw = pack.read(self.ref, ("agents", at, "evalSuiteRef"))
                suite = parse_suite(parse_json_document(raw, f"{self.path}/{self.ref}"))[0]
                return suite, pack.read_manifest_info(at)
        raise BadInput.of(f"no longer has the suite {self.ref}", str(self.path))


Stamp = tuple[Any, ...]
"""Changes when a file or folder changes."""
PlanKey = tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[Stamp, Stamp]]
"""A suite, an agent, the system prompt that the caller gives it, modes, and the state of the suite and the config."""
MAX_LOADED = 32


def compute_stamp(path: Path) -> Stamp:
    """Of a file, with its signature, or of a folder with all its files."""
    places = [path, path.with_name(f"{path.name}.sig"), *(sorted(path.rglob("*")) if path.is_dir() else ())]
    states = [(place, place.stat()) for place in places if place.exists()]
    return tuple((str(place), state.st_mtime_ns, state.st_size, state.st_ino) for place, state in states)


class LoadedInputsCache:
    """Suites as they were loaded for an agent. All runs that need the same share them."""

    def __init__(self) -> None:
        self._loaded: dict[PlanKey, LoadedInputs] = {}

    def __len__(self) -> int:
        return len(self._loaded)

    def get(self, key: PlanKey) -> LoadedInputs | None:
        if (inputs := self._loaded.pop(key, None)) is not None:
            self._loaded[key] = inputs  # the last one used is the last one to go
        return inputs

    def add(self, key: PlanKey, inputs: LoadedInputs) -> None:
        self._loaded[key] = inputs
        while len(self._loaded) > MAX_LOADED:
            del self._loaded[next(iter(self._loaded))]


class SuiteRegistry:
    """The suites of a host. Raises BadInput if one of them is invalid. A file that changes is loaded again."""

    def __init__(self, suites: Iterable[HostedSuite]) -> None:
        self._loaded: dict[HostedSuite, tuple[Stamp, EvalSuite, ManifestInfo]] = {
            hosted: (compute_stamp(hosted.path), *hosted.load()) for hosted in suites
        }
        self._suites = [(hosted, f"{suite.suite_id}@{suite.version}") for hosted, (_, suite, _) in self._loaded.items()]
        self._loading = asyncio.Lock()

    async def find(self, ref: str, agent_id: str, tenant: str) -> tuple[HostedSuite, EvalSuite, ManifestInfo]:
        """The suite that a tenant names. Unknown suites and those of other tenants give the same error."""
        for hosted, name in self._suites:
            if hosted.tenant not in (None, tenant):
                continue
            if ref == name or (ref == hosted.ref and hosted.agent_id in (None, agent_id)):
                return (hosted, *await self._load(hosted))
        raise _unknown_suite()

    async def _load(self, hosted: HostedSuite) -> tuple[EvalSuite, ManifestInfo]:
        async with self._loading:
            if not hosted.path.exists():
                raise _unknown_suite()
            stamp, suite, manifest = self._loaded[hosted]
            if compute_stamp(hosted.path) == stamp:
                return suite, manifest
            stamp = compute_stamp(hosted.path)
            try:
                suite, manifest = await run_in_thread(hosted.load)
            except BadInput:
                # The problem would quote the suite; its owner sees it with `viva check`.
                raise validation_error("The suite is no longer valid", "evalSuiteRef") from None
            self._loaded[hosted] = stamp, suite, manifest
            return suite, manifest

    def __bool__(self) -> bool:
        return bool(self._suites)


def _unknown_suite() -> ApiError:
    return validation_error("Unknown suite", "evalSuiteRef")


def load_hosted_suites(paths: Iterable[str], settings: Settings, tenant: str | None = None) -> list[HostedSuite]:
    """The suite files and packs of the config. Raises BadInput for a file without the required signature."""
    suites: list[HostedSuite] = []
    openwop = settings.openwop
    options = EvalOptions(trusted_keys=openwop.trusted_keys, require_signature=openwop.require_signature)
    for ref in paths:
        path = settings.folder / ref
        if not path.exists():
            raise BadInput.of("suite or pack not found", str(path))
        if not is_pack(path):
            require_signature(path, str(path), options)
            suites.append(HostedSuite(path=path, ref=ref, tenant=tenant))
            continue
        pack = open_pack(path, str(path), openwop.trusted_keys)
        agents = [agent for agent in pack.manifest.agents if agent.eval_suite_ref is not None]
        if len(agents) > 1:  # a run loads its whole input and has one agent
            raise BadInput.of(f"has {len(agents)} suites; a host serves packs with one suite", str(path))
        suites += [
            HostedSuite(
                path=path,
                ref=str(agent.eval_suite_ref),
                tenant=tenant,
                agent_id=agent.agent_id,
                trusted_keys=openwop.trusted_keys,
            )
            for agent in agents
        ]
    return suites


def load_packs(paths: Iterable[str], settings: Settings) -> list[Pack]:
    folder, keys = settings.folder, settings.openwop.trusted_keys
    return [open_pack(folder / ref, ref, keys) for ref in paths if is_pack(folder / ref)]
