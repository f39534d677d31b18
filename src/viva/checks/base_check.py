"""The base classes of all checks.

A check is a frozen struct. Its fields are what users write; the docstring of the class and those below the fields are what
they read. The JSON Schema, the reference page, `viva.check`, `t.assert_` and the generator's prompt are made from them: after
a change run `make schemas reference`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Self, cast, get_args, get_type_hints

from msgspec import UNSET, Meta, Struct, UnsetType

from viva.model import codec
from viva.model.case import Feature
from viva.model.component import BuildContext, Component

NonEmptyText = Annotated[str, Meta(min_length=1)]
Number = int | float
NotNegative = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Validators = Mapping[str, Callable[[Any], object]]
"""For a field: a function that raises ValueError for a value of the right type that makes no sense."""


class AssertionFields(Struct, frozen=True):
    """What every assertion may have besides the fields of its check."""

    message: str = ""
    """Shown instead of the check's own label when it fails."""
    negate: bool = False
    """The check must not pass. A score from 0 to 1 counts as 1 minus the score. A check that cannot be evaluated stays an error."""
    weight: Annotated[float, Meta(ge=0)] = 1.0
    """How much the assertion counts in the case's score."""


class Spelling(Struct, frozen=True):
    """Another key that users may write for fields of a check.

    A plain value is the value of `field`. An object has `members`: its keys, each with the field that it sets.
    """

    field: str | None = None
    members: Mapping[str, str] = {}

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that this key stands for."""
        return tuple(dict.fromkeys([*([self.field] if self.field else []), *self.members.values()]))

    def expand_to_fields(self, value: Any) -> dict[str, Any]:
        """The fields that a value of this key gives. ValueError for a value that the schema refuses."""
        if not self.members or not isinstance(value, Mapping):
            if self.field is None:
                raise ValueError(f"is not an object with {', '.join(self.members)}")
            return {self.field: value}
        if unknown := [key for key in cast("Mapping[str, Any]", value) if key not in self.members]:
            raise ValueError(f"unknown key {unknown[0]!r}; known keys: {', '.join(self.members)}")
        return {self.members[key]: item for key, item in cast("Mapping[str, Any]", value).items()}


class BaseCheck(Component, frozen=True, kw_only=True):
    """The base of all checks. Checks that call no model derive from `LocalCheck`."""

    spellings: ClassVar[Mapping[str, Spelling]] = {}
    """Other keys that users may write."""
    validators: ClassVar[Validators] = {}
    python_types: ClassVar[Mapping[str, str]] = {}
    """For a field: the type that its parameter in `viva.check` has, if Python code may pass more than a file can contain."""
    is_combination: ClassVar[bool] = False
    """Is the check made of other assertions?"""
    needs: ClassVar[frozenset[Feature]] = frozenset()
    """The features that the agent must support."""
    default_helper: ClassVar[str | None] = None
    """The agent that the check asks if `use` is left out; None for a check that asks no agent."""
    example: ClassVar[Mapping[str, Any] | None] = None
    """Fields of an assertion that shows what the check is for. The generator's prompt lists it."""

    @classmethod
    def build(cls, fields: Mapping[str, Any], context: BuildContext) -> Self:
        return codec.convert(dict(_convert_whole_floats(cls, fields)), cls)

    @classmethod
    def validate_field(cls, name: str, value: Any, context: BuildContext) -> None:
        """Raises ValueError for an invalid value of one field, while other fields still have unfilled variables."""
        if (validate := cls.validators.get(name)) is not None:
            validate(value)

    def __post_init__(self) -> None:
        for name, validate in self.validators.items():
            if (value := getattr(self, name)) is not UNSET:
                validate(value)


class LocalCheck(BaseCheck, frozen=True, kw_only=True):
    """A check that calls no model."""

    @property
    def costly(self) -> bool:
        """Does the check call a model? A local check never does."""
        return False


class HelperOptions(BaseCheck, frozen=True, kw_only=True):
    """The fields of a check that calls a function or an agent of the user."""

    metadata: Mapping[str, Any] | UnsetType = UNSET
    """Metadata of the call. Another spelling of `options.metadata`."""
    options: Mapping[str, Any] = {}
    """Options of the call, with `metadata` among them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if "metadata" in self.options and self.metadata is not UNSET:
            raise ValueError("gives both spellings of 'metadata'; keep one of them")
        if not isinstance(cast("object", self.all_metadata), Mapping):
            raise ValueError("options.metadata is not an object")

    @property
    def all_metadata(self) -> Mapping[str, Any]:
        return self.options.get("metadata", {}) if self.metadata is UNSET else self.metadata

    @property
    def other_options(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name != "metadata"}


def _convert_whole_floats(check: type[BaseCheck], fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields with 2.0 as 2 where an integer is expected: JSON Schema does not tell them apart, msgspec does."""
    for name in _list_integer_fields(check):
        if isinstance(fields.get(name), float | Mapping):
            fields = {**fields, name: _convert_whole_float(fields[name])}
    return fields


def _convert_whole_float(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _convert_whole_float(item) for key, item in cast("Mapping[str, Any]", value).items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


@cache
def _list_integer_fields(check: type[BaseCheck]) -> frozenset[str]:
    hints = get_type_hints(check, include_extras=True)
    types = {name: set(_iterate_nested_types(hints[name])) for name in check.__struct_fields__}
    return frozenset(name for name, parts in types.items() if int in parts and float not in parts)


def _iterate_nested_types(hint: Any) -> Iterator[Any]:
    yield hint
    for argument in get_args(hint):
        yield from _iterate_nested_types(argument)
