"""`python -m viva`: the same as the command `viva`."""

from viva.cli.main import main

main()
