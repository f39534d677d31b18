"""The pytest plugin: cases as pytest items, and fixtures. pytest always loads it, so it imports nothing slow.

pytest                                    collects *.viva.jsonl, *.viva.yaml, *.viva.yml and *.viva.json, one item per case,
                                          and playbooks: *.playbook.yaml, *.playbook.yml and *.playbook.json;
                                          an eval suite has one item per task; its threshold counts only in `viva test`
pytest --viva-agent assistants.expense    tests another agent than the one in the nearest viva.toml
pytest --viva-evaluator judge             grades playbooks and plays the user in them
def test_it(viva): ...                    a fixture that opens conversations and runs suites
def test_it(t, ctx): ...                  a script test; `Test*(t, ctx)` functions are collected too
async def test_it(t, ctx): ...            the same with `await ctx.call(...)`; no other plugin is needed for `async def`
A script test that records nothing with `t` is skipped, `nothing was checked`: plain asserts that hold cannot be counted.
"""

import inspect
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from viva.api.pytest_session import LoadedSuite, PytestSession, TestContext
    from viva.api.viva_fixture import VivaFixture
    from viva.model.record import TrialRecord
    from viva.protocols import PlannedTrial
    from viva.session.script_context import AsyncContext, Context
    from viva.session.tester import T

_SUFFIXES = (
    *(".viva.jsonl", ".viva.yaml", ".viva.yml", ".viva.json"),
    *(".playbook.yaml", ".playbook.yml", ".playbook.json"),
)
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
    """Fail or skip the test by what `t` has recorded when the test function ends."""
    context = item.stash.get(_test_context_key, None)
    if context is None:
        return (yield)
    from viva.session.tester import FailTest, SkipTest

    result, skip_reason = None, None
    try:
        result = yield
    except FailTest:
        pass  # recorded, so it is reported below
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
        pytest.skip(skip_reason)
    return result


def pytest_unconfigure(config: pytest.Config) -> None:
    session = config.stash.get(_session_key, None)
    if session is not None:
        session.close()


def _get_session(config: pytest.Config) -> "PytestSession":
    """Created when it is first needed."""
    if _session_key not in config.stash:
        from viva.api.pytest_session import PytestSession

        agent, evaluator = config.getoption("--viva-agent"), config.getoption("--viva-evaluator")
        config.stash[_session_key] = PytestSession(agent, evaluator)
    return config.stash[_session_key]


@pytest.fixture
def viva(request: pytest.FixtureRequest) -> "Iterator[VivaFixture]":
    """Opens conversations (`viva.chat(agent)`), runs suites (`viva.run(...)`), and has `viva.check` and all other names."""
    from viva.api.viva_fixture import VivaFixture

    fixture = VivaFixture(_get_session(request.config), request.path.parent)
    request.node.stash[_fixture_key] = fixture
    yield fixture
    fixture.close()


@pytest.fixture
def t(request: pytest.FixtureRequest) -> "T":
    """Records results and continues: `t.assert_.contains(reply.content, "receipt")`; also log, error, fatal and skip."""
    return _get_test_context(request).t


@pytest.fixture
def ctx(request: pytest.FixtureRequest) -> "Context | AsyncContext":
    """Calls agents: `reply = ctx.call("assistants.expense", "Hello")`; in an `async def`, `await ctx.call(...)`."""
    return _get_test_context(request).ctx


def _get_test_context(request: pytest.FixtureRequest) -> "TestContext":
    """One for both fixtures of a test."""
    stash = request.node.stash
    if _test_context_key not in stash:
        from viva.api.pytest_session import TestContext

        session = _get_session(request.config)
        stash[_test_context_key] = TestContext(session, request.node.name, request.path.parent, request.function)
    return stash[_test_context_key]


class CaseNotPassed(Exception):  # noqa: N818 -- named after the outcome of a case
    """A case failed, or could not be evaluated."""

    def __init__(self, record: "TrialRecord", text: str) -> None:
        super().__init__(record.status)
        self.record = record
        self.text = text


class VivaFile(pytest.File):
    """A suite file, with one item per case."""

    def collect(self) -> "Iterator[VivaItem]":
        from viva.errors import BadInput

        try:
            suite = _get_session(self.config).load_suite(self.path, self.config.invocation_params.dir)
        except BadInput as error:
            message = str(error).replace(" -n NAME", " --viva-agent NAME").replace("--evaluator", "--viva-evaluator")
            raise self.CollectError(message) from error
        for trials in suite.trials:
            yield VivaItem.from_parent(self, name=trials[0].case.id, suite=suite, trials=trials)


class VivaItem(pytest.Item):
    """A case. It fails with the reasons that `viva test` shows."""

    def __init__(self, *, suite: "LoadedSuite", trials: "list[PlannedTrial]", **known: Any) -> None:
        super().__init__(**known)
        self._suite = suite
        self._trials = trials
        self.extra_keyword_matches.update(trials[0].case.tags)

    def runtest(self) -> None:
        from viva.api.failure_text import format_record
        from viva.stats.pass_rate import case_status

        session = _get_session(self.config)
        records = [session.run_trial(self._suite, planned) for planned in self._trials]
        status = case_status([record.status for record in records])
        if status == "passed":
            return
        record = next(record for record in records if record.status == status)
        if status == "skipped":
            pytest.skip(record.error or "skipped")
        trial = f"trial {record.trial} of {len(records)}: " if len(records) > 1 else ""
        raise CaseNotPassed(record, trial + format_record(record))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *rest: Any, **more: Any) -> Any:
        if isinstance(excinfo.value, CaseNotPassed):
            return excinfo.value.text
        return super().repr_failure(excinfo, *rest, **more)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        case = self._trials[0].case
        line = case.origin.line - 1 if case.origin and case.origin.line else None
        return self.path, line, f"{self.path.name}: {case.id}"
