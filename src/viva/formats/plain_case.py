"""Checks a case of a plain form by types alone, without building it: texts as messages, and built-in checks that refer to
nothing outside the case.

The cases of a large suite are built when they run. Those of the plain form need not be built before that to be checked. Any
other case may still be valid: it is built to check it.
"""

from functools import cache, reduce
from operator import or_
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct

from viva import catalog
from viva.checks.base_check import AssertionFields, BaseCheck
from viva.formats.typed_case import Count, JsonObject, Name, StrictObject
from viva.model import codec


class PlainCase(Struct, frozen=True, gc=False):
    """What a suite must know of a case before it runs."""

    id: str
    runs: int | None


def check_plain_case(value: Any) -> PlainCase | None:
    """Check a document without variables as a case of the plain form. None if it is none, or if anything is wrong."""
    try:
        case = codec.convert(value, _create_case_type())
    except codec.ValidationError:
        return None
    if case.turns is UNSET:
        return None if case.input is UNSET else PlainCase(case.id, case.runs)
    if case.input is not UNSET or case.assertions is not UNSET or case.max_turns < len(case.turns):
        return None
    return PlainCase(case.id, case.runs)


@cache
def _create_case_type() -> Any:
    """The type of a plain case. It needs the modules of all checks, which is why it is created on first use."""
    assertion: Any = reduce(or_, filter(None, map(_create_assertion_type, catalog.BUILT_IN["check"])))
    assertions = assertion | list[assertion]
    turn = msgspec.defstruct(
        "_Turn", [("input", str), ("assertions", assertions, UNSET)], bases=(StrictObject,), kw_only=True
    )
    optional: dict[str, tuple[Any, Any]] = {
        "name": (str, UNSET),
        "description": (str, UNSET),
        "tags": (list[str], UNSET),
        "input": (str, UNSET),
        "assertions": (assertions, UNSET),
        "turns": (Annotated[list[turn], Meta(min_length=1)], UNSET),
        "final_assertions": (assertions, UNSET),
        "max_turns": (Count, float("inf")),
        "metadata": (JsonObject, UNSET),
        "skip": (bool | str, UNSET),
        "runs": (Count, None),
    }
    fields = [("id", Name), *((name, *each) for name, each in optional.items())]
    return msgspec.defstruct("_Case", fields, bases=(StrictObject,), kw_only=True)


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
        check.__name__, common, bases=(check,), tag=name, tag_field="type", frozen=True, kw_only=True
    )
