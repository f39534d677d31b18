"""An agent is held to its terms: a reply for which it used a tool that it may not use, or that is not what its return
schema demands, scores nothing, whatever it says.
"""

from collections.abc import AsyncIterator, Sequence

from msgspec import structs

from viva.checks.cheap import LocalCheck
from viva.checks.golden import ReturnSchema
from viva.host.inventory import ANY_TOOL, HostedAgent
from viva.model.case import Case, Assertion, Suite
from viva.model.talk import PASSED, CheckContext, Verdict
from viva.users.script import Script

RETURN_SCHEMA = "return_schema"
"""What the claim is called that a suite brings along with its agent."""


class AllowedToolsCheck(LocalCheck, frozen=True, kw_only=True):
    """No other tools than these were used. A call that was refused or failed was none."""

    agent: HostedAgent

    @property
    def label(self) -> str:
        return "only tools that the agent may use"

    def check(self, evidence: CheckContext) -> Verdict:
        used = [call.name for call in evidence.tool_calls if call.error is None and not self.agent.is_tool_allowed(call.name)]
        return Verdict("failed", f"used {', '.join(used)}, which it may not") if used else PASSED


def add_agent_checks(suite: Suite, agent: HostedAgent) -> Suite:
    """The suite with what the agent is held to on each of its tasks, where the suite does not say so itself."""
    terms: list[Assertion] = []
    if ANY_TOOL not in agent.tools:
        terms.append(Assertion(AllowedToolsCheck(agent=agent), {"type": "tool_allowlist"}, weight=0.0, gate=True))
    if agent.terms.return_schema is not None:
        returned = ReturnSchema(schema=agent.terms.return_schema)
        terms.append(Assertion(returned, {"type": RETURN_SCHEMA}, weight=0.0, gate=True))
    if not terms:
        return suite

    async def cases() -> AsyncIterator[Case]:
        async for case in suite.cases():
            lines = tuple(structs.replace(line, claims=_with(line.assertions, terms)) for line in case.user.planned_messages)
            yield structs.replace(case, user=Script(lines))

    return structs.replace(suite, cases=cases)


def _with(claims: tuple[Assertion, ...], terms: Sequence[Assertion]) -> tuple[Assertion, ...]:
    """A suite that comes with its agent has its return schema already."""
    known = {claim.definition.get("type") for claim in claims} & {RETURN_SCHEMA}
    return (*claims, *(claim for claim in terms if claim.definition["type"] not in known))
