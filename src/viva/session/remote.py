"""Eval suites on another host: what is asked for here, where it runs, and what comes back: events and a summary."""

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from viva.agents.openwop import TOKEN_VARIABLE, parse_address
from viva.agents.openwop_client import HostClient, HostRefused
from viva.config import Settings
from viva.errors import BadInput, Unreachable
from viva.formats.documents import parse_json_document
from viva.formats.openwop.modes import Mode
from viva.formats.openwop.packs import is_pack, open_pack
from viva.formats.openwop.suite import EvalSuite, parse_suite
from viva.formats.openwop.summary import EvalSummary, parse_eval_summary
from viva.model import codec
from viva.model.connector import Secret
from viva.protocols import Transport


class RemoteRunRequest(Struct, frozen=True, kw_only=True):
    """Which suite shall run there, on which agent, and how."""

    suite: str
    agent: str
    modes: tuple[Mode, ...] = ()
    baseline: str | None = None
    allow_agent_mismatch: bool = False

    def to_json(self) -> dict[str, Any]:
        asked = {
            "evalModes": list(self.modes) or None,
            "baselineRunId": self.baseline,
            "allowAgentMismatch": self.allow_agent_mismatch or None,
        }
        configurable = {key: value for key, value in asked.items() if value is not None}
        body: dict[str, Any] = {"mode": "eval", "evalSuiteRef": self.suite, "agentId": self.agent}
        return {**body, "configurable": configurable} if configurable else body


def resolve_remote_suite(text: str, folder: Path, agent: str | None) -> tuple[str, str]:
    """The suite's name there and the agent's id. A local file or pack says which suite is meant; the host has its own copy."""
    suite: EvalSuite | None = None
    path = folder / text
    if path.exists():
        suite, target = _read(path, text)
        ref, agent = f"{suite.suite_id}@{suite.version}", agent or target
    elif "@" in text and "/" not in text:
        ref = text
    else:
        raise BadInput.of(f"there is no file {text!r}; a suite that only the host has is named ID@VERSION")
    if agent is None:
        raise BadInput.of("which agent of the host? Give its id with -n; the suite names none")
    return ref, agent


def _read(path: Path, shown: str) -> tuple[EvalSuite, str | None]:
    if not is_pack(path):
        try:
            raw = path.read_bytes()
        except OSError as wrong:
            raise BadInput.of(f"is no suite and no pack: {wrong.strerror}", shown) from wrong
        suite = parse_suite(parse_json_document(raw, shown))[0]
        return suite, suite.target_agent_id
    pack = open_pack(path, shown)
    found = [(at, agent) for at, agent in enumerate(pack.manifest.agents) if agent.eval_suite_ref is not None]
    if len(found) != 1:
        raise BadInput.of(f"holds {len(found)} suites; name the one that is meant as ID@VERSION", shown)
    at, agent = found[0]
    raw = pack.read(str(agent.eval_suite_ref), ("agents", at, "evalSuiteRef"))
    suite = parse_suite(parse_json_document(raw, f"{shown}/{agent.eval_suite_ref}"))[0]
    return suite, suite.target_agent_id or agent.agent_id


class RemoteRun:
    """A run on a host, from here."""

    def __init__(self, url: str, settings: Settings, http: Transport) -> None:
        try:
            address = parse_address(url, "https://host")
        except ValueError as wrong:
            raise BadInput.of(f"--host: {wrong}") from wrong
        self.client = HostClient(url=address, token=find_token(settings), http=http)
        self.run_id: str | None = None

    async def start(self, what: RemoteRunRequest) -> str:
        """The run's id. A host that refuses says why: that is bad input, found before anything ran."""
        try:
            self.run_id = await self.client.create_run(what.to_json())
        except HostRefused as refused:
            if refused.status in (400, 501):
                raise BadInput.of(refused.message) from refused
            if refused.status == 401 and self.client.token is None:
                raise Unreachable(
                    f"{refused.message}; a token is read from {TOKEN_VARIABLE}, which is not set"
                ) from refused
            raise
        return self.run_id

    def stream_events(self) -> AsyncIterator[dict[str, Any]]:
        return self.client.iterate_events(str(self.run_id), "updates")

    async def fetch_summary(self) -> EvalSummary:
        found = await self.client.get(f"/v1/runs/{quote(str(self.run_id), safe='')}/eval-summary")
        return parse_eval_summary(codec.encode(found), f"the summary of {self.run_id}")

    async def cancel(self) -> None:
        with suppress(Unreachable):
            await self.client.post(f"/v1/runs/{quote(str(self.run_id), safe='')}/cancel", {})


def find_token(settings: Settings) -> Secret | None:
    """The token of OPENWOP_TOKEN. It is a secret from then on."""
    token = settings.environ.get(TOKEN_VARIABLE)
    if not token:
        return None
    settings.redactor.add_secrets([token])
    return Secret(token)
