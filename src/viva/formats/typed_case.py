"""Types for the usual form of a native case. Checking them is faster than validating with the JSON Schema.

A case that fits these types matches the schema, if its assertions can be built: a property test compares the two.
A case that does not fit may still be valid: rare keys and all error messages are left to the schema.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from viva.model import codec
from viva.model.case import OnMissingInput
from viva.model.message import MessageRole

Name = Annotated[str, Meta(min_length=1)]
JsonObject = dict[str, Any]
Count = Annotated[int, Meta(ge=1)]
_Duration = (
    Annotated[str, Meta(pattern=r"\A(?:[0-9]+(?:\.[0-9]*)?(?:h|ms|m|s|us|ns)?)+\Z")] | Annotated[float, Meta(ge=0)]
)


class StrictObject(Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    pass


class _Message(StrictObject):
    content: str
    role: MessageRole | UnsetType = UNSET
    name: str | UnsetType = UNSET
    tool_calls: list[JsonObject] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET


class _Options(Struct, kw_only=True, gc=False):
    connector: str | UnsetType = UNSET
    skip: JsonObject | UnsetType = UNSET
    mode: str | UnsetType = UNSET
    metadata: JsonObject | UnsetType = UNSET


class _Simulator(StrictObject):
    use: Name
    options: _Options | UnsetType = UNSET


class _Interactive(StrictObject):
    enabled: bool | UnsetType = UNSET
    timeout: _Duration | UnsetType = UNSET


class _Assertion(Struct, kw_only=True, gc=False):
    """What all assertions have in common. The rest is decoded by the struct of the check."""

    type: str
    message: str | UnsetType = UNSET
    negate: bool | UnsetType = UNSET
    weight: Annotated[float, Meta(ge=0)] | UnsetType = UNSET


_Input = str | _Message | Annotated[list[_Message], Meta(min_length=1)]
_Assertions = _Assertion | list[_Assertion]


class _Turn(StrictObject):
    input: _Input
    assertions: _Assertions | UnsetType = UNSET
    assert_: _Assertions | UnsetType = field(default=UNSET, name="assert")
    options: _Options | UnsetType = UNSET
    turn_timeout: _Duration | UnsetType = UNSET
    set: dict[str, str] | UnsetType = UNSET


class _Checkpoint(StrictObject):
    id: Name
    description: str | UnsetType = UNSET
    assertion: _Assertion | UnsetType = UNSET
    assert_: _Assertion | UnsetType = field(default=UNSET, name="assert")
    after: list[str] | UnsetType = UNSET
    required: bool | UnsetType = UNSET


class _Case(StrictObject):
    id: Name
    name: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET
    mode: Literal["single", "static", "dynamic"] | UnsetType = UNSET
    input: _Input | UnsetType = UNSET
    assertions: _Assertions | UnsetType = UNSET
    assert_: _Assertions | UnsetType = field(default=UNSET, name="assert")
    turns: Annotated[list[_Turn], Meta(min_length=1)] | UnsetType = UNSET
    simulator: _Simulator | UnsetType = UNSET
    checkpoints: Annotated[list[_Checkpoint], Meta(min_length=1)] | UnsetType = UNSET
    final_assertions: _Assertions | UnsetType = UNSET
    max_turns: Count | UnsetType = UNSET
    timeout: _Duration | UnsetType = UNSET
    turn_timeout: _Duration | UnsetType = UNSET
    on_missing_input: OnMissingInput | UnsetType = UNSET
    interactive: _Interactive | UnsetType = UNSET
    options: _Options | UnsetType = UNSET
    metadata: JsonObject | UnsetType = UNSET
    before: str | UnsetType = UNSET
    after: str | UnsetType = UNSET
    skip: bool | str | UnsetType = UNSET
    runs: Count | UnsetType = UNSET


def fits_types(value: Any) -> bool:
    """Does a document have the usual form of a case? Only the common fields of assertions are checked."""
    try:
        codec.convert(value, _Case)
    except codec.ValidationError:
        return False
    return True
