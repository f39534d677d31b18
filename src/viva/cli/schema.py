"""`viva schema`: prints the JSON Schema of a format, for editors and other tools."""

import sys

import click

from viva.schemas.validation import PUBLIC_SCHEMAS, SchemaName, read_schema

EPILOG = """\b
Examples:
  viva schema native > viva.schema.json
  # yaml-language-server: $schema=./viva.schema.json      first line of a .yaml suite
  viva schema playbook > playbook.schema.json
  # yaml-language-server: $schema=./playbook.schema.json  first line of a playbook
"""


@click.command(epilog=EPILOG)
@click.argument("name", type=click.Choice(PUBLIC_SCHEMAS))
def command(name: SchemaName) -> int:
    """Print the JSON Schema of the format NAME, which the loader uses too."""
    sys.stdout.write(read_schema(name).decode().rstrip() + "\n")
    return 0
