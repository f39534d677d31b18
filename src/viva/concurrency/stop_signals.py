"""The signals that stop a command."""

import signal


def list_stop_signals() -> list[signal.Signals]:
    """SIGINT, SIGTERM and SIGHUP, which comes when the terminal closes. `nohup` has SIGHUP ignored, and so it stays."""
    signals = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    return [number for number in signals if not is_hangup(number) or signal.getsignal(number) is not signal.SIG_IGN]


def is_hangup(number: int) -> bool:
    return number == getattr(signal, "SIGHUP", None)
