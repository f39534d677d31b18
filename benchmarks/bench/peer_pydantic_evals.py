"""pydantic-evals: Dataset.evaluate over a task that holds the conversation. The framework has no turn loop and no
client of its own, so the task brings the openai SDK (default), aiohttp, or no network at all (mock)."""
import asyncio
import os
import sys
import time

import workload as w

a = w.args(("default", "aiohttp", "mock"))
t_imp = time.perf_counter()
from pydantic_evals import Case, Dataset  # noqa: E402
from pydantic_evals.evaluators import Evaluator, LLMJudge  # noqa: E402

import_s = time.perf_counter() - t_imp
if a.workload == "import":
    w.report(import_s=import_s)
    sys.exit()

from dataclasses import dataclass  # noqa: E402

import bare  # noqa: E402

dumps, loads = bare.codec("std")


@dataclass
class Checks(Evaluator):
    turn: int = 1

    def evaluate(self, ctx):
        checks = w.case_checks(ctx.metadata)[self.turn - 1]
        return all(w.holds(check, ctx.output[2 * self.turn]["content"]) for check in checks)


async def main():
    cl = {"default": bare.OpenAI, "aiohttp": bare.Aiohttp, "mock": bare.Null}[a.variant](a.base_url, a.concurrency, dumps, loads)

    async def scripted(turns):
        msgs = [{"role": "system", "content": w.SYSTEM}]
        for text in turns:
            msgs.append({"role": "user", "content": text})
            msgs.append({"role": "assistant", "content": await cl.ask({"model": "fake-agent", "messages": msgs})})
        return msgs

    async def simulated(case):
        msgs = [{"role": "system", "content": w.SYSTEM}]
        sim = [{"role": "system", "content": w.USER_SYSTEM}, {"role": "user", "content": w.scenario(case)}]
        for _ in range(w.DYN_TURNS):
            text = await cl.ask({"model": "fake-user", "messages": sim})
            msgs.append({"role": "user", "content": text})
            sim.append({"role": "assistant", "content": text})
            out = await cl.ask({"model": "fake-agent", "messages": msgs})
            msgs.append({"role": "assistant", "content": out})
            sim.append({"role": "user", "content": out})
        return msgs

    if a.workload == "static":
        cases = [Case(name=f"c{i}", inputs=w.case_turns(i), metadata=i) for i in range(a.n)]
        evs = [Checks(turn=t) for t in range(1, w.TURNS + 1)]
        ds, task = Dataset(name="bench", cases=cases, evaluators=evs), scripted
    else:
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        judge = OpenAIChatModel("fake-judge", provider=OpenAIProvider(base_url=a.base_url, api_key="x"))
        cases = [Case(name=f"c{i}", inputs=i) for i in range(a.n)]
        ds, task = Dataset(name="bench", cases=cases, evaluators=[LLMJudge(rubric=w.JUDGE_CRITERION, model=judge)]), simulated
    with w.Timed() as t:
        rep = await ds.evaluate(task, max_concurrency=a.concurrency, progress=False)
    await cl.close()
    passed = sum(bool(c.assertions) and all(x.value for x in c.assertions.values()) for c in rep.cases)
    # it writes no file by itself; the report serialised by its own adapter shows the size
    from pydantic_evals.reporting import EvaluationReportAdapter

    t0 = time.perf_counter()
    data = EvaluationReportAdapter.dump_json(rep)
    dump_s = time.perf_counter() - t0
    with open(os.path.join(a.out, "report.json"), "wb") as f:
        f.write(data)
    w.report(passed=passed, n=a.n, run_s=t.wall, run_cpu_s=t.cpu, import_s=import_s, dump_s=dump_s, out_bytes=len(data))
    return passed


sys.exit(asyncio.run(main()) != a.n)
