"""Removes secrets from everything that is stored or shown. Only texts change, never the structure around them.

Field names, numbers, values of a fixed set (status, role, fault) and the identifiers in `_IDENTIFIERS` stay: a record
without them could not be read, resumed or compared.
"""

import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from os.path import commonprefix
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints
from urllib.parse import quote, quote_plus

from msgspec import UNSET, Struct, structs

from viva.model import codec
from viva.model.case import Key
from viva.model.ellipsis import ELLIPSIS
from viva.model.record import CheckpointRecord, TrialRecord
from viva.record.cassette import (
    AgentDefinition,
    CassetteHeader,
    RecordedReply,
    RecordedRequest,
    RecordedSession,
    SessionStart,
)
from viva.text.credentials import MASK

T = TypeVar("T")
MIN_SECRET_LENGTH = 6
"""Shorter values are too common to tell them from ordinary text."""
MIN_LINE_LENGTH = 12
"""A line of a secret with at least this length is a secret itself: file diffs and shortened texts show single lines."""
_ELLIPSIS_BYTES = ELLIPSIS.encode()
_IDENTIFIERS: Mapping[type, frozenset[str]] = {
    Key: frozenset(Key.__struct_fields__),
    # Resuming, comparing and indexing go by these. They come from the user's files, the config or Viva itself. Generated
    # ids and the value of `-n` are redacted before they get here.
    TrialRecord: frozenset(
        {"id", "suite", "tags", "agent", "simulator", "source", "digest", "started_at", "workspace"}
    ),
    CheckpointRecord: frozenset({"id", "unmet_after"}),
    SessionStart: frozenset({"agent"}),
    CassetteHeader: frozenset({"viva"}),
    AgentDefinition: frozenset({"agent"}),
    RecordedSession: frozenset({"agent"}),
    RecordedReply: frozenset({"fault"}),
}
_OWN_MAPPINGS: Mapping[type, frozenset[str]] = {
    RecordedRequest: frozenset({"message", "options", "fixtures", "conversation"}),
    SessionStart: frozenset({"definition", "history"}),
    AgentDefinition: frozenset({"definition"}),
}
"""Fields of type Any that hold mappings with field names of Viva: messages, and agent settings of the config."""
_KEYS_OF_FIXED_VALUES = frozenset({"type", "role"})
"""Keys in such a mapping whose values stay: the type of an assertion, the role of a message."""
_MAPPING_TYPES = (dict, Mapping)
RewriteText = Callable[[str], str]


class _EncodedSecret(Struct, frozen=True):
    """One encoding of a secret, and the mark that replaces it in a cassette."""

    text: str
    mark: str


_FoundSecret = tuple[int, int, _EncodedSecret | None]
"""The start and end of a secret in a text, and its encoding; None for a part of one, or several that overlap."""


class Redactor:
    """Replaces secret values in texts. A project has one; secrets are added while its agents are built.

    A value is searched in detail only if its JSON holds a secret. A cassette holds the names of `variables` in place of
    their values, so that a replay can insert the current values.
    """

    def __init__(self, secrets: Iterable[str] = (), variables: Mapping[str, str] | None = None) -> None:
        self.secrets: list[str] = []
        """All secret values so far."""
        self._variables: dict[str, str] = {}
        self._index: _SecretIndex | None = None  # built on first use
        self.add_secrets(secrets)
        for name, value in (variables or {}).items():
            self.add_variable(name, value)

    @property
    def variable_names(self) -> list[str]:
        """The environment variables whose values are secrets of this run."""
        return sorted(self._variables)

    def add_secrets(self, secrets: Iterable[str]) -> None:
        new = [value for value in dict.fromkeys(secrets) if value and value not in self.secrets]
        if new:
            self.secrets += new
            self._index = None

    def add_variable(self, name: str, value: str) -> None:
        """Add a secret with a name: a variable that a playbook declares."""
        if self._variables.get(name) != value:
            self._variables[name] = value
            self.secrets += [] if value in self.secrets else [value]
            self._index = None

    @property
    def _current_index(self) -> "_SecretIndex":
        if self._index is None:
            self._index = _SecretIndex(self.secrets, self._variables)
        return self._index

    def __bool__(self) -> bool:
        return bool(self._current_index)

    def redact_text(self, text: str) -> str:
        return self._current_index.mask_secrets(text)

    def redact(self, value: T) -> T:
        """Return a record, event or plain value without secrets; the same object if it holds none."""
        if not self._current_index or self.is_clean(codec.encode(value)):
            return value
        return _rewrite_texts(value, self._current_index.mask_secrets)

    def is_clean(self, raw: bytes) -> bool:
        """Return whether this JSON holds no secret."""
        return not self._current_index.may_hold_secret(raw)

    def hide_secrets(self, value: T) -> T:
        """Return the value for a cassette, with the names of variables in place of their values."""
        return _rewrite_texts(value, self._current_index.replace_by_marks) if self._current_index else value

    def restore_secrets(self, value: T) -> T:
        """Undo `hide_secrets`, with the current values of the variables."""
        return _rewrite_texts(value, self._current_index.restore_values) if self._variables else value


class _SecretIndex:
    """An index of all secrets in all their encodings, for searching texts. It is rebuilt when a secret is added."""

    def __init__(self, secrets: Iterable[str], variables: Mapping[str, str]) -> None:
        names = {value: name for name, value in variables.items()}
        forms: dict[str, _EncodedSecret] = {}
        self._values: dict[str, str] = {}  # mark -> current value of the variable, encoded
        for value in sorted(secrets):
            if len(value) < MIN_SECRET_LENGTH or not value.strip("*"):
                continue
            name = names.get(value)
            for number, text in enumerate(_iterate_secret_encodings(value)):
                if len(text) < MIN_SECRET_LENGTH:
                    continue
                mark = f"***{name}{f':{number}' if number else ''}***" if name else MASK
                forms.setdefault(text, _EncodedSecret(text, mark))
                if name:
                    self._values[mark] = text
        self._plain = {name: value for value, name in names.items()}
        self._by_head: dict[str, list[_EncodedSecret]] = {}
        for form in sorted(forms.values(), key=lambda form: len(form.text), reverse=True):
            self._by_head.setdefault(form.text[:MIN_SECRET_LENGTH], []).append(form)
        self._texts = _remove_texts_with_others_inside(forms)
        self._raws = _remove_texts_with_others_inside(filter(None, map(_to_json_bytes, self._texts)))
        self._by_tail: dict[str, list[_EncodedSecret]] = {}
        for form in forms.values():
            self._by_tail.setdefault(form.text[-MIN_SECRET_LENGTH:], []).append(form)
        self._raw_ends = [raw for raw in map(_to_json_bytes, {**self._by_head, **self._by_tail}) if raw]
        self._raw_forms = [raw for raw in map(_to_json_bytes, forms) if raw]
        self._longest = max(map(len, self._raw_forms), default=0)
        marks = "|".join(map(re.escape, sorted(names.values(), key=len, reverse=True)))
        self._marks = re.compile(rf"\*\*\*({marks})(?::\d+)?\*\*\*") if marks else None
        heads = "|".join(map(re.escape, self._by_head))
        self._heads = re.compile(f"({self._marks.pattern})|{heads}" if self._marks else f"(?!)()|{heads}")

    def __bool__(self) -> bool:
        return bool(self._by_head)

    def may_hold_secret(self, raw: bytes) -> bool:
        """Return whether JSON text holds a secret, complete or shortened."""
        for secret in self._raws:  # runs for every record: a plain loop with `find` is the fastest
            if raw.find(secret) >= 0:
                return True
        if _ELLIPSIS_BYTES not in raw:
            return False
        return any(end in raw for end in self._raw_ends) or self._has_middle(raw)

    def _has_middle(self, raw: bytes) -> bool:
        """Return whether a piece between two ellipses may be the middle of a secret."""
        pieces = raw.split(_ELLIPSIS_BYTES)[1:-1]
        return any(
            MIN_SECRET_LENGTH <= len(piece) < self._longest and any(piece in form for form in self._raw_forms)
            for piece in pieces
        )

    def mask_secrets(self, text: str) -> str:
        return self._replace(text, lambda _: MASK)

    def replace_by_marks(self, text: str) -> str:
        return self._replace(text, lambda form: form.mark)

    def restore_values(self, text: str) -> str:
        if self._marks is None or MASK not in text:
            return text
        return self._marks.sub(lambda match: self._values.get(match[0], self._plain[match[1]]), text)

    def _replace(self, text: str, mark: Callable[[_EncodedSecret], str]) -> str:
        if not self or (ELLIPSIS not in text and not any(secret in text for secret in self._texts)):
            return text
        pieces: list[str] = []
        done = 0
        for start, end, form in _merge_overlapping(self._find_secrets(text)):
            pieces += [text[done:start], mark(form) if form else MASK]
            done = end
        return "".join([*pieces, text[done:]]) if pieces else text

    def _find_secrets(self, text: str) -> list[_FoundSecret]:
        """The start, end and encoding of each secret, in order. They may overlap."""
        secrets = list(self._find_beginnings(text))
        if ELLIPSIS in text:
            secrets += self._find_ends(text)
            secrets.sort(key=lambda each: each[0])
        return secrets

    def _find_beginnings(self, text: str) -> Iterator[_FoundSecret]:
        """Yield complete secrets, and those that an ellipsis cuts off."""
        at = 0
        while (head := self._heads.search(text, at)) is not None:
            start = head.start()
            if head[1]:  # a name in place of a value
                at = head.end()
                continue
            at = start + 1
            end, form = self._match_encoding(text, start, head[0])
            if form is not None:
                yield start, end, form

    def _find_ends(self, text: str) -> Iterator[_FoundSecret]:
        """Yield the rest of each secret that begins before an ellipsis: its end, or a middle between two ellipses."""
        at = text.find(ELLIPSIS)
        by_tail = [form for tail, forms in self._by_tail.items() if text.find(tail, at) >= 0 for form in forms]
        while at >= 0:
            start = at + len(ELLIPSIS)
            at = text.find(ELLIPSIS, start)
            longest = max((_count_common_end(form.text, text, start) for form in by_tail), default=0)
            if longest >= MIN_SECRET_LENGTH:
                yield start, start + longest, None
            elif MIN_SECRET_LENGTH <= at - start < self._longest:
                middle = text[start:at]
                if any(middle in form.text for forms in self._by_tail.values() for form in forms):
                    yield start, at, None

    def _match_encoding(self, text: str, start: int, head: str) -> tuple[int, _EncodedSecret | None]:
        """Return the longest encoding that starts there, or one that is cut off there by an ellipsis."""
        forms = self._by_head[head]
        for form in forms:
            if text.startswith(form.text, start):
                return start + len(form.text), form
        for form in forms:
            prefix = commonprefix([form.text, text[start:]])  # noqa: RUF071 -- character by character is the point
            end = start + len(prefix)
            if text.startswith(ELLIPSIS, end):
                return end, form
        return start, None


def _count_common_end(secret: str, text: str, start: int) -> int:
    """The length of the longest proper end of the secret with which the text goes on at `start`."""
    room = min(len(secret) - 1, len(text) - start)
    return next((size for size in range(room, 0, -1) if text.startswith(secret[-size:], start)), 0)


def _merge_overlapping(secrets: Iterable[_FoundSecret]) -> Iterator[_FoundSecret]:
    """Yield them with overlapping ones as one, which has the encoding of the longest. They are in the order of their starts."""
    current: _FoundSecret | None = None
    for start, end, form in secrets:
        if current is None or start >= current[1]:
            if current is not None:
                yield current
            current = (start, end, form)
        elif end > current[1]:
            current = (current[0], end, form if start == current[0] else None)
    if current is not None:
        yield current


def _iterate_secret_encodings(value: str) -> Iterator[str]:
    """Yield a value plain, in JSON, in JSON inside JSON, on one report line, URL-encoded, in HTML, in base64, each long line, and
    with single spaces.

    Cassettes refer to an encoding by its position here.
    """
    yield value
    for encoded in (_encode_json(value), _encode_json(value, ascii_only=True)):
        yield encoded
        yield _encode_json(encoded)
    yield "".join(c if c.isprintable() else repr(c)[1:-1] for c in value)
    yield from _iterate_url_encodings(value)
    yield from _iterate_html_encodings(value)
    yield from _iterate_base64_encodings(value)
    yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= MIN_LINE_LENGTH)
    yield " ".join(value.split())  # error messages are put on one line
    for encoded in (_encode_json(value), _encode_json(value, ascii_only=True)):  # as PHP writes JSON, and as Go does
        yield encoded.replace("/", "\\/")
        yield "".join(f"\\u{ord(character):04x}" if character in "<>&" else character for character in encoded)


def _iterate_url_encodings(value: str) -> Iterator[str]:
    for encode in (quote, quote_plus):
        for safe in ("", "/", "!'()*", ";,/?:@&=+$-_.!~*'()#"):  # Python's two, and JavaScript's two
            encoded = encode(value, safe=safe, errors="replace")
            yield encoded
            yield re.sub(r"%[0-9A-F]{2}", lambda code: code[0].lower(), encoded)


def _iterate_html_encodings(value: str) -> Iterator[str]:
    text = value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    yield text
    escaped = text.replace('"', "&quot;").replace("'", "&#x27;")
    yield escaped
    yield escaped.replace("&#x27;", "&#39;")
    yield escaped.replace("&#x27;", "&#39;").replace("&quot;", "&#34;")
    yield escaped.replace("&#x27;", "&apos;")


def _iterate_base64_encodings(value: str) -> Iterator[str]:
    """Yield the value by itself, with and without padding, and inside a longer text.

    There it starts at one of three offsets; characters that also encode neighbouring bytes are left out.
    """
    data = value.encode(errors="surrogateescape")
    for encode in (b64encode, urlsafe_b64encode):
        whole = encode(data).decode()
        yield whole
        yield whole.rstrip("=")
        for before in range(3):
            encoded = encode(bytes(before) + data).decode()
            yield encoded[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]


def _encode_json(text: str, *, ascii_only: bool = False) -> str:
    raw = _to_json_bytes(text)
    encoded = text if raw is None else raw.decode()
    return "".join(map(_escape_ascii, encoded)) if ascii_only else encoded


def _escape_ascii(character: str) -> str:
    r"""Return a character as ASCII: `\u00fc`, or two of these."""
    if " " <= character <= "~":
        return character
    units = character.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _to_json_bytes(text: str) -> bytes | None:
    """Return the text as it stands in JSON; None if it cannot be encoded, so that no JSON holds it."""
    try:
        return codec.encode(text)[1:-1]
    except UnicodeEncodeError:
        return None


A = TypeVar("A", str, bytes)


def _remove_texts_with_others_inside(texts: Iterable[A]) -> list[A]:
    """Return the texts that contain no other one: enough to know whether any is present."""
    shortest: list[A] = []
    for text in sorted(set(texts), key=len):
        if not any(other in text for other in shortest):
            shortest.append(text)
    return shortest


def _rewrite_texts(value: T, change: RewriteText, *, keep_keys: bool = False) -> T:
    """Return the value with its texts changed; the same object if nothing changed.

    With `keep_keys` the keys of mappings are field names of Viva and stay. Other keys come from outside, like the texts.
    """
    new: Any = value
    match value:
        case str():
            new = change(value)
        case None | bool() | int() | float() | bytes():
            pass
        case Struct():
            new = _rewrite_struct(value, change)
        case codec.Raw():
            new = codec.to_raw(_rewrite_texts(codec.decode_own(value), change))
        case Mapping():
            new = _rewrite_mapping(cast("Mapping[Any, Any]", value), change, keep_keys=keep_keys)
        case list() | tuple():
            items = cast("list[Any] | tuple[Any, ...]", value)
            changed = [_rewrite_texts(item, change, keep_keys=keep_keys) for item in items]
            if any(new_item is not item for new_item, item in zip(changed, items, strict=True)):
                new = changed if isinstance(value, list) else tuple(changed)
        case _ if value is not UNSET:
            new = _rewrite_texts(codec.to_plain(value), change)
        case _:
            pass
    return cast("T", new)


def _rewrite_struct(value: Struct, change: RewriteText) -> Struct:
    changed: dict[str, Any] = {}
    for name, (hint, is_own) in _list_rewritable_fields(type(value)).items():
        old = getattr(value, name)
        if isinstance(old, codec.Raw):  # encoded already; decode it to change only its texts
            old = codec.decode_own(old, type=hint)
        if (new := _rewrite_texts(old, change, keep_keys=is_own)) is not old:
            changed[name] = new
    return structs.replace(value, **changed) if changed else value


def _rewrite_mapping(value: Mapping[Any, Any], change: RewriteText, *, keep_keys: bool) -> Mapping[Any, Any]:
    new: dict[Any, Any] = {}
    is_same = True
    for name, item in value.items():
        stays = keep_keys and name in _KEYS_OF_FIXED_VALUES and isinstance(item, str)
        new_item = item if stays else _rewrite_texts(item, change)
        new_name = change(name) if isinstance(name, str) and not keep_keys else name
        while new_name in new:
            new_name += "*"
        is_same = is_same and new_item is item and new_name is name
        new[new_name] = new_item
    return value if is_same else new


@cache
def _list_rewritable_fields(kind: type) -> Mapping[str, tuple[Any, bool]]:
    """Return the type of each field whose texts may change, and whether the keys of its mappings are Viva's own."""
    identifiers, own_mappings = _IDENTIFIERS.get(kind, frozenset[str]()), _OWN_MAPPINGS.get(kind, frozenset[str]())
    hints = get_type_hints(kind)
    return {
        name: (hints[name], name in own_mappings or _has_type_inside(hints[name], _is_mapping))
        for name in kind.__struct_fields__
        if name not in identifiers and not _has_type_inside(hints[name], lambda hint: get_origin(hint) is Literal)
    }


def _is_mapping(hint: Any) -> bool:
    return hint in _MAPPING_TYPES or get_origin(hint) in _MAPPING_TYPES


def _has_type_inside(hint: Any, condition: Callable[[Any], bool]) -> bool:
    return condition(hint) or any(_has_type_inside(part, condition) for part in get_args(hint))
