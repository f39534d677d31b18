"""The store of a host: runs, events, annotations, and responses by idempotency key.

`Store` has the SQL statements, which SQLite and PostgreSQL both understand; a subclass has the connection. A block of events
is one transaction, and so is a new run with the response to its request: `kill -9` cannot leave half of one.

The host that executes a run holds the lease of the run. Each claim of a lease gives it a higher token, and every write to a
run compares owner and token. A host that stopped responding, so that another one took over its run, cannot write to it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

from msgspec import Struct

from viva.errors import VivaError
from viva.model import codec

RunKind = Literal["eval", "workflow", "invocation"]
RunStatus = Literal["pending", "running", "cancelling", "completed", "failed", "cancelled"]
FINAL_STATUSES: frozenset[str] = frozenset({"completed", "failed", "cancelled"})
RESPONSE_TTL_S = 48 * 3600
"""How long a response is stored under its idempotency key; OpenWOP asks for at least a day."""
DELETION_TTL_S = 90 * 86400
"""How long a shared store lists deleted runs. A host that was stopped when a run was deleted removes its files of the run later."""
MAX_SEQUENCE = 2**31 - 1
"""The highest sequence number that the tables can hold."""
LEASE_S = 15.0
"""A lease ends if its host has not renewed it for this time."""


class Run(Struct, kw_only=True, omit_defaults=True):
    """One run of a tenant. `request` holds those fields of the HTTP request that are needed to execute and show the run."""

    id: str
    tenant: str
    kind: RunKind
    workflow: str
    status: RunStatus
    created_at: str
    request: dict[str, Any]
    agent: str | None = None
    tags: list[str] | None = None
    metadata: dict[str, Any] | None = None
    started_at: str | None = None
    completed_at: str | None = None
    error: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    tasks_in_error: tuple[str, ...] = ()
    """The tasks of an eval that ended in an error which is not the agent's. Its summary shows them with a score of 0."""
    principal: str | None = None
    engine: str | None = None
    """The version of Viva that started the run."""

    @property
    def is_finished(self) -> bool:
        return self.status in FINAL_STATUSES


class StoredResponse(Struct, frozen=True):
    """A response under an idempotency key, and the digest of its request."""

    request: str
    status: int
    body: bytes


class ClaimedRun(Struct, frozen=True):
    """A run whose lease this host holds now. `inputs` is needed only to start the run, and is deleted then."""

    run: Run
    inputs: bytes | None = None
    cancelled_by: str | None = None
    """The principal that has asked to cancel the run."""


class TenantQueue(Struct, frozen=True):
    """The unfinished runs of a tenant: how many execute, how many wait, and which one starts next."""

    tenant: str
    running: int
    waiting: int
    next_run: str | None = None


class StoreUnavailable(VivaError):  # noqa: N818 -- named as the errors of viva.errors are
    """The store cannot be written at the moment: the disk is full, or the database cannot be reached."""

    def __init__(self, reason: Literal["disk_full", "database_unavailable"]) -> None:
        super().__init__(reason)
        self.reason: Literal["disk_full", "database_unavailable"] = reason


class LeaseLost(VivaError):  # noqa: N818
    """Another host executes this run now; nothing was written."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


class SequenceTaken(VivaError):  # noqa: N818
    """The run has an event with this sequence number already; nothing was written."""


# fmt: off
TABLES = (
    """CREATE TABLE IF NOT EXISTS runs (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, status TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL, doc BLOB NOT NULL, inputs BLOB, cancelled_by TEXT,
    lease_owner TEXT, lease_token BIGINT NOT NULL DEFAULT 0, lease_until DOUBLE PRECISION NOT NULL DEFAULT 0)""",
    """CREATE INDEX IF NOT EXISTS runs_unfinished ON runs (tenant, created)
    WHERE status IN ('pending', 'running', 'cancelling')""",
    "CREATE INDEX IF NOT EXISTS runs_by_age ON runs (created)",
    """CREATE TABLE IF NOT EXISTS events (run TEXT, sequence INTEGER, doc BLOB NOT NULL, PRIMARY KEY (run, sequence))""",
    """CREATE TABLE IF NOT EXISTS journals (run TEXT, number INTEGER, doc BLOB NOT NULL, PRIMARY KEY (run, number))""",
    """CREATE TABLE IF NOT EXISTS annotations (run TEXT, number INTEGER, doc BLOB NOT NULL, PRIMARY KEY (run, number))""",
    """CREATE TABLE IF NOT EXISTS answers (tenant TEXT, operation TEXT, key TEXT, request TEXT NOT NULL,
    status INTEGER NOT NULL, body BLOB NOT NULL, at DOUBLE PRECISION NOT NULL, PRIMARY KEY (tenant, operation, key))""",
    "CREATE INDEX IF NOT EXISTS answers_by_age ON answers (at)",
    "CREATE TABLE IF NOT EXISTS deletions (run TEXT PRIMARY KEY, at DOUBLE PRECISION NOT NULL)",
)
# fmt: on
RENEW_LEASE = "UPDATE runs SET lease_until = clock() + ? WHERE id = ? AND lease_owner = ? AND lease_token = ?"
_UNFINISHED = "status IN ('pending', 'running', 'cancelling')"


class Store(ABC):
    """The state of all runs. It is used on the thread of the event loop: a statement takes far less than a millisecond.

    `clock()` in a statement is the time of the database, so that hosts with different clocks agree on leases.
    """

    is_shared: bool
    """Do other hosts use this store too? Then it has to hold all that they need to take over a run."""

    def __init__(self, owner: str, lease_s: float = LEASE_S) -> None:
        self.owner = owner
        """The name of this host among those that share the store."""
        self.lease_s = lease_s
        self.connection_number = 0
        """Changes when the connection to the database was lost and opened again: the database may have crashed."""
        self._tokens: dict[str, int] = {}
        """The tokens of the leases that this host holds."""

    @abstractmethod
    def transaction(self, *, is_durable: bool = False) -> AbstractContextManager[None]:
        """A transaction. One that is opened inside another one is part of the outer one.

        A host that is killed loses no transaction. A crash of the database may lose those after the last durable one.
        """

    @abstractmethod
    def _query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def _execute(self, sql: str, *values: Any) -> int:
        """Executes a statement, and returns the number of rows that it changed."""

    @abstractmethod
    def _insert_rows(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Inserts rows. Raises SequenceTaken if the table has one of them already."""

    @abstractmethod
    def check(self) -> None:
        """Test whether the store can be written; raise StoreUnavailable if not. Call it in a thread: it may take seconds."""

    @abstractmethod
    def close(self) -> None: ...

    def watch(self, on_change: Callable[[str, bytes | None], object]) -> None:  # noqa: B027 -- one process has no others
        """Call `on_change`, in another thread, with the id of each run whose log another host changes, and with its notices."""

    def announce(self, run_id: str, notice: bytes | None = None) -> None:  # noqa: B027
        """Tells other hosts that the log of a run has grown, or passes a notice on to their readers."""

    # Runs

    def create_run(self, run: Run, inputs: bytes | None = None) -> None:
        self._execute(
            "INSERT INTO runs (id, tenant, status, created, doc, inputs) VALUES (?, ?, ?, clock(), ?, ?)",
            run.id,
            run.tenant,
            run.status,
            codec.encode(run),
            inputs,
        )

    def save_run(self, run: Run) -> None:
        """Saves the state of a run whose lease this host holds, and deletes its inputs."""
        lease = ", lease_owner = NULL, lease_until = 0" if run.is_finished else ""
        sql = f"UPDATE runs SET status = ?, doc = ?, inputs = NULL{lease} WHERE id = ? AND lease_owner = ? AND lease_token = ?"  # noqa: S608 -- a constant
        if not self._execute(sql, run.status, codec.encode(run), run.id, self.owner, self._get_lease_token(run.id)):
            self._tokens.pop(run.id, None)
            raise LeaseLost(run.id)
        if run.is_finished and self.is_shared:
            self._execute("DELETE FROM journals WHERE run = ?", run.id)

    def find_run(self, run_id: str, tenant: str) -> Run | None:
        rows = self._query("SELECT doc, cancelled_by FROM runs WHERE id = ? AND tenant = ?", run_id, tenant)
        return _decode_run(*rows[0]) if rows else None

    def find_any_run(self, run_id: str) -> Run | None:
        """A run of any tenant, for administrators."""
        rows = self._query("SELECT doc, cancelled_by FROM runs WHERE id = ?", run_id)
        return _decode_run(*rows[0]) if rows else None

    def list_runs(
        self,
        tenant: str | None,
        statuses: Sequence[str],
        before: tuple[float, str] | None = None,
        limit: int = 100,
    ) -> list[tuple[float, Run]]:
        """Returns runs, newest first, each with the time of its creation. `tenant=None` means all tenants, no statuses mean any."""
        conditions, values = ["1 = 1"], list[Any]()
        if tenant is not None:
            conditions.append("tenant = ?")
            values.append(tenant)
        if statuses:
            conditions.append(f"status IN ({', '.join('?' * len(statuses))})")
            values += statuses
        if before is not None:
            conditions.append("(created < ? OR (created = ? AND id < ?))")
            values += [before[0], before[0], before[1]]
        where = " AND ".join(conditions)
        sql = f"SELECT created, doc, cancelled_by FROM runs WHERE {where} ORDER BY created DESC, id DESC LIMIT ?"  # noqa: S608 -- constants
        return [(created, _decode_run(doc, by)) for created, doc, by in self._query(sql, *values, limit)]

    def delete_runs(self, run_ids: Iterable[str]) -> None:
        """Deletes finished runs with their events and annotations. Unfinished ones stay."""
        with self.transaction():
            for run_id in run_ids:
                if self._execute(f"DELETE FROM runs WHERE id = ? AND NOT ({_UNFINISHED})", run_id):  # noqa: S608 -- a constant
                    for table in ("events", "annotations", "journals"):
                        self._execute(f"DELETE FROM {table} WHERE run = ?", run_id)  # noqa: S608 -- a constant
                    if self.is_shared:
                        self._execute("INSERT INTO deletions VALUES (?, clock()) ON CONFLICT (run) DO NOTHING", run_id)
            self._execute("DELETE FROM deletions WHERE at <= clock() - ?", DELETION_TTL_S)

    def list_deletions(self) -> set[str]:
        """The runs that any host has deleted: other hosts may still have files of them."""
        return {row[0] for row in self._query("SELECT run FROM deletions")}

    def delete_responses(self, tenant: str) -> None:
        """Deletes the responses that are stored under idempotency keys of a tenant."""
        self._execute("DELETE FROM answers WHERE tenant = ?", tenant)

    def read_clock(self) -> float:
        """The time of the database, which is the same for all hosts."""
        return self._query("SELECT clock()")[0][0]

    def has_run(self, run_id: str) -> bool:
        """Is there a run with this id, of any tenant?"""
        return bool(self._query("SELECT 1 FROM runs WHERE id = ?", run_id))

    def list_queues(self) -> list[TenantQueue]:
        """The queue of each tenant that has unfinished runs."""
        sql = f"""SELECT tenant, count(*), sum(CASE WHEN lease_until > clock() THEN 1 ELSE 0 END),
        (SELECT id FROM runs AS waiting WHERE waiting.tenant = runs.tenant AND {_UNFINISHED}
        AND lease_until <= clock() ORDER BY created LIMIT 1) FROM runs WHERE {_UNFINISHED} GROUP BY tenant"""  # noqa: S608 -- a constant
        return [
            TenantQueue(tenant, int(running), count - int(running), next_run)
            for tenant, count, running, next_run in self._query(sql)
        ]

    def count_unfinished(self, tenant: str | None = None) -> int:
        sql = f"SELECT count(*) FROM runs WHERE {_UNFINISHED}"  # noqa: S608 -- a constant
        return self._query(*((sql,) if tenant is None else (sql + " AND tenant = ?", tenant)))[0][0]

    # Leases

    def claim_run(self, run_id: str) -> ClaimedRun | None:
        """Takes the lease of an unfinished run. None if another host holds it, or the run is finished."""
        with self.transaction():
            sql = f"""UPDATE runs SET lease_owner = ?, lease_token = lease_token + 1, lease_until = clock() + ?
            WHERE id = ? AND lease_until <= clock() AND {_UNFINISHED}"""  # noqa: S608 -- a constant
            if not self._execute(sql, self.owner, self.lease_s, run_id):
                return None
            sql = "SELECT doc, inputs, cancelled_by, lease_token FROM runs WHERE id = ?"
            doc, inputs, cancelled_by, token = self._query(sql, run_id)[0]
        self._tokens[run_id] = token
        return ClaimedRun(_decode_run(doc), inputs, cancelled_by)

    def renew_leases(self) -> list[str]:
        """Renews the leases of this host. Returns the ids of the runs whose leases it has lost."""
        with self.transaction():
            tokens = self._tokens.items()
            lost = [
                name for name, token in tokens if not self._execute(RENEW_LEASE, self.lease_s, name, self.owner, token)
            ]
        for name in lost:
            del self._tokens[name]
        return lost

    def list_cancelled(self) -> dict[str, str]:
        """The runs of this host that are to be cancelled: run id -> who has asked for it."""
        if not self._tokens:
            return {}
        sql = f"""SELECT id, cancelled_by FROM runs WHERE lease_owner = ? AND cancelled_by IS NOT NULL
        AND {_UNFINISHED}"""  # noqa: S608 -- a constant
        return dict(self._query(sql, self.owner))

    def release_lease(self, run_id: str) -> None:
        """Ends a lease of this host, so that any host can claim the run at once."""
        token = self._tokens.pop(run_id, None)
        if token is not None:
            sql = """UPDATE runs SET lease_owner = NULL, lease_until = 0
            WHERE id = ? AND lease_owner = ? AND lease_token = ?"""
            self._execute(sql, run_id, self.owner, token)

    def forget_lease(self, run_id: str) -> None:
        """Stops renewing a lease: it ends when its time is over."""
        self._tokens.pop(run_id, None)

    def holds_lease(self, run_id: str) -> bool:
        return run_id in self._tokens

    def request_cancel(self, run_id: str, cancelled_by: str) -> None:
        """Asks the host that executes a run to cancel the run. Only the first request counts."""
        sql = f"UPDATE runs SET cancelled_by = ? WHERE id = ? AND cancelled_by IS NULL AND {_UNFINISHED}"  # noqa: S608 -- a constant
        self._execute(sql, cancelled_by, run_id)

    def _get_lease_token(self, run_id: str) -> int:
        """The token of a lease of this host. Raises LeaseLost if it has none."""
        if run_id not in self._tokens:
            raise LeaseLost(run_id)
        return self._tokens[run_id]

    # Events

    def append_events(self, run_id: str, first: int, docs: Iterable[bytes]) -> None:
        """Appends events, numbered from `first` on, to a run whose lease this host holds. Renews the lease."""
        rows = [(run_id, first + offset, doc) for offset, doc in enumerate(docs)]
        with self.transaction():
            self._lock_and_renew_lease(run_id)
            self._insert_rows("INSERT INTO events VALUES (?, ?, ?)", rows)
            self.announce(run_id)

    def load_events(self, run_id: str, first: int = 0, limit: int = MAX_SEQUENCE) -> list[bytes]:
        sql = "SELECT doc FROM events WHERE run = ? AND sequence >= ? ORDER BY sequence LIMIT ?"
        return [row[0] for row in self._query(sql, run_id, min(first, MAX_SEQUENCE), limit)]

    def load_last_event(self, run_id: str) -> tuple[int, bytes] | None:
        """The sequence number and JSON of the last event of a run."""
        rows = self._query("SELECT sequence, doc FROM events WHERE run = ? ORDER BY sequence DESC LIMIT 1", run_id)
        return rows[0] if rows else None

    def _lock_and_renew_lease(self, run_id: str) -> None:
        """Renews the lease of a run. Until the end of the transaction no other host can claim the run."""
        if not self._execute(RENEW_LEASE, self.lease_s, run_id, self.owner, self._get_lease_token(run_id)):
            self._tokens.pop(run_id, None)
            raise LeaseLost(run_id)

    # The journal of an eval, where the store is shared

    def append_journal(self, run_id: str, lines: Mapping[int, bytes]) -> None:
        """Adds journal lines, by number, of a run whose lease this host holds. They are deleted when the run ends."""
        with self.transaction(is_durable=0 in lines):  # trials without the start of their run could not be read
            self._lock_and_renew_lease(run_id)
            self._insert_rows("INSERT INTO journals VALUES (?, ?, ?)", [(run_id, *line) for line in lines.items()])

    def load_journal(self, run_id: str) -> dict[int, bytes]:
        return dict(self._query("SELECT number, doc FROM journals WHERE run = ? ORDER BY number", run_id))

    # Annotations and responses

    def add_annotation(self, run_id: str, annotation: Mapping[str, Any]) -> None:
        with self.transaction():
            self._execute(
                "UPDATE runs SET created = created WHERE id = ?", run_id
            )  # a lock: other hosts number them too
            self._execute(
                "INSERT INTO annotations VALUES (?, (SELECT count(*) FROM annotations WHERE run = ?), ?)",
                run_id,
                run_id,
                codec.encode(annotation),
            )

    def count_annotations(self, run_id: str) -> int:
        return self._query("SELECT count(*) FROM annotations WHERE run = ?", run_id)[0][0]

    def load_annotations(self, run_id: str) -> list[dict[str, Any]]:
        rows = self._query("SELECT doc FROM annotations WHERE run = ? ORDER BY number", run_id)
        return [codec.decode_own(row[0]) for row in rows]

    def find_response(self, tenant: str, operation: str, key: str) -> StoredResponse | None:
        rows = self._query(
            "SELECT request, status, body FROM answers WHERE tenant = ? AND operation = ? AND key = ? AND at > clock() - ?",
            tenant,
            operation,
            key,
            RESPONSE_TTL_S,
        )
        return StoredResponse(*rows[0]) if rows else None

    def save_response(self, tenant: str, operation: str, key: str, response: StoredResponse) -> bool:
        """Saves a response. Returns False if there is one under this key already: another host may have been faster."""
        self._execute("DELETE FROM answers WHERE at <= clock() - ?", RESPONSE_TTL_S)
        sql = "INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, clock()) ON CONFLICT (tenant, operation, key) DO NOTHING"
        return bool(self._execute(sql, tenant, operation, key, response.request, response.status, response.body))


def _decode_run(doc: bytes, cancelled_by: str | None = None) -> Run:
    run = codec.decode_own(doc, type=Run)
    if cancelled_by is not None and not run.is_finished:
        run.status = "cancelling"
    return run
