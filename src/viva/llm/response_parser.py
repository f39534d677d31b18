"""Parses HTTP/1.1 responses. It does no I/O."""

import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from viva.protocols import Response

_MAX_HEAD = 256 * 1024
_MAX_LINE = 16 * 1024
_STATUS_LINE = re.compile(r"HTTP/1\.[01] [1-9][0-9][0-9](?: |\r\n|$)")
_CONTENT_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}")
_INVALID_FIELD = re.compile(r"\n(?![!-9;-~]+:)")
_STATUSES_WITHOUT_BODY = frozenset({204, 304})


class ProtocolError(Exception):
    """The bytes are not a valid response; the text says why."""


class ResponseParser:
    """Parses one response. `is_reusable` says, once it is complete, whether the connection can carry another request."""

    __slots__ = (
        "_buffer",
        "_chunked",
        "_expects_line_end",
        "_has_body",
        "_headers",
        "_in_trailers",
        "_left",
        "_max_bytes",
        "_pieces",
        "_size",
        "_status",
        "has_started",
        "is_reusable",
    )  # fmt: skip

    def __init__(self, method: str, max_bytes: int) -> None:
        self._has_body = method != "HEAD"
        self._max_bytes = max_bytes
        self._status = 0
        self._headers: HeaderFields
        self._buffer = b""
        self._pieces: list[bytes] = []
        self._size = 0
        self._left: int | None = 0
        self._chunked = self._expects_line_end = self._in_trailers = False
        self.is_reusable = False
        self.has_started = False

    def feed(self, data: bytes) -> bool:
        """Adds received bytes; true when the response is complete."""
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        if self._status < 200:
            rest = self._parse_head(data)
            if rest is None:
                return False
            data = rest
        return self._parse_chunks(data) if self._chunked else self._parse_body(data)

    def feed_eof(self) -> bool:
        """The connection was closed: true if that completes the response."""
        return self._status >= 200 and self._left is None

    def build_response(self) -> Response:
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if body and (encoding := self._headers.get("content-encoding")):
            body = _decompress(body, encoding.lower(), self._max_bytes)
        return Response(self._status, self._headers, body)

    def _parse_head(self, data: bytes) -> bytes | None:
        """The bytes after the head, or None while it is incomplete. Heads with a 1xx status are skipped."""
        self.has_started = True
        while self._status < 200:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > _MAX_HEAD or not data.startswith(b"HTTP/1."[: len(data)]):
                    raise ProtocolError("it does not speak HTTP/1.1")
                self._buffer = data
                return None
            self._parse_head_text(data[:end].decode("latin-1"))
            data = data[end + 4 :]
        self._choose_body_end()
        return data

    def _parse_head_text(self, head: str) -> None:
        if not _STATUS_LINE.match(head):
            raise ProtocolError("it does not speak HTTP/1.1")
        self._status, self._headers = int(head[9:12]), HeaderFields(head)
        if self._status == 101:
            raise ProtocolError("it switches to another protocol")
        self.is_reusable = head[7] == "1" and "close" not in self._headers.get("connection", "").lower()

    def _choose_body_end(self) -> None:
        """Finds out how the end of the body is marked."""
        headers = self._headers
        if not self._has_body or self._status in _STATUSES_WITHOUT_BODY:
            return
        if coding := headers.get("transfer-encoding"):
            if coding.lower() != "chunked":
                raise ProtocolError(f"it uses an unknown transfer encoding ({coding[:40]})")
            self._chunked = True
        elif length := headers.get("content-length"):
            if "," in length:
                length, *others = {size.strip() for size in length.split(",")}
                length = "" if others else length
            if not _CONTENT_LENGTH.fullmatch(length):
                raise ProtocolError("its Content-Length is invalid")
            self._left = int(length)
            self._check_size(self._left)
        elif not headers.are_valid():  # one of them may be meant to mark the end
            raise ProtocolError("it sent an invalid header")
        else:
            self._left, self.is_reusable = None, False

    def _parse_body(self, data: bytes) -> bool:
        left = self._left
        if left is None:
            self._add_piece(data)
            return False
        if len(data) > left:  # more than was announced: the connection cannot be reused
            data, self.is_reusable = data[:left], False
        self._pieces.append(data)  # the announced length was checked
        self._left = left = left - len(data)
        return left == 0

    def _parse_chunks(self, data: bytes) -> bool:
        """Each chunk is a line with its size, its bytes and an empty line. After size 0 come trailers until an empty line."""
        at = 0
        while True:
            if self._left:
                piece = data[at : at + self._left]
                self._add_piece(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    return False
                self._expects_line_end = True
            end = data.find(b"\r\n", at)
            if end < 0:
                self._buffer = data[at:]
                if len(self._buffer) > (1 if self._expects_line_end else _MAX_LINE):
                    raise ProtocolError("its chunks are invalid")
                return False
            line, at = data[at:end], end + 2
            if self._in_trailers:
                if not line:
                    self.is_reusable = self.is_reusable and at == len(data)
                    return True
            elif self._expects_line_end:
                if line:
                    raise ProtocolError("its chunks are invalid")
                self._expects_line_end = False
            else:
                self._left = _parse_chunk_size(line)
                self._in_trailers = self._left == 0

    def _add_piece(self, piece: bytes) -> None:
        self._size += len(piece)
        self._check_size(self._size)
        self._pieces.append(piece)

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise create_too_large_error(self._max_bytes)


def create_too_large_error(max_bytes: int) -> ProtocolError:
    return ProtocolError(f"its answer is longer than {max_bytes} bytes")


class HeaderFields(Mapping[str, str]):
    """The header fields of a head, by names in lower case. Several fields of one name are joined.

    A field is looked for when it is asked for: a provider sends twenty with each answer, and few are ever looked at.
    """

    __slots__ = ("_head", "_lower_head")

    def __init__(self, head: str) -> None:
        self._head = head
        self._lower_head = head.lower()

    def __getitem__(self, name: str) -> str:
        value = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        head, line_start = self._lower_head, f"\r\n{name}:"
        values: list[str] = []
        place = head.find(line_start)
        while place >= 0:
            start = place + len(line_start)
            end = head.find("\r\n", start)
            values.append(self._head[start : end if end >= 0 else None].strip())
            place = head.find(line_start, start)
        return ", ".join(values) if values else default

    def are_valid(self) -> bool:
        return _INVALID_FIELD.search(self._head) is None

    def __iter__(self) -> Iterator[str]:
        lines = self._lower_head.split("\r\n")[1:]
        return iter(dict.fromkeys(line.partition(":")[0] for line in lines))

    def __len__(self) -> int:
        return len(list(iter(self)))


def _parse_chunk_size(line: bytes) -> int:
    size = line.split(b";", 1)[0].strip()
    if not _CHUNK_SIZE.fullmatch(size):
        raise ProtocolError("its chunks are invalid")
    return int(size, 16)


def _decompress(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Decompresses the body of a server that compresses although the request does not ask for it."""
    if encoding == "identity":
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise ProtocolError(f"its answer has an unknown content encoding ({encoding[:40]})")
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # detects gzip or zlib
    try:
        data = unpacker.decompress(body, max_bytes + 1)
    except zlib.error as broken:
        raise ProtocolError("its compressed answer is invalid") from broken
    if len(data) > max_bytes:
        raise create_too_large_error(max_bytes)
    if not unpacker.eof:
        raise ProtocolError("its compressed answer was cut off")
    return data
