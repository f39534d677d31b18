"""Viva for pytest: a loop in a thread, trials of suites, the fixtures `viva`, `t` and `ctx`."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from viva.api.failure_text import format_failed_assertions
from viva.api.project import Project
from viva.config import find_config
from viva.engine.conversation import run_turn
from viva.engine.event_bus import EventBus
from viva.engine.outcome import UNCHECKED_MESSAGE, count_checks
from viva.engine.trial import RunContext, run_trial
from viva.model.case import Case, UserMessage
from viva.model.record import TrialRecord
from viva.model.turn import Turn
from viva.protocols import PlannedTrial
from viva.session.hooks import add_hooks
from viva.session.loop import LoopThread
from viva.session.messages import AgentReply, build_agent_reply
from viva.session.run import create_run_context
from viva.session.run_options import RunOptions
from viva.session.run_plan import build_run_plan
from viva.session.script_context import create_context
from viva.session.script_tests import UNCHECKED_HINT
from viva.session.tester import T, collect_results
from viva.users.script import Script


class PytestSession:
    """Shared by all tests of a pytest session. `agent` is the default agent under test; `evaluator` grades playbooks."""

    def __init__(self, agent: str | None = None, evaluator: str | None = None) -> None:
        self.agent = agent
        self._evaluator = evaluator
        self.loop = LoopThread()
        self._projects: dict[Path, Project] = {}
        self._suites: list[LoadedSuite] = []

    def find_project(self, folder: Path) -> Project:
        if folder not in self._projects:
            self._projects[folder] = Project.load(None, folder)
        return self._projects[folder]

    def load_suite(self, file: Path, folder: Path) -> "LoadedSuite":
        """The cases of a file. Messages show paths relative to `folder`. Raises BadInput."""
        options = RunOptions(
            inputs=(str(file),),
            agent=self.agent,
            evaluator=self._evaluator,
            config=find_config(file.parent.resolve()),
            folder=folder,
            history=False,
        )
        suite = self.loop.run_blocking(_load_suite(options))
        self._suites.append(suite)
        return suite

    def run_trial(self, suite: "LoadedSuite", planned: PlannedTrial) -> TrialRecord:
        return self.loop.run_blocking(run_trial(suite.run_context, planned))

    def close(self) -> None:
        for owner in (*self._projects.values(), *(suite.run_context for suite in self._suites)):
            self.loop.run_blocking(owner.http.close())
        self.loop.close()


class LoadedSuite(Struct, frozen=True):
    """The trials of a file, grouped by case."""

    run_context: RunContext
    trials: list[list[PlannedTrial]]


async def _load_suite(options: RunOptions) -> LoadedSuite:
    plan = await build_run_plan(options)
    run_context = create_run_context(plan, f"pytest-{secrets.token_hex(2)}", EventBus((), ()))
    run_context, _hooks = add_hooks(run_context)
    trials: list[list[PlannedTrial]] = []
    async for planned in plan.iterate_trials():
        if planned.trial == 1:
            trials.append([])
        trials[-1].append(planned)
    return LoadedSuite(run_context, trials)


class TestContext:
    """`t` and `ctx` of one test that pytest runs."""

    def __init__(self, session: PytestSession, name: str, folder: Path, function: Callable[..., Any]) -> None:
        project = session.find_project(folder)
        case = Case(id=name, user=Script(()), sessions="each_message")
        self._state = state = project.create_state(case, f"viva-{secrets.token_hex(4)}")
        self._redact = project.redactor.redact_text
        caller = project.create_caller(state, session.agent)

        async def send(message: UserMessage) -> AgentReply:
            turn = Turn(len(state.turns) + 1, message)
            state.turns.append(turn)
            await run_turn(state, turn, caller.send)
            assert turn.reply is not None
            return build_agent_reply(turn.reply, turn.awaiting, turn.latency_ms)

        self.t = T(state, session.loop.run_blocking)
        self.ctx = create_context(function, send, session.loop.bridge, state.variables)

    @property
    def log_text(self) -> str:
        return self._redact("\n".join(self._state.notes))

    @property
    def unchecked_reason(self) -> str | None:
        """Why a test that recorded nothing does not pass, as in `viva test`."""
        return None if count_checks(self._state) else f"{UNCHECKED_MESSAGE}. {UNCHECKED_HINT}"

    def format_failures(self) -> str | None:
        """The assertions that failed or could not be evaluated, with the conversation; None if there are none."""
        failed = [result for result in collect_results(self._state) if not result.verdict.passed]
        return self._redact(format_failed_assertions(failed, self._state)) if failed else None
