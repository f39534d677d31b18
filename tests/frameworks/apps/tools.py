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


TOOLS = [add, broken, unreachable, hang, hang_in_thread, book]
