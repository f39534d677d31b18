"""From an assertion as it was written to a Claim: both spellings of the wild, and what each looks at."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from msgspec import Struct, field, structs

from viva import catalog
from viva.checks.files import check_workspace_path
from viva.checks.formatting import format_label
from viva.checks.templated import TemplatedCheck
from viva.errors import BadInput
from viva.model import codec
from viva.model.case import Assertion, Feature, TextScope, TurnScope
from viva.model.component import BuildContext
from viva.schemas.positions import KeyPath
from viva.schemas.validation import format_unknown_name
from viva.text.json_path import compile_path
from viva.text.pattern import compile_pattern
from viva.text.template import fill_variables, has_variables, is_template

_OURS = frozenset({"type", "message", "negate", "weight"})
_REQUIRED_SOMEHOW = {
    "regex": "pattern",
    "tool_called": "name",
    "tool_not_called": "name",
    "tool_result": "name",
    "script": "use",
}
_JUDGED, _JUDGE = frozenset({"agent", "rubric"}), "viva.validator"
_COMBINING = frozenset({"all", "any", "not"})
"""What is made of other assertions: of these, each waits for its own variables."""
ReportProblem = Callable[[KeyPath, str, str | None], None]


class AssertionBuilder(Struct):
    """Builds the claims of one file and complains about those that cannot be built."""

    folder: str
    roots: tuple[str, ...]
    update_snapshots: bool = False
    references: dict[str, KeyPath] = field(default_factory=dict[str, KeyPath])
    """The agents that the checks built so far will ask, and where."""
    connectors: dict[tuple[str, str | None], KeyPath] = field(default_factory=dict[tuple[str, str | None], KeyPath])
    """The connectors that options name, whose options they are (those of the agent under test: None), and where."""
    needs: set[Feature] = field(default_factory=set[Feature])
    """What the checks built so far cannot do without."""
    may_hold_variables: bool = True
    """Where no text of the document can hold a variable, none is looked for."""
    path: KeyPath = ()
    """Where the assertion stands that is being built."""

    def build_all(
        self, written: Any, path: KeyPath, report: ReportProblem, *, on: TextScope = "reply", over: TurnScope = "turn"
    ) -> tuple[Assertion, ...]:
        """`assertions`: one object or a list of them."""
        if written is None:
            return ()
        if isinstance(written, Mapping):
            built = [self.build_one(cast("Mapping[str, Any]", written), path, report)]
        else:
            items = cast("list[Mapping[str, Any]]", written)
            built = [self.build_one(item, (*path, i), report) for i, item in enumerate(items)]
        return tuple(
            structs.replace(assertion, on=on, over=over) if (on, over) != ("reply", "turn") else assertion
            for assertion in built
            if assertion
        )

    def build_one(self, written: Mapping[str, Any], path: KeyPath, report: ReportProblem) -> Assertion | None:
        """One assertion, or None after a complaint."""
        self.path = path
        try:
            return self._nested(written)
        except InvalidMember as nested:
            report((*path, *nested.at), nested.what, nested.key)
        except BadInput as wrong:
            report(path, wrong.problems[0].message, None)
        except (ValueError, codec.ValidationError) as wrong:
            report(path, str(wrong), None)
        return None

    def _built(self, written: Mapping[str, Any]) -> Assertion:
        check = self._check(str(written["type"]), normalize_fields(written))
        for name in getattr(check, "references", ()):
            self._will_ask(name)
            self.add_connector(getattr(check, "options", {}), name.removeprefix("agents:"), self.path)
        self.needs.update(getattr(check, "needs", ()))
        return Assertion(
            check=check,
            definition=written,
            message=str(written.get("message", "")),
            negate=bool(written.get("negate", False)),
            weight=float(written.get("weight", 1.0)),
        )

    def add_connector(self, options: Mapping[str, Any], helper: str | None, path: KeyPath) -> None:
        """Options may name a connector, which has to be there."""
        if isinstance(name := options.get("connector"), str):
            self.connectors.setdefault((name, helper), (*path, "options"))

    def _check(self, kind: str, fields: Mapping[str, Any]) -> Any:
        found = catalog.find_component("check", kind)
        if found is None:
            raise InvalidMember(
                ("type",), format_unknown_name("assertion type", kind, catalog.list_components("check"))
            )
        return found.build(fields, BuildContext(self.folder, self.roots, self._nested, self.update_snapshots))

    def _nested(self, written: Mapping[str, Any]) -> Assertion:
        if not self.may_hold_variables or not is_template(written) or str(written["type"]) in _COMBINING:
            return self._built(written)
        if has_variables(written):
            return self._late(written)
        return structs.replace(self._built(fill_variables(written, {})), definition=written)  # only escaped braces

    def _late(self, written: Mapping[str, Any]) -> Assertion:
        kind = str(written["type"])
        fields = normalize_fields(written)
        if kind in _JUDGED:
            fields.setdefault("use", _JUDGE)
        for name, value in fields.items():
            if not has_variables(value):
                self._check_alone(kind, name, fill_variables(value, {}))
        self.needs.update(getattr(catalog.find_component("check", kind), "needs", ()))
        late = TemplatedCheck(
            dict(written),
            self._built,
            costly=kind in _JUDGED,
            label=self._template_label(kind, fields),
            looks_outside=kind == "script" or ":" in kind,
        )
        return Assertion(
            check=late,
            definition=written,
            message=str(written.get("message", "")),
            negate=bool(written.get("negate", False)),
            weight=float(written.get("weight", 1.0)),
            resolve=late.resolve,
        )

    def _template_label(self, kind: str, fields: Mapping[str, Any]) -> str:
        """The label with its `{{variables}}` as they are written: what it is called before their values are known."""
        try:
            return str(self._check(kind, fields).label)
        except (ValueError, BadInput, codec.ValidationError):  # a value is needed to build it
            return format_label(kind, codec.compact_json(fields))

    def _will_ask(self, agent: str) -> None:
        self.references.setdefault(agent.removeprefix("agents:"), self.path)

    def _check_alone(self, kind: str, name: str, value: Any) -> None:
        """What can be said of one field while others wait for their variables."""
        match kind, name:
            case ("regex", "pattern") | ("json_path", "matches"):
                compile_pattern(value)
            case ("json_path" | "type", "path"):
                compile_path(value)
            case ("file_exists" | "file_contains", "path"):
                check_workspace_path(value)
            case ("script", "use") | ("json_schema", "schema"):
                self._check(kind, {name: value})
            case ("agent" | "rubric", "use"):
                self._will_ask(value)
            case _:
                pass


class InvalidMember(ValueError):  # noqa: N818 -- it never leaves this room
    """A complaint about a member of an assertion."""

    def __init__(self, at: KeyPath, what: str, key: str | None = None) -> None:
        super().__init__(what)
        self.at, self.what, self.key = at, what, key


def normalize_fields(written: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a check in one spelling. Giving both spellings of one thing is refused."""
    kind = str(written["type"])
    fields = {key: value for key, value in written.items() if key not in _OURS}
    for key, value in _respelled(kind, fields):
        if key in fields:
            raise InvalidMember((), f"gives both spellings of {key!r}; keep one of them")
        fields[key] = value
    needed = _REQUIRED_SOMEHOW.get(kind)
    if needed and needed not in fields:
        raise InvalidMember((), f"misses {needed!r}")
    return fields


def _respelled(kind: str, fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    if kind == "regex" and "value" in fields:
        yield "pattern", fields.pop("value")
    elif kind in ("tool_called", "tool_not_called") and "value" in fields:
        value = fields.pop("value")
        yield from value.items() if isinstance(value, Mapping) else [("name", value)]
    elif kind == "tool_result" and "value" in fields:
        value = fields.pop("value")
        yield "name", value["tool"]
        if "result" in value:
            yield "result", value["result"]
    elif kind == "script" and "script" in fields:
        yield "use", fields.pop("script")
    if kind in ("script", "agent", "rubric") and isinstance(fields.get("options"), Mapping):
        options = dict(fields.pop("options"))
        if "metadata" in options:
            yield "metadata", options.pop("metadata")
        if options and kind != "script":
            fields["options"] = options
