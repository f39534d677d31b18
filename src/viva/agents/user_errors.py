"""Exceptions of user code as faults of a trial (N17), with their tracebacks (N38)."""

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from viva.concurrency.threads import is_being_cancelled
from viva.errors import AgentFailed, TrialFault, Undetermined, Unreachable, is_ctrl_c
from viva.llm.provider_errors import classify_error
from viva.model.progress import CallProgress
from viva.model.tracebacks import build_tracebacks, format_error

_FAULTS: Mapping[str, type[TrialFault]] = {"agent": AgentFailed, "infra": Unreachable, "undetermined": Undetermined}


@contextmanager
def raise_as_faults(progress: CallProgress, provider_packages: frozenset[str]) -> Generator[None]:
    """Runs user code in a `with` block: an exception of it becomes the agent's failure, or the fault of its model provider."""
    try:
        yield
    except TrialFault:
        raise
    except asyncio.CancelledError as raised:
        if is_being_cancelled():
            raise
        raise AgentFailed("it cancelled itself") from raised
    except GeneratorExit:
        raise
    except BaseException as raised:  # user code may raise anything
        if is_ctrl_c(raised):
            raise
        progress.tracebacks += build_tracebacks(raised, "agent")
        origin = classify_error(raised, provider_packages)
        text, cause = format_error(raised), format_error(origin.error)
        raise _FAULTS[origin.fault](text if cause in text else f"{text} (caused by {cause})") from raised
