"""Numbers as reports write them: times, money, counts."""


def format_ms(ms: float) -> str:
    """`42ms`, `7.1s`, `2m 05s`, `1h 02m`."""
    if ms < 99.5:
        return f"{ms:.0f}ms"
    if ms < 59_950:
        return f"{ms / 1000:.1f}s"
    whole = round(ms / 1000)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def format_count(number: int, noun: str) -> str:
    """`1 turn`, `3 turns`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_cost(cost_usd: float | None, unpriced_calls: int) -> str | None:
    """What it cost as far as that is known; None where there is nothing to say. An unknown price is never 0."""
    unknown = f"{format_count(unpriced_calls, 'call')} of unknown price" if unpriced_calls else ""
    if cost_usd is None:
        return unknown or None
    known = f"${cost_usd:,.2f}" if cost_usd >= 10 else f"${cost_usd:.4f}"
    return f"{known} + {unknown}" if unknown else known
