"""Runs the tests on mutants, inside a sandbox that `mutation.py` makes. It reads jobs and writes answers, a line of JSON each."""

import contextlib
import gc
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NoReturn

import coverage
import pytest

TEMP, RESULT = Path(os.environ["TMPDIR"]), Path("/tmp/result.json")
CURRENT = Path("/tmp/current")  # the test that runs
CACHED = type(lru_cache(int))


class Server:
    """Runs in the sandbox as a plugin of pytest: collects once, then forks for each job. Process 1 there is this one."""

    def __init__(self) -> None:
        if os.getpid() != 1:
            sys.exit("mutation.py starts this in a sandbox")
        self.jobs, self.answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.dup2(nowhere, 1)  # pytest prints its dots there
        self.limits: dict[str, float] = {}
        self.caches: list[Any] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        functions: dict[str, list[FunctionType]] = defaultdict(list)
        for found in gc.get_objects():
            if isinstance(found, FunctionType):
                functions[found.__code__.co_filename].append(found)
            elif isinstance(found, CACHED) and found.__module__.startswith("viva."):
                self.caches.append(found)
        gc.freeze()  # children need not look through all that is loaded
        items = {item.nodeid: item for item in session.items}
        self.answer({"tests": list(items), "errors": session.testsfailed})
        for line in self.jobs:
            self.answer(self.run_in_child(json.loads(line), items, functions))
        return True

    def answer(self, answer: dict[str, Any]) -> None:
        self.answers.write(json.dumps(answer) + "\n")
        self.answers.flush()

    def run_in_child(
        self, job: dict[str, Any], items: dict[str, pytest.Item], functions: dict[str, list[FunctionType]]
    ) -> dict[str, Any]:
        TEMP.mkdir(exist_ok=True)
        CURRENT.write_text("", encoding="utf-8")
        if (child := os.fork()) == 0:
            try:
                if job["changed"] and not replace_code(job["changed"], functions[job["changed"]]):
                    finish({"result": "new process"})
                self.run([items[name] for name in job["limits"] if name in items], job["limits"], job["folders"])
            except BaseException as raised:
                finish({"result": "killed", "test": CURRENT.read_text(encoding="utf-8"), "died": repr(raised)})
        while (ended := os.wait())[0] != child:  # processes that lost their parent come to process 1
            pass
        end_other_processes()
        answer = {"result": "killed", "test": CURRENT.read_text(encoding="utf-8"), "died": ended[1]}
        if os.WIFSIGNALED(ended[1]) and os.WTERMSIG(ended[1]) == signal.SIGALRM:
            answer["result"] = "timeout"
        elif RESULT.exists():
            answer = json.loads(RESULT.read_bytes())
        RESULT.unlink(missing_ok=True)
        shutil.rmtree(TEMP, ignore_errors=True)
        return answer

    def run(self, items: list[pytest.Item], limits: dict[str, float], folders: list[str]) -> NoReturn:
        """Runs the tests of a job. With `folders`, also records which lines of these folders are executed."""
        resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))  # a mutant may take memory without end
        self.limits = limits
        for item in items:
            shorten_search(item)
        if folders:
            finish({"result": "survived", **self.measure(items, folders)})
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        finish({"result": "survived", "test": ""})

    def measure(self, items: list[pytest.Item], folders: list[str]) -> dict[str, Any]:
        """How long each test takes, and for each line the tests that execute it."""
        measured = coverage.Coverage(data_file=None, config_file=False, include=[f"{folder}/*" for folder in folders])
        measured.set_option("run:disable_warnings", ["no-data-collected"])
        measured.start()
        seconds: dict[str, float] = {}
        for item, following in zip(items, [*items[1:], None], strict=True):
            for cache in self.caches:  # what one test has computed, the next one would not execute
                cache.cache_clear()
            measured.switch_context(item.nodeid)
            began = time.monotonic()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            seconds[item.nodeid] = time.monotonic() - began
        measured.stop()
        data = measured.get_data()
        return {"seconds": seconds, "lines": {file: data.contexts_by_lineno(file) for file in data.measured_files()}}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        CURRENT.write_text(nodeid, encoding="utf-8")
        signal.setitimer(signal.ITIMER_REAL, self.limits[nodeid])  # no handler: the signal ends the process

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            finish({"result": "killed", "test": report.nodeid})


def shorten_search(item: pytest.Item) -> None:
    """Makes Hypothesis use the same examples each time, without deadline, and without shrinking a counterexample."""
    from hypothesis import Phase, settings  # not above: pytest has to be the first to import it

    test = getattr(item.obj, "__func__", item.obj) if isinstance(item, pytest.Function) else None
    if (own := getattr(test, "_hypothesis_internal_use_settings", None)) is not None:
        phases = (Phase.explicit, Phase.generate)
        shorter = settings(own, phases=phases, derandomize=True, database=None, deadline=None)
        vars(test)["_hypothesis_internal_use_settings"] = shorter


def finish(result: dict[str, Any]) -> NoReturn:
    RESULT.write_text(json.dumps(result), encoding="utf-8")
    os._exit(0)


def end_other_processes() -> None:
    """Ends all other processes of the sandbox: all of them come from the mutant."""
    while others := [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]:
        for process in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # its own parent was faster
            os.wait()


def replace_code(file: str, functions: Sequence[FunctionType]) -> bool:
    """Gives the functions of a module the code that its file has now. Returns False if that needs a new process."""

    def nested(code: CodeType) -> Iterator[CodeType]:
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                yield inner
                yield from nested(inner)

    module = compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)
    codes = {(code.co_qualname, code.co_firstlineno): code for code in nested(module)}
    replaced = 0
    for function in functions:
        code = codes.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
        if code is not None and code.co_name != "<lambda>" and code != function.__code__:
            if code.co_freevars != function.__code__.co_freevars:
                return False
            function.__code__ = code
            replaced += 1
    return replaced > 0 or not functions  # a module that is not imported yet is read from its file


if __name__ == "__main__":
    TEMP.mkdir(exist_ok=True)
    sys.exit(pytest.main([*sys.argv[1:], "-p", "no:xdist", "--tb=native"], plugins=[Server()]))
