"""Runs cases and script tests for pytest, on an event loop in a thread."""

import asyncio
import re
import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
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
from viva.errors import BadInput
from viva.llm.pacing import START_CONVERSATIONS
from viva.model.case import Case, Feature, UserMessage
from viva.model.event import PlannedSuite
from viva.model.record import TrialRecord
from viva.model.turn import Turn
from viva.protocols import AgentSession, PlannedTrial, SessionContext
from viva.session.loop import CallOutcome, LoopThread
from viva.session.messages import AgentReply
from viva.session.options.run_options import AllRunOptions
from viva.session.run import create_run_context
from viva.session.run_plan import IN_PROCESS_PARALLEL, RunPlan, build_run_plan
from viva.session.scripts.context import create_context
from viva.session.scripts.hooks import add_hooks
from viva.session.scripts.script_tests import UNCHECKED_TEST_HINT
from viva.session.scripts.tester import T, TestReplies, collect_results
from viva.users.script import Script

_PYTEST_FLAG_PATTERNS = (
    (re.compile(r"(?<![\w-])(-n |agent=)(?=\w)"), "--viva-agent "),
    (re.compile(r"(?<!\w)--evaluator\b"), "--viva-evaluator"),
)


def replace_flags_by_pytest_flags(error: BadInput) -> BadInput:
    """The error with flags of the pytest plugin in its messages, instead of flags of `viva test` or keywords of `viva.run`."""
    problems = list(error.problems)
    for pattern, flag in _PYTEST_FLAG_PATTERNS:
        problems = [replace(problem, message=pattern.sub(flag, problem.message)) for problem in problems]
    return BadInput(*problems)


class LoadedSuite(Struct, frozen=True):
    """A loaded suite file: its plan, its RunContext and its trials by case id."""

    file: Path
    plan: RunPlan
    run_context: RunContext
    trials: dict[str, list[PlannedTrial]]

    @property
    def threshold(self) -> PlannedSuite | None:
        """The suite if it has a threshold; else None."""
        return next((suite for suite in self.plan.planned_suites if suite.threshold is not None), None)


class PytestSession:
    """Projects, suites and the event loop of one pytest session. `agent` is the default agent; `evaluator` grades playbooks."""

    def __init__(self, agent: str | None, evaluator: str | None) -> None:
        self.agent = agent
        self._evaluator = evaluator
        self.loop = LoopThread()
        self._projects: dict[Path, Project] = {}
        self._suites: dict[tuple[Path, int], LoadedSuite] = {}
        self._runs: dict[tuple[int, str], Future[CallOutcome[list[TrialRecord]]]] = {}
        self._limits: dict[int, asyncio.Semaphore] = {}

    def find_project(self, folder: Path) -> Project:
        if folder not in self._projects:
            self._projects[folder] = Project.load(None, folder)
        return self._projects[folder]

    def load_suite(self, file: Path, folder: Path, agent: Any = None) -> LoadedSuite:
        """The cases of a file on an agent that a fixture has made (default: the agent of the session). Raises BadInput.

        Messages show paths relative to `folder`.
        """
        if (file, id(agent)) not in self._suites:
            options = AllRunOptions(
                inputs=(str(file),),
                agents=tuple(each for each in (self.agent if agent is None else agent,) if each is not None),
                evaluator=self._evaluator,
                config=find_config(file.parent.resolve()),
                folder=folder,
                history=False,
            )
            try:
                self._suites[file, id(agent)] = self.loop.run_blocking(_build_loaded_suite(file, options))
            except BadInput as error:
                raise replace_flags_by_pytest_flags(error) from None
        return self._suites[file, id(agent)]

    def start_cases(self, cases: Iterable[tuple[LoadedSuite, str]]) -> None:
        """Start cases on the loop, unless they were started before. The number of parallel cases is limited as in `viva test`."""
        for suite, case_id in cases:
            key = (id(suite), case_id)
            if key not in self._runs:
                self._runs[key] = self.loop.bridge.start(self._run_case(suite, case_id))

    def run_case(self, suite: LoadedSuite, case_id: str) -> list[TrialRecord]:
        """Run a case, or wait for it if it was started before, and return the records of its trials."""
        self.start_cases([(suite, case_id)])
        return self.loop.bridge.wait_for(self._runs[id(suite), case_id])

    def list_records(self, suite: LoadedSuite) -> list[TrialRecord]:
        """The records of all cases of the suite that have ended."""
        runs = [self._runs.get((id(suite), case_id)) for case_id in suite.trials]
        return [record for run in runs if run and run.done() for record in self.loop.bridge.wait_for(run)]

    def close(self) -> None:
        for owner in (*self._projects.values(), *(suite.run_context for suite in self._suites.values())):
            self.loop.run_blocking(owner.http.close())
        self.loop.close()

    async def _run_case(self, suite: LoadedSuite, case_id: str) -> list[TrialRecord]:
        """Run the trials of a case one after the other."""
        of_session = self._limits.setdefault(0, asyncio.Semaphore(_find_parallel_limit(suite.plan)))
        of_suite = self._limits.setdefault(
            id(suite), asyncio.Semaphore(min(suite.plan.parallel, _find_parallel_limit(suite.plan)))
        )
        async with of_suite, of_session:
            return [await run_trial(suite.run_context, planned) for planned in suite.trials[case_id]]


def _find_parallel_limit(plan: RunPlan) -> int:
    """The maximum number of parallel cases: from the config, else the number that `viva test` starts with."""
    if isinstance(limit := plan.settings.defaults.parallel, int):
        return limit
    return START_CONVERSATIONS if plan.is_adaptive else IN_PROCESS_PARALLEL


class FixtureAgent:
    """A placeholder for the agent of the fixture `viva_agent`, used while suites are collected."""

    provides: frozenset[Feature] = frozenset({"tool_stubs", "memory", "workspace"})

    def open(self, context: SessionContext) -> AbstractAsyncContextManager[AgentSession]:
        raise RuntimeError("the fixture viva_agent has not made the agent yet")


async def _build_loaded_suite(file: Path, options: AllRunOptions) -> LoadedSuite:
    plan = await build_run_plan(options)
    run_context = create_run_context(plan, f"pytest-{secrets.token_hex(2)}", EventBus((), ()))
    run_context, _hooks = add_hooks(run_context)
    trials: dict[str, list[PlannedTrial]] = {}
    async for planned in plan.iterate_trials():
        trials.setdefault(planned.case.id, []).append(planned)
    return LoadedSuite(file, plan, run_context, trials)


class TestContext:
    """Creates `t` and `ctx` for one test that pytest runs, and formats what they recorded."""

    def __init__(self, session: PytestSession, name: str, folder: Path, function: Callable[..., Any]) -> None:
        project = session.find_project(folder)
        case = Case(id=name, user=Script(()), sessions="each_message")
        self._state = state = project.create_state(case, f"viva-{secrets.token_hex(4)}")
        self._redact = project.redactor.redact_text
        caller = project.create_caller(state, session.agent)
        replies = TestReplies()

        async def send(message: UserMessage) -> AgentReply:
            try:
                caller.find_agent(message.agent)
            except BadInput as error:  # without a run there is no trial that the error could end
                raise replace_flags_by_pytest_flags(error) from None
            turn = Turn(len(state.turns) + 1, message)
            state.turns.append(turn)
            await run_turn(state, turn, caller.send)
            return replies.add(turn)

        self.t = T(state, session.loop.run_blocking, replies)
        self.ctx = create_context(function, send, session.loop.bridge, state.variables)

    @property
    def log_text(self) -> str:
        return self._redact("\n".join(self._state.notes))

    @property
    def unchecked_reason(self) -> str | None:
        """Why a test that recorded nothing does not pass, as in `viva test`."""
        return None if count_checks(self._state) else f"{UNCHECKED_MESSAGE}. {UNCHECKED_TEST_HINT}"

    def format_failures(self) -> str | None:
        """The assertions that failed or could not be evaluated, with the conversation; None if there are none."""
        failed = [result for result in collect_results(self._state) if not result.verdict.passed]
        return self._redact(format_failed_assertions(failed, self._state)) if failed else None
