"""An agent is held to its tools: a reply for which it used another one scores nothing, whatever it says."""

from collections.abc import AsyncIterator

from msgspec import structs

from viva.checks.cheap import Cheap
from viva.host.inventory import ANY_TOOL, Listed
from viva.model.case import Case, Claim, Suite
from viva.model.talk import PASSED, Evidence, Verdict
from viva.users.script import Script


class OnlyTools(Cheap, frozen=True, kw_only=True):
    """No other tools than these were used. A call that was refused or failed was none."""

    agent: Listed

    @property
    def label(self) -> str:
        return "only tools that the agent may use"

    def check(self, evidence: Evidence) -> Verdict:
        used = [call.name for call in evidence.tool_calls if call.error is None and not self.agent.may_use(call.name)]
        return Verdict("failed", f"used {', '.join(used)}, which it may not") if used else PASSED


def held_to(suite: Suite, agent: Listed) -> Suite:
    """The suite with that claim on each of its tasks, unless the agent may use what it likes."""
    if ANY_TOOL in agent.tools:
        return suite
    claim = Claim(OnlyTools(agent=agent), {"type": "tool_allowlist"}, weight=0.0, gate=True)

    async def cases() -> AsyncIterator[Case]:
        async for case in suite.cases():
            lines = tuple(structs.replace(line, claims=(*line.claims, claim)) for line in case.user.lines)
            yield structs.replace(case, user=Script(lines))

    return structs.replace(suite, cases=cases)
