"""A report written by an agent (`--reporter`): it gets the run as one JSON message, and its reply is taken as it is."""

from viva.engine.helpers import Crew
from viva.model import codec
from viva.model.event import RunSummary
from viva.model.message import Reply
from viva.record.journal import Journal


async def report_by(crew: Crew, reporter: str, journal: Journal, summary: RunSummary, form: str) -> str:
    """The agent's words for a report in that form; raises HelperFailed if it breaks."""
    records = [codec.Raw(raw) for raw in journal.raw_records()]
    body = codec.encode({"summary": summary, "cases": records, "format": form}).decode()
    async with crew.open("reporter", reporter, None, {"metadata": {"format": form}}) as session:
        return await session.ask(body, _words)


def _words(reply: Reply) -> str:
    if not reply.content.strip():
        raise ValueError("it is empty")
    return reply.content
