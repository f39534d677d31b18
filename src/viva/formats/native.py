"""Native suites. Documents are all checked first; then cases are built one at a time by `native_case`."""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

from viva.errors import BadInput, Problem
from viva.formats.assertions import AssertionBuilder, ReportProblem
from viva.formats.case_files import Attachments
from viva.formats.documents import Document, Documents
from viva.formats.load_options import LoadOptions
from viva.formats.native_case import CaseBuilder, SuiteContext, compute_digest, may_hold_variables
from viva.formats.plain_case import build_plain_case, decode_plain_case
from viva.formats.repair import NATIVE_PLACEHOLDERS, replace_invalid
from viva.formats.typed_case import fits_types
from viva.model import codec
from viva.model.case import Case, Feature, Origin, Suite
from viva.schemas.positions import KeyPath
from viva.schemas.validation import find_violations
from viva.text.template import fill_variables, unescape_template

MAX_CASES_IN_MEMORY = 2000
"""Maximum number of cases of a file that stay in memory after the check; the others are built again when they run."""
_MIN_PLAIN_CASES = 100
"""From this number of cases on, plain ones are built by decoding them. For fewer it is not worth it to import all checks."""
_VARIABLE_SETTERS = frozenset({"set", "before", "for"})
"""Keys that set variables. If one of them is invalid, unset variables cannot be reported."""


def load(documents: Documents, name: str, folder: Path, options: LoadOptions) -> Suite:
    """Load the suite of some documents; `name` is what messages show. Raises BadInput with every problem at once."""
    reader = _SuiteReader(documents, name, folder, options)
    reader.check()
    if reader.problems:
        raise BadInput(*sorted(set(reader.problems)))
    return Suite(
        id=name,
        cases=reader.cases,
        count=reader.count,
        case_runs=tuple(reader.own_runs),
        digest=reader.digest.hexdigest(),
        interactive_cases=reader.interactive,
        origin=Origin(name),
        needs={feature: tuple(cases) for feature, cases in reader.needs.items()},
    )


class _SuiteReader:
    """Reads the documents twice: once to check them, once to build their cases."""

    def __init__(self, documents: Documents, name: str, folder: Path, options: LoadOptions) -> None:
        self._documents = documents
        self._name = name
        self._options = options
        root = str(folder.resolve())
        self._assertions = AssertionBuilder(
            root, (*options.roots, root), options.update_snapshots, functions=options.functions
        )
        self._suite_context = SuiteContext(options, self._assertions, Attachments(root, options.attachment_roots))
        self.problems: list[Problem] = []
        self.own_runs: list[int] = []
        self.digest = blake2b(digest_size=8)
        """The digest of all cases, in order."""
        self.needs = defaultdict[Feature, list[str]](list)
        self.count = self.interactive = 0
        self._seen: dict[str, int] = {}
        """The line of each id."""
        self._kept: dict[int, Sequence[Case]] = {}
        """The cases of the first documents, by number, kept from the check, so that a small suite is built only once."""

    def check(self) -> None:
        for number, document in enumerate(self._documents.read_valid(self.problems)):
            plain = decode_plain_case(document) if number >= _MIN_PLAIN_CASES else None
            if plain is not None and self.count >= MAX_CASES_IN_MEMORY:
                self._add_case(document, plain.id, compute_digest(document.value), plain.runs)
                continue
            if plain is not None:
                cases = [build_plain_case(plain, document, self._options.timeout_s)]
            else:
                cases = self._build_by_types(document) or self._build_by_schema(document)
            for case in cases:
                self._add_case(document, case.id, case.digest, case.runs)
                self.interactive += case.interactive.enabled
                for feature in case.needs:
                    self.needs[feature].append(case.id)
            if self.count <= MAX_CASES_IN_MEMORY and not any(map(_has_attachments, cases)):
                self._kept[number] = cases
        self._seen.clear()  # not needed during the run, and there may be 100,000
        if not self.count and not self.problems:
            self.problems.append(Problem(self._name, 1, "", f"does not contain cases; {_explain_syntax(self._name)}"))

    def _add_case(self, document: Document, case_id: str, digest: str, runs: int | None) -> None:
        self.count += 1
        self.digest.update(digest.encode())
        if runs is not None:
            self.own_runs.append(runs)
        self._check_id_is_unique(document, case_id)

    def _check_id_is_unique(self, document: Document, case_id: str) -> None:
        if case_id in self._seen:
            what = f"id {case_id!r} is taken; line {self._seen[case_id]} has it too"
            self.problems.append(document.make_problem(("id",), what))
        self._seen[case_id] = document.line

    def _report_further_problems(self, document: Document, cases: Sequence[Any]) -> None:
        """Report further problems of a document that does not fit the schema, after invalid parts are replaced."""
        for definition in cases:
            violations = find_violations("native", definition)
            value = (
                replace_invalid("native", definition, violations, NATIVE_PLACEHOLDERS)
                if isinstance(definition, Mapping)
                else None
            )
            if value is None:
                continue
            if isinstance(definition.get("id"), str) and "for" not in definition:
                self._check_id_is_unique(document, definition["id"])
            steps = {step for each in violations for step in (*each.path, each.suggestion)}
            context = (
                self._suite_context.without_variable_checks() if steps & _VARIABLE_SETTERS else self._suite_context
            )
            for case in expand_rows(value):
                CaseBuilder(context, document, case, self._create_problem_reporter(document)).build()
                self._check_references(document)

    def _check_references(self, document: Document) -> None:
        """Report helpers and connectors that a case names and that cannot be built. Config problems are reported once."""
        for name, at in self._assertions.references.items():
            error = self._options.find_helper_problems(name)
            self.problems += [
                each if each.file else document.make_problem(at, each.message, key="use") for each in error
            ]
        for (name, helper), at in self._assertions.connectors.items():
            error = self._options.find_connector_problems(name, helper)
            self.problems += [document.make_problem(at, each.message, key="connector") for each in error]
        self._assertions.references.clear()
        self._assertions.connectors.clear()

    async def cases(self) -> AsyncIterator[Case]:
        """Reads the documents a second time and yields the cases one by one, with their attachments."""
        for number, decode in enumerate(self._documents.iterate_again()):
            if (cases := self._kept.get(number)) is not None:
                for case in cases:
                    yield case
                continue
            document = decode()
            if number >= _MIN_PLAIN_CASES and (plain := decode_plain_case(document)) is not None:
                yield build_plain_case(plain, document, self._options.timeout_s)
                continue
            for value in expand_rows(document.value):
                case = self._create_builder(document, value).build(read_files=True)
                if self.problems:
                    raise BadInput(*self.problems)
                yield case

    def _build_by_types(self, document: Document) -> list[Case]:
        """The case of a valid document of the usual form. Empty for any other document, which the schema then checks."""
        if may_hold_variables(document) or not fits_types(document.value):
            return []
        problems: list[str] = []
        self._assertions.needs_schema = False
        case = CaseBuilder(
            self._suite_context, document, document.value, lambda _path, what, _key: problems.append(what)
        ).build()
        if problems or self._assertions.needs_schema:
            return []
        self._check_references(document)
        return [case]

    def _build_by_schema(self, document: Document) -> list[Case]:
        """The cases of a document, if it fits the schema."""
        cases: list[Case] = []
        for value in self._list_valid_definitions(document):
            cases.append(self._create_builder(document, value).build())
            self._check_references(document)
        return cases

    def _list_valid_definitions(self, document: Document) -> list[Any]:
        """The definitions of the cases of a document, if it fits the schema."""
        violations = find_violations("native", document.value)
        cases = [document.value] if violations else expand_rows(document.value)
        if not violations and "for" in document.value:
            violations = [violation for case in cases for violation in find_violations("native", case)]
        if not violations:
            return cases
        self.problems += [document.make_problem(c.path, c.message, key=c.unknown_key) for c in violations]
        self._report_further_problems(document, cases)
        return []

    def _create_builder(self, document: Document, value: Mapping[str, Any]) -> CaseBuilder:
        return CaseBuilder(self._suite_context, document, value, self._create_problem_reporter(document))

    def _create_problem_reporter(self, document: Document) -> ReportProblem:
        def report(path: KeyPath, what: str, key: str | None = None) -> None:
            self.problems.append(document.make_problem(path, what, key=key))

        return report


def _explain_syntax(name: str) -> str:
    if name.endswith((".yaml", ".yml")):
        return "write a list of cases, each with an id and an input: `- {id: hello, input: Hello}`"
    if name.endswith(".json"):
        return 'write a list of cases, each with an id and an input: `[{"id": "hello", "input": "Hello"}]`'
    return 'write one JSON object a line, with an id and an input: `{"id": "hello", "input": "Hello"}`'


def _has_attachments(case: Case) -> bool:
    messages = (*case.history, *(planned.message for planned in case.user.planned_messages))
    return any(not isinstance(message.content, str) for message in messages)


def expand_rows(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The definitions of a case: with `for`, one for each row, with `{{key}}` filled in and a number added to the id."""
    if "for" not in value:
        return [value]
    rest = {key: item for key, item in value.items() if key != "for"}
    rows = cast("list[Mapping[str, Any]]", value["for"])
    filled = [_convert_filled_numbers(_unescape_fields(fill_variables(rest, row, keep_unknown=True))) for row in rows]
    # An id that contains a variable differs for each row already.
    return [
        case if case["id"] != value["id"] else {**case, "id": f"{value['id']}-{i}"} for i, case in enumerate(filled, 1)
    ]


_FILLED_LATER = frozenset(
    {"input", "attachments", "assertions", "assert", "turns", "simulator", "checkpoints", "final_assertions"}
)
"""Fields that are filled again when the case runs. In all others only `for` fills variables."""


def _unescape_fields(case: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item if key in _FILLED_LATER else unescape_template(item) for key, item in case.items()}


def _convert_filled_numbers(case: Any) -> Any:
    """Convert a filled-in number to text where only text is allowed."""
    for violation in find_violations("native", case):
        holder, last = case, violation.path[-1:]
        for step in violation.path[:-1]:
            holder = holder[step]
        if last and isinstance(holder[last[0]], bool | int | float):
            holder[last[0]] = codec.compact_json(holder[last[0]])
    return case
