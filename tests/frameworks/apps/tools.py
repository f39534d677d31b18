"""The tools of the agents in the contract of frameworks."""

import asyncio
import threading

INSTRUCTIONS = "You are a test agent."
STARTED = threading.Event()
"""A hanging tool has started."""
RELEASED = threading.Event()
"""Hanging threads may end: some frameworks join theirs when the process ends."""
BOOKED: list[int] = []
"""What the live tool has done."""


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def broken() -> str:
    """Raises an error."""
    raise ValueError("no such table")


def unreachable() -> str:
    """Asks a server that is down."""
    raise ConnectionRefusedError("connection refused")


async def hang() -> str:
    """Never returns."""
    STARTED.set()
    await asyncio.to_thread(RELEASED.wait)
    return ""


def hang_in_thread() -> str:
    """Never returns, and cannot be cancelled."""
    STARTED.set()
    RELEASED.wait()
    return ""


def book(a: int) -> str:
    """Books a number of days."""
    BOOKED.append(a)
    return f"booked {a}"


class Base(BaseException):
    """No Exception."""


class UnshowableError(Exception):
    """Whose text raises."""

    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


def raise_from_itself() -> str:
    error = ValueError("again")
    raise error from error


def raise_in_a_circle() -> str:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    raise one


def raise_a_group_of_itself() -> str:
    inner = ValueError("inner")
    group = ExceptionGroup("all", [inner])
    inner.__cause__ = group
    raise group


def raise_a_base_exception() -> str:
    raise Base("no Exception")


def leave() -> str:
    raise SystemExit(3)


def raise_without_words() -> str:
    raise UnshowableError


def raise_half_a_surrogate() -> str:
    raise ValueError("half \ud800")


def call_too_deep() -> str:
    return call_too_deep()


def return_half_a_surrogate() -> str:
    return "half \ud800"


def return_a_flood() -> str:
    return "x" * 5_000_000


def return_brackets() -> str:
    return "[" * 100_000


MISDEEDS = (
    raise_from_itself, raise_in_a_circle, raise_a_group_of_itself, raise_a_base_exception, leave, raise_without_words,
    raise_half_a_surrogate, call_too_deep, return_half_a_surrogate, return_a_flood, return_brackets,
)  # fmt: skip


def misbehave(a: int) -> str:
    """Does the misdeed of that number."""
    return MISDEEDS[a]()


TOOLS = [add, broken, unreachable, hang, hang_in_thread, book, misbehave]
