"""The eval suites that a host offers: everybody's, and those of a tenant, which nobody else can tell from missing ones."""

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from viva.config import Settings
from viva.errors import BadInput
from viva.formats.documents import parse_json_document
from viva.formats.openwop.modes import EvalOptions
from viva.formats.openwop.packs import Pack, is_pack, open_pack, require_signature
from viva.formats.openwop.suite import EvalSuite, ManifestInfo, parse_suite
from viva.host.errors import ApiError, validation_error


class HostedSuite(Struct, frozen=True, kw_only=True):
    """A suite that can be asked for: by its id and version, or by the path that the config or a manifest gives it."""

    path: Path
    ref: str
    tenant: str | None = None
    agent_id: str | None = None
    """Whose suite it is, in a pack."""
    trusted_keys: tuple[str, ...] = ()
    """One of these has to have signed the pack; none: any pack is taken."""

    def load(self) -> tuple[EvalSuite, ManifestInfo]:
        """As it stands on the disk now. Raises BadInput."""
        if self.agent_id is None:
            try:
                raw = self.path.read_bytes()
            except OSError as wrong:
                raise BadInput.of(f"cannot be read: {wrong.strerror}", str(self.path)) from wrong
            return parse_suite(parse_json_document(raw, str(self.path)))[0], ManifestInfo()
        pack = open_pack(self.path, str(self.path), self.trusted_keys)
        for at, agent in enumerate(pack.manifest.agents):
            if agent.agent_id == self.agent_id and agent.eval_suite_ref == self.ref:
                raw = pack.read(self.ref, ("agents", at, "evalSuiteRef"))
                return parse_suite(parse_json_document(raw, f"{self.path}/{self.ref}"))[0], pack.read_manifest_info(at)
        raise BadInput.of("refers to this suite no more", str(self.path))


class SuiteRegistry:
    """All suites of a host. What is wrong with one when the host starts is said then, and the host does not start."""

    def __init__(self, offers: Iterable[HostedSuite]) -> None:
        self._offers = [(offer, f"{suite.suite_id}@{suite.version}") for offer in offers for suite in [offer.load()[0]]]

    def find(self, ref: str, agent_id: str, tenant: str) -> tuple[HostedSuite, EvalSuite, ManifestInfo]:
        """The suite that a tenant means. Unknown, somebody else's and unreadable are one and the same."""
        for offer, name in self._offers:
            if offer.tenant not in (None, tenant):
                continue
            if ref == name or (ref == offer.ref and offer.agent_id in (None, agent_id)):
                return (offer, *_read_again(offer))
        raise _unknown()

    def __bool__(self) -> bool:
        return bool(self._offers)


def _read_again(offer: HostedSuite) -> tuple[EvalSuite, ManifestInfo]:
    if not offer.path.exists():
        raise _unknown()
    try:
        return offer.load()
    except BadInput:
        # What is wrong with it would quote it: `viva check` says it to those who own it.
        raise validation_error("this suite is not valid any more", "evalSuiteRef") from None


def _unknown() -> ApiError:
    return validation_error("there is no such suite", "evalSuiteRef")


def load_hosted_suites(paths: Iterable[str], settings: Settings, tenant: str | None = None) -> list[HostedSuite]:
    """What the config offers: suite files, and packs with the suites of their agents. Raises BadInput for what is not signed
    as the config wants it.
    """
    found: list[HostedSuite] = []
    folder, openwop = settings.folder, settings.openwop
    asked = EvalOptions(trusted_keys=openwop.trusted_keys, require_signature=openwop.require_signature)
    for ref in paths:
        path = folder / ref
        if not path.exists():
            raise BadInput.of("there is no such suite or pack", str(path))
        if not is_pack(path):
            require_signature(path, str(path), asked)
            found.append(HostedSuite(path=path, ref=ref, tenant=tenant))
            continue
        pack = open_pack(path, str(path), openwop.trusted_keys)
        agents = [agent for agent in pack.manifest.agents if agent.eval_suite_ref is not None]
        if len(agents) > 1:  # a run reads its input as a whole, and has one agent
            raise BadInput.of(f"holds {len(agents)} suites; a host serves packs with one", str(path))
        found += [
            HostedSuite(
                path=path,
                ref=str(agent.eval_suite_ref),
                tenant=tenant,
                agent_id=agent.agent_id,
                trusted_keys=openwop.trusted_keys,
            )
            for agent in agents
        ]
    return found


def load_packs(paths: Iterable[str], settings: Settings) -> list[Pack]:
    folder, keys = settings.folder, settings.openwop.trusted_keys
    return [open_pack(folder / ref, ref, keys) for ref in paths if is_pack(folder / ref)]
