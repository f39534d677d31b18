"""From an assertion as it was written to a Claim: both spellings of the wild, and what each looks at."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from msgspec import Struct, field, structs

from viva import catalog
from viva.checks.files import refuse_outside
from viva.checks.late import Late
from viva.checks.wording import labelled
from viva.errors import BadInput
from viva.model import codec
from viva.model.case import Assertion, Feature, TextScope, TurnScope
from viva.model.component import BuildContext
from viva.model.lookup import compile_path
from viva.model.pattern import compile_pattern
from viva.model.template import fill_variables, has_variables, is_template
from viva.schemas.positions import Place
from viva.schemas.words import unknown_name

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
Complain = Callable[[Place, str, str | None], None]


class ClaimBuilder(Struct):
    """Builds the claims of one file and complains about those that cannot be built."""

    folder: str
    roots: tuple[str, ...]
    update_snapshots: bool = False
    references: dict[str, Place] = field(default_factory=dict[str, Place])
    """The agents that the checks built so far will ask, and where."""
    connectors: dict[tuple[str, str | None], Place] = field(default_factory=dict[tuple[str, str | None], Place])
    """The connectors that options name, whose options they are (those of the agent under test: None), and where."""
    needs: set[Feature] = field(default_factory=set[Feature])
    """What the checks built so far cannot do without."""
    may_hold_variables: bool = True
    """Where no text of the document can hold a variable, none is looked for."""
    at: Place = ()
    """Where the assertion stands that is being built."""

    def claims(
        self, written: Any, at: Place, complain: Complain, *, on: TextScope = "reply", over: TurnScope = "turn"
    ) -> tuple[Assertion, ...]:
        """`assertions`: one object or a list of them."""
        if written is None:
            return ()
        if isinstance(written, Mapping):
            built = [self.claim(cast("Mapping[str, Any]", written), at, complain)]
        else:
            items = cast("list[Mapping[str, Any]]", written)
            built = [self.claim(item, (*at, i), complain) for i, item in enumerate(items)]
        return tuple(
            structs.replace(claim, on=on, over=over) if (on, over) != ("reply", "turn") else claim
            for claim in built
            if claim
        )

    def claim(self, written: Mapping[str, Any], at: Place, complain: Complain) -> Assertion | None:
        """One assertion, or None after a complaint."""
        self.at = at
        try:
            return self._nested(written)
        except NestedComplaint as nested:
            complain((*at, *nested.at), nested.what, nested.key)
        except BadInput as wrong:
            complain(at, wrong.problems[0].message, None)
        except (ValueError, codec.ValidationError) as wrong:
            complain(at, str(wrong), None)
        return None

    def _built(self, written: Mapping[str, Any]) -> Assertion:
        check = self._check(str(written["type"]), canonical(written))
        for name in getattr(check, "references", ()):
            self._will_ask(name)
            self.note_connector(getattr(check, "options", {}), name.removeprefix("agents:"), self.at)
        self.needs.update(getattr(check, "needs", ()))
        return Assertion(
            check=check,
            definition=written,
            message=str(written.get("message", "")),
            negate=bool(written.get("negate", False)),
            weight=float(written.get("weight", 1.0)),
        )

    def note_connector(self, options: Mapping[str, Any], helper: str | None, at: Place) -> None:
        """Options may name a connector, which has to be there."""
        if isinstance(name := options.get("connector"), str):
            self.connectors.setdefault((name, helper), (*at, "options"))

    def _check(self, kind: str, fields: Mapping[str, Any]) -> Any:
        found = catalog.find("check", kind)
        if found is None:
            raise NestedComplaint(("type",), unknown_name("assertion type", kind, catalog.names("check")))
        return found.build(fields, BuildContext(self.folder, self.roots, self._nested, self.update_snapshots))

    def _nested(self, written: Mapping[str, Any]) -> Assertion:
        if not self.may_hold_variables or not is_template(written) or str(written["type"]) in _COMBINING:
            return self._built(written)
        if has_variables(written):
            return self._late(written)
        return structs.replace(self._built(fill_variables(written, {})), written=written)  # only escaped braces

    def _late(self, written: Mapping[str, Any]) -> Assertion:
        kind = str(written["type"])
        fields = canonical(written)
        if kind in _JUDGED:
            fields.setdefault("use", _JUDGE)
        for name, value in fields.items():
            if not has_variables(value):
                self._check_alone(kind, name, fill_variables(value, {}))
        self.needs.update(getattr(catalog.find("check", kind), "needs", ()))
        late = Late(
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
            return labelled(kind, codec.compact_json(fields))

    def _will_ask(self, agent: str) -> None:
        self.references.setdefault(agent.removeprefix("agents:"), self.at)

    def _check_alone(self, kind: str, name: str, value: Any) -> None:
        """What can be said of one field while others wait for their variables."""
        match kind, name:
            case ("regex", "pattern") | ("json_path", "matches"):
                compile_pattern(value)
            case ("json_path" | "type", "path"):
                compile_path(value)
            case ("file_exists" | "file_contains", "path"):
                refuse_outside(value)
            case ("script", "use") | ("json_schema", "schema"):
                self._check(kind, {name: value})
            case ("agent" | "rubric", "use"):
                self._will_ask(value)
            case _:
                pass


class NestedComplaint(ValueError):  # noqa: N818 -- it never leaves this room
    """A complaint about a member of an assertion."""

    def __init__(self, at: Place, what: str, key: str | None = None) -> None:
        super().__init__(what)
        self.at, self.what, self.key = at, what, key


def canonical(written: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a check in one spelling. Giving both spellings of one thing is refused."""
    kind = str(written["type"])
    fields = {key: value for key, value in written.items() if key not in _OURS}
    for key, value in _respelled(kind, fields):
        if key in fields:
            raise NestedComplaint((), f"gives both spellings of {key!r}; keep one of them")
        fields[key] = value
    needed = _REQUIRED_SOMEHOW.get(kind)
    if needed and needed not in fields:
        raise NestedComplaint((), f"misses {needed!r}")
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
