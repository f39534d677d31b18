"""Converts a file of another tool into native cases. The keys in the file show which tool it is of."""

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from viva.errors import BadInput, Problem
from viva.formats import native
from viva.formats.convert.adk import convert_adk
from viva.formats.convert.datasets import convert_deepeval, convert_inspect, convert_pydantic_evals
from viva.formats.convert.foreign_document import ForeignDocument
from viva.formats.convert.promptfoo import convert_promptfoo
from viva.formats.documents import (
    Document,
    decode_chunk,
    parse_json_document,
    parse_yaml_documents,
    read_chunks,
    wrap_values,
)
from viva.formats.load_options import LoadOptions
from viva.formats.raw_files import check_is_text, check_regular_file, read_bytes


class OtherTool(Struct, frozen=True):
    """Another tool: how its files are recognised and converted."""

    name: str
    recognises: Callable[[Any], bool]
    convert: Callable[[ForeignDocument], Iterator[dict[str, Any]]]


class Conversion(Struct, frozen=True):
    """The new cases, and what could not be converted."""

    tool: str
    cases: list[dict[str, Any]]
    notes: list[Problem]


def _has_keys(*keys: str) -> Callable[[Any], bool]:
    """A function that says whether a value is an object with all of these keys."""
    return lambda value: isinstance(value, dict) and all(key in value for key in keys)


def _has_rows_with(*keys: str) -> Callable[[Any], bool]:
    """A function that says whether a value is a list of objects that all have one of these keys."""
    return lambda value: (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(row, dict) and any(key in row for key in keys) for row in value)
    )


TOOLS = {
    tool.name: tool
    for tool in (
        OtherTool("promptfoo", _has_keys("tests"), convert_promptfoo),
        OtherTool("adk", lambda value: _has_keys("eval_cases")(value) or _has_rows_with("query")(value), convert_adk),
        OtherTool("pydantic-evals", _has_keys("cases"), convert_pydantic_evals),
        OtherTool("inspect", _has_rows_with("target"), convert_inspect),
        OtherTool("deepeval", _has_rows_with("expected_output", "scenario", "actual_output"), convert_deepeval),
    )
}


def convert_file(path: Path, tool_name: str | None) -> Conversion:
    """Convert a file. Raises BadInput if its tool is not known, or if the converted cases would not load."""
    file = str(path)
    check_regular_file(path, file)
    document = _read_document(path, file)
    tool = (
        TOOLS[tool_name]
        if tool_name
        else next((each for each in TOOLS.values() if each.recognises(document.value)), None)
    )
    if tool is None or not tool.recognises(document.value):
        what = f"is not a file of {tool.name}" if tool else "is not a file of a known tool"
        raise BadInput.of(f"{what}; files of {', '.join(TOOLS)} can be converted", file)
    source = ForeignDocument(document, path.parent)
    try:
        cases = list(tool.convert(source))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        # The file has the keys of this tool, but values of another form.
        raise BadInput.of(f"cannot be read as a file of {tool.name}: {type(error).__name__}: {error}", file) from error
    if not cases:
        raise BadInput.of("has no cases", file)
    for number, case in enumerate(cases):
        native.load(wrap_values([case], f"{file}: case {number + 1}"), file, path.parent, LoadOptions())
    return Conversion(tool.name, cases, source.notes)


def _read_document(path: Path, file: str) -> Document:
    if path.suffix == ".jsonl":
        rows = [decode_chunk(file, chunk).value for chunk in read_chunks(path)]
        return Document(file, 1, rows, find_line=lambda *at: at[0] + 1 if at else 1)
    raw = read_bytes(path, file)
    check_is_text(raw, file)
    if path.suffix == ".csv":
        reader = csv.DictReader(io.StringIO(raw.decode("utf-8-sig"), newline=""))
        rows, lines = list[Any](), list[int]()  # a cell may have several lines
        line = 2
        for row in reader:
            rows.append(row)
            lines.append(line)
            line = reader.line_num + 1
        return Document(file, 1, rows, find_line=lambda *at: lines[at[0]] if at else 1)
    if path.suffix == ".json":
        return parse_json_document(raw, file)
    if path.suffix in (".yaml", ".yml"):
        documents = parse_yaml_documents(raw, file)
        if not documents:
            raise BadInput.of("is empty", file)
        return documents[0][0]
    raise BadInput.of("its name must end in .yaml, .yml, .json, .jsonl or .csv", file)
