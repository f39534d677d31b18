"""The command `viva`, also as `python -m viva`."""

import os
import signal

from viva.concurrency.stop_signals import list_stop_signals


def main() -> None:
    """Run the command of the process. A stop signal while it starts ends it with code 2 as well."""
    for number in list_stop_signals():
        signal.signal(number, lambda _number, _frame: os._exit(2))
    from viva.cli.main import main as run_command  # slow to import: the signals are handled first

    run_command()


if __name__ == "__main__":
    main()
