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
from viva.host.auth import Keys, Principal
from viva.host.discovery import capabilities, etag
from viva.host.events import run_completed
from viva.host.idempotency import Once
from viva.host.inventory import Inventory
from viva.host.log import Logs, RunLog, now
from viva.host.refusals import not_found
from viva.host.runs import Failed, Runs
from viva.host.store import Run, Store
from viva.host.suites import Suites
from viva.host.workflows import STAND_INS, WORKFLOWS, walk
from viva.model import codec


class Serving(Struct, frozen=True, kw_only=True):
    """How a host is to be run."""

    public_url: str
    conformance: bool = False
    at_once: int = 16
    most: int = 1000


class Host:
    """One host. It is made where the event loop runs, and closed there."""

    def __init__(
        self,
        settings: Settings,
        serving: Serving,
        store: Store,
        keys: Keys,
        inventory: Inventory,
        suites: Suites,
        *,
        rubric: bool,
    ) -> None:
        self.settings = settings
        self.serving = serving
        self.keys = keys
        self.inventory = inventory
        self.suites = suites
        self.workflows: Mapping[str, dict[str, Any]] = {**WORKFLOWS, **(STAND_INS if serving.conformance else {})}
        self.store = store
        self.logs = Logs(self.store)
        self.once = Once(self.store)
        self.runs = Runs(self.store, self.logs, serving.at_once, serving.most)
        self.runs.works["workflow"] = self._workflow
        self.redactor = settings.redactor
        self.waiting: dict[str, Any] = {}
        """What runs that have not begun need and nobody keeps: see `invocations` and `evals`."""
        self.runs.forget = lambda run: self.waiting.pop(run, None)
        self.history = History(settings.home)
        self._listing = ThreadPoolExecutor(1, "viva-history")
        self.closing = asyncio.Event()
        document = capabilities(evals=bool(suites), rubric=rubric)
        self.modes: tuple[str, ...] = tuple(document["agents"].get("evalSuite", {}).get("modes", ()))
        """Of evals; none where there are no suites, and so no evals at all."""
        self.capabilities = codec.encode(document)
        self.capabilities_etag = etag(document)

    @property
    def folder(self) -> Path:
        return self.settings.folder

    def new_run(self, principal: Principal, **known: Any) -> Run:
        """A run that nothing is written of yet. Its id is that of its journal too."""
        return Run(
            id=f"run-{secrets.token_hex(12)}",
            tenant=principal.tenant,
            principal=principal.name,
            status="pending",
            created_at=now(),
            engine=viva.__version__,
            **known,
        )

    def run(self, principal: Principal, name: str) -> Run:
        """A run of the one who asks."""
        principal.need("runs:read")
        run = self.store.run(name, principal.tenant)
        if run is None:
            raise not_found("run")
        return run

    def url(self, run: Run) -> str:
        return f"{self.serving.public_url}/v1/runs/{run.id}"

    async def close(self) -> None:
        self.closing.set()
        await self.runs.close()
        await asyncio.to_thread(self._listing.shutdown)
        self.store.close()

    def list_run(self, run: str) -> None:
        """Puts a run into the project's list of runs, by its journal and off the loop; `viva runs reindex` would do as well."""
        self._listing.submit(self._listed, run)

    def _listed(self, run: str) -> None:
        with suppress(BadInput):  # the list can always be made anew from the journals
            if self.history.journal(run).exists():
                self.history.index(run)

    async def _workflow(self, run: Run, log: RunLog) -> None:
        workflow = self.workflows.get(run.workflow)
        if workflow is None:
            raise Failed("workflow_gone", "the host does not have this workflow any more")
        await walk(workflow, run.asked, log)
        self.runs.end(run, log, "completed", [run_completed({})])
