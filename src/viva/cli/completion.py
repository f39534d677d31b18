"""`viva completion`: prints the line that enables shell completion."""

import click

COMPLETION_LINES = {
    "bash": 'eval "$(_VIVA_COMPLETE=bash_source viva)"',
    "zsh": 'eval "$(_VIVA_COMPLETE=zsh_source viva)"',
    "fish": "_VIVA_COMPLETE=fish_source viva | source",
}


@click.command(epilog="Example: viva completion bash >> ~/.bashrc")
@click.argument("shell", type=click.Choice(list(COMPLETION_LINES)))
def command(shell: str) -> int:
    """Print the line that enables completion, for the start-up file of SHELL."""
    print(COMPLETION_LINES[shell])
    return 0
