"""The pytest plugin: cases as pytest items, and fixtures. pytest always loads it, so it imports nothing slow.

pytest                                    collects *.viva.jsonl, *.viva.yaml, *.viva.yml and *.viva.json, one item per case,
                                          and playbooks: *.playbook.yaml, *.playbook.yml and *.playbook.json;
                                          a suite with a threshold has one item more, which says whether it is reached
pytest -m smoke                           selects cases by tag
pytest --viva-agent assistants.expense    tests another agent than the one in the nearest viva.toml
pytest --viva-evaluator judge             grades playbooks and plays the user in them
def viva_agent(): return MyAgent()        a fixture in conftest.py that makes the agent under test
def test_it(viva): ...                    a fixture that opens conversations and runs suites; `viva_module` and
                                          `viva_session` are the same for a module and for the session
def test_it(t, ctx): ...                  a script test; `Test*(t, ctx)` functions are collected too
async def test_it(t, ctx): ...            the same with `await ctx.call(...)`; no other plugin is needed for `async def`
A script test that records nothing with `t` is skipped, `nothing was checked`: plain asserts that hold cannot be counted.
Cases run in parallel, as `viva test` runs them, unless pytest may stop early (-x, --maxfail, --pdb) or they use fixtures of their own.
"""

import inspect
import shlex
import sys
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from viva.api.pytest_session import LoadedSuite, PytestSession, TestContext
    from viva.api.viva_fixture import VivaFixture
    from viva.model.record import TrialRecord
    from viva.session.run_result import RunResult
    from viva.session.scripts.context import AsyncContext, Context
    from viva.session.scripts.tester import T

_SUFFIXES = (
    *(".viva.jsonl", ".viva.yaml", ".viva.yml", ".viva.json"),
    *(".playbook.yaml", ".playbook.yml", ".playbook.json"),
)
_AGENT_FIXTURE = "viva_agent"
_PYTEST_MARKS = frozenset({"skip", "skipif", "xfail", "usefixtures", "parametrize", "filterwarnings"})
_MAX_STARTED_CASES = 500
_session_key = pytest.StashKey["PytestSession"]()
_test_context_key = pytest.StashKey["TestContext"]()
_fixture_key = pytest.StashKey["VivaFixture"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("viva", "tests of AI agents")
    group.addoption(
        "--viva-agent", metavar="AGENT", help="The agent under test: a name from viva.toml, or a reference."
    )
    group.addoption(
        "--viva-evaluator",
        metavar="NAME",
        help="Grades *.playbook.yaml (.yml, .json) and plays the user in them: a connector, an agent, or a model.",
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "VivaFile | None":
    if file_path.name.endswith(_SUFFIXES):
        return VivaFile.from_parent(parent, path=file_path)
    return None


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> pytest.Item | None:
    """Collect `Test*(t, ctx)` functions: pytest itself collects only classes of that name."""
    if not name.startswith("Test") or not inspect.isfunction(obj):
        return None
    if "t" not in inspect.signature(obj).parameters:
        return None
    return pytest.Function.from_parent(collector, name=name)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """Run an `async def` that takes `t`, `ctx` or `viva`, if no other plugin does, on its own loop."""
    function: Callable[..., Any] = pyfuncitem.obj
    has_fixture = _test_context_key in pyfuncitem.stash or _fixture_key in pyfuncitem.stash
    if not has_fixture or not inspect.iscoroutinefunction(function):
        return None
    import asyncio

    names = [name for name in inspect.signature(function).parameters if name in pyfuncitem.funcargs]
    asyncio.run(function(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """When the test function ends, fail or skip the test according to what `t` has recorded."""
    context = item.stash.get(_test_context_key, None)
    if context is None:
        return (yield)
    from viva.session.scripts.tester import FailTest, SkipTest

    result, skip_reason = None, None
    try:
        result = yield
    except FailTest:
        pass  # the failure is recorded, so it is reported below
    except SkipTest as skip:
        skip_reason = skip.reason
    except Exception as error:
        if (failures := context.format_failures()) is not None:
            error.add_note(failures)
        raise
    finally:
        if context.log_text:
            item.add_report_section("call", "log of the test", context.log_text)
    if (failures := context.format_failures()) is not None:
        pytest.fail(failures, pytrace=False)
    if skip_reason is None and _fixture_key not in item.stash:  # `t` does not see the checks of `viva`
        skip_reason = context.unchecked_reason
    if skip_reason is not None:
        _skip_item(skip_reason)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the text of failed results to the report: of `assert result, result`, pytest itself shows only the repr."""
    report = yield
    if call.excinfo is not None and call.excinfo.errisinstance(AssertionError):
        report.sections += [("viva", str(result)) for result in _list_failed_results(call.excinfo)]
    return report


def _list_failed_results(excinfo: pytest.ExceptionInfo[BaseException]) -> "list[RunResult]":
    """The failed RunResults among the local variables of the function that raised. Empty if `run_result` was never imported."""
    if (module := sys.modules.get("viva.session.run_result")) is None:
        return []
    values = {id(value): value for value in excinfo.traceback[-1].locals.values()}
    return [value for value in values.values() if isinstance(value, module.RunResult) and not value.passed]


def pytest_unconfigure(config: pytest.Config) -> None:
    session = config.stash.get(_session_key, None)
    if session is not None:
        session.close()


def _get_session(config: pytest.Config) -> "PytestSession":
    """The PytestSession of a pytest run, created on first use."""
    if _session_key not in config.stash:
        from viva.api.pytest_session import PytestSession

        agent, evaluator = config.getoption("--viva-agent"), config.getoption("--viva-evaluator")
        config.stash[_session_key] = PytestSession(agent, evaluator)
    return config.stash[_session_key]


@pytest.fixture
def viva(request: pytest.FixtureRequest) -> "Iterator[VivaFixture]":
    """Opens conversations (`viva.chat(agent)`), runs suites (`viva.run(...)`), and has `viva.check` and all other names."""
    yield from _open_fixture(request)


@pytest.fixture(scope="module")
def viva_module(request: pytest.FixtureRequest) -> "Iterator[VivaFixture]":
    """Like `viva`, for all tests of a module: its conversations go on from test to test."""
    yield from _open_fixture(request)


@pytest.fixture(scope="session")
def viva_session(request: pytest.FixtureRequest) -> "Iterator[VivaFixture]":
    """Like `viva`, for all tests: for fixtures of the whole session."""
    yield from _open_fixture(request)


def _open_fixture(request: pytest.FixtureRequest) -> "Iterator[VivaFixture]":
    from viva.api.viva_fixture import VivaFixture

    session = _get_session(request.config)
    folder = request.config.rootpath if request.scope == "session" else request.path.parent
    fixture = VivaFixture(session, folder, lambda: _request_agent(request))
    request.node.stash[_fixture_key] = fixture
    yield fixture
    fixture.close()


def _request_agent(request: pytest.FixtureRequest) -> Any:
    """The value of the project's fixture `viva_agent`; None if the project does not have it, or if a flag names the agent."""
    if request.config.getoption("--viva-agent") is not None:
        return None
    try:
        return request.getfixturevalue(_AGENT_FIXTURE)
    except pytest.FixtureLookupError as error:
        if error.argname == _AGENT_FIXTURE:
            return None
        raise


@pytest.fixture
def t(request: pytest.FixtureRequest) -> "T":
    """Records results and continues: `t.assert_.contains(reply.content, "receipt")`; also log, error, fatal and skip."""
    return _get_test_context(request).t


@pytest.fixture
def ctx(request: pytest.FixtureRequest) -> "Context | AsyncContext":
    """Calls agents: `reply = ctx.call("assistants.expense", "Hello")`; in an `async def`, `await ctx.call(...)`."""
    return _get_test_context(request).ctx


def _get_test_context(request: pytest.FixtureRequest) -> "TestContext":
    """The TestContext that the fixtures `t` and `ctx` of a test share."""
    stash = request.node.stash
    if _test_context_key not in stash:
        from viva.api.pytest_session import TestContext

        session = _get_session(request.config)
        stash[_test_context_key] = TestContext(session, request.node.name, request.path.parent, request.function)
    return stash[_test_context_key]


class CaseNotPassed(Exception):  # noqa: N818 -- named after the outcome of a case
    """A case failed, or could not be evaluated. `headline` says why in one line."""

    def __init__(self, headline: str, text: str) -> None:
        super().__init__(headline)
        self.headline = headline
        self.text = text


class VivaFile(pytest.Module):
    """A suite file, with one item per case. It is a pytest.Module, so that fixtures with module scope work."""

    obj = None  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType] -- as doctest's files

    def collect(self) -> "Iterator[CaseItem | ThresholdItem]":
        from viva.api.pytest_session import FixtureAgent
        from viva.errors import BadInput

        agent = FixtureAgent() if self._has_agent_fixture else None
        try:
            suite = _get_session(self.config).load_suite(self.path, self.config.invocation_params.dir, agent)
        except BadInput as error:
            raise self.CollectError(str(error)) from error
        for case_id in suite.trials:
            yield CaseItem.from_parent(self, name=case_id, suite=suite)
        if suite.threshold is not None:
            yield ThresholdItem.from_parent(self, name="threshold", suite=suite)

    @property
    def _has_agent_fixture(self) -> bool:
        if self.config.getoption("--viva-agent") is not None:
            return False
        manager = self.session._fixturemanager  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- as doctest does it
        return bool(manager.getfixturedefs(_AGENT_FIXTURE, self))

    def _importtestmodule(self) -> NoReturn:
        """Overrides the method by which pytest imports a test file: a suite is not a Python module."""
        raise self.CollectError(f"{self.path.name} is a suite, not a module")


class SuiteItem(pytest.Item):
    """The base of the items of a suite. It requests fixtures, as a test function does."""

    def __init__(self, *, suite: "LoadedSuite", **known: Any) -> None:
        super().__init__(**known)
        from _pytest.fixtures import TopRequest

        self.obj = None
        self.loaded = suite
        # Items that are not functions get fixtures only in this way; doctest does it, too.
        manager = self.session._fixturemanager  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        self._fixtureinfo = manager.getfixtureinfo(node=self, func=None, cls=None)
        self.fixturenames = list(self._fixtureinfo.names_closure)
        self.has_agent_fixture = suite.plan.tested_agents[0].kind == "object"
        definitions = manager.getfixturedefs(_AGENT_FIXTURE, self) if self.has_agent_fixture else None
        used = [*self._fixtureinfo.name2fixturedefs.values(), *([definitions] if definitions else [])]
        self.fixtures = {each[-1] for each in used if _is_in_conftest(each[-1].func)}
        """The project's fixtures that this item uses, by `autouse` or as its agent; fixtures of plugins are left out."""
        self.funcargs: dict[str, object] = {}
        self._request: Any = TopRequest(self, _ispytest=True)  # pyright: ignore[reportArgumentType] -- as doctest does it

    def setup(self) -> None:
        self._request._fillfixtures()  # noqa: SLF001 -- as above
        if self.has_agent_fixture:
            self.loaded = self._load_suite_for_agent(self._request.getfixturevalue(_AGENT_FIXTURE))

    def _load_suite_for_agent(self, agent: object) -> "LoadedSuite":
        from viva.errors import BadInput

        session = _get_session(self.config)
        try:
            return session.load_suite(self.path, self.config.invocation_params.dir, agent)
        except BadInput as error:
            raise CaseNotPassed(str(error).partition("\n")[0], str(error)) from None

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *rest: Any, **more: Any) -> Any:
        if isinstance(excinfo.value, CaseNotPassed):
            return self._format_failure(excinfo.value)
        return super().repr_failure(excinfo, *rest, **more)

    def _format_failure(self, error: CaseNotPassed) -> Any:
        """The representation of a failure for pytest: the text, and the headline for the summary."""
        from _pytest._code.code import ReprEntryNative, ReprExceptionInfo, ReprFileLocation, ReprTraceback

        line = (self.reportinfo()[1] or 0) + 1
        entry = ReprEntryNative([f"{error.text}\n"])
        return ReprExceptionInfo(
            reprtraceback=ReprTraceback([entry], None, "native"),
            reprcrash=ReprFileLocation(str(self.path), line, error.headline),
        )


class CaseItem(SuiteItem):
    """One case as a pytest item. It fails with the reasons that `viva test` shows; its tags are markers."""

    def __init__(self, *, suite: "LoadedSuite", **known: Any) -> None:
        super().__init__(suite=suite, **known)
        case = suite.trials[self.name][0].case
        self.extra_keyword_matches.update(case.tags)
        for tag in case.tags:
            if tag not in _PYTEST_MARKS:
                _register_mark(self.config, tag)
                mark = pytest.Mark(tag, (), {}, _ispytest=True)
                self.add_marker(pytest.MarkDecorator(mark, _ispytest=True))

    def runtest(self) -> None:
        from viva.api.failure_text import format_headline, format_record
        from viva.stats.pass_rate import decide_case_status

        session = _get_session(self.config)
        session.start_cases((item.get_suite_for_agent_of(self), item.name) for item in self._list_cases_to_start())
        records = session.run_case(self.loaded, self.name)
        status = decide_case_status([record.status for record in records])
        if status == "passed":
            return
        record: TrialRecord = next(record for record in records if record.status == status)
        if status == "skipped":
            _skip_item(record.error or "skipped")
        trial = f"trial {record.trial} of {len(records)}: " if len(records) > 1 else ""
        headline = trial + format_headline(record)
        if status == "failed" and self.loaded.threshold is not None and not self.config.option.runxfail:
            pytest.xfail(f"counts in the threshold of its suite: {headline}")
        raise CaseNotPassed(headline, trial + format_record(record, self._rerun_command))

    @property
    def _rerun_command(self) -> str | None:
        """The pytest command that runs the case again, if a fixture makes its agent; `viva test` cannot do that."""
        return f"pytest {shlex.quote(self.nodeid)}" if self.has_agent_fixture else None

    def get_suite_for_agent_of(self, other: "CaseItem") -> "LoadedSuite":
        """This item's suite, loaded for the agent of another item: only items with the same agent are started together."""
        return (
            self._load_suite_for_agent(other.loaded.plan.options.agents[0]) if self.has_agent_fixture else self.loaded
        )

    def _list_cases_to_start(self) -> "list[CaseItem]":
        """This case and the following cases that can run at the same time."""
        option = self.config.option
        scopes = {fixture.scope for fixture in self.fixtures}
        if option.maxfail or option.usepdb or scopes & {"function", "class"}:
            return [self]
        cases: list[CaseItem] = []
        for item in islice(_list_items_starting_with(self), _MAX_STARTED_CASES):
            is_near = item.path == self.path or scopes <= {"session"}
            if not isinstance(item, CaseItem) or item.fixtures != self.fixtures or not is_near:
                break
            cases.append(item)
        return cases

    def reportinfo(self) -> tuple[Path, int | None, str]:
        case = self.loaded.trials[self.name][0].case
        line = case.origin.line - 1 if case.origin and case.origin.line else 0
        return self.path, line, f"{self.path.name}: {case.id}"


class ThresholdItem(SuiteItem):
    """The threshold of a suite as a pytest item. It fails if the cases that ran before it do not reach the threshold."""

    def runtest(self) -> None:
        from viva.engine.thresholds import SuiteTally

        suite, records = self.loaded.threshold, _get_session(self.config).list_records(self.loaded)
        assert suite is not None
        missing = len(self.loaded.trials) - len({record.id for record in records})
        if missing:
            where = "; with several workers, pass --dist loadfile" if hasattr(self.config, "workerinput") else ""
            _skip_item(f"{missing} of {len(self.loaded.trials)} cases of the suite did not run here{where}")
        tally = SuiteTally(suite, len(self.loaded.trials))
        for record in records:
            tally.count_trial(record)
        summary = tally.summary()
        if summary.failures:
            failed = [f"    {record.id}: {record.status}" for record in records if record.status != "passed"]
            headline = "; ".join(summary.failures)
            raise CaseNotPassed(headline, "\n".join([f"threshold not met: {headline}", *failed]))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, 0, f"{self.path.name}: threshold"


def _list_items_starting_with(first: CaseItem) -> Iterator[pytest.Item]:
    """The item, and the items that this process runs after it. A worker of xdist runs only some of the items."""
    yield first
    items = first.session.items
    worker = next((plugin for plugin in first.config.pluginmanager.get_plugins() if hasattr(plugin, "torun")), None)
    if worker is None:
        yield from items[items.index(first) + 1 :]
    elif "worksteal" not in first.config.workerinput["mainargv"]:  # pyright: ignore[reportAttributeAccessIssue] -- of xdist
        with worker.torun.lock() as queue:
            indexes = [worker.nextitem_index, *queue]
        yield from (items[index] for index in indexes if isinstance(index, int))


def _is_in_conftest(function: Callable[..., Any]) -> bool:
    """Is a fixture defined in a conftest.py?"""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and Path(code.co_filename).name == "conftest.py"


def _register_mark(config: pytest.Config, tag: str) -> None:
    """Register a tag as a marker, because with --strict-markers pytest accepts only registered markers."""
    known = {line.partition(":")[0].partition("(")[0].strip() for line in config.getini("markers")}
    if tag not in known:
        config.addinivalue_line("markers", f"{tag}: a tag of Viva cases")


def _skip_item(reason: str) -> NoReturn:
    """Skip the running item. The report shows the location of the item, not of this file."""
    raise pytest.skip.Exception(reason, _use_item_location=True)
