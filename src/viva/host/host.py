"""All that the routes share: who may ask, what there is, what is kept, and what is running."""

import asyncio
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

import viva
from viva.config import Settings
from viva.errors import BadInput
from viva.history.index import History
from viva.host.agents import AgentRegistry
from viva.host.auth import Principal, TokenRegistry
from viva.host.discovery import build_capabilities, compute_etag
from viva.host.errors import not_found
from viva.host.events import run_completed
from viva.host.idempotency import IdempotencyCache
from viva.host.log import RunLog, RunLogs, utc_timestamp
from viva.host.runs import RunError, RunManager
from viva.host.store import Run, Store
from viva.host.suites import SuiteRegistry
from viva.host.workflows import CONFORMANCE_WORKFLOWS, WORKFLOWS, run_workflow
from viva.model import codec


class ServeOptions(Struct, frozen=True, kw_only=True):
    """How a host is to be run."""

    public_url: str
    conformance: bool = False
    max_running: int = 16
    max_unfinished: int = 1000


class Host:
    """One host. It is made where the event loop runs, and closed there."""

    def __init__(
        self,
        settings: Settings,
        options: ServeOptions,
        store: Store,
        tokens: TokenRegistry,
        agents: AgentRegistry,
        suites: SuiteRegistry,
        *,
        has_judge: bool,
    ) -> None:
        self.settings = settings
        self.options = options
        self.tokens = tokens
        self.agents = agents
        self.suites = suites
        self.workflows: Mapping[str, dict[str, Any]] = {
            **WORKFLOWS,
            **(CONFORMANCE_WORKFLOWS if options.conformance else {}),
        }
        self.store = store
        self.logs = RunLogs(self.store)
        self.idempotency = IdempotencyCache(self.store)
        self.runs = RunManager(self.store, self.logs, options.max_running, options.max_unfinished)
        self.runs.run_functions["workflow"] = self._workflow
        self.redactor = settings.redactor
        self.run_inputs: dict[str, Any] = {}
        """What runs that have not begun need and nobody keeps: see `invocations` and `evals`."""
        self.runs.on_end = lambda run: self.run_inputs.pop(run, None)
        self.history = History(settings.data_folder)
        self._listing = ThreadPoolExecutor(1, "viva-history")
        self.shutdown = asyncio.Event()
        document = build_capabilities(has_suites=bool(suites), has_judge=has_judge)
        self.eval_modes: tuple[str, ...] = tuple(document["agents"].get("evalSuite", {}).get("modes", ()))
        """Of evals; none where there are no suites, and so no evals at all."""
        self.capabilities = codec.encode(document)
        self.capabilities_etag = compute_etag(document)

    @property
    def folder(self) -> Path:
        return self.settings.folder

    def build_run(self, principal: Principal, **known: Any) -> Run:
        """A run that nothing is written of yet. Its id is that of its journal too."""
        return Run(
            id=f"run-{secrets.token_hex(12)}",
            tenant=principal.tenant,
            principal=principal.name,
            status="pending",
            created_at=utc_timestamp(),
            engine=viva.__version__,
            **known,
        )

    def find_run(self, principal: Principal, name: str) -> Run:
        """A run of the one who asks."""
        principal.require_scope("runs:read")
        run = self.store.find_run(name, principal.tenant)
        if run is None:
            raise not_found("run")
        return run

    def run_url(self, run: Run) -> str:
        return f"{self.options.public_url}/v1/runs/{run.id}"

    async def close(self) -> None:
        self.shutdown.set()
        await self.runs.close()
        await asyncio.to_thread(self._listing.shutdown)
        self.store.close()

    def index_run(self, run: str) -> None:
        """Puts a run into the project's list of runs, by its journal and off the loop; `viva runs reindex` would do as well."""
        self._listing.submit(self._listed, run)

    def _listed(self, run: str) -> None:
        with suppress(BadInput):  # the list can always be made anew from the journals
            if self.history.journal_path(run).exists():
                self.history.index_run(run)

    async def _workflow(self, run: Run, log: RunLog) -> None:
        workflow = self.workflows.get(run.workflow)
        if workflow is None:
            raise RunError("workflow_gone", "the host does not have this workflow any more")
        await run_workflow(workflow, run.request, log)
        self.runs.end(run, log, "completed", [run_completed({})])
