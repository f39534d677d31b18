"""Reads files as documents: one case, playbook or suite each, with the line it starts on. Says what cannot be read, all of it.

A `.jsonl` file is read twice as a stream: once to check it, once as its cases are pulled, so that neither text nor
objects of a large suite are held. Pretty-printed objects one after another, with `//` lines between them, load as well.
"""

import re
from array import array
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, cast

from msgspec import UNSET, Struct

from viva.errors import BadInput, Problem
from viva.formats.raw_files import HEAD_BYTES, MAX_BYTES, SpooledStream, check_is_text, check_regular_file, read_bytes
from viva.model import codec
from viva.schemas.positions import KeyPath, explain_json_error, find_json_item_lines, find_json_line, yaml_line_finder

_TOO_LONG = f"is more than {MAX_BYTES // 2**20} MB long: too much for one document"
CASES_KEY = "cases"

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*+"'
_TOKENS = re.compile(_STRING + rb"|[{}\[\]]")
_PIECES = re.compile(_STRING + rb'|[{}\[\],]|[^\s{}\[\],":]+')
_KEYS = re.compile(rb"(" + _STRING + rb")(\s*:)?|[{}\[\]]")
_KEY_ENDS = re.compile(rb'"\s*:')
_OPENING = re.compile(rb"\s*\{")
_DEPTH = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}


class Document(Struct, frozen=True):
    """One value of a file. `prefix` is its path inside the file, `raw` its text where it is JSON."""

    file: str
    line: int
    value: Any
    prefix: KeyPath = ()
    raw: bytes = b""
    find_line: Any = None

    def make_problem(self, path: KeyPath, message: str, *, key: str | None = None) -> Problem:
        """A problem at a place in this document; `key` is the member of that object that is meant."""
        at = (*path, key) if key is not None else path
        line = self.find_line(*self.prefix, *at) if self.find_line else self.line - 1 + find_json_line(self.raw, at)
        return Problem(self.file, line, format_key_path((*self.prefix, *path)), message)

    def find_item_lines(self, path: KeyPath) -> list[int]:
        """The lines on which the items of an array of this document stand."""
        if self.find_line:
            items: Any = self.value
            for step in path:
                items = items[step]
            return [self.find_line(*self.prefix, *path, at) for at in range(len(items))]
        return [self.line - 1 + line for line in find_json_item_lines(self.raw, path)]


def format_key_path(path: KeyPath) -> str:
    """`$.turns[0].input`, as error messages show it."""
    return "$" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" if p.isidentifier() else f"[{p!r}]" for p in path)


class Chunk(Struct, frozen=True):
    """A document of a stream. `value` is there already where the text is a line that decodes by itself."""

    line: int
    offset: int
    raw: bytes
    value: Any = UNSET
    is_too_long: bool = False


def read_chunks(path: Path | SpooledStream, max_bytes: int = MAX_BYTES) -> Iterator[Chunk]:
    """The documents of a `.jsonl` file: a line each, or as many lines as its brackets need; two may meet on a line.

    It ends at a document of more than so many bytes.
    """
    offset = line = depth = size = 0
    held: list[bytes] = []
    start = (0, 0)
    with path.open("rb") as file:
        for text in iter(partial(file.readline, max_bytes + 1), b""):
            size = size + len(text) if held else len(text)
            line += 1
            if size > max_bytes:
                yield Chunk(*(start if held else (line, offset)), b"", is_too_long=True)
                return  # where it ends cannot be told without reading all of it
            at, offset = offset, offset + len(text)
            if line == 1:
                text = text.removeprefix(b"\xef\xbb\xbf")  # noqa: PLW2901 -- a byte-order mark is not content
            bare = text.strip()
            if not bare or bare.startswith(b"//"):
                if held:
                    held.append(b"\n")
                continue
            # A line that opens an object at its very start begins anew: what was open before is broken.
            if held and text.startswith(b"{"):
                yield Chunk(*start, b"".join(held))
                held, depth = [], 0
            if not held:
                if (value := _whole(bare)) is not UNSET:
                    yield Chunk(line, at, text, value)
                    continue
                start = (line, at)
            begin = 0
            for token in _TOKENS.finditer(text):
                depth += _DEPTH.get(token.group(), 0)
                if depth == 0 and token.group() == b"}" and _OPENING.match(text, token.end()):
                    yield Chunk(*start, b"".join([*held, text[begin : token.end()]]))
                    held, begin = [], token.end()
                    start = (line, at + begin)
            held.append(text[begin:].rstrip(b"\n") + b"\n")
            if depth <= 0:
                yield Chunk(*start, b"".join(held))
                held, depth = [], 0
    if held:
        yield Chunk(*start, b"".join(held))


def _whole(text: bytes) -> Any:
    """The value of a line that is one whole object."""
    if not text.endswith(b"}") or len(text) > MAX_BYTES:
        return UNSET
    try:
        return codec.decode(text)
    except codec.DecodeError:
        return UNSET


def decode_chunk(file: str, chunk: Chunk) -> Document:
    """A document of a stream; raises BadInput with the very line that cannot be read."""
    if chunk.is_too_long:
        raise BadInput.of(_TOO_LONG, file, chunk.line)
    value = _decoded(file, chunk.line, chunk.raw) if chunk.value is UNSET else chunk.value
    return Document(file, chunk.line, value, raw=chunk.raw)


def _decoded(file: str, line: int, raw: bytes) -> Any:
    if len(raw) > MAX_BYTES:
        raise BadInput.of(_TOO_LONG, file, line)
    try:
        return codec.decode(raw)
    except codec.DecodeError as wrong:
        inside, what = explain_json_error(raw, wrong)
        raise BadInput.of(what, file, line - 1 + inside) from wrong


def _refuse_repeated_keys(file: str, line: int, raw: bytes, value: Any) -> None:
    """Of a key that is written twice one value would be lost. Only where there are fewer keys than colons is it looked for."""
    count = _count_keys(value)
    if count == raw.count(b":") or count == len(_KEY_ENDS.findall(raw)):
        return
    open_: list[set[str]] = []
    for token in _KEYS.finditer(raw):
        if token[1] is None:
            if token[0] in b"{[":
                open_.append(set())
            else:
                open_.pop()
        elif token[2] is not None:
            key = codec.decode(token[1])
            if key in open_[-1]:
                raise BadInput.of(f"the key {key!r} stands here twice", file, line + raw.count(b"\n", 0, token.start()))
            open_[-1].add(key)


def _count_keys(value: Any) -> int:
    count = 0
    items: Any = ()
    if type(value) is dict:
        items = cast("dict[str, Any]", value).values()
        count = len(items)
    elif type(value) is list:
        items = cast("list[Any]", value)
    for item in items:
        if type(item) is dict or type(item) is list:
            count += _count_keys(item)
    return count


class StreamedDocuments:
    """The documents of a `.jsonl` file, read twice: where they stand and what they were is all that is held in between."""

    def __init__(self, path: Path | SpooledStream, file: str) -> None:
        self._path = path
        self._file = file
        self._offsets = array("Q")
        self._digests = array("Q")

    def read_valid(self, problems: list[Problem]) -> Iterator[Document]:
        """Every document that can be read; what cannot is added to the problems."""
        try:
            with self._path.open("rb") as file:
                check_is_text(file.read(HEAD_BYTES), self._file)
            for chunk in read_chunks(self._path):
                self._offsets.append(chunk.offset)
                self._digests.append(_digest(chunk.raw))
                try:
                    document = decode_chunk(self._file, chunk)
                    _refuse_repeated_keys(self._file, chunk.line, chunk.raw, document.value)
                except BadInput as wrong:
                    problems += wrong.problems
                else:
                    yield document
        except OSError as wrong:
            problems.append(Problem(self._file, 0, "", f"cannot be read: {wrong.strerror}"))
        except BadInput as wrong:
            problems += wrong.problems

    def peek(self) -> Document | None:
        """The first document, if it can be read."""
        try:
            return next((decode_chunk(self._file, chunk) for chunk in read_chunks(self._path)), None)
        except (BadInput, OSError):
            return None

    def reread(self) -> Iterator[Document]:
        """The same documents once more. A file that changed in between is refused."""
        known = iter(zip(self._offsets, self._digests, strict=True))
        for chunk in read_chunks(self._path):
            if next(known, None) != (chunk.offset, _digest(chunk.raw)):
                raise BadInput.of("changed while it was being run; start again", self._file, chunk.line)
            yield decode_chunk(self._file, chunk)
        if next(known, None) is not None:
            raise BadInput.of("became shorter while it was being run; start again", self._file)


class LoadedDocuments(Struct, frozen=True):
    """Documents that are in memory already, and what is wrong with the file around them."""

    documents: tuple[Document, ...]
    problems: tuple[Problem, ...] = ()

    def read_valid(self, problems: list[Problem]) -> Iterator[Document]:
        problems += self.problems
        return iter(self.documents)

    def peek(self) -> Document | None:
        return next(iter(self.documents), None)

    def reread(self) -> Iterator[Document]:
        return iter(self.documents)


Documents = StreamedDocuments | LoadedDocuments


def open_documents(path: Path, file: str) -> Documents:
    """The documents of a file, by its ending. Raises BadInput for one that cannot be read as a whole."""
    check_regular_file(path, file)
    if path.suffix == ".jsonl":
        return StreamedDocuments(path, file)
    return _yaml_file(path, file) if path.suffix in (".yaml", ".yml") else _json_file(read_bytes(path, file), file)


def read_document_stream(stream: BinaryIO, file: str) -> Documents:
    """The documents of a stream: lines or pretty-printed objects as in a `.jsonl` file, or one array as in a `.json` file."""
    spool = SpooledStream(stream)
    first = next(read_chunks(spool), None)
    if first is not None and _is_list(first):
        with spool.open("rb") as text:
            return _json_file(text.read(), file)
    return StreamedDocuments(spool, file)


def _is_list(chunk: Chunk) -> bool:
    try:
        return chunk.raw.lstrip().startswith(b"[") or _members(codec.decode(chunk.raw))[0][0] != ()
    except (codec.DecodeError, IndexError):
        return False


def wrap_values(values: Sequence[Any], name: str) -> LoadedDocuments:
    """Values that no file holds, under a name that messages show; the n-th stands on line n."""
    return LoadedDocuments(
        tuple(Document(name, n, value, raw=codec.encode(value)) for n, value in enumerate(values, 1))
    )


def _digest(raw: bytes) -> int:
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "big")


def parse_json_document(raw: bytes, file: str) -> Document:
    """A value that is one document, whatever it is."""
    whole = _decoded(file, 1, raw)
    _refuse_repeated_keys(file, 1, raw, whole)
    return Document(file, 1, whole, raw=raw)


def _json_file(raw: bytes, file: str) -> LoadedDocuments:
    """A `.json` file: one document, a list of them, or `{"cases": [...]}`."""
    check_is_text(raw, file)
    stripped = _without_comments(raw)
    whole = _decoded(file, 1, stripped)
    _refuse_repeated_keys(file, 1, stripped, whole)
    around = Document(file, 1, whole, raw=stripped)
    members = _members(whole)
    documents: list[Document] = []
    line, seen = 1, 0
    for (prefix, value), (start, end) in zip(members, _spans(stripped, members), strict=True):
        line, seen = line + stripped.count(b"\n", seen, start), start
        documents.append(Document(file, line, value, prefix, stripped[start:end]))
    return LoadedDocuments(tuple(documents), tuple(_siblings(around, members)))


def _siblings(around: Document, members: list[tuple[KeyPath, Any]]) -> Iterator[Problem]:
    """Nothing else has a place beside `cases`."""
    if members and members[0][0][:1] == (CASES_KEY,):
        for key in around.value:
            if key != CASES_KEY:
                yield around.make_problem(
                    (), f"unknown key {key!r} beside 'cases'; write it into each case, or leave it out", key=key
                )


def _spans(raw: bytes, members: list[tuple[KeyPath, Any]]) -> Iterator[tuple[int, int]]:
    """Where the members begin and end: the whole, or the items of an array."""
    if members and members[0][0] == ():
        yield len(raw) - len(raw.lstrip()), len(raw)
        return
    depth, start = 1, 0
    for token in _PIECES.finditer(raw, _array_start(raw)):
        piece = token.group()
        if depth == 1:
            if piece == b",":
                continue
            start = token.start()
        depth += _DEPTH.get(piece, 0)
        if depth == 0:
            return
        if depth == 1:
            yield start, token.end()


def _array_start(raw: bytes) -> int:
    """Right behind the bracket that opens the list of documents: the outermost, or that of `cases`."""
    depth = 0
    for token in _KEYS.finditer(raw):
        if token[1] is None:
            if depth == 0 and token[0] == b"[":
                return token.end()
            depth += _DEPTH[token[0]]
        elif depth == 1 and token[2] is not None and codec.decode(token[1]) == CASES_KEY:
            return raw.index(b"[", token.end()) + 1
    return len(raw)


def _without_comments(raw: bytes) -> bytes:
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    if b"//" not in raw:
        return raw
    return b"\n".join(b"" if line.lstrip().startswith(b"//") else line for line in raw.split(b"\n"))


def _members(whole: Any) -> list[tuple[KeyPath, Any]]:
    if isinstance(whole, list):
        return [((i,), value) for i, value in enumerate(cast("list[Any]", whole))]
    if isinstance(whole, dict) and is_case_list(cast("dict[str, Any]", whole)) and isinstance(whole[CASES_KEY], list):
        return [((CASES_KEY, i), value) for i, value in enumerate(cast("list[Any]", whole[CASES_KEY]))]
    return [((), whole)]


def is_case_list(keys: Collection[str]) -> bool:
    """Is an object with these keys a list of cases with something around it, not a document itself?"""
    return CASES_KEY in keys and not any(key in keys for key in ("id", "suiteId", "tasks", "steps", "persona"))


def _yaml_file(path: Path, file: str) -> LoadedDocuments:
    """A `.yaml` file: a list of documents, one, `cases:` with a list, or several with `---` between them."""
    import yaml

    from viva.formats.yaml_values import parse_yaml

    raw = read_bytes(path, file, MAX_BYTES)
    check_is_text(raw, file)
    try:
        text = raw.decode("utf-8-sig")
        values = parse_yaml(text)
    except UnicodeDecodeError as wrong:
        raise BadInput.of(f"is not UTF-8: {wrong.reason}", file, raw[: wrong.start].count(b"\n") + 1) from wrong
    except yaml.MarkedYAMLError as wrong:
        mark = wrong.problem_mark or wrong.context_mark
        raise BadInput.of(
            f"is not YAML: {wrong.problem or wrong}", file, min(mark.line + 1, len(raw.splitlines())) if mark else 0
        ) from wrong
    except yaml.reader.ReaderError as wrong:
        line = raw[: wrong.position].count(b"\n") + 1
        raise BadInput.of(f"is not YAML: {wrong.reason} (character {wrong.character!r})", file, line) from wrong
    except (yaml.YAMLError, ValueError) as wrong:
        raise BadInput.of(f"is not YAML: {wrong}", file) from wrong
    lines = yaml_line_finder(text)
    documents: list[Document] = []
    problems: list[Problem] = []
    for position, (whole, starts) in enumerate(values):
        if whole is None:
            continue
        around = Document(file, 1, whole, find_line=partial(lines, position))
        members = _members(whole)
        problems += _siblings(around, members)
        documents += [
            Document(file, line, value, prefix, find_line=around.find_line)
            for (prefix, value), line in zip(members, starts, strict=True)
        ]
    return LoadedDocuments(tuple(documents), tuple(problems))
