"""`viva completion`: how to turn on completion in a shell."""

import click

LINES = {
    "bash": 'eval "$(_VIVA_COMPLETE=bash_source viva)"',
    "zsh": 'eval "$(_VIVA_COMPLETE=zsh_source viva)"',
    "fish": "_VIVA_COMPLETE=fish_source viva | source",
}


@click.command(epilog="Example: viva completion bash >> ~/.bashrc")
@click.argument("shell", type=click.Choice(list(LINES)))
def command(shell: str) -> int:
    """Print the line to put into the shell's start-up file."""
    print(LINES[shell])
    return 0
