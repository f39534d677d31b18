"""Strikes secrets out of all that is kept or shown. Only texts are rewritten, never the structure around them.

Names of fields, numbers, words of a fixed list (a status, a role, whose fault) and the identifiers in `_IDENTIFIERS` stay
as they are: a record that lost them could not be read, resumed or compared any more.
"""

import html
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints
from urllib.parse import quote, quote_plus

from msgspec import UNSET, Struct, structs

from viva.model import codec
from viva.model.case import Key
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
"""Shorter values are too common to be told from ordinary text."""
MIN_LINE_LENGTH = 12
"""So long a line of a value is a secret of its own: differences of files, and texts that were cut, show single lines."""
_CUT = "…"
_CUT_RAW = _CUT.encode()
_IDENTIFIERS: Mapping[type, frozenset[str]] = {
    Key: frozenset(Key.__struct_fields__),
    # By these a run is resumed, compared and indexed. They come from the user's own files, the config or Viva itself;
    # what a generator makes up, and what `-n` names, is cleaned before it becomes one.
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
_TABLES: Mapping[type, frozenset[str]] = {
    RecordedRequest: frozenset({"message", "options", "fixtures", "conversation"}),
    SessionStart: frozenset({"definition", "history"}),
    AgentDefinition: frozenset({"definition"}),
}
"""Fields of any type that hold tables of Viva's own: messages, and what the config says of an agent."""
_KEPT_IN_TABLES = frozenset({"type", "role"})
"""Of an assertion and of a message that a record holds as a plain table: which check it is, who speaks."""
_MAPPINGS = (dict, Mapping)
RewriteText = Callable[[str], str]


class _Form(Struct, frozen=True):
    """One way in which a secret may be written, and what a cassette keeps in its place."""

    text: str
    mark: str


class Redactor:
    """Replaces secret values in texts. There is one for a project's settings; it learns more while agents are built.

    A value is looked at in detail only if its JSON holds a secret. On a cassette the values of `variables` leave their
    names behind, so that a replay can put back what they are by then.
    """

    def __init__(self, secrets: Iterable[str] = (), variables: Mapping[str, str] | None = None) -> None:
        self.secrets: list[str] = []
        """All values known so far."""
        self._variables: dict[str, str] = {}
        self._forms: _Forms | None = None  # made when it is first needed
        self.add_secrets(secrets)
        for name, value in (variables or {}).items():
            self.add_variable(name, value)

    def add_secrets(self, secrets: Iterable[str]) -> None:
        new = [value for value in dict.fromkeys(secrets) if value and value not in self.secrets]
        if new:
            self.secrets += new
            self._forms = None

    def add_variable(self, name: str, value: str) -> None:
        """A secret that has a name: a variable that a playbook declares."""
        if self._variables.get(name) != value:
            self._variables[name] = value
            self.secrets += [] if value in self.secrets else [value]
            self._forms = None

    @property
    def _known(self) -> "_Forms":
        if self._forms is None:
            self._forms = _Forms(self.secrets, self._variables)
        return self._forms

    def __bool__(self) -> bool:
        return bool(self._known)

    def redact_text(self, text: str) -> str:
        return self._known.struck(text)

    def redact(self, value: T) -> T:
        """A record, an event or a plain value without secrets; the same object, if it holds none."""
        if not self._known or self.is_clean(codec.encode(value)):
            return value
        return _rewritten(value, self._known.struck)

    def is_clean(self, raw: bytes) -> bool:
        """Does this JSON surely hold no secret?"""
        return not self._known.may_stand_in(raw)

    def hide(self, value: T) -> T:
        """The value for a cassette: with the names of variables where their values were."""
        return _rewritten(value, self._known.marked) if self._known else value

    def restore(self, value: T) -> T:
        """What `hide` made, with the values that the variables have now."""
        return _rewritten(value, self._known.restored) if self._variables else value


class _Forms:
    """All forms of all secrets, ready to be looked for. Built anew when a secret is added, which is rare."""

    def __init__(self, secrets: Iterable[str], variables: Mapping[str, str]) -> None:
        names = {value: name for name, value in variables.items()}
        found: dict[str, _Form] = {}
        self._values: dict[str, str] = {}  # mark -> form of the value that the variable has now
        for value in sorted(secrets):
            if len(value) < MIN_SECRET_LENGTH or not value.strip("*"):
                continue
            name = names.get(value)
            for at, text in enumerate(_forms(value)):
                mark = f"***{name}{f':{at}' if at else ''}***" if name else MASK
                found.setdefault(text, _Form(text, mark))
                if name:
                    self._values[mark] = text
        self._plain = {name: value for value, name in names.items()}
        self._by_head: dict[str, list[_Form]] = {}
        for form in sorted(found.values(), key=lambda form: len(form.text), reverse=True):
            self._by_head.setdefault(form.text[:MIN_SECRET_LENGTH], []).append(form)
        self._texts = _without_longer(found)
        self._raws = _without_longer(filter(None, map(_raw, self._texts)))
        self._raw_heads = [raw for raw in map(_raw, self._by_head) if raw]
        marks = "|".join(map(re.escape, sorted(names.values(), key=len, reverse=True)))
        self._marks = re.compile(rf"\*\*\*({marks})(?::\d+)?\*\*\*") if marks else None
        heads = "|".join(map(re.escape, self._by_head))
        self._heads = re.compile(f"({self._marks.pattern})|{heads}" if self._marks else f"(?!)()|{heads}")

    def __bool__(self) -> bool:
        return bool(self._by_head)

    def may_stand_in(self, raw: bytes) -> bool:
        """In JSON text: whole, or cut short."""
        for each in self._raws:  # this is on the way of every record: a plain loop is the fastest
            if each in raw:
                return True
        return _CUT_RAW in raw and any(head in raw for head in self._raw_heads)

    def struck(self, text: str) -> str:
        return self._replaced(text, lambda _: MASK)

    def marked(self, text: str) -> str:
        return self._replaced(text, lambda form: form.mark)

    def restored(self, text: str) -> str:
        if self._marks is None or MASK not in text:
            return text
        return self._marks.sub(lambda found: self._values.get(found[0], self._plain[found[1]]), text)

    def _replaced(self, text: str, mark: Callable[[_Form], str]) -> str:
        if not any(each in text for each in self._texts) and not (
            _CUT in text and any(head in text for head in self._by_head)
        ):
            return text
        pieces: list[str] = []
        done = 0
        for start, end, form in self._found(text):
            pieces += [text[done:start], mark(form) if form else MASK]
            done = end
        return "".join([*pieces, text[done:]]) if pieces else text

    def _found(self, text: str) -> Iterator[tuple[int, int, _Form | None]]:
        """Where secrets stand, from where to where. Those that overlap are one, which has the form of the one that holds all."""
        begun: tuple[int, int, _Form | None] | None = None
        at = 0
        while (head := self._heads.search(text, at)) is not None:
            start = head.start()
            if head[1]:  # a name that stands for a value already
                at = head.end()
                continue
            at = start + 1
            end, form = self._form_at(text, start, head[0])
            if form is None:
                continue
            if begun is None or start >= begun[1]:
                if begun is not None:
                    yield begun
                begun = (start, end, form)
            elif end > begun[1]:
                begun = (begun[0], end, form if start == begun[0] else None)
        if begun is not None:
            yield begun

    def _form_at(self, text: str, start: int, head: str) -> tuple[int, _Form | None]:
        """The longest form that begins there; or one whose beginning stands there and was cut short, as an ellipsis says."""
        forms = self._by_head[head]
        for form in forms:
            if text.startswith(form.text, start):
                return start + len(form.text), form
        for form in forms:
            end = start + _alike(form.text, text[start : start + len(form.text)])
            if text.startswith(_CUT, end):
                return end, form
        return start, None


def _alike(one: str, other: str) -> int:
    """How many characters they have in common at their beginning."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _forms(value: str) -> Iterator[str]:
    """A value as it is; in JSON and in JSON that is itself a text; on one line of a report; encoded for an address, for HTML
    and in base64; and each line of it that is long enough. A cassette knows a form by its place here.
    """
    yield value
    for one in (_in_json(value), _in_json(value, ascii_only=True)):
        yield one
        yield _in_json(one)
    yield "".join(c if c.isprintable() else repr(c)[1:-1] for c in value)
    yield from _in_address(value)
    yield from _in_html(value)
    yield from _in_base64(value)
    yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= MIN_LINE_LENGTH)


def _in_address(value: str) -> Iterator[str]:
    for encode in (quote, quote_plus):
        for safe in ("", "/", "!'()*", ";,/?:@&=+$-_.!~*'()#"):  # Python's two, and JavaScript's two
            encoded = encode(value, safe=safe, errors="replace")
            yield encoded
            yield re.sub(r"%[0-9A-F]{2}", lambda code: code[0].lower(), encoded)


def _in_html(value: str) -> Iterator[str]:
    yield html.escape(value, quote=False)
    escaped = html.escape(value)
    yield escaped
    yield escaped.replace("&#x27;", "&#39;")
    yield escaped.replace("&#x27;", "&#39;").replace("&quot;", "&#34;")
    yield escaped.replace("&#x27;", "&apos;")


def _in_base64(value: str) -> Iterator[str]:
    """By itself, with its padding and without; and within a longer text, where it may begin at any of three places: there
    the characters that other bytes have a part in are left.
    """
    data = value.encode(errors="surrogateescape")
    for encode in (b64encode, urlsafe_b64encode):
        whole = encode(data).decode()
        yield whole
        yield whole.rstrip("=")
        for before in range(3):
            encoded = encode(bytes(before) + data).decode()
            yield encoded[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]


def _in_json(text: str, *, ascii_only: bool = False) -> str:
    raw = _raw(text)
    encoded = text if raw is None else raw.decode()
    return "".join(map(_escaped, encoded)) if ascii_only else encoded


def _escaped(character: str) -> str:
    r"""In ASCII: `\u00fc`, or two of these."""
    if " " <= character <= "~":
        return character
    units = character.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _raw(text: str) -> bytes | None:
    """The text within JSON; None for one that has no JSON form, and so never stands in any."""
    try:
        return codec.encode(text)[1:-1]
    except UnicodeEncodeError:
        return None


A = TypeVar("A", str, bytes)


def _without_longer(texts: Iterable[A]) -> list[A]:
    """Those that are needed to know whether one of them is there: not the ones that hold another."""
    kept: list[A] = []
    for text in sorted(set(texts), key=len):
        if not any(each in text for each in kept):
            kept.append(text)
    return kept


def _rewritten(value: T, change: RewriteText, *, table: bool = False) -> T:
    """The value with its texts changed; the same object, where nothing did. Names of a `table` belong to the record; other
    names came from outside, like the texts.
    """
    new: Any = value
    match value:
        case str():
            new = change(value)
        case None | bool() | int() | float() | bytes():
            pass
        case Struct():
            new = _rewritten_struct(value, change)
        case codec.Raw():
            new = codec.to_raw(_rewritten(codec.decode_kept(value), change))
        case Mapping():
            new = _rewritten_mapping(cast("Mapping[Any, Any]", value), change, table=table)
        case list() | tuple():
            items = cast("list[Any] | tuple[Any, ...]", value)
            changed = [_rewritten(each, change, table=table) for each in items]
            if any(one is not other for one, other in zip(changed, items, strict=True)):
                new = changed if isinstance(value, list) else tuple(changed)
        case _ if value is not UNSET:
            new = _rewritten(codec.to_plain(value), change)
        case _:
            pass
    return cast("T", new)


def _rewritten_struct(value: Struct, change: RewriteText) -> Struct:
    changed: dict[str, Any] = {}
    for name, (hint, is_table) in _rewritable(type(value)).items():
        had = getattr(value, name)
        if isinstance(had, codec.Raw):  # JSON already: of a struct only the texts may change there, too
            had = codec.decode_kept(had, type=hint)
        if (new := _rewritten(had, change, table=is_table)) is not had:
            changed[name] = new
    return structs.replace(value, **changed) if changed else value


def _rewritten_mapping(value: Mapping[Any, Any], change: RewriteText, *, table: bool) -> Mapping[Any, Any]:
    made: dict[Any, Any] = {}
    is_same = True
    for name, item in value.items():
        kept = table and name in _KEPT_IN_TABLES and isinstance(item, str)
        new_item = item if kept else _rewritten(item, change)
        new_name = change(name) if isinstance(name, str) and not table else name
        while new_name in made:
            new_name += "*"
        is_same = is_same and new_item is item and new_name is name
        made[new_name] = new_item
    return value if is_same else made


@cache
def _rewritable(kind: type) -> Mapping[str, tuple[Any, bool]]:
    """The fields of a struct whose texts may be rewritten: of which type, and whether they are tables with names of the
    record's own.
    """
    identifiers, tables = _IDENTIFIERS.get(kind, frozenset[str]()), _TABLES.get(kind, frozenset[str]())
    hints = get_type_hints(kind)
    return {
        name: (hints[name], name in tables or _mentions(hints[name], _is_mapping))
        for name in kind.__struct_fields__
        if name not in identifiers and not _mentions(hints[name], lambda each: get_origin(each) is Literal)
    }


def _is_mapping(hint: Any) -> bool:
    return hint in _MAPPINGS or get_origin(hint) in _MAPPINGS


def _mentions(hint: Any, wanted: Callable[[Any], bool]) -> bool:
    return wanted(hint) or any(_mentions(each, wanted) for each in get_args(hint))
