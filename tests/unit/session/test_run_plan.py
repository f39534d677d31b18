"""The plan of a run, before anything starts."""

import asyncio
from pathlib import Path

from project import Project, case
from viva.session.options.run_options import AllRunOptions
from viva.session.run_plan import build_run_plan


def test_the_default_of_parallel_goes_by_the_workers_of_a_cluster(tmp_path: Path) -> None:  # 17
    project = Project(tmp_path)
    suite = project.suite(*(case(f"case{number}") for number in range(200)))
    options = AllRunOptions(
        folder=tmp_path, inputs=(suite,), agents=("python:./agent.py:agent",), cluster="tcp://127.0.0.1:8786"
    )

    async def run() -> None:
        plan = await build_run_plan(options)
        plan.worker_load.workers = 2  # more may come
        assert plan.parallel == 32
        plan.worker_load.workers = 20
        assert plan.parallel == 160
        assert plan.conversations.limit == 160
        await plan.aclose()

    asyncio.run(run())
