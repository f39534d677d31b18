"""Builds assertions from their definitions in a file, and reports those that cannot be built."""

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Any, cast

from msgspec import Struct, structs

from viva import catalog
from viva.checks.base_check import AssertionFields, BaseCheck, Spelling
from viva.checks.formatting import format_label
from viva.errors import BadInput, CheckError, Problem
from viva.formats.documents import format_key_path
from viva.formats.functions import PassedFunctions
from viva.model import codec
from viva.model.case import Assertion, Feature, TextScope, TurnScope
from viva.model.component import BuildContext
from viva.model.turn import Verdict
from viva.schemas.positions import KeyPath
from viva.schemas.validation import find_violations, format_unknown_check
from viva.state.trial_state import CheckContext, to_text
from viva.text.template import fill_variables, has_variables, is_template

ReportProblem = Callable[[KeyPath, str, str | None], None]
"""Reports a problem: called with the path of an object, a message, and the key in the object that is wrong."""
_COMMON_FIELDS = frozenset({"type", *AssertionFields.__struct_fields__})


class TemplatedCheck(Struct, frozen=True):
    """A check whose definition contains `{{variables}}`. The real check is built when it is evaluated and their values are known."""

    template: Mapping[str, Any]
    build_assertion: Callable[[Mapping[str, Any]], Assertion]
    """Builds the assertion from its definition with the values filled in."""
    costly: bool
    label: str
    looks_outside: bool = False

    def resolve(self, context: CheckContext) -> Assertion:
        """Build the assertion with the current values of its variables. Raises CheckError if that fails."""
        state = context.state
        try:
            try:
                return self.build_assertion(
                    fill_variables(self.template, state.variables, unset_reasons=state.unset_variables)
                )
            except codec.ValidationError:  # such as a number where only a text is allowed
                texts = {name: to_text(value) for name, value in state.variables.items()}
                return self.build_assertion(fill_variables(self.template, texts))
        except (ValueError, codec.ValidationError) as error:
            raise CheckError(str(error), deterministic=True) from error

    def check(self, context: CheckContext) -> Verdict:
        raise CheckError(f"{self.label}: its variables have no values yet")


class AssertionBuilder(Struct, dict=True):
    """Builds the assertions of one file."""

    folder: str
    roots: tuple[str, ...]
    update_snapshots: bool = False
    references: dict[str, KeyPath] = {}
    """The agents that are called by the checks built so far, and the path where each is named."""
    connectors: dict[tuple[str, str | None], KeyPath] = {}
    """The connectors that options name. Keys are (connector, helper or None for the agent under test), values are paths."""
    needs: set[Feature] = set()
    """The features that the checks built so far need."""
    may_hold_variables: bool = True
    """False if no text of the document can contain a variable."""
    path: KeyPath = ()
    """The path of the assertion that is being built."""
    functions: Mapping[str, Any] = {}
    """The functions that Python code has passed, by the text that stands for them."""
    needs_schema: bool = False
    """Was a check built whose struct accepts more than the schema does: a plugin's check, or a combination of checks?"""

    def build_all(
        self,
        definition: Any,
        path: KeyPath,
        report: ReportProblem,
        *,
        on: TextScope = "reply",
        over: TurnScope = "turn",
    ) -> tuple[Assertion, ...]:
        """The assertions of a list, or of a single object."""
        if definition is None:
            return ()
        if isinstance(definition, Mapping):
            results = [self.build_one(cast("Mapping[str, Any]", definition), path, report)]
        else:
            items = cast("list[Mapping[str, Any]]", definition)
            results = [self.build_one(item, (*path, index), report) for index, item in enumerate(items)]
        assertions = [each for each in results if each is not None]
        if (on, over) == ("reply", "turn"):
            return tuple(assertions)
        return tuple(structs.replace(each, on=on, over=over) for each in assertions)

    def build_one(self, definition: Mapping[str, Any], path: KeyPath, report: ReportProblem) -> Assertion | None:
        """Build one assertion. Returns None after a problem was reported."""
        self.path = path
        try:
            return self._build_definition(definition)
        except _UnknownCheckType as error:
            report((*path, "type"), str(error), None)
        except BadInput as error:
            report(path, error.problems[0].message, None)
        except (ValueError, codec.ValidationError) as error:
            report(path, str(error), None)
        return None

    def add_connector(self, options: Mapping[str, Any], helper: str | None, path: KeyPath) -> None:
        """Remember the connector that options name, so that the caller can check that it exists."""
        if isinstance(name := options.get("connector"), str):
            self.connectors.setdefault((name, helper), (*path, "options"))

    def _build_definition(self, definition: Mapping[str, Any]) -> Assertion:
        if not self.may_hold_variables or not is_template(definition):
            return self._build_without_variables(definition)
        check = _find_check(definition)
        if getattr(check, "is_combination", False):  # each of its assertions waits for its own variables
            return self._build_without_variables(definition)
        if has_variables(definition):
            return self._build_with_variables(check, definition)
        return structs.replace(
            self._build_without_variables(fill_variables(definition, {})), definition=definition
        )  # only escapes

    def _build_without_variables(self, definition: Mapping[str, Any]) -> Assertion:
        check_type = _find_check(definition)
        if not check_type.__module__.startswith("viva.") or getattr(check_type, "is_combination", False):
            self.needs_schema = True
        check = check_type.build(normalize_spellings(check_type, definition), self._context)
        for name in getattr(check, "references", ()):
            self._add_agent_reference(name)
            self.add_connector(getattr(check, "options", {}), name.removeprefix("agents:"), self.path)
        if needs := getattr(check, "needs", None):
            self.needs.update(needs)
        return _create_assertion(check, definition)

    def _build_with_variables(self, check: Any, definition: Mapping[str, Any]) -> Assertion:
        fields = normalize_spellings(check, definition)
        helper: str | None = getattr(check, "default_helper", None)
        known = {name: fill_variables(value, {}) for name, value in fields.items() if not has_variables(value)}
        if issubclass(check, BaseCheck):
            for name, value in known.items():
                check.validate_field(name, value, self._context)
        if helper is not None and not has_variables(fields.get("use", "")):
            self._add_agent_reference(known.get("use", helper))
        self.needs.update(getattr(check, "needs", ()))
        is_plugin = not check.__module__.startswith("viva.")
        templated = TemplatedCheck(
            dict(definition),
            self._build_without_variables,
            costly=helper is not None,
            label=self._format_label(check, fields, str(definition["type"])),
            looks_outside=getattr(check, "looks_outside", is_plugin) is True,
        )
        return structs.replace(_create_assertion(templated, definition), build_with_variables=templated.resolve)

    def _format_label(self, check: Any, fields: Mapping[str, Any], kind: str) -> str:
        """The label of a check whose variables have no values yet."""
        try:
            return str(check.build(fields, self._context).label)
        except (ValueError, BadInput, codec.ValidationError):  # it cannot be built without the values
            return format_label(kind, codec.compact_json(fields))

    @cached_property
    def _context(self) -> BuildContext:
        return BuildContext(self.folder, self.roots, self._build_definition, self.update_snapshots, self.functions)

    def _add_agent_reference(self, agent: str) -> None:
        self.references.setdefault(agent.removeprefix("agents:"), self.path)


class _UnknownCheckType(ValueError):  # noqa: N818 -- private to this module
    """An assertion whose `type` is not the name of a check."""


def _find_check(definition: Mapping[str, Any]) -> Any:
    kind = definition.get("type")
    check = catalog.find_component("check", kind) if isinstance(kind, str) else None
    if check is None:
        raise _UnknownCheckType(format_unknown_check(kind))
    return check


def _create_assertion(check: Any, definition: Mapping[str, Any]) -> Assertion:
    return Assertion(
        check=check,
        definition=definition,
        message=str(definition.get("message", "")),
        negate=bool(definition.get("negate", False)),
        weight=float(definition.get("weight", 1.0)),
    )


def normalize_spellings(check: Any, definition: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a check with alternative spellings replaced. Raises ValueError if a field is given in two spellings."""
    fields = {key: value for key, value in definition.items() if key not in _COMMON_FIELDS}
    spellings: Mapping[str, Spelling] = getattr(check, "spellings", {})
    for key, spelling in spellings.items():
        if key not in fields:
            continue
        spelled = spelling.expand_to_fields(fields.pop(key))
        names = _list_required_fields(check).union(spelled)  # an object has to have the required ones
        if both := [name for name in spelling.fields if name in names and name in fields]:
            raise ValueError(f"gives both spellings of {both[0]!r}; keep one of them")
        fields |= spelled
    return fields


@cache
def _list_required_fields(check: Any) -> frozenset[str]:
    return frozenset(field.name for field in structs.fields(check) if field.required)


def build_assertion(
    assertion: Mapping[str, Any] | Callable[..., Any],
    folder: str,
    *,
    scope: TurnScope = "turn",
    functions: PassedFunctions | None = None,
) -> Assertion:
    """Build an assertion that Python code passes, validated like an assertion in a file. Raises BadInput with all problems.

    Functions in it are added to `functions`.
    """
    if not isinstance(assertion, Mapping) and not callable(assertion):
        example = f"viva.check.contains({assertion if isinstance(assertion, str) else 'hello'!r})"
        raise BadInput.of(f"{assertion!r} is not an assertion: pass {example}, for example, or a function of the turn")
    functions = PassedFunctions() if functions is None else functions
    try:
        definition = functions.to_definition({"assertion": assertion})["assertion"]
    except (TypeError, ValueError) as error:
        raise BadInput.of(f"{assertion!r} cannot be written in a suite: {error}") from error
    problems: dict[Problem, None] = {}

    def report(path: KeyPath, message: str, _key: str | None = None) -> None:
        problems[Problem("", 0, format_key_path(path), message)] = None

    for violation in find_violations("native", {"id": "expect", "input": "", "assertions": [definition]}):
        report(violation.path[2:], violation.message)
    if not problems:
        builder = AssertionBuilder(folder, (folder,), functions=functions)
        built = builder.build_all(definition, (), report, over=scope)
        if built:
            return built[0]
    raise BadInput(*problems)
