"""Eval runs on another OpenWOP host: the request, the events and the summary."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from viva.agents.openwop import parse_host_url
from viva.agents.openwop_client import HostClient, HostRefused
from viva.config import Settings
from viva.errors import BadInput, Unreachable
from viva.formats.documents import parse_json_document
from viva.formats.openwop.modes import MODES, EvalOptions, Mode, select_modes
from viva.formats.openwop.packs import is_pack, open_pack
from viva.formats.openwop.suite import EvalSuite, parse_suite
from viva.formats.openwop.summary import EvalSummary, parse_eval_summary
from viva.model import codec
from viva.model.connector import Secret
from viva.protocols import Transport

TOKEN_VARIABLE = "OPENWOP_TOKEN"  # noqa: S105 -- the name of a variable


class RemoteRunRequest(Struct, frozen=True, kw_only=True):
    """The request to run a suite on an agent of the host."""

    suite: str
    agent: str
    modes: tuple[Mode, ...] = ()
    baseline: str | None = None
    allow_agent_mismatch: bool = False

    def to_json(self) -> dict[str, Any]:
        options = {
            "evalModes": list(self.modes) or None,
            "baselineRunId": self.baseline,
            "allowAgentMismatch": self.allow_agent_mismatch or None,
        }
        configurable = {key: value for key, value in options.items() if value is not None}
        body: dict[str, Any] = {"mode": "eval", "evalSuiteRef": self.suite, "agentId": self.agent}
        return {**body, "configurable": configurable} if configurable else body


class RemoteSuite(Struct, frozen=True):
    """The reference of a suite on a host, the id of its agent there, and the modes of the local copy, if there is one."""

    reference: str
    agent: str
    modes: tuple[Mode, ...] | None = None


def resolve_remote_suite(text: str, folder: Path, agent: str | None) -> RemoteSuite:
    """The suite and agent on the host that `-i` and `-n` name. A local file or pack only gives the name; the host uses its own copy."""
    path = folder / text
    modes: tuple[Mode, ...] | None = None
    if path.exists():
        suite, target = _read_local_suite(path, text)
        reference, agent, modes = f"{suite.suite_id}@{suite.version}", agent or target, tuple(suite.modes)
    elif "@" in text and "/" not in text:
        reference = text
    else:
        raise BadInput.of(f"there is no file {text!r}; name a suite that only the host has as ID@VERSION")
    if agent is None:
        raise BadInput.of("No agent given, neither by -n nor by the suite. Pass the id of an agent on the host with -n")
    return RemoteSuite(reference, agent, modes)


def select_remote_modes(
    suite: str, declared: Sequence[Mode], options: EvalOptions
) -> tuple[tuple[Mode, ...], str | None]:
    """The modes of a remote run, chosen as for a local run, and a note about modes that are left out."""
    try:
        return select_modes(declared, options)
    except ValueError as error:
        raise BadInput.of(str(error), suite) from error


def _read_local_suite(path: Path, shown: str) -> tuple[EvalSuite, str | None]:
    """The suite in a local file or pack, and the agent that it names."""
    if not is_pack(path):
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise BadInput.of(f"is neither a suite nor a pack: {error.strerror}", shown) from error
        suite = parse_suite(parse_json_document(raw, shown))[0]
        return suite, suite.target_agent_id
    pack = open_pack(path, shown)
    agents = [(index, agent) for index, agent in enumerate(pack.manifest.agents) if agent.eval_suite_ref is not None]
    if len(agents) != 1:
        raise BadInput.of(f"contains {len(agents)} suites; name one of them as ID@VERSION", shown)
    index, agent = agents[0]
    raw = pack.read(str(agent.eval_suite_ref), ("agents", index, "evalSuiteRef"))
    suite = parse_suite(parse_json_document(raw, f"{shown}/{agent.eval_suite_ref}"))[0]
    return suite, suite.target_agent_id or agent.agent_id


class ModesRequired(Exception):  # noqa: N818 -- the name says what it is
    """The host refused a run because the request must choose from the modes that the suite declares."""

    def __init__(self, declared: tuple[Mode, ...]) -> None:
        super().__init__()
        self.declared = declared


def read_declared_modes(error: HostRefused) -> tuple[Mode, ...]:
    """The modes that the host lists in its refusal; empty if it lists none."""
    declared = error.details.get("declared")
    return tuple(mode for mode in MODES if mode in declared) if isinstance(declared, list) else ()


class RemoteRun:
    """A run of an eval suite on an OpenWOP host."""

    def __init__(self, url: str, settings: Settings, http: Transport) -> None:
        try:
            address = parse_host_url(url, "https://host")
        except ValueError as error:
            raise BadInput.of(f"--host: {error}") from error
        self.client = HostClient(url=address, token=find_host_token(settings), http=http)
        self.run_id: str | None = None

    async def start(self, request: RemoteRunRequest) -> str:
        """Create the run and return its id.

        Raises BadInput if the host refuses it, and ModesRequired if it lists modes to choose from: nothing has run then.
        """
        try:
            self.run_id = await self.client.create_run(request.to_json())
        except HostRefused as error:
            declared = read_declared_modes(error)
            if error.status == 400 and declared and not request.modes:
                raise ModesRequired(declared) from error
            if error.status in (400, 501):
                raise BadInput.of(error.message) from error
            if error.status == 401 and self.client.token is None:
                raise Unreachable(f"{error.message}; set {TOKEN_VARIABLE} to a token of the host") from error
            raise
        return self.run_id

    def stream_events(self) -> AsyncIterator[dict[str, Any]]:
        return self.client.iterate_events(str(self.run_id), "updates")

    async def fetch_summary(self) -> EvalSummary:
        summary = await self.client.get(f"{self._path}/eval-summary")
        return parse_eval_summary(codec.encode(summary), f"{self.client.url}: the summary of the run")

    async def cancel(self) -> None:
        with suppress(Unreachable):
            await self.client.post(f"{self._path}/cancel", {})

    @property
    def _path(self) -> str:
        return f"/v1/runs/{quote(str(self.run_id), safe='')}"


def find_host_token(settings: Settings) -> Secret | None:
    """The token of a host, from the environment variable OPENWOP_TOKEN."""
    token = settings.environ.get(TOKEN_VARIABLE)
    if not token:
        return None
    settings.redactor.add_secrets([token])
    return Secret(token)
