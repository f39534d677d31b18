"""Eval runs on another OpenWOP host: the request, the events and the summary."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from viva.agents.openwop import OpenwopAgent, parse_host_url, parse_reference
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
    """Which suite the host runs on which agent, and how."""

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
    """What `-i` and `-n` name. A local file or pack only names a suite; the host has its own copy."""
    path = folder / text
    modes: tuple[Mode, ...] | None = None
    if path.exists():
        suite, target = _read_suite(path, text)
        reference, agent, modes = f"{suite.suite_id}@{suite.version}", agent or target, tuple(suite.modes)
    elif "@" in text and "/" not in text:
        reference = text
    else:
        raise BadInput.of(f"there is no file {text!r}; name a suite that only the host has as ID@VERSION")
    if agent is None:
        raise BadInput.of("No agent given, and the suite names none. Pass the id of an agent on the host with -n")
    return RemoteSuite(reference, agent, modes)


def select_remote_modes(
    suite: str, declared: Sequence[Mode], options: EvalOptions
) -> tuple[tuple[Mode, ...], str | None]:
    """The modes of a run as for a local one: live-shadow only by name, regression only with a baseline. And a note."""
    try:
        return select_modes(declared, options)
    except ValueError as error:
        raise BadInput.of(str(error), suite) from error


def _read_suite(path: Path, shown: str) -> tuple[EvalSuite, str | None]:
    """The suite of a file or pack, and the agent that it names."""
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


class ModesNeeded(Exception):  # noqa: N818 -- the name says what it is
    """The host needs to know which of these modes to run. The client cannot see the suite."""

    def __init__(self, declared: tuple[Mode, ...]) -> None:
        super().__init__()
        self.declared = declared


def find_declared_modes(error: HostRefused) -> tuple[Mode, ...]:
    """The modes of the suite, if the host lists them because the request has to choose."""
    declared = error.details.get("declared")
    return tuple(mode for mode in MODES if mode in declared) if isinstance(declared, list) else ()


class RemoteRun:
    """A run on a host."""

    def __init__(self, url: str, settings: Settings, http: Transport) -> None:
        try:
            address = parse_host_url(url, "https://host")
        except ValueError as error:
            raise BadInput.of(f"--host: {error}") from error
        self.client = HostClient(url=address, token=find_token(settings), http=http)
        self.run_id: str | None = None

    async def start(self, request: RemoteRunRequest) -> str:
        """Create the run and return its id.

        Raises BadInput if the host refuses it, and ModesNeeded if it lists modes to choose from: nothing has run then.
        """
        try:
            self.run_id = await self.client.create_run(request.to_json())
        except HostRefused as error:
            declared = find_declared_modes(error)
            if error.status == 400 and declared and not request.modes:
                raise ModesNeeded(declared) from error
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
        return parse_eval_summary(codec.encode(summary), f"the summary of {self.run_id}")

    async def cancel(self) -> None:
        with suppress(Unreachable):
            await self.client.post(f"{self._path}/cancel", {})

    @property
    def _path(self) -> str:
        return f"/v1/runs/{quote(str(self.run_id), safe='')}"


def find_token(settings: Settings, value: str | None = None, *place: str) -> Secret | None:
    """The token of a host, from the config or else from OPENWOP_TOKEN."""
    token = settings.expand_variables(value, *place) if value else settings.environ.get(TOKEN_VARIABLE)
    if not token:
        return None
    settings.redactor.add_secrets([token])
    return Secret(token)


def build_remote_agent(settings: Settings, name: str, fields: dict[str, Any]) -> OpenwopAgent:
    """The agent that `openwop:URL#agent` refers to."""
    try:
        url, agent = parse_reference(str(fields.get("use", "")))
    except ValueError as error:
        raise settings.problem(f"agent {name!r}: {error}", "agents", name) from error
    return OpenwopAgent(url=url, agent=agent, token=find_token(settings, fields.get("token"), "agents", name, "token"))
