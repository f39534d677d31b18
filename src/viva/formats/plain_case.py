"""Cases of the plain form: texts as messages, and built-in checks that refer to nothing outside the case.

Decoding such a case by types checks it, and builds its checks at the same time. Any other case may be valid, too: the
`CaseBuilder` builds it.
"""

from collections.abc import Mapping, Sequence
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta

from viva import catalog
from viva.checks.base_check import AssertionFields, BaseCheck
from viva.formats.documents import Document
from viva.formats.load_options import DEFAULT_HINTS, DEFAULT_TIMEOUT_S
from viva.formats.native_case import DEFAULT_MAX_TURNS, compute_digest, describe_skip, may_hold_variables
from viva.formats.typed_case import Count, Name, StrictObject
from viva.model import codec
from viva.model.case import Assertion, Case, Interactive, Limits, Origin, TurnScope, UserMessage
from viva.model.message import Message
from viva.users.script import Script


class PlainCase(StrictObject):
    """A decoded case of the plain form. `_create_case_type` adds the fields whose types name all checks."""

    id: Name
    name: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    max_turns: Count = DEFAULT_MAX_TURNS
    metadata: Mapping[str, Any] = {}
    skip: bool | str = False


def decode_plain_case(document: Document) -> Any:
    """The PlainCase in a document. None if it is none, or if anything is wrong."""
    if may_hold_variables(document):
        return None
    try:
        case = codec.convert(document.value, _create_case_type())
    except codec.ValidationError:
        return None
    if case.turns is UNSET:
        return None if case.input is UNSET else case
    has_input = case.input is not UNSET or case.assertions is not UNSET
    is_too_long = "max_turns" in document.value and case.max_turns < len(case.turns)
    return None if has_input or is_too_long else case


def build_plain_case(plain: Any, document: Document, timeout_s: float | None) -> Case:
    """The case of a document whose value was decoded."""
    definition = document.value
    turns, definitions = (plain.turns, definition["turns"]) if plain.turns is not UNSET else ([plain], [definition])
    lines = tuple(map(_build_user_message, turns, definitions))
    return Case(
        id=plain.id,
        user=Script(lines),
        name=plain.name,
        description=plain.description,
        tags=tuple(dict.fromkeys(plain.tags)) if plain.tags else (),
        suite=document.file,
        origin=Origin(document.file, document.line),
        final_assertions=_build_assertions(plain.final_assertions, definition.get("final_assertions"), over="case"),
        limits=Limits(timeout_s=timeout_s, max_turns=max(plain.max_turns, len(lines))),
        hints=DEFAULT_HINTS,
        interactive=_NOT_INTERACTIVE,
        metadata=plain.metadata,
        skip_reason=describe_skip(plain.skip),
        runs=plain.runs,
        definition=definition,
        digest=compute_digest(definition),
    )


_NOT_INTERACTIVE = Interactive(timeout_s=DEFAULT_TIMEOUT_S)


def _build_user_message(turn: Any, definition: Mapping[str, Any]) -> UserMessage:
    assertions = _build_assertions(turn.assertions, definition.get("assertions"))
    return UserMessage(Message("user", turn.input), assertions=assertions)


def _build_assertions(checks: Any, definitions: Any, over: TurnScope = "turn") -> tuple[Assertion, ...]:
    if checks is UNSET:
        return ()
    if not isinstance(checks, Sequence):
        checks, definitions = [checks], [definitions]
    return tuple(
        Assertion(check, definition, check.message, check.negate, over=over, weight=check.weight)
        for check, definition in zip(checks, definitions, strict=True)
    )


@cache
def _create_case_type() -> Any:
    """The type of a plain case. It needs the modules of all checks, which is why it is created on first use."""
    assertion: Any = reduce(or_, filter(None, map(_create_assertion_type, catalog.BUILT_IN["check"])))
    assertions = assertion | list[assertion]
    turn = msgspec.defstruct(
        "_Turn", [("input", str), ("assertions", assertions, UNSET)], bases=(StrictObject,), kw_only=True
    )
    fields = [
        ("input", str, UNSET),
        ("assertions", assertions, UNSET),
        ("turns", Annotated[list[turn], Meta(min_length=1)], UNSET),
        ("final_assertions", assertions, UNSET),
        ("runs", Count, None),
    ]
    return msgspec.defstruct("_Case", fields, bases=(PlainCase,), kw_only=True)


def _create_assertion_type(name: str) -> Any:
    """The type of an assertion of a built-in check: its fields, those of all assertions, and its `type`.

    None for a check that needs more than its fields to be built, refers to something outside the case, or holds assertions.
    """
    check: Any = catalog.find_component("check", name)
    is_plain = check.build.__func__ is BaseCheck.build.__func__ and check.needs is BaseCheck.needs
    if not is_plain or check.is_combination or hasattr(check, "references"):
        return None
    common = [(field.name, field.type, field.default) for field in msgspec.structs.fields(AssertionFields)]
    return msgspec.defstruct(
        check.__name__,
        common,
        bases=(check,),
        tag=name,
        tag_field="type",
        frozen=True,
        kw_only=True,
        module=check.__module__,
    )
