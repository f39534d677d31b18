"""`viva convert`: turns test files of other tools into native cases."""

import sys
from pathlib import Path

import click

from viva.errors import BadInput
from viva.formats.convert.files import TOOLS, convert_file
from viva.model import codec
from viva.record.atomic_files import replace_file

EPILOG = """\b
Examples:
  viva convert promptfooconfig.yaml -o tests/shop.yaml
  viva convert hotel.evalset.json                       print the cases
  viva convert samples.csv --from inspect -o tests/samples.jsonl
  viva test -i tests/shop.yaml -n python:./agent.py:reply
"""


@click.command(epilog=EPILOG)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--from", "tool", type=click.Choice(list(TOOLS)), help="The tool whose file it is. By default its keys show it."
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the cases into this .yaml or .jsonl file, which must not exist. Without it they are printed.",
)
@click.option("--strict", is_flag=True, help="Write nothing and exit with 4 if something has no counterpart.")
def command(file: Path, tool: str | None, output: Path | None, *, strict: bool) -> int:
    """Convert the test FILE of another tool into native cases. What has no counterpart is printed with its line.

    It reads configs of promptfoo, eval sets of ADK, goldens of deepeval, samples of Inspect, and datasets of
    pydantic-evals.
    """
    if output is not None and output.suffix not in (".yaml", ".yml", ".jsonl"):
        raise BadInput.of("the name of a suite must end in .yaml or .jsonl", str(output))
    if output is not None and output.exists():
        raise BadInput.of("exists already; choose another name", str(output))
    conversion = convert_file(file, tool)
    if strict and conversion.notes:
        raise BadInput(*conversion.notes)
    for note in conversion.notes:
        print(note, file=sys.stderr)
    text = _format_cases(conversion.cases, is_jsonl=output is not None and output.suffix == ".jsonl")
    if output is None:
        sys.stdout.write(text)
    else:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            replace_file(output, text.encode())
        except OSError as error:
            raise BadInput.of(f"cannot be written: {error.strerror}", str(output)) from error
    cases, notes = len(conversion.cases), len(conversion.notes)
    what = f"{cases} case{'s' * (cases != 1)} from {conversion.tool}"
    lost = f"{notes} thing{'s' * (notes != 1)} to look at" if notes else "everything has a counterpart"
    print(f"{what}; {lost}" + (f"; wrote {output}" if output else ""), file=sys.stderr)
    return 0


def _format_cases(cases: list[dict[str, object]], *, is_jsonl: bool) -> str:
    if is_jsonl:
        return "".join(codec.encode(case).decode() + "\n" for case in cases)
    from viva.formats.yaml_values import format_yaml

    return format_yaml(cases)
