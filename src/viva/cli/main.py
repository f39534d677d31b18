"""`viva COMMAND`. Each command is a module of this package, imported on use."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import click

import viva
from viva.concurrency.stop_signals import is_hangup, list_stop_signals
from viva.errors import BadInput, RunStopped, VivaError
from viva.text.similar_names import find_similar_names

THREAD_GRACE_S = 10.0
"""How long the process waits for threads of the agent before it exits."""
COMPLETION_VARIABLE = "_VIVA_COMPLETE"
"""Is set by the shell when it asks for completions."""
COMMANDS = {
    "test": "Run cases against an agent.",
    "check": "Check suite files without running them.",
    "agents": "List agents and connectors, and whether they can be reached.",
    "runs": "List runs, and show one run or conversation.",
    "view": "Show runs in a browser, also while they run.",
    "labels": "List and export the labels that people gave to verdicts.",
    "serve": "Serve agents and eval suites over HTTP as an OpenWOP host.",
    "compare": "Compare runs or agents, case by case.",
    "merge": "Make one run of the parts of a split run.",
    "cassette": "Show, prune and compare recorded replies.",
    "pack": "Sign OpenWOP packs.",
    "shrink": "Reduce a failing conversation to a small case that still fails.",
    "init": "Create a small project.",
    "convert": "Convert test files of other tools.",
    "schema": "Print the JSON Schema of a format.",
    "completion": "Print the line that enables shell completion.",
}


class CommandGroup(click.Group):
    """Finds commands by name; `--help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return import_module(f"viva.cli.{cmd_name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            resolved = super().resolve_command(ctx, args)
        except click.UsageError as error:
            matches = find_similar_names(args[0], COMMANDS, 1)
            hint = f" Did you mean {matches[0]!r}?" if matches else f" Commands: {', '.join(COMMANDS)}."
            raise click.UsageError(f"{error.message}{hint}", ctx) from error
        # Not before the command is imported: an interrupted import could be taken for a bug.
        ctx.with_resource(_stop_like_ctrl_c())
        return resolved

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _end_without_reader():  # --help
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _end_without_reader():
            return super().invoke(ctx)


@click.command(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with `viva init`, or send a message: viva test -i 'Hello' -n python:./agent.py:agent",
)
@click.version_option(viva.__version__, "-V", "--version", prog_name="viva")
def app() -> None:
    """Viva tests AI agents through multi-turn conversations: scripted, simulated or live."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit: 4 for bad input, 3 with a traceback for a bug in Viva. Default: the command of the process."""
    if argv is None:
        atexit.register(_ignore_stop_signals)  # registered first, called last
    _escape_unencodable_output()
    if os.environ.get(COMPLETION_VARIABLE):
        app(argv, prog_name="viva", complete_var=COMPLETION_VARIABLE)  # click prints the completions, and exits
    try:
        code = app(argv, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = 4
    except (click.Abort, KeyboardInterrupt):
        code = 2
    except BadInput as error:
        _print_error(str(error))
        if os.environ.get("GITHUB_ACTIONS"):
            from viva.cli.streams import annotate_bad_input

            annotate_bad_input(error)
        code = 4
    except RunStopped as stopped:
        _print_error(f"stopped: {stopped.reason}")
        code = 1
    except VivaError as error:
        _print_error(str(error))
        code = 1
    except BaseException:  # a bug in Viva. SystemExit too: user code that exits must not look like a run that passed
        import traceback

        traceback.print_exc()
        print(
            f"\nThis is a bug in Viva {viva.__version__}. Trials that ended are saved in .viva/runs.", file=sys.stderr
        )
        code = 3
    code = code if isinstance(code, int) else 0
    if argv is None:
        _exit_on_stop_signal()
        _limit_wait_for_threads(code)
    sys.exit(code)


def _print_error(message: str) -> None:
    """Prints an error. It may quote a file or an answer of another machine, which must not control the terminal."""
    from viva.reporters.formatting import escape_multiline  # not needed for most commands

    print(escape_multiline(message), file=sys.stderr)


def _limit_wait_for_threads(code: int) -> None:
    """Exit after a grace period, even if threads of an agent's libraries or tools still run."""
    if threading.active_count() == 1:
        return

    def exit_now() -> None:
        own = (threading.main_thread(), threading.current_thread())
        names = [
            thread.name for thread in threading.enumerate() if thread not in own and not thread.name.startswith("viva")
        ]
        print(f"threads of the agent did not end: {', '.join(names)[:200]}", file=sys.stderr)
        sys.stdout.flush()
        os._exit(code)

    timer = threading.Timer(THREAD_GRACE_S, exit_now)
    timer.daemon = True
    timer.start()


@contextmanager
def _stop_like_ctrl_c() -> Generator[None]:
    """Handles all stop signals like Ctrl-C: the command stops with exit code 2. A run installs its own handlers.

    Ctrl-C raises KeyboardInterrupt, or cancels the task that `asyncio.Runner` runs. So do the others: KeyboardInterrupt inside
    the event loop could be raised between the call of a coroutine function and its `await`.
    """

    def interrupt(_number: int, _frame: object) -> None:
        signal.raise_signal(signal.SIGINT)

    before: dict[signal.Signals, Any] = {}
    with suppress(ValueError):  # not the main thread: it cannot handle signals
        for number in list_stop_signals():
            is_ctrl_c = number == signal.SIGINT
            before[number] = signal.signal(number, signal.default_int_handler if is_ctrl_c else interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_on_stop_signal() -> None:
    """While the process ends, let a signal (for example a second Ctrl-C) end it at once with code 2."""

    def exit_now(_number: int, _frame: object) -> None:
        os._exit(2)

    for number in list_stop_signals():
        signal.signal(number, signal.SIG_IGN if is_hangup(number) else exit_now)


def _ignore_stop_signals() -> None:
    """Ignore signals at the very end, where the interpreter restores the default action."""
    for number in list_stop_signals():
        signal.signal(number, signal.SIG_IGN)


def _escape_unencodable_output() -> None:
    """Escape characters that the output stream cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


@contextmanager
def _end_without_reader() -> Generator[None]:
    """Ends the command if the reader of its output has ended. For click's SystemExit this would be a bug in Viva."""
    try:
        yield
    except BrokenPipeError as error:
        _discard_stdout()
        raise click.exceptions.Exit(1) from error


def _discard_stdout() -> None:
    """Redirect standard output to nothing, to avoid a second error at exit when its reader has ended (`viva … | head`)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
