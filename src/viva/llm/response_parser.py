"""An HTTP/1.1 answer out of its bytes, however they are split. No input or output happens here."""

import re
import zlib

from viva.protocols import Response

_MAX_HEAD = 256 * 1024
_MAX_LINE = 16 * 1024
_START = re.compile(r"HTTP/1\.[01] [1-9][0-9][0-9](?: |$)")
_LENGTH = re.compile(r"[0-9]{1,18}")
_HEX = re.compile(rb"[0-9a-fA-F]{1,15}")
_NO_BODY = frozenset({204, 304})


class ProtocolError(Exception):
    """What came is not an answer that we can read; the text says why."""


class ResponseParser:
    """One answer while it comes. Feed it until it is whole; `end` says that the connection was closed.

    `keeps` tells, once the answer is whole, whether the connection can carry another call.
    """

    __slots__ = (
        "_chunked",
        "_gap",
        "_headers",
        "_held",
        "_left",
        "_max_bytes",
        "_pieces",
        "_size",
        "_status",
        "_trailing",
        "_with_body",
        "has_started",
        "is_reusable",
    )  # fmt: skip

    def __init__(self, method: str, max_bytes: int) -> None:
        self._with_body = method != "HEAD"
        self._max_bytes = max_bytes
        self._status = 0
        self._headers: dict[str, str] = {}
        self._held = b""
        self._pieces: list[bytes] = []
        self._size = 0
        self._left: int | None = 0
        self._chunked = self._gap = self._trailing = False
        self.is_reusable = False
        self.has_started = False

    def feed(self, data: bytes) -> bool:
        """Takes what came; true when the answer is whole."""
        if self._held:
            data, self._held = self._held + data, b""
        if self._status < 200:
            rest = self._take_head(data)
            if rest is None:
                return False
            data = rest
        return self._take_chunks(data) if self._chunked else self._take_body(data)

    def feed_eof(self) -> bool:
        """The connection was closed: true when that is how the answer ends."""
        return self._status >= 200 and self._left is None

    def build_response(self) -> Response:
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if body and (encoding := self._headers.get("content-encoding")):
            body = _unpacked(body, encoding.lower(), self._max_bytes)
        return Response(self._status, self._headers, body)

    def _take_head(self, data: bytes) -> bytes | None:
        """What follows the head, or None while it is not whole. Heads of the 1xx kind are read and passed over."""
        self.has_started = True
        while self._status < 200:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > _MAX_HEAD or not data.startswith(b"HTTP/1."[: len(data)]):
                    raise ProtocolError("it does not speak HTTP/1.1")
                self._held = data
                return None
            self._read_head(data[:end].decode("latin-1"))
            data = data[end + 4 :]
        self._frame()
        return data

    def _read_head(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        if not _START.match(first):
            raise ProtocolError("it does not speak HTTP/1.1")
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or name != name.strip() or not name:
                raise ProtocolError("it sent a header that cannot be read")
            name = name.lower()
            headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
        self._status, self._headers = int(first[9:12]), headers
        if self._status == 101:
            raise ProtocolError("it wants to speak another protocol")
        self.is_reusable = first[7] == "1" and "close" not in headers.get("connection", "").lower()

    def _frame(self) -> None:
        """How long the body is, or how its end will be known."""
        headers = self._headers
        if not self._with_body or self._status in _NO_BODY:
            return
        if coding := headers.get("transfer-encoding"):
            if coding.lower() != "chunked":
                raise ProtocolError(f"it sends in an encoding that is not known here ({coding[:40]})")
            self._chunked = True
        elif length := headers.get("content-length"):
            size, *others = {size.strip() for size in length.split(",")}
            if others or not _LENGTH.fullmatch(size):
                raise ProtocolError("it does not say clearly how long its answer is")
            self._left = int(size)
            self._allow(self._left)
        else:
            self._left, self.is_reusable = None, False

    def _take_body(self, data: bytes) -> bool:
        left = self._left
        if left is None:
            self._add(data)
            return False
        if len(data) > left:  # nobody asked for more: the connection is out of step
            data, self.is_reusable = data[:left], False
        self._add(data)
        self._left = left = left - len(data)
        return left == 0

    def _take_chunks(self, data: bytes) -> bool:
        """A size in a line, that many bytes, an empty line; after the size 0 trailers until an empty line."""
        at = 0
        while True:
            if self._left:
                piece = data[at : at + self._left]
                self._add(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    return False
                self._gap = True
            end = data.find(b"\r\n", at)
            if end < 0:
                self._held = data[at:]
                if len(self._held) > (1 if self._gap else _MAX_LINE):
                    raise ProtocolError("its chunks cannot be read")
                return False
            line, at = data[at:end], end + 2
            if self._trailing:
                if not line:
                    self.is_reusable = self.is_reusable and at == len(data)
                    return True
            elif self._gap:
                if line:
                    raise ProtocolError("its chunks cannot be read")
                self._gap = False
            else:
                self._left = _chunk_size(line)
                self._trailing = self._left == 0

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        self._allow(self._size)
        self._pieces.append(piece)

    def _allow(self, size: int) -> None:
        if size > self._max_bytes:
            raise body_too_large(self._max_bytes)


def body_too_large(max_bytes: int) -> ProtocolError:
    return ProtocolError(f"its answer is longer than {max_bytes} bytes")


def _chunk_size(line: bytes) -> int:
    size = line.split(b";", 1)[0].strip()
    if not _HEX.fullmatch(size):
        raise ProtocolError("its chunks cannot be read")
    return int(size, 16)


def _unpacked(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """We ask for no compression; a server that compresses all the same is understood."""
    if encoding == "identity":
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise ProtocolError(f"its answer is compressed in a way that is not known here ({encoding[:40]})")
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # finds out by itself which of the two it is
    try:
        unpacked = unpacker.decompress(body, max_bytes + 1)
    except zlib.error as broken:
        raise ProtocolError("its compressed answer is damaged") from broken
    if len(unpacked) > max_bytes:
        raise body_too_large(max_bytes)
    if not unpacker.eof:
        raise ProtocolError("its compressed answer was cut off")
    return unpacked
