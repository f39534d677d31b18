"""Cases as pytest items, and fixtures for tests of agents. Every pytest run beside Viva loads this: it imports nothing heavy.

pytest                                    collects *.viva.jsonl, *.viva.yaml, *.viva.yml and *.viva.json, an item a case,
                                          and playbooks: *.playbook.yaml, *.playbook.yml and *.playbook.json;
                                          of an eval suite an item a task: its bar is for `viva test` alone
pytest --viva-agent assistants.expense    against another agent than the one that the nearest viva.toml says
pytest --viva-evaluator judge             who grades playbooks and plays the user in them
def test_it(viva): ...                    a fixture that holds conversations and runs suites
def test_it(t, ctx): ...                  a script test; `Test*(t, ctx)` functions are collected too
async def test_it(t, ctx): ...            the same with `await ctx.call(...)`; `viva` in an `async def` needs no plugin either
A script test that notes nothing with `t` is skipped, `nothing was checked`: plain asserts that hold cannot be counted.
"""

import inspect
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from viva.api.pytest_session import LoadedSuite, PytestSession, TestContext, VivaFixture
    from viva.model.record import TrialRecord
    from viva.protocols import PlannedTrial
    from viva.session.script_context import AsyncContext, Context
    from viva.session.tester import T

_SUFFIXES = (
    *(".viva.jsonl", ".viva.yaml", ".viva.yml", ".viva.json"),
    *(".playbook.yaml", ".playbook.yml", ".playbook.json"),
)
_studio_key = pytest.StashKey["PytestSession"]()
_desk_key = pytest.StashKey["TestContext"]()
_exam_key = pytest.StashKey["VivaFixture"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("viva", "examination of agents")
    group.addoption(
        "--viva-agent", metavar="AGENT", help="The agent under test: a name from viva.toml, or a reference."
    )
    group.addoption(
        "--viva-evaluator",
        metavar="NAME",
        help="Who grades *.playbook.yaml (.yml, .json) and plays the user in them: a connector, an agent, or a model.",
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "VivaFile | None":
    if file_path.name.endswith(_SUFFIXES):
        return VivaFile.from_parent(parent, path=file_path)
    return None


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> pytest.Item | None:
    """`Test*(t, ctx)` functions: pytest itself looks for classes of that name."""
    if not name.startswith("Test") or not inspect.isfunction(obj):
        return None
    if "t" not in inspect.signature(obj).parameters:
        return None
    return pytest.Function.from_parent(collector, name=name)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """An `async def` that takes our `t`, `ctx` or `viva`, and that no other plugin runs, runs on a loop of its own."""
    function: Callable[..., Any] = pyfuncitem.obj
    ours = _desk_key in pyfuncitem.stash or _exam_key in pyfuncitem.stash
    if not ours or not inspect.iscoroutinefunction(function):
        return None
    import asyncio

    given = [name for name in inspect.signature(function).parameters if name in pyfuncitem.funcargs]
    asyncio.run(function(**{name: pyfuncitem.funcargs[name] for name in given}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """What `t` noted is judged when the test function is through."""
    desk = item.stash.get(_desk_key, None)
    if desk is None:
        return (yield)
    from viva.session.tester import FailTest, SkipTest

    result, skipped = None, None
    try:
        result = yield
    except FailTest:
        pass  # noted, so it is told below
    except SkipTest as left:
        skipped = left.reason
    except Exception as raised:
        if (unmet := desk.format_failures()) is not None:
            raised.add_note(unmet)
        raise
    finally:
        if desk.log_text:
            item.add_report_section("call", "log of the test", desk.log_text)
    if (unmet := desk.format_failures()) is not None:
        pytest.fail(unmet, pytrace=False)
    if skipped is None and _exam_key not in item.stash:  # what a test finds by `viva` is not noted
        skipped = desk.unchecked_reason
    if skipped is not None:
        pytest.skip(skipped)
    return result


def pytest_unconfigure(config: pytest.Config) -> None:
    studio = config.stash.get(_studio_key, None)
    if studio is not None:
        studio.close()


def _studio(config: pytest.Config) -> "PytestSession":
    """Made by the first who needs it."""
    if _studio_key not in config.stash:
        from viva.api.pytest_session import PytestSession

        config.stash[_studio_key] = PytestSession(
            config.getoption("--viva-agent"), config.getoption("--viva-evaluator")
        )
    return config.stash[_studio_key]


@pytest.fixture
def viva(request: pytest.FixtureRequest) -> "Iterator[VivaFixture]":
    """Holds conversations turn by turn (`viva.chat(agent)`) and runs suites (`viva.run(...)`); has `viva.contains` and all else."""
    from viva.api.pytest_session import VivaFixture

    request.node.stash[_exam_key] = exam = VivaFixture(_studio(request.config), request.path.parent)
    yield exam
    exam.close()


@pytest.fixture
def t(request: pytest.FixtureRequest) -> "T":
    """Notes what holds, and goes on: `t.assert_.contains(reply.content, "receipt")`; also log, error, fatal and skip."""
    return _desk(request).t


@pytest.fixture
def ctx(request: pytest.FixtureRequest) -> "Context | AsyncContext":
    """Calls agents: `reply = ctx.call("assistants.expense", "Hello")`; in an `async def`, `await ctx.call(...)`."""
    return _desk(request).ctx


def _desk(request: pytest.FixtureRequest) -> "TestContext":
    """One for both fixtures of a test."""
    stash = request.node.stash
    if _desk_key not in stash:
        from viva.api.pytest_session import TestContext

        stash[_desk_key] = TestContext(
            _studio(request.config), request.node.name, request.path.parent, request.function
        )
    return stash[_desk_key]


class CaseNotPassed(Exception):  # noqa: N818 -- it says how a case ended
    """A case failed, or could not be examined."""

    def __init__(self, record: "TrialRecord", text: str) -> None:
        super().__init__(record.status)
        self.record = record
        self.text = text


class VivaFile(pytest.File):
    """A suite file: an item for each case."""

    def collect(self) -> "Iterator[VivaItem]":
        from viva.errors import BadInput

        try:
            suite = _studio(self.config).load_suite(self.path, self.config.invocation_params.dir)
        except BadInput as wrong:
            raise self.CollectError(
                str(wrong).replace("Give -n NAME", "Give --viva-agent NAME").replace("--evaluator", "--viva-evaluator")
            ) from wrong
        for trials in suite.trials:
            yield VivaItem.from_parent(self, name=trials[0].case.id, suite=suite, trials=trials)


class VivaItem(pytest.Item):
    """A case. It fails with the reasons that `viva test` would show."""

    def __init__(self, *, suite: "LoadedSuite", trials: "list[PlannedTrial]", **known: Any) -> None:
        super().__init__(**known)
        self._suite = suite
        self._trials = trials
        self.extra_keyword_matches.update(trials[0].case.tags)

    def runtest(self) -> None:
        from viva.api.failure_text import format_record
        from viva.stats.pass_rate import case_status

        studio = _studio(self.config)
        records = [studio.run_trial(self._suite, planned) for planned in self._trials]
        status = case_status([record.status for record in records])
        if status == "passed":
            return
        telling = next(record for record in records if record.status == status)
        if status == "skipped":
            pytest.skip(telling.error or "skipped")
        trial = f"trial {telling.trial} of {len(records)}: " if len(records) > 1 else ""
        raise CaseNotPassed(telling, trial + format_record(telling))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *rest: Any, **more: Any) -> Any:
        if isinstance(excinfo.value, CaseNotPassed):
            return excinfo.value.text
        return super().repr_failure(excinfo, *rest, **more)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        case = self._trials[0].case
        line = case.origin.line - 1 if case.origin and case.origin.line else None
        return self.path, line, f"{self.path.name}: {case.id}"
