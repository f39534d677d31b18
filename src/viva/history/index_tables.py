"""The tables of the index of runs, and the changes that bring an older index up to date."""

import sqlite3
from collections.abc import Callable


def _create_tables(db: sqlite3.Connection) -> None:
    db.execute(
        "CREATE TABLE runs (id TEXT PRIMARY KEY, at TEXT, viva TEXT, agent TEXT, inputs TEXT, cases INTEGER,"
        " ended TEXT, exit_code INTEGER, stopped TEXT, summary TEXT)"
    )
    db.execute(
        "CREATE TABLE results (run TEXT, suite TEXT, case_id TEXT, trial INTEGER, status TEXT, fault TEXT, error TEXT,"
        " digest TEXT, turns INTEGER, score REAL, duration_ms REAL, cost_usd REAL, tokens INTEGER,"
        " PRIMARY KEY (run, suite, case_id, trial)) WITHOUT ROWID"
    )
    db.execute("CREATE INDEX results_by_case ON results (suite, case_id, run)")


def _drop_case_index(db: sqlite3.Connection) -> None:
    """Drop an index that no query uses and that cost more than all other writes."""
    db.execute("DROP INDEX results_by_case")


def _add_run_numbers(db: sqlite3.Connection) -> None:
    """Add sequence numbers, and how much of the journal of an unfinished run is indexed."""
    db.execute("ALTER TABLE runs ADD COLUMN number INTEGER NOT NULL DEFAULT 0")
    db.execute("ALTER TABLE runs ADD COLUMN size INTEGER NOT NULL DEFAULT 0")


def _add_agents(db: sqlite3.Connection) -> None:
    """Add the agent of each result to its key: a run can have several."""
    db.execute("ALTER TABLE runs ADD COLUMN agents TEXT NOT NULL DEFAULT '[]'")
    db.execute("UPDATE runs SET agents = json_array(agent)")
    db.execute("ALTER TABLE results RENAME TO results_without_agent")
    db.execute(
        "CREATE TABLE results (run TEXT, suite TEXT, case_id TEXT, trial INTEGER, status TEXT, fault TEXT, error TEXT,"
        " digest TEXT, turns INTEGER, score REAL, duration_ms REAL, cost_usd REAL, tokens INTEGER, agent TEXT,"
        " PRIMARY KEY (run, suite, case_id, agent, trial)) WITHOUT ROWID"
    )
    db.execute(
        "INSERT INTO results SELECT r.*, coalesce(u.agent, '') FROM results_without_agent r"
        " LEFT JOIN runs u ON u.id = r.run"
    )
    db.execute("DROP TABLE results_without_agent")


MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [
    _create_tables,
    _drop_case_index,
    _add_run_numbers,
    _add_agents,
]
