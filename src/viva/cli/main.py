"""The street door: `viva COMMAND`. Each command is a file of this folder, imported only when it is asked for."""

import atexit
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

import click

import viva
from viva.errors import BadInput, RunStopped, VivaError

COMMANDS = {
    "test": "Run cases against an agent.",
    "check": "Check suite files without running anything.",
    "agents": "List the agents that the config knows, and whether they can be reached.",
    "runs": "List what was run here, and look at one run or conversation.",
    "view": "Look at runs in a browser, also while they go on.",
    "serve": "Be an OpenWOP host: serve agents and eval suites over HTTP.",
    "compare": "Compare two runs, case by case.",
    "cassette": "Look at recorded replies, prune and compare recordings.",
    "pack": "Sign OpenWOP packs.",
    "shrink": "Make a failing conversation smaller, as long as it fails.",
    "init": "Make a small project that runs at once.",
    "schema": "Print the JSON Schema of a format.",
    "completion": "Print the line that turns on shell completion.",
}


class CommandGroup(click.Group):
    """Knows the commands by name; `--help` needs none of their imports."""

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
            return super().resolve_command(ctx, args)
        except click.UsageError as wrong:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(COMMANDS)}."
            raise click.UsageError(f"{wrong.message}{hint}", ctx) from wrong


@click.command(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with `viva init`, or send one message: viva test -i 'Hello' -n python:./agent.py:agent",
)
@click.version_option(viva.__version__, "-V", "--version", prog_name="viva")
def app() -> None:
    """Viva examines AI agents by talking to them."""


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a command (that of the process, unless another is given) and turns what it raises into an exit code: 4 for bad input, 3 for a bug of ours (with its traceback)."""
    if argv is None:
        atexit.register(_ignore_signals)  # registered first, so it is called last
    _write_utf8()
    try:
        code = app(argv, standalone_mode=False)
    except click.UsageError as wrong:
        wrong.show()
        code = 4
    except click.ClickException as wrong:
        wrong.show()
        code = 4
    except (click.Abort, KeyboardInterrupt):
        code = 2
    except BadInput as wrong:
        print(wrong, file=sys.stderr)
        code = 4
    except RunStopped as stopped:
        print(f"stopped: {stopped.reason}", file=sys.stderr)
        code = 1
    except BrokenPipeError:
        _forget_stdout()
        code = 1
    except VivaError as wrong:
        print(wrong, file=sys.stderr)
        code = 1
    except Exception:  # whatever it is, it is a bug of ours: show it whole
        import traceback

        traceback.print_exc()
        print(
            f"\nThis is a bug in Viva {viva.__version__}. The journal under .viva/runs keeps all trials that had ended.",
            file=sys.stderr,
        )
        code = 3
    if argv is None:
        _end_by_code()
    sys.exit(code if isinstance(code, int) else 0)


def _end_by_code() -> None:
    """From here on the process only ends. A signal (a second Ctrl-C, say) makes that quicker: it leaves with code 2."""

    def leave(_number: int, _frame: object) -> None:
        os._exit(2)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)


def _ignore_signals() -> None:
    """The last thing before the interpreter goes: it gives signals back to the system, and one would end it by itself."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _write_utf8() -> None:
    """A pipe or an old terminal must not break on what an agent said."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _forget_stdout() -> None:
    """The reader is gone (`viva … | head`); the interpreter must not complain about that once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
