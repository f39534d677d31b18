"""Lets a run record a cassette, replay one, or use none."""

from collections.abc import Iterable, Mapping
from typing import Any

import viva
from viva.errors import BadInput
from viva.model.case import Key
from viva.model.connector import Connector
from viva.protocols import Agent, EventStore
from viva.record.cassette import CassetteLine, CassetteLineCollector, CassetteRecorder
from viva.record.cassette_agents import RecordingAgent, ReplayingAgent
from viva.record.player import CassettePlayer
from viva.record.redaction import Redactor
from viva.session.options.run_options import AllRunOptions


class CassetteMode:
    """Records or replays the replies of a run, or does neither. A worker only collects the lines; its coordinator writes them."""

    def __init__(
        self, options: AllRunOptions, redactor: Redactor, connectors: Mapping[str, Connector], *, is_worker: bool
    ) -> None:
        record, replay = options.record, options.replay
        if record is not None and replay is not None:
            raise BadInput.of("--record and --replay exclude each other; --replay-missing live calls what is missing")
        self._recorder = CassetteRecorder(record, viva.__version__, redactor) if record and not is_worker else None
        self._collector = CassetteLineCollector(redactor) if record and is_worker else self._recorder
        self._player = CassettePlayer(replay, options.replay_missing, redactor) if replay else None
        self._connectors = connectors

    @property
    def is_active(self) -> bool:
        return self._collector is not None or self._player is not None

    def wrap_agent(self, agent: Agent, name: str, definition: Any) -> Agent:
        if self._collector is not None:
            return RecordingAgent(agent, name, definition, self._collector)
        return agent if self._player is None else ReplayingAgent(agent, name, definition, self._player)

    def take_trial(self, key: Key) -> tuple[CassetteLine, ...]:
        """The cassette lines that a worker recorded in one attempt. They are removed here."""
        return () if self._collector is None else self._collector.pop_trial_lines(key)

    def add_trial(self, lines: Iterable[CassetteLine]) -> None:
        """Write the cassette lines that a worker sent."""
        if self._recorder is not None:
            self._recorder.add_trial_lines(lines)

    def resume(self, ended: frozenset[Key]) -> None:
        """Continue the cassette of a resumed run. Only the recordings of trials that have ended are kept."""
        if self._recorder is not None:
            self._recorder.continue_recording(ended)

    def get_recorded_duration(self, key: Key) -> float | None:
        """The duration of a replayed trial when it was recorded, in ms."""
        return None if self._player is None else self._player.get_recorded_duration_ms(key)

    def may_retry(self, key: Key) -> bool:
        """May a trial that ended in an error be retried? A replay retries it only if the recorded run did."""
        return self._player is None or self._player.may_retry(key)

    def explain_live_call(self, key: Key) -> str | None:
        """Why a replayed trial called the real agent, if it did."""
        return None if self._player is None else self._player.explain_live_call(key)

    def find_drift(self) -> list[str]:
        """The changes of agents and connectors since the recording, one line for each."""
        return [] if self._player is None else self._player.find_drift(self._connectors)

    @property
    def event_stores(self) -> list[EventStore]:
        """The recorder, if there is one. It stores events before the journal does."""
        return [] if self._recorder is None else [self._recorder]

    def flush(self) -> None:
        """Write buffered lines to the cassette. Raises RunStopped if that fails."""
        if self._recorder is not None:
            self._recorder.flush()

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
