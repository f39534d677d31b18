"""How many trials run at once on workers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from viva.session.options.run_options import AllRunOptions
from viva.session.run_plan import build_run_plan


@pytest.mark.parametrize(("options", "expected"), [({}, 4), ({"workers": 2}, 16), ({"workers": 2, "parallel": 3}, 3)])
def test_a_worker_has_twice_as_many_trials_as_one_process(  # 17: half of them run while results travel
    tmp_path: Path, options: dict[str, Any], expected: int
) -> None:
    (tmp_path / "agent.py").write_text("def agent(messages, options):\n    return 'done'\n")
    cases = tuple({"id": f"case{number}", "turns": [{"input": "hello"}]} for number in range(20))

    async def count() -> int:
        agents = ("python:./agent.py:agent",)
        plan = await build_run_plan(AllRunOptions(inputs=(), cases=cases, agents=agents, folder=tmp_path, **options))
        await plan.aclose()
        return plan.parallel

    assert asyncio.run(count()) == expected
