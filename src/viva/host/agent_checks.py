"""An agent is held to its terms: a reply for which it used a tool that it may not use, or that is not what its return
schema demands, scores nothing, whatever it says.
"""

from collections.abc import AsyncIterator, Sequence

from msgspec import structs

from viva.checks.base import LocalCheck
from viva.checks.golden import ReturnSchema
from viva.host.agents import ANY_TOOL, HostedAgent
from viva.model.case import Assertion, Case, Suite
from viva.model.turn import PASSED, Verdict
from viva.state.trial_state import CheckContext
from viva.users.script import Script

RETURN_SCHEMA = "return_schema"
"""What the claim is called that a suite brings along with its agent."""


class AllowedToolsCheck(LocalCheck, frozen=True, kw_only=True):
    """No other tools than these were used. A call that was refused or failed was none."""

    agent: HostedAgent

    @property
    def label(self) -> str:
        return "only tools that the agent may use"

    def check(self, context: CheckContext) -> Verdict:
        used = [
            call.name for call in context.tool_calls if call.error is None and not self.agent.is_tool_allowed(call.name)
        ]
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
            lines = tuple(
                structs.replace(line, assertions=_with(line.assertions, terms)) for line in case.user.planned_messages
            )
            yield structs.replace(case, user=Script(lines))

    return structs.replace(suite, cases=cases)


def _with(assertions: tuple[Assertion, ...], terms: Sequence[Assertion]) -> tuple[Assertion, ...]:
    """A suite that comes with its agent has its return schema already."""
    known = {assertion.definition.get("type") for assertion in assertions} & {RETURN_SCHEMA}
    return (*assertions, *(assertion for assertion in terms if assertion.definition["type"] not in known))
