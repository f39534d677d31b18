"""The store of a host: runs, events, annotations, and responses by idempotency key.

`Store` has the statements, which SQLite and PostgreSQL both understand; a subclass has the connection. A block of events,
and a run with the response that announces it, are one transaction each: after `kill -9` either all of it is stored or
nothing.

Whoever executes a run holds its lease. Each claim of a lease has a higher token, and every write to a run compares token
and owner, so a host that was given up for dead and wakes up again cannot write.
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
"""How long a shared store knows which runs were deleted: a host that was stopped meanwhile deletes its files later."""
LEASE_S = 15.0
"""A host that does not renew the lease of a run for so long has lost it."""


class Run(Struct, kw_only=True, omit_defaults=True):
    """One run of a tenant. `request` holds the part of the request that is needed to execute and to show the run."""

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
    summary: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    principal: str | None = None
    engine: str | None = None
    """The version of Viva that started it."""

    @property
    def is_finished(self) -> bool:
        return self.status in FINAL_STATUSES


class StoredResponse(Struct, frozen=True):
    """A response under an idempotency key, and the digest of its request."""

    request: str
    status: int
    body: bytes


class Claim(Struct, frozen=True):
    """A run whose lease this host holds now. `inputs` is what only its execution needs; it is not stored any longer."""

    run: Run
    inputs: bytes | None = None
    cancelled_by: str | None = None
    """Who has asked to cancel it."""


class TenantQueue(Struct, frozen=True):
    """The unfinished runs of a tenant: how many execute, how many wait, and the first that waits."""

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

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run


class SequenceTaken(VivaError):  # noqa: N818
    """An event has this number already; nothing was written."""


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
    """Do other hosts use it too? Then all that they need to take over a run has to be in it."""

    def __init__(self, owner: str, lease_s: float = LEASE_S) -> None:
        self.owner = owner
        """The name of this host among those that share the store."""
        self.lease_s = lease_s
        self._tokens: dict[str, int] = {}
        """The tokens of the leases that this host holds."""

    @abstractmethod
    def transaction(self, *, is_durable: bool = False) -> AbstractContextManager[None]:
        """All or nothing. A transaction inside another one is part of it.

        The death of a host loses no transaction. A crash of the database may lose the last ones, up to the last durable one.
        """

    @abstractmethod
    def _select(self, sql: str, *values: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def _change(self, sql: str, *values: Any) -> int:
        """Executes a statement, and returns the number of rows that it changed."""

    @abstractmethod
    def _insert(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Raises SequenceTaken if a row is there already."""

    @abstractmethod
    def check(self) -> None:
        """Raises StoreUnavailable if nothing can be written. It may take seconds: it is called in a thread."""

    @abstractmethod
    def close(self) -> None: ...

    def watch(self, on_change: Callable[[str, bytes | None], object]) -> None:  # noqa: B027 -- one process has no others
        """Calls `on_change`, in another thread, with each run whose log another host changes, and with its notices."""

    def announce(self, run: str, notice: bytes | None = None) -> None:  # noqa: B027
        """Tells other hosts that the log of a run has grown, or passes a notice on to their readers."""

    # Runs

    def create_run(self, run: Run, inputs: bytes | None = None) -> None:
        self._change(
            "INSERT INTO runs (id, tenant, status, created, doc, inputs) VALUES (?, ?, ?, clock(), ?, ?)",
            run.id,
            run.tenant,
            run.status,
            codec.encode(run),
            inputs,
        )

    def save_run(self, run: Run) -> None:
        """Saves the state of a run whose lease this host holds. Its inputs are not needed any more."""
        lease = ", lease_owner = NULL, lease_until = 0" if run.is_finished else ""
        sql = f"UPDATE runs SET status = ?, doc = ?, inputs = NULL{lease} WHERE id = ? AND lease_owner = ? AND lease_token = ?"  # noqa: S608 -- a constant
        if not self._change(sql, run.status, codec.encode(run), run.id, self.owner, self._token(run.id)):
            self._tokens.pop(run.id, None)
            raise LeaseLost(run.id)
        if run.is_finished and self.is_shared:
            self._change("DELETE FROM journals WHERE run = ?", run.id)

    def find_run(self, name: str, tenant: str) -> Run | None:
        rows = self._select("SELECT doc, cancelled_by FROM runs WHERE id = ? AND tenant = ?", name, tenant)
        return _decode_run(*rows[0]) if rows else None

    def find_any_run(self, name: str) -> Run | None:
        """A run of any tenant, for administrators."""
        rows = self._select("SELECT doc, cancelled_by FROM runs WHERE id = ?", name)
        return _decode_run(*rows[0]) if rows else None

    def list_runs(
        self,
        tenant: str | None,
        statuses: Sequence[str],
        before: tuple[float, str] | None = None,
        limit: int = 100,
    ) -> list[tuple[float, Run]]:
        """Runs of one tenant or all, with these states or any, newest first; each with the time of its creation."""
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
        return [(created, _decode_run(doc, by)) for created, doc, by in self._select(sql, *values, limit)]

    def delete_runs(self, names: Iterable[str]) -> None:
        """Deletes finished runs with their events and annotations. Unfinished ones stay."""
        with self.transaction():
            for name in names:
                if self._change(f"DELETE FROM runs WHERE id = ? AND NOT ({_UNFINISHED})", name):  # noqa: S608 -- a constant
                    for table in ("events", "annotations", "journals"):
                        self._change(f"DELETE FROM {table} WHERE run = ?", name)  # noqa: S608 -- a constant
                    if self.is_shared:
                        self._change("INSERT INTO deletions VALUES (?, clock()) ON CONFLICT (run) DO NOTHING", name)
            self._change("DELETE FROM deletions WHERE at <= clock() - ?", DELETION_TTL_S)

    def list_deletions(self) -> set[str]:
        """The runs that any host has deleted: others may still have files of them."""
        return {row[0] for row in self._select("SELECT run FROM deletions")}

    def delete_responses(self, tenant: str) -> None:
        """Deletes the responses that are stored under idempotency keys of a tenant."""
        self._change("DELETE FROM answers WHERE tenant = ?", tenant)

    def has_run(self, name: str) -> bool:
        """Is there a run with this id, of any tenant?"""
        return bool(self._select("SELECT 1 FROM runs WHERE id = ?", name))

    def list_queues(self) -> list[TenantQueue]:
        """The tenants that have unfinished runs, with the run of each that is the next to start."""
        sql = f"""SELECT tenant, count(*), sum(CASE WHEN lease_until > clock() THEN 1 ELSE 0 END),
        (SELECT id FROM runs AS waiting WHERE waiting.tenant = runs.tenant AND {_UNFINISHED}
        AND lease_until <= clock() ORDER BY created LIMIT 1) FROM runs WHERE {_UNFINISHED} GROUP BY tenant"""  # noqa: S608 -- a constant
        return [
            TenantQueue(tenant, int(running), count - int(running), next_run)
            for tenant, count, running, next_run in self._select(sql)
        ]

    def count_unfinished(self, tenant: str | None = None) -> int:
        sql = f"SELECT count(*) FROM runs WHERE {_UNFINISHED}"  # noqa: S608 -- a constant
        return self._select(*((sql,) if tenant is None else (sql + " AND tenant = ?", tenant)))[0][0]

    # Leases

    def claim_run(self, name: str) -> Claim | None:
        """Takes the lease of an unfinished run, if no host holds it."""
        with self.transaction():
            sql = f"""UPDATE runs SET lease_owner = ?, lease_token = lease_token + 1, lease_until = clock() + ?
            WHERE id = ? AND lease_until <= clock() AND {_UNFINISHED}"""  # noqa: S608 -- a constant
            if not self._change(sql, self.owner, self.lease_s, name):
                return None
            sql = "SELECT doc, inputs, cancelled_by, lease_token FROM runs WHERE id = ?"
            doc, inputs, cancelled_by, token = self._select(sql, name)[0]
        self._tokens[name] = token
        return Claim(_decode_run(doc), inputs, cancelled_by)

    def renew_leases(self) -> list[str]:
        """Renews the leases of this host. Returns the runs whose leases it lost."""
        with self.transaction():
            tokens = self._tokens.items()
            lost = [
                name for name, token in tokens if not self._change(RENEW_LEASE, self.lease_s, name, self.owner, token)
            ]
        for name in lost:
            del self._tokens[name]
        return lost

    def list_cancelled(self) -> dict[str, str]:
        """The runs of this host that are to be cancelled, with who asked for it."""
        if not self._tokens:
            return {}
        sql = f"""SELECT id, cancelled_by FROM runs WHERE lease_owner = ? AND cancelled_by IS NOT NULL
        AND {_UNFINISHED}"""  # noqa: S608 -- a constant
        return dict(self._select(sql, self.owner))

    def release_run(self, name: str) -> None:
        """Gives a lease back, so that any host can claim the run at once."""
        token = self._tokens.pop(name, None)
        if token is not None:
            sql = """UPDATE runs SET lease_owner = NULL, lease_until = 0
            WHERE id = ? AND lease_owner = ? AND lease_token = ?"""
            self._change(sql, name, self.owner, token)

    def forget_lease(self, name: str) -> None:
        """Does not renew a lease any more; it ends by itself."""
        self._tokens.pop(name, None)

    def holds_lease(self, name: str) -> bool:
        return name in self._tokens

    def request_cancel(self, name: str, cancelled_by: str) -> None:
        """Asks the host that executes a run to cancel it. Only the first one counts."""
        sql = f"UPDATE runs SET cancelled_by = ? WHERE id = ? AND cancelled_by IS NULL AND {_UNFINISHED}"  # noqa: S608 -- a constant
        self._change(sql, cancelled_by, name)

    def _token(self, run: str) -> int:
        if run not in self._tokens:
            raise LeaseLost(run)
        return self._tokens[run]

    # Events

    def append_events(self, run: str, first: int, docs: Iterable[bytes]) -> None:
        """Events with the sequence numbers from `first` on, of a run whose lease this host holds. Renews the lease."""
        rows = [(run, first + offset, doc) for offset, doc in enumerate(docs)]
        with self.transaction():
            self._lock_run(run)
            self._insert("INSERT INTO events VALUES (?, ?, ?)", rows)
            self.announce(run)

    def load_events(self, run: str, first: int = 0) -> list[bytes]:
        sql = "SELECT doc FROM events WHERE run = ? AND sequence >= ? ORDER BY sequence"
        return [row[0] for row in self._select(sql, run, first)]

    def _lock_run(self, run: str) -> None:
        """Until the end of the transaction no other host can claim the run."""
        if not self._change(RENEW_LEASE, self.lease_s, run, self.owner, self._token(run)):
            self._tokens.pop(run, None)
            raise LeaseLost(run)

    # The journal of an eval, where the store is shared

    def append_journal(self, run: str, lines: Mapping[int, bytes]) -> None:
        """Lines by their numbers, of a run whose lease this host holds. They are deleted when the run ends."""
        with self.transaction():
            self._lock_run(run)
            self._insert("INSERT INTO journals VALUES (?, ?, ?)", [(run, *line) for line in lines.items()])

    def load_journal(self, run: str) -> dict[int, bytes]:
        return dict(self._select("SELECT number, doc FROM journals WHERE run = ? ORDER BY number", run))

    # Annotations and responses

    def add_annotation(self, run: str, annotation: Mapping[str, Any]) -> None:
        with self.transaction():
            self._change("UPDATE runs SET created = created WHERE id = ?", run)  # a lock: other hosts number them too
            self._change(
                "INSERT INTO annotations VALUES (?, (SELECT count(*) FROM annotations WHERE run = ?), ?)",
                run,
                run,
                codec.encode(annotation),
            )

    def load_annotations(self, run: str) -> list[dict[str, Any]]:
        rows = self._select("SELECT doc FROM annotations WHERE run = ? ORDER BY number", run)
        return [codec.decode_own(row[0]) for row in rows]

    def find_response(self, tenant: str, operation: str, key: str) -> StoredResponse | None:
        rows = self._select(
            "SELECT request, status, body FROM answers WHERE tenant = ? AND operation = ? AND key = ? AND at > clock() - ?",
            tenant,
            operation,
            key,
            RESPONSE_TTL_S,
        )
        return StoredResponse(*rows[0]) if rows else None

    def save_response(self, tenant: str, operation: str, key: str, response: StoredResponse) -> bool:
        """Returns whether it was saved: another host may have been faster."""
        self._change("DELETE FROM answers WHERE at <= clock() - ?", RESPONSE_TTL_S)
        sql = "INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, clock()) ON CONFLICT (tenant, operation, key) DO NOTHING"
        return bool(self._change(sql, tenant, operation, key, response.request, response.status, response.body))


def _decode_run(doc: bytes, cancelled_by: str | None = None) -> Run:
    run = codec.decode_own(doc, type=Run)
    if cancelled_by is not None and not run.is_finished:
        run.status = "cancelling"
    return run
