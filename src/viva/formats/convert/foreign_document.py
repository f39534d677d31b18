"""The document of another tool that is converted, and helpers for converters."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from viva.errors import BadInput, Problem
from viva.formats.documents import Document
from viva.formats.raw_files import read_bytes
from viva.schemas.positions import KeyPath

JsonObject = Mapping[str, Any]


class ForeignDocument:
    """A document of another tool: its value, notes on what cannot be converted, and the ids of new cases."""

    def __init__(self, document: Document, folder: Path) -> None:
        self.value: Any = document.value
        self.notes: list[Problem] = []
        self._document = document
        self._folder = folder.resolve()
        self._ids: set[str] = set()

    def note(self, path: KeyPath, message: str) -> None:
        """Add a note that something could not be converted, unless it is there already."""
        if (problem := self._document.make_problem(path, message)) not in self.notes:
            self.notes.append(problem)

    def create_error(self, path: KeyPath, message: str) -> BadInput:
        return BadInput(self._document.make_problem(path, message))

    def create_id(self, text: object, otherwise: str) -> str:
        """A new id, made from a text, that differs from all ids created before."""
        words = re.sub(r"[^a-z0-9]+", "-", str(text or "").lower()).strip("-")[:60].rstrip("-")
        base = words or otherwise
        case_id, number = base, 1
        while case_id in self._ids:
            number += 1
            case_id = f"{base}-{number}"
        self._ids.add(case_id)
        return case_id

    def read_file(self, reference: str, path: KeyPath) -> bytes:
        """The content of a `file://` reference. Only files in the folder of the document are read."""
        name = reference.removeprefix("file://")
        file = (self._folder / name).resolve()
        if not file.is_relative_to(self._folder):
            raise self.create_error(path, f"{name!r} is outside the folder of the file")
        return read_bytes(file, str(file))


def build_same_answer_assertion(expected: object) -> dict[str, Any]:
    """An assertion that a judge finds the reply equal in meaning to an expected answer."""
    return {"type": "judge", "criteria": f"The reply says the same as this expected answer: {expected}"}


def escape_braces(value: Any) -> Any:
    r"""The value with `\{{` for every `{{`, which would be a variable in a case."""
    if isinstance(value, str):
        return value.replace("{{", "\\{{")
    if isinstance(value, Mapping):
        return {key: escape_braces(item) for key, item in value.items()}
    return [escape_braces(item) for item in value] if isinstance(value, list) else value
