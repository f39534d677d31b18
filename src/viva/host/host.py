"""The host: the state that all its endpoints share."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import Struct

import viva
from viva.concurrency.threads import run_in_thread
from viva.config import Settings
from viva.errors import BadInput
from viva.history.index import History
from viva.host.connections import ConnectionLimits, KnownHosts
from viva.host.discovery import compute_etag, compute_negotiation_etag
from viva.host.errors import not_found
from viva.host.events import RunLog, RunLogs, utc_timestamp
from viva.host.inventory import AgentRegistry, LoadedInputsCache, SuiteRegistry
from viva.host.monitoring import Monitor, OperationOptions, log_line
from viva.host.requests import IdempotencyCache
from viva.host.runs import HostLimits, Readiness, RunEnd, RunManager, has_free_space
from viva.host.store import LEASE_S, Run, RunKind, Store
from viva.host.tokens import Principal, TokenRegistry
from viva.host.turns import HostWork
from viva.model import codec

MAX_PLANS_AT_ONCE = 2


class ServeOptions(Struct, frozen=True, kw_only=True):
    public_url: str
    conformance: bool = False
    known_hosts: tuple[str, ...] = ()
    """Names of this host besides its address and the name in its public URL."""
    min_free_bytes: int = 0
    """If the disk has less room, no run is started."""
    lease_s: float = LEASE_S
    drain_s: float = 0.0
    """How long runs may continue after SIGTERM."""


class HostSetup(Struct, frozen=True, kw_only=True):
    """The checked configuration of a host."""

    settings: Settings
    options: ServeOptions
    tokens: TokenRegistry
    agents: AgentRegistry
    suites: SuiteRegistry
    limits: HostLimits
    workflows: Mapping[str, dict[str, Any]]
    """By id."""
    capabilities: dict[str, Any]
    """The document that `/.well-known/openwop` serves."""
    bind_address: str
    port: int
    store_url: str | None = None
    """The PostgreSQL database that several hosts share; None for an SQLite file."""
    reload: Callable[[], "HostSetup"]
    """Loads and checks the configuration again. Raises BadInput."""
    connection_limits: ConnectionLimits = ConnectionLimits()
    operations: OperationOptions = OperationOptions()
    generated_token: str | None = None
    """The token that was generated because none is configured. It is printed once."""


class Host:
    """One host. It is created and closed on the event loop that serves its requests.

    `run_functions` execute evals, invocations and other workflows; `shutdown` tells streams that the host is about to close.
    """

    def __init__(
        self,
        setup: HostSetup,
        store: Store,
        run_functions: "Mapping[RunKind, Callable[[Host, Run, RunLog, bytes | None, HostWork], Awaitable[RunEnd]]]",
        shutdown: asyncio.Event,
    ) -> None:
        self.options = setup.options
        self._apply_setup(setup)
        self.monitor = Monitor(setup.operations.access_log, setup.operations.audit_log)
        self.store = store
        self.logs = RunLogs(store)
        self.idempotency = IdempotencyCache(store)
        self.shutdown = shutdown
        self.loaded_inputs = LoadedInputsCache()
        self.plan_slots = asyncio.Semaphore(MAX_PLANS_AT_ONCE)
        """Limits how many plans are built in parallel. They are built in threads, so that requests are answered meanwhile."""
        self.runs = RunManager(
            store,
            self.logs,
            {kind: partial(run, self) for kind, run in run_functions.items()},
            setup.limits,
            has_free_space=lambda: has_free_space(self.settings.data_folder, self.options.min_free_bytes),
        )
        self.history = History(self.settings.data_folder)
        self._indexer = ThreadPoolExecutor(1, "viva-history")

    def _apply_setup(self, setup: HostSetup) -> None:
        """Applies what can change without a restart."""
        self._reload = setup.reload
        self.settings = setup.settings
        self.known_hosts = KnownHosts(setup.bind_address, self.options.public_url, setup.options.known_hosts)
        self.operations = setup.operations
        self.tokens = setup.tokens
        self.agents = setup.agents
        self.suites = setup.suites
        self.workflows = setup.workflows
        document = setup.capabilities
        self.eval_modes: tuple[str, ...] = tuple(document["agents"].get("evalSuite", {}).get("modes", ()))
        self.capabilities = codec.encode(document)
        self.capabilities_etag = compute_etag(document)
        self.negotiation_etag = compute_negotiation_etag(document)

    async def reload(self) -> None:
        """Loads tokens, keys, agents, suites and limits again. If the config has a mistake, everything stays as it was.

        Runs that execute are not affected. Addresses, the public URL, logs and the store need a restart.
        """
        try:
            setup = await run_in_thread(self._reload)
        except BadInput as error:
            log_line(f"The config was not reloaded: {error}")
            return
        self._apply_setup(setup)
        self.runs.limits = setup.limits
        self.runs.start_waiting_runs()
        log_line("The config was reloaded")
        self.monitor.audit("reload")

    def build_run(self, principal: Principal, **fields: Any) -> Run:
        """Builds a run with a new id, which its journal has too. It is not stored yet."""
        return Run(
            id=f"run-{secrets.token_hex(12)}",
            tenant=principal.tenant,
            principal=principal.name,
            status="pending",
            created_at=utc_timestamp(),
            engine=viva.__version__,
            **fields,
        )

    def readiness(self) -> Readiness:
        """Whether the host takes new runs, and why not."""
        return self.runs.readiness()

    def find_run(self, principal: Principal, run_id: str) -> Run:
        """The run, if it is one of the principal's tenant. Raises an ApiError."""
        principal.require_scope("runs:read")
        run = self.store.find_run(run_id, principal.tenant)
        if run is None:
            raise not_found("run")
        return run

    def run_url(self, run: Run) -> str:
        return f"{self.options.public_url}/v1/runs/{run.id}"

    async def close(self) -> None:
        self.shutdown.set()
        await self.runs.close()
        await asyncio.to_thread(self._indexer.shutdown)
        self.store.close()
        self.monitor.audit("stop")
        self.monitor.close()

    def index_run(self, run_id: str) -> None:
        """Adds a run to the project's history, in a thread."""
        self._indexer.submit(self._index_run, run_id)

    def _index_run(self, run_id: str) -> None:
        with suppress(BadInput):  # the index can be rebuilt from the journals
            if self.history.journal_path(run_id).exists():
                self.history.index_run(run_id)
