"""Recording a run on a cassette, or replaying one: what is put around agents, and how long trials took."""

from collections.abc import Mapping
from typing import Any

import viva
from viva.errors import BadInput
from viva.model.case import Key
from viva.model.connector import Connector
from viva.protocols import Agent, EventStore
from viva.record.cassette import Recorder
from viva.record.cassette_agents import RecordingAgent, ReplayingAgent
from viva.record.player import CassettePlayer
from viva.record.redaction import Redactor
from viva.session.options import RunOptions


class CassetteMode:
    """The cassette of a run, if it has one."""

    def __init__(self, options: RunOptions, redactor: Redactor, connectors: Mapping[str, Connector]) -> None:
        if options.record is not None and options.replay is not None:
            raise BadInput.of("--record and --replay cannot both be meant; --replay-missing live calls what is missing")
        record, replay = options.record, options.replay
        self._recorder = Recorder(record, viva.__version__, redactor) if record else None
        self._tape = CassettePlayer(replay, options.replay_missing, redactor) if replay else None
        self._connectors = connectors

    @property
    def is_active(self) -> bool:
        return self._recorder is not None or self._tape is not None

    def wrap_agent(self, agent: Agent, name: str, definition: Any) -> Agent:
        if self._recorder is not None:
            return RecordingAgent(agent, name, definition, self._recorder)
        return agent if self._tape is None else ReplayingAgent(agent, name, definition, self._tape)

    def resume(self, ended: frozenset[Key]) -> None:
        """The run goes on with the cassette that it had begun: what was recorded of trials that have ended stays."""
        if self._recorder is not None:
            self._recorder.resume(ended)

    def get_recorded_duration(self, key: Key) -> float | None:
        """How long a replayed trial took when it was recorded."""
        return None if self._tape is None else self._tape.trial_duration_ms(key)

    def may_retry(self, key: Key) -> bool:
        """May a trial that ended in an error be tried once more? A replay does so only where the recorded run did."""
        return self._tape is None or self._tape.may_retry(key)

    def explain_live_call(self, key: Key) -> str | None:
        """Why the real agent was asked in a replayed trial, if it was."""
        return None if self._tape is None else self._tape.explain_live_call(key)

    def find_drift(self) -> list[str]:
        """What has changed since the recording, one line for each agent and connector."""
        return [] if self._tape is None else self._tape.find_drift(self._connectors)

    @property
    def event_stores(self) -> list[EventStore]:
        """What a run hands its events to before it journals them."""
        return [] if self._recorder is None else [self._recorder]

    def flush(self) -> None:
        """Writes what is not written yet; RunStopped where that fails."""
        if self._recorder is not None:
            self._recorder.flush()

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
