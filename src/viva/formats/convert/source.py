"""The file of another tool while it is converted: its value, notes on what has no counterpart, ids of new cases."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from viva.errors import BadInput, Problem
from viva.formats.documents import Document
from viva.formats.raw_files import read_bytes
from viva.schemas.positions import KeyPath

JsonObject = Mapping[str, Any]


class Source:
    """A document of another tool. Paths that it names are read only inside its folder."""

    def __init__(self, document: Document, folder: Path) -> None:
        self.value: Any = document.value
        self.notes: list[Problem] = []
        self._document = document
        self._folder = folder.resolve()
        self._ids: set[str] = set()

    def note(self, path: KeyPath, message: str) -> None:
        """Remember, once, that something could not be converted."""
        if (problem := self._document.make_problem(path, message)) not in self.notes:
            self.notes.append(problem)

    def refuse(self, path: KeyPath, message: str) -> BadInput:
        return BadInput(self._document.make_problem(path, message))

    def create_id(self, text: object, otherwise: str) -> str:
        """An id made of a text, different from all earlier ones."""
        words = re.sub(r"[^a-z0-9]+", "-", str(text or "").lower()).strip("-")[:60].rstrip("-")
        base = words or otherwise
        case_id, number = base, 1
        while case_id in self._ids:
            number += 1
            case_id = f"{base}-{number}"
        self._ids.add(case_id)
        return case_id

    def read_file(self, reference: str, path: KeyPath) -> bytes:
        """The content of `file://...` beside the document."""
        name = reference.removeprefix("file://")
        file = (self._folder / name).resolve()
        if not file.is_relative_to(self._folder):
            raise self.refuse(path, f"{name!r} is outside the folder of the file")
        return read_bytes(file, str(file))


def says_the_same(expected: object) -> dict[str, Any]:
    """The assertion for an expected answer that need not be the same word for word."""
    return {"type": "judge", "criteria": f"The reply says the same as this expected answer: {expected}"}


def escape_braces(value: Any) -> Any:
    r"""The value with `\{{` for every `{{`, which would be a variable in a case."""
    if isinstance(value, str):
        return value.replace("{{", "\\{{")
    if isinstance(value, Mapping):
        return {key: escape_braces(item) for key, item in value.items()}
    return [escape_braces(item) for item in value] if isinstance(value, list) else value
