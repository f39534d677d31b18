"""Types for annotations, and values that only some programs need.

from viva.types import VivaFixture

def test_refund(viva: VivaFixture) -> None:
    chat = viva.chat("assistants.support")
"""

from viva.api.case_dict import CaseDict, CheckpointDict, TurnDict
from viva.api.project import AgentInput
from viva.api.viva_fixture import VivaFixture
from viva.check import AgentFunction, AssertionDict, AssertionInput, CheckFunction
from viva.checks.script import TurnView
from viva.model.message import Message
from viva.model.record import ToolCallRecord, TrialRecord, TurnRecord
from viva.session.messages import AgentReply
from viva.session.scripts.context import AsyncContext, Context
from viva.session.scripts.tester import T
from viva.stats.sequential import SequentialTest

__all__ = [
    "AgentFunction",
    "AgentInput",
    "AgentReply",
    "AssertionDict",
    "AssertionInput",
    "AsyncContext",
    "CaseDict",
    "CheckFunction",
    "CheckpointDict",
    "Context",
    "Message",
    "SequentialTest",
    "T",
    "ToolCallRecord",
    "TrialRecord",
    "TurnDict",
    "TurnRecord",
    "TurnView",
    "VivaFixture",
]
