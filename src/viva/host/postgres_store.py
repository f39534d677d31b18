"""The store of hosts that share a PostgreSQL database."""

import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from typing import Any, LiteralString, cast

import psycopg
from psycopg.types.string import StrDumper

from viva.errors import BadInput
from viva.host.store import LEASE_S, RENEW_LEASE, TABLES, LeaseLost, SequenceTaken, Store, StoreUnavailable

CONNECT_TIMEOUT_S = 5
STATEMENT_TIMEOUT_S = 3
"""The server ends a statement that takes longer. A statement blocks the event loop."""
REPLY_TIMEOUT_S = 4
"""A server that has not answered within this time counts as unreachable."""
NOTIFICATION_WAIT_S = 0.5
MAX_BLOCKED_LEASES = 20
"""For how many times `lease_s` the event loop may be blocked before other hosts take over its runs."""
CHANNEL = "viva_events"
_LOCK_KEY = 0x76697661
"""The key of the advisory lock under which the tables are created: hosts may start at the same moment."""
_MAX_NOTICE_BYTES = 7000
"""A notification of PostgreSQL has at most 8000 bytes."""
_POSTGRES_WORDS = {"?": "%s", "clock()": "extract(epoch FROM clock_timestamp())", "BLOB": "BYTEA"}
_WORD_PATTERN = re.compile(r"\?|clock\(\)|\bBLOB\b")
_OPTIONS: dict[str, Any] = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "application_name": "viva serve",
    "options": f"-c synchronous_commit=off -c statement_timeout={STATEMENT_TIMEOUT_S}s",
}


class PostgresStore(Store):
    """Has one connection for statements, on the thread of the event loop, and one in a thread that waits for notifications.

    `check` opens a lost connection again; until then each statement raises StoreUnavailable at once.
    """

    is_shared = True

    def __init__(self, url: str, lease_s: float = LEASE_S) -> None:
        super().__init__(f"{socket.gethostname()}-{secrets.token_hex(6)}", lease_s)
        self._url = url
        self._transaction_depth = 0
        self._last_renewal = time.monotonic()
        self._listener: _NotificationListener | None = None
        try:
            self._db: psycopg.Connection[Any] | None = self._connect()
        except psycopg.Error as error:
            raise BadInput.of(
                f"The PostgreSQL database of [serve] store cannot be used: {_first_line(error)}"
            ) from error
        with self.transaction():
            self._query("SELECT pg_advisory_xact_lock(?)", _LOCK_KEY)
            for statement in TABLES:
                self._execute(statement)

    def _connect(self) -> psycopg.Connection[Any]:
        db = _Connection.connect(self._url, autocommit=True, prepare_threshold=2, **_OPTIONS)
        db.adapters.register_dumper(str, _TextDumper)
        return db

    @contextmanager
    def transaction(self, *, is_durable: bool = False) -> Generator[None]:
        if self._transaction_depth:
            yield
            return
        db = self._connection()
        self._transaction_depth += 1
        try:
            with self._translate_errors():
                # One message to the server. A durable one waits until all that was written before is on the disk.
                db.execute("BEGIN; SET LOCAL synchronous_commit = on" if is_durable else "BEGIN", prepare=False)
                try:
                    yield
                    db.execute("COMMIT")
                except BaseException:
                    with suppress(psycopg.Error):  # a lost connection has nothing to undo
                        db.execute("ROLLBACK")
                    raise
        finally:
            self._transaction_depth -= 1

    def _connection(self) -> "psycopg.Connection[Any]":
        if self._db is None or self._db.closed:
            raise StoreUnavailable("database_unavailable")
        return self._db

    def _query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._translate_errors():
            return self._connection().execute(_to_postgres_sql(sql), values).fetchall()

    def _execute(self, sql: str, *values: Any) -> int:
        with self._translate_errors():
            return self._connection().execute(_to_postgres_sql(sql), values).rowcount

    def _insert_rows(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with self._translate_errors(), self._connection().cursor() as cursor:
            cursor.executemany(_to_postgres_sql(sql), rows)

    def append_events(self, run_id: str, first: int, docs: Iterable[bytes]) -> None:
        """Like `Store.append_events`, but sends all statements together: a round trip takes longer than a statement."""
        rows = [(run_id, first + offset, doc) for offset, doc in enumerate(docs)]
        token = self._get_lease_token(run_id)
        with self.transaction():
            db = self._connection()
            with self._translate_errors(), db.pipeline(), db.cursor() as cursor:
                lease = db.execute(_to_postgres_sql(RENEW_LEASE), (self.lease_s, run_id, self.owner, token))
                cursor.executemany(_to_postgres_sql("INSERT INTO events VALUES (?, ?, ?)"), rows)
                db.execute("SELECT pg_notify(%s, %s)", (CHANNEL, f"{self.owner} {run_id} "))
            if not lease.rowcount:
                self.forget_lease(run_id)
                raise LeaseLost(run_id)

    def announce(self, run_id: str, notice: bytes | None = None) -> None:
        if notice is None or len(notice) <= _MAX_NOTICE_BYTES:
            payload = f"{self.owner} {run_id} {'' if notice is None else notice.decode()}"
            self._query("SELECT pg_notify(?, ?)", CHANNEL, payload)

    def watch(self, on_change: Callable[[str, bytes | None], object]) -> None:
        self._listener = _NotificationListener(self._connect, self.owner, on_change, self._extend_leases)
        self._listener.start()

    def renew_leases(self) -> list[str]:
        self._last_renewal = time.monotonic()
        return super().renew_leases()

    def _extend_leases(self, db: "psycopg.Connection[Any]") -> None:
        """Renews the leases of this host while an agent blocks the event loop, up to a limit."""
        age_s = time.monotonic() - self._last_renewal
        if self.lease_s / 2 < age_s < self.lease_s * MAX_BLOCKED_LEASES:
            sql = "UPDATE runs SET lease_until = clock() + ? WHERE lease_owner = ? AND id = ANY(?)"
            db.execute(_to_postgres_sql(sql), (self.lease_s, self.owner, list(self._tokens)))

    def check(self) -> None:
        if self._db is not None and not self._db.closed:
            return
        try:
            db = self._connect()
            try:
                db.execute("SELECT 1 FROM runs LIMIT 1")  # a table may be locked
            except psycopg.Error:
                db.close()
                raise
        except psycopg.Error as error:
            raise StoreUnavailable("database_unavailable") from error
        self.connection_number += 1
        self._db = db

    def close(self) -> None:
        if self._listener is not None:
            self._listener.stop()
        if self._db is not None:
            self._db.close()

    @contextmanager
    def _translate_errors(self) -> Generator[None]:
        try:
            yield
        except psycopg.errors.UniqueViolation as error:
            raise SequenceTaken(_first_line(error)) from error
        except (psycopg.errors.DiskFull, psycopg.errors.OutOfMemory) as error:
            raise StoreUnavailable("disk_full") from error
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            if self._db is not None:
                self._db.close()  # or each statement would wait as long as this one
            raise StoreUnavailable("database_unavailable") from error


class _TextDumper(StrDumper):
    """A text that a client sent may have what PostgreSQL's texts cannot hold. No id has it, so it finds nothing."""

    def dump(self, obj: str) -> Any:
        return super().dump(obj.replace("\0", "\ufffd"))


class _Connection(psycopg.Connection[Any]):
    """A connection whose statements have a time limit, also if the server does not answer at all."""

    def wait(self, gen: Generator[Any, Any, Any], *arguments: Any, **options: Any) -> Any:
        return super().wait(_limit_time(gen, time.monotonic() + REPLY_TIMEOUT_S), *arguments, **options)


def _limit_time(gen: Generator[Any, Any, Any], deadline: float) -> Generator[Any, Any, Any]:
    """Wraps the generator of a statement, so that it raises after the deadline. psycopg resumes it ten times a second."""
    try:
        events = next(gen)
        while True:
            ready = yield events
            if not ready and time.monotonic() >= deadline:
                raise psycopg.OperationalError("the server does not answer")
            events = gen.send(ready)
    except StopIteration as end:
        return end.value


class _NotificationListener(threading.Thread):
    """A thread that waits for notifications of other hosts. It opens a new connection if the old one breaks."""

    def __init__(
        self,
        connect: "Callable[[], psycopg.Connection[Any]]",
        owner: str,
        on_change: Callable[[str, bytes | None], object],
        extend_leases: "Callable[[psycopg.Connection[Any]], None]",
    ) -> None:
        super().__init__(name="viva-store-watcher", daemon=True)
        self._connect = connect
        self._owner = owner
        self._on_change = on_change
        self._extend_leases = extend_leases
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()
        self.join(CONNECT_TIMEOUT_S + 1)

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._listen()
            except (psycopg.Error, RuntimeError):  # the database restarts, or the event loop is closed
                self._stopped.wait(1)

    def _listen(self) -> None:
        with closing(self._connect()) as db:
            db.execute(f"LISTEN {CHANNEL}")
            while not self._stopped.is_set():
                self._extend_leases(db)
                for notification in db.notifies(timeout=NOTIFICATION_WAIT_S):
                    owner, run_id, notice = notification.payload.split(" ", 2)
                    if owner != self._owner:
                        self._on_change(run_id, notice.encode() or None)
                    if self._stopped.is_set():
                        return


@cache
def _to_postgres_sql(sql: str) -> LiteralString:
    """Translates a statement of `store` for PostgreSQL. All statements are constants."""
    return cast("LiteralString", _WORD_PATTERN.sub(lambda word: _POSTGRES_WORDS[word[0]], sql))


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
