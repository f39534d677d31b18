"""A report written by an agent (`--reporter`): it gets the run as one JSON message, and its reply is taken as it is."""

from viva.engine.helpers import Crew
from viva.model import codec
from viva.model.event import RunSummary
from viva.model.message import Reply
from viva.record.journal import Journal
from viva.reporters.json import case_json
from viva.reporters.report import case_trials
from viva.stats.deciding import Rule


async def report_by(crew: Crew, reporter: str, journal: Journal, rule: Rule, summary: RunSummary, form: str) -> str:
    """The agent's words for a report in that form; raises HelperFailed if it breaks."""
    cases = [codec.Raw(case_json(case)) for case in case_trials(journal, rule)]
    body = codec.encode({"summary": summary, "cases": cases, "format": form}).decode()
    async with crew.open("reporter", reporter, None, {"metadata": {"format": form}}) as session:
        return await session.ask(body, _words)


def _words(reply: Reply) -> str:
    if not reply.content.strip():
        raise ValueError("it is empty")
    return reply.content
