"""Reads files as documents (one case, playbook or suite each) with their lines, and reports every unreadable part.

A `.jsonl` file is streamed twice: once to check it, once to build its cases, so that a large suite is never in memory.
Pretty-printed objects and `//` comment lines are accepted too.
"""

import re
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from msgspec import UNSET, Struct

from viva.errors import BadInput, Problem
from viva.formats.raw_files import HEAD_BYTES, MAX_BYTES, SpooledStream, check_is_text, check_regular_file, read_bytes
from viva.model import codec
from viva.schemas.positions import (
    KeyPath,
    create_yaml_line_finder,
    explain_json_error,
    find_json_item_lines,
    find_json_line,
)

_TOO_LONG_MESSAGE = f"is more than {MAX_BYTES // 2**20} MB long: too much for one document"
CASES_KEY = "cases"

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*+"'
_BRACKETS_AND_STRINGS = re.compile(_STRING + rb"|[{}\[\]]")
_JSON_PIECES = re.compile(_STRING + rb'|[{}\[\],]|[^\s{}\[\],":]+')
_KEYS_AND_BRACKETS = re.compile(rb"(" + _STRING + rb")(\s*:)?|[{}\[\]]")
_OPENING_BRACE = re.compile(rb"\s*\{")
_DEPTH_CHANGES = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}


class Document(Struct, frozen=True):
    """One value of a file. `prefix` is its path inside the file; `raw` is its JSON text."""

    file: str
    line: int
    value: Any
    prefix: KeyPath = ()
    raw: bytes = b""
    find_line: Any = None

    def make_problem(self, path: KeyPath, message: str, *, key: str | None = None) -> Problem:
        """A problem at a path in this document; `key` names the member that is meant."""
        at = (*path, key) if key is not None else path
        line = self.find_line(*self.prefix, *at) if self.find_line else self.line - 1 + find_json_line(self.raw, at)
        return Problem(self.file, line, format_key_path((*self.prefix, *path)), message)

    def find_item_lines(self, path: KeyPath) -> list[int]:
        """The lines of the items of an array in this document."""
        if self.find_line:
            items: Any = self.value
            for step in path:
                items = items[step]
            return [self.find_line(*self.prefix, *path, at) for at in range(len(items))]
        return [self.line - 1 + line for line in find_json_item_lines(self.raw, path)]


def format_key_path(path: KeyPath) -> str:
    """`$.turns[0].input`, as messages show it."""
    return "$" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" if p.isidentifier() else f"[{p!r}]" for p in path)


class Chunk(Struct, frozen=True):
    """The bytes of one document in a stream. `value` is set if it is one line that was decoded already."""

    line: int
    offset: int
    raw: bytes
    value: Any = UNSET
    is_too_long: bool = False
    is_known: bool = False


def read_chunks(
    path: Path | SpooledStream,
    max_bytes: int = MAX_BYTES,
    is_known: Callable[[int, bytes], bool] = lambda _offset, _line: False,
) -> Iterator[Chunk]:
    """The documents of a `.jsonl` file. A document is a line, or several lines until its brackets are closed; the next may begin on its last line.

    Reading stops at a document of more than `max_bytes`. Lines for which `is_known` is true are not decoded.
    """
    offset = line = depth = size = 0
    buffered: list[bytes] = []
    start = (0, 0)
    with path.open("rb") as file:
        for text in iter(partial(file.readline, max_bytes + 1), b""):
            size = size + len(text) if buffered else len(text)
            line += 1
            if size > max_bytes:
                yield Chunk(*(start if buffered else (line, offset)), b"", is_too_long=True)
                return  # where it ends cannot be known without reading all of it
            at, offset = offset, offset + len(text)
            if line == 1:
                text = text.removeprefix(b"\xef\xbb\xbf")  # noqa: PLW2901 -- a byte-order mark is not content
            stripped = text.strip()
            if not stripped or stripped.startswith(b"//"):
                if buffered:
                    buffered.append(b"\n")
                continue
            # A brace at the start of a line begins a new document: the unfinished one before it is broken.
            if buffered and text.startswith(b"{"):
                yield Chunk(*start, b"".join(buffered))
                buffered, depth = [], 0
            if not buffered:
                if is_known(at, text):
                    yield Chunk(line, at, text, is_known=True)
                    continue
                if (value := _decode_line(stripped)) is not UNSET:
                    yield Chunk(line, at, text, value)
                    continue
                start = (line, at)
            begin = 0
            for token in _BRACKETS_AND_STRINGS.finditer(text):
                depth += _DEPTH_CHANGES.get(token.group(), 0)
                if depth == 0 and token.group() == b"}" and _OPENING_BRACE.match(text, token.end()):
                    yield Chunk(*start, b"".join([*buffered, text[begin : token.end()]]))
                    buffered, begin = [], token.end()
                    start = (line, at + begin)
            buffered.append(text[begin:].rstrip(b"\n") + b"\n")
            if depth <= 0:
                yield Chunk(*start, b"".join(buffered))
                buffered, depth = [], 0
    if buffered:
        yield Chunk(*start, b"".join(buffered))


def _decode_line(text: bytes) -> Any:
    """The value of a line that is one complete object; UNSET otherwise."""
    if not text.endswith(b"}") or len(text) > MAX_BYTES:
        return UNSET
    try:
        return codec.decode(text)
    except codec.DecodeError:
        return UNSET


def decode_chunk(file: str, chunk: Chunk) -> Document:
    """Decode a document of a stream. BadInput names the exact line."""
    if chunk.is_too_long:
        raise BadInput.of(_TOO_LONG_MESSAGE, file, chunk.line)
    value = _decode_json(file, chunk.line, chunk.raw) if chunk.value is UNSET else chunk.value
    return Document(file, chunk.line, value, raw=chunk.raw)


def _decode_json(file: str, line: int, raw: bytes) -> Any:
    if len(raw) > MAX_BYTES:
        raise BadInput.of(_TOO_LONG_MESSAGE, file, line)
    try:
        return codec.decode(raw)
    except codec.DecodeError as error:
        inside, what = explain_json_error(raw, error)
        raise BadInput.of(what, file, line - 1 + inside) from error


def _check_duplicate_keys(file: str, line: int, raw: bytes, value: Any) -> None:
    """Raises BadInput for duplicate keys: one value would be lost. Keys are compared only if the text has more colons than the value."""
    if raw.count(b":") == codec.encode(value).count(b":") and b"\\u003" not in raw:  # a colon may be escaped
        return
    open_: list[set[str]] = []
    for token in _KEYS_AND_BRACKETS.finditer(raw):
        if token[1] is None:
            if token[0] in b"{[":
                open_.append(set())
            else:
                open_.pop()
        elif token[2] is not None:
            key = codec.decode(token[1])
            if key in open_[-1]:
                raise BadInput.of(
                    f"the key {key!r} is there twice; remove one", file, line + raw.count(b"\n", 0, token.start())
                )
            open_[-1].add(key)


class StreamedDocuments:
    """The documents of a `.jsonl` file, which is read twice. Between the two, only offsets and hashes are kept."""

    def __init__(self, path: Path | SpooledStream, file: str) -> None:
        self._path = path
        self._file = file
        self._offsets = array("Q")
        self._hashes = array("q")  # `hash` has 64 bits and is equal in one process

    def read_valid(self, problems: list[Problem]) -> Iterator[Document]:
        """Every readable document; problems are added to the list."""
        try:
            with self._path.open("rb") as file:
                check_is_text(file.read(HEAD_BYTES), self._file)
            for chunk in read_chunks(self._path):
                self._offsets.append(chunk.offset)
                self._hashes.append(hash(chunk.raw))
                try:
                    document = decode_chunk(self._file, chunk)
                    _check_duplicate_keys(self._file, chunk.line, chunk.raw, document.value)
                except BadInput as error:
                    problems += error.problems
                else:
                    yield document
        except OSError as error:
            problems.append(Problem(self._file, 0, "", f"cannot be read: {error.strerror}"))
        except BadInput as error:
            problems += error.problems

    def read_first(self) -> Document | None:
        """The first document, if it is readable."""
        try:
            return next((decode_chunk(self._file, chunk) for chunk in read_chunks(self._path)), None)
        except (BadInput, OSError):
            return None

    def iterate_again(self) -> Iterator[Callable[[], Document]]:
        """Functions that return the documents once more, each decoded when called. Raises BadInput if the file has changed."""
        number = 0

        def is_known(offset: int, line: bytes) -> bool:
            return (
                number < len(self._offsets) and self._offsets[number] == offset and self._hashes[number] == hash(line)
            )

        for chunk in read_chunks(self._path, is_known=is_known):
            if not chunk.is_known and not is_known(chunk.offset, chunk.raw):
                raise BadInput.of("changed while it was being run; start again", self._file, chunk.line)
            yield partial(decode_chunk, self._file, chunk)
            number += 1
        if number < len(self._offsets):
            raise BadInput.of("became shorter while it was being run; start again", self._file)


class LoadedDocuments(Struct, frozen=True):
    """Documents in memory, and the problems of their file."""

    documents: tuple[Document, ...]
    problems: tuple[Problem, ...] = ()

    def read_valid(self, problems: list[Problem]) -> Iterator[Document]:
        problems += self.problems
        return iter(self.documents)

    def read_first(self) -> Document | None:
        return next(iter(self.documents), None)

    def iterate_again(self) -> Iterator[Callable[[], Document]]:
        for document in self.documents:
            yield partial(_return_itself, document)


def _return_itself(document: Document) -> Document:
    return document


Documents = StreamedDocuments | LoadedDocuments


def open_documents(path: Path, file: str) -> Documents:
    """Open the documents of a file by its extension. Raises BadInput if the file is unreadable as a whole."""
    check_regular_file(path, file)
    if path.suffix == ".jsonl":
        return StreamedDocuments(path, file)
    return (
        _load_yaml_file(path, file)
        if path.suffix in (".yaml", ".yml")
        else _load_json_file(read_bytes(path, file), file)
    )


def open_json_stream(stream: BinaryIO, file: str) -> Documents:
    """Documents from a stream: JSON lines or pretty-printed objects, or one JSON array."""
    spool = SpooledStream(stream)
    first = next(read_chunks(spool), None)
    if first is not None and _holds_item_list(first):
        with spool.open("rb") as text:
            return _load_json_file(text.read(), file)
    return StreamedDocuments(spool, file)


def _holds_item_list(chunk: Chunk) -> bool:
    try:
        return chunk.raw.lstrip().startswith(b"[") or _list_items(codec.decode(chunk.raw))[0][0] != ()
    except (codec.DecodeError, IndexError):
        return False


def wrap_values(values: Sequence[Any], name: str) -> LoadedDocuments:
    """Documents from values in memory. Messages show `name` as their file, and the number of a value as its line."""
    return LoadedDocuments(
        tuple(Document(name, n, value, raw=codec.encode(value)) for n, value in enumerate(values, 1))
    )


def parse_json_document(raw: bytes, file: str) -> Document:
    """Parse a JSON text as one document."""
    value_of_file = _decode_json(file, 1, raw)
    _check_duplicate_keys(file, 1, raw, value_of_file)
    return Document(file, 1, value_of_file, raw=raw)


def _load_json_file(raw: bytes, file: str) -> LoadedDocuments:
    """A `.json` file: one document, a list of them, or `{"cases": [...]}`."""
    check_is_text(raw, file)
    stripped = _strip_comments(raw)
    value_of_file = _decode_json(file, 1, stripped)
    _check_duplicate_keys(file, 1, stripped, value_of_file)
    document = Document(file, 1, value_of_file, raw=stripped)
    members = _list_items(value_of_file)
    documents: list[Document] = []
    line, seen = 1, 0
    for (prefix, value), (start, end) in zip(members, _find_item_spans(stripped, members), strict=True):
        line, seen = line + stripped.count(b"\n", seen, start), start
        documents.append(Document(file, line, value, prefix, stripped[start:end]))
    return LoadedDocuments(tuple(documents), tuple(_find_keys_beside_cases(document, members)))


def _find_keys_beside_cases(document: Document, members: list[tuple[KeyPath, Any]]) -> Iterator[Problem]:
    """Report keys other than `cases`."""
    if members and members[0][0][:1] == (CASES_KEY,):
        for key in document.value:
            if key != CASES_KEY:
                yield document.make_problem(
                    (), f"unknown key {key!r} next to 'cases'; write it into each case, or leave it out", key=key
                )


def _find_item_spans(raw: bytes, members: list[tuple[KeyPath, Any]]) -> Iterator[tuple[int, int]]:
    """Start and end of each member: the whole text, or the items of an array."""
    if members and members[0][0] == ():
        yield len(raw) - len(raw.lstrip()), len(raw)
        return
    depth, start = 1, 0
    for token in _JSON_PIECES.finditer(raw, _find_item_array_start(raw)):
        piece = token.group()
        if depth == 1:
            if piece == b",":
                continue
            start = token.start()
        depth += _DEPTH_CHANGES.get(piece, 0)
        if depth == 0:
            return
        if depth == 1:
            yield start, token.end()


def _find_item_array_start(raw: bytes) -> int:
    """The offset after the bracket that opens the list of documents: the whole text, or the value of `cases`."""
    depth = 0
    for token in _KEYS_AND_BRACKETS.finditer(raw):
        if token[1] is None:
            if depth == 0 and token[0] == b"[":
                return token.end()
            depth += _DEPTH_CHANGES[token[0]]
        elif depth == 1 and token[2] is not None and codec.decode(token[1]) == CASES_KEY:
            return raw.index(b"[", token.end()) + 1
    return len(raw)


def _strip_comments(raw: bytes) -> bytes:
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    if b"//" not in raw:
        return raw
    return b"\n".join(b"" if line.lstrip().startswith(b"//") else line for line in raw.split(b"\n"))


def _list_items(value_of_file: Any) -> list[tuple[KeyPath, Any]]:
    if isinstance(value_of_file, list):
        return [((i,), value) for i, value in enumerate(cast("list[Any]", value_of_file))]
    if (
        isinstance(value_of_file, dict)
        and is_case_list(cast("dict[str, Any]", value_of_file))
        and isinstance(value_of_file[CASES_KEY], list)
    ):
        return [((CASES_KEY, i), value) for i, value in enumerate(cast("list[Any]", value_of_file[CASES_KEY]))]
    return [((), value_of_file)]


def is_case_list(keys: Collection[str]) -> bool:
    """Are these the keys of an object `{"cases": [...]}`, and not of a case, suite or playbook?"""
    return CASES_KEY in keys and not any(key in keys for key in ("id", "suiteId", "tasks", "steps", "persona"))


def parse_yaml_documents(raw: bytes, file: str) -> list[tuple[Document, list[int]]]:
    """Each document of YAML text, with the lines on which its members begin. BadInput names the line of a mistake."""
    import yaml

    from viva.formats.yaml_values import parse_yaml

    check_is_text(raw, file)
    try:
        text = raw.decode("utf-8-sig")
        values = parse_yaml(text)
    except UnicodeDecodeError as error:
        raise BadInput.of(f"is not UTF-8: {error.reason}", file, raw[: error.start].count(b"\n") + 1) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise BadInput.of(
            f"is not YAML: {error.problem or error}", file, min(mark.line + 1, len(raw.splitlines())) if mark else 0
        ) from error
    except yaml.reader.ReaderError as error:
        line = raw[: error.position].count(b"\n") + 1
        raise BadInput.of(f"is not YAML: {error.reason} (character {error.character!r})", file, line) from error
    except (yaml.YAMLError, ValueError) as error:
        raise BadInput.of(f"is not YAML: {error}", file) from error
    find_line = create_yaml_line_finder(text)
    return [
        (Document(file, 1, value, find_line=partial(find_line, position)), starts)
        for position, (value, starts) in enumerate(values)
        if value is not None
    ]


def _load_yaml_file(path: Path, file: str) -> LoadedDocuments:
    """A `.yaml` file: a list of documents, a single one, `cases:` with a list, or several separated by `---`."""
    documents: list[Document] = []
    problems: list[Problem] = []
    for document, starts in parse_yaml_documents(read_bytes(path, file, MAX_BYTES), file):
        members = _list_items(document.value)
        problems += _find_keys_beside_cases(document, members)
        documents += [
            Document(file, line, value, prefix, find_line=document.find_line)
            for (prefix, value), line in zip(members, starts, strict=True)
        ]
    return LoadedDocuments(tuple(documents), tuple(problems))
