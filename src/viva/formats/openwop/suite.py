"""OpenWOP eval suites: from a document to a Suite whose cases are its tasks. Reports problems that the schema cannot express.

A task is a conversation of one turn. Its golden value or rubric is an ordinary check; fixtures become stubbed tools and
memory; its thresholds are those of the Suite. Which modes a run has is decided in `modes`.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, cast

from msgspec import Struct

from viva.checks.golden import Golden, GoldenStrategy, ReturnSchema, to_canonical_text
from viva.checks.judge import BUILT_IN_JUDGE, Criterion, Rubric
from viva.checks.leaks import redact_secrets
from viva.checks.safety import Safety, SafetyJudge, UnstubbedToolCalls
from viva.errors import BadInput, Problem
from viva.formats.documents import Document, Documents
from viva.formats.load_options import DEFAULT_HINTS, LoadOptions
from viva.formats.openwop.modes import LIVE_MODE, Mode, select_modes
from viva.formats.repair import OPENWOP_PLACEHOLDERS, replace_invalid
from viva.model import codec
from viva.model.case import (
    Assertion,
    Case,
    Feature,
    Fixtures,
    IntendedAgent,
    Limits,
    ModelClass,
    Origin,
    Suite,
    Threshold,
    ToolStub,
    UserMessage,
)
from viva.model.message import Message
from viva.protocols import Check
from viva.schemas.positions import KeyPath
from viva.schemas.validation import find_violations
from viva.users.script import Script

GOLDEN_PASS_SCORE, PASS_SCORE = 1.0, 0.7
"""The default pass score of suites with golden tasks only, and of other suites."""
_WEIGHT_TOLERANCE = 1e-6


class _SuitePart(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Part of a suite, with the field names of the file."""


class Match(_SuitePart, frozen=True):
    """What a golden task expects."""

    strategy: GoldenStrategy
    value: Any


class RubricLine(_SuitePart, frozen=True):
    """One criterion of a rubric."""

    criterion: str
    weight: float


class Expected(_SuitePart, frozen=True):
    """How a task is scored."""

    kind: Literal["golden", "rubric"]
    match: Match | None = None
    rubric: tuple[RubricLine, ...] = ()


class ToolResponse(_SuitePart, frozen=True):
    """The canned response of a tool."""

    tool: str
    response: Any = None


class TaskFixtures(_SuitePart, frozen=True):
    """Canned tools and memory. Without `tool_responses`, tools run live."""

    tool_responses: tuple[ToolResponse, ...] | None = None
    memory_seed: tuple[dict[str, Any], ...] = ()


class Task(_SuitePart, frozen=True):
    """One task."""

    task_id: str
    input: Any
    expected: Expected
    fixtures: TaskFixtures | None = None


class Thresholds(_SuitePart, frozen=True):
    """What the suite must reach."""

    pass_score: float | None = None
    max_cost_usd: float | None = None
    max_p95_latency_ms: float | None = None  # an integer may be written as 1.0


class EvalSuite(_SuitePart, frozen=True):
    """A suite as in its file."""

    suite_id: str
    version: str
    modes: tuple[Mode, ...]
    tasks: tuple[Task, ...]
    target_agent_id: str | None = None
    allowed_models: tuple[ModelClass, ...] = ()
    thresholds: Thresholds = Thresholds()

    def get_pass_score(self, default: float | None) -> float:
        """The minimum mean score, and the minimum score of a rubric."""
        if self.thresholds.pass_score is not None:
            return self.thresholds.pass_score
        if default is not None:
            return default
        golden = all(task.expected.kind == "golden" for task in self.tasks)
        return GOLDEN_PASS_SCORE if golden else PASS_SCORE


class ManifestInfo(Struct, frozen=True, kw_only=True):
    """The parts of an agent's manifest that matter for its suite: id, schemas, system prompts, tools."""

    agent_id: str | None = None
    task_schema: dict[str, Any] | None = None
    return_schema: dict[str, Any] | None = None
    prompts: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    signature_note: str | None = None
    """Description of the verified signature of its pack."""


_NO_MANIFEST = ManifestInfo()


def load(documents: Documents, name: str, _folder: Path, options: LoadOptions) -> Suite:
    """Load the suite of a file; `name` is what messages show. Raises BadInput with every problem at once."""
    problems: list[Problem] = []
    suites = list(documents.read_valid(problems))
    problems += [each.make_problem((), "is a second suite; a file may contain only one") for each in suites[1:]]
    if not suites and not problems:
        problems.append(Problem(name, 1, "", "does not contain an eval suite"))
    try:
        suite = load_suite(suites[0], options) if suites else None
    except BadInput as error:
        problems += error.problems
        suite = None
    if problems or suite is None:
        raise BadInput(*problems)
    return suite


def parse_suite(document: Document) -> tuple[EvalSuite, tuple[str, ...]]:
    """Parse a suite without the config: its agent and judges are not checked. Returns the suite and warnings, or raises BadInput with all problems."""
    suite, _, problems = _parse_document(document)
    if problems or suite is None:
        raise BadInput(*problems)
    return suite, tuple(str(problem) for problem in _find_warnings(document, suite))


def _parse_document(document: Document) -> tuple[EvalSuite | None, set[str | int | None], list[Problem]]:
    """Parse the document. Returns the suite without its invalid parts, the keys with problems, and all problems."""
    value = document.value
    if isinstance(value, dict) and "aggregateScore" in value:
        what = "is the summary of an eval, not a suite; --baseline takes it"
        return None, set(), [document.make_problem((), what)]
    violations = find_violations("openwop", value)
    problems = [document.make_problem(each.path, each.message, key=each.unknown_key) for each in violations]
    if violations:
        value = replace_invalid("openwop", value, violations, OPENWOP_PLACEHOLDERS) if isinstance(value, dict) else None
    if value is None:
        return None, set(), problems
    problems += _find_scoring_problems(document, value)
    return (
        codec.convert(value, EvalSuite),
        {step for each in violations for step in (*each.path, each.suggestion)},
        problems,
    )


def _find_scoring_problems(document: Document, suite: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems that the schema does not catch but that make a task impossible to score."""
    seen: dict[str, int] = {}
    for at, task in enumerate(suite["tasks"]):
        place: KeyPath = ("tasks", at)
        name, expected = task["taskId"], task["expected"]
        if name in seen:
            what = f"task id {name!r} is taken; tasks[{seen[name]}] has it too"
            yield document.make_problem(place, what, key="taskId")
        seen.setdefault(name, at)
        if expected["kind"] == "golden" and "match" not in expected:
            yield document.make_problem((*place, "expected"), "is golden but is missing 'match': the expected value")
        if expected["kind"] == "rubric" and "rubric" not in expected:
            yield document.make_problem(
                (*place, "expected"), "is rubric but is missing 'rubric': the weighted criteria"
            )
        if not sum(each["weight"] for each in expected.get("rubric", [{"weight": 1}])):
            yield document.make_problem(
                (*place, "expected"), "has weights that are all 0: nothing could score", key="rubric"
            )
        if codec.has_nan_or_infinity(task):  # a YAML file can say what JSON cannot
            yield document.make_problem(place, "contains a number that JSON does not have: NaN or infinity")


def _find_warnings(document: Document, suite: EvalSuite) -> Iterator[Problem]:
    for at, task in enumerate(suite.tasks):
        place: KeyPath = ("tasks", at, "expected")
        other = "rubric" if task.expected.kind == "golden" else "match"
        weights = sum(line.weight for line in task.expected.rubric)
        if task.expected.kind == "rubric" and abs(weights - 1) > _WEIGHT_TOLERANCE:
            yield document.make_problem(
                place, f"the weights add up to {weights:.6g}, not 1; the score is their share", key="rubric"
            )
        if task.expected.match == Match("contains", ""):
            yield document.make_problem(
                place, "every output contains an empty text: this task cannot fail", key="match"
            )
        if getattr(task.expected, other):
            yield document.make_problem(place, f"is {task.expected.kind}: its {other!r} is not used", key=other)


def load_suite(document: Document, options: LoadOptions, manifest: ManifestInfo = _NO_MANIFEST) -> Suite:
    """Build a runnable suite. Raises BadInput with every problem at once."""
    suite, invalid_keys, problems = _parse_document(document)
    if suite is None:
        raise BadInput(*problems)
    eval_options = options.eval_options
    problems += [*_find_missing_judge(document, suite, options), *_find_input_mismatches(document, suite, manifest)]
    modes, left_out = (), None
    try:
        if "modes" not in invalid_keys:
            modes, left_out = select_modes(suite.modes, eval_options)
    except ValueError as error:
        problems.append(document.make_problem((), str(error), key="modes"))
    if problems:
        raise BadInput(*problems)
    warnings = (str(problem) for problem in _find_warnings(document, suite))
    builder = _CaseBuilder(suite, document, modes, options, manifest)
    target = suite.target_agent_id or manifest.agent_id
    notes = [
        *manifest.notes,
        *warnings,
        *_find_uncallable_tools(document, suite, manifest),
        *([f"{suite.suite_id}: {left_out}"] if left_out else []),
    ]
    return Suite(
        id=suite.suite_id,
        kind="eval_suite",
        version=suite.version,
        cases=builder.cases,
        count=len(suite.tasks),
        digest=blake2b(codec.encode_canonically(document.value), digest_size=8).hexdigest(),
        origin=Origin(document.file, document.line),
        threshold=_build_threshold(suite, eval_options.pass_score),
        target=eval_options.agent_names.get(target) if target else None,
        intended_agent=IntendedAgent(suite.target_agent_id, tuple(suite.allowed_models)),
        needs={} if LIVE_MODE in modes else _find_needs(suite),
        notes=tuple(notes),
        verified=manifest.signature_note,
    )


def _build_threshold(suite: EvalSuite, default: float | None) -> Threshold:
    limits = suite.thresholds
    return Threshold(suite.get_pass_score(default), limits.max_cost_usd, limits.max_p95_latency_ms)


def _find_missing_judge(document: Document, suite: EvalSuite, options: LoadOptions) -> Iterator[Problem]:
    """Problems of the judges that the suite needs."""
    if options.eval_options.validate_only:
        return
    helpers: list[tuple[str, KeyPath]] = []
    rubrics = [at for at, task in enumerate(suite.tasks) if task.expected.kind == "rubric"]
    if rubrics:
        helpers.append((options.eval_options.judge or BUILT_IN_JUDGE, ("tasks", rubrics[0], "expected")))
    if options.eval_options.safety_judge and "adversarial" in suite.modes:
        helpers.append((options.eval_options.safety_judge, ("modes",)))
    for name, place in helpers:
        error = options.find_helper_problems(name)
        yield from (
            each if each.file else document.make_problem(place, f"needs a judge: {each.message}") for each in error
        )


def _find_input_mismatches(document: Document, suite: EvalSuite, manifest_info: ManifestInfo) -> Iterator[Problem]:
    """Problems of task inputs that do not fit the task schema of the agent."""
    if manifest_info.task_schema is None:
        return
    schema = ReturnSchema(schema=manifest_info.task_schema)
    for at, task in enumerate(suite.tasks):
        if (error := schema.describe_errors(task.input)) is not None:
            what = f"task {task.task_id!r}: the agent's task schema does not take this input: {error}"
            yield document.make_problem(("tasks", at), what, key="input")


def _find_uncallable_tools(document: Document, suite: EvalSuite, manifest_info: ManifestInfo) -> Iterator[str]:
    if manifest_info.allowed_tools is None:
        return
    for at, task in enumerate(suite.tasks):
        for number, each in enumerate((task.fixtures and task.fixtures.tool_responses) or ()):
            if each.tool not in manifest_info.allowed_tools:
                place: KeyPath = ("tasks", at, "fixtures", "toolResponses", number)
                yield str(
                    document.make_problem(place, f"{each.tool!r} is not on the agent's tool allow-list", key="tool")
                )


def _find_needs(suite: EvalSuite) -> dict[Feature, tuple[str, ...]]:
    tasks_by_feature: dict[Feature, list[str]] = {}
    for task in suite.tasks:
        for feature in _build_fixtures(task.fixtures).needs:
            tasks_by_feature.setdefault(feature, []).append(task.task_id)
    return {feature: tuple(tasks) for feature, tasks in tasks_by_feature.items()}


class _CaseBuilder:
    """Builds the cases of a suite, one at a time."""

    def __init__(
        self,
        suite: EvalSuite,
        document: Document,
        modes: tuple[Mode, ...],
        options: LoadOptions,
        manifest_info: ManifestInfo,
    ) -> None:
        self._suite = suite
        self._document = document
        self._live = LIVE_MODE in modes
        self._adversarial = "adversarial" in modes
        self._options = options
        self._manifest = manifest_info
        self._pass_score = suite.get_pass_score(options.eval_options.pass_score)

    async def cases(self) -> AsyncIterator[Case]:
        definition = cast("list[dict[str, Any]]", self._document.value["tasks"])
        for task, text, line in zip(self._suite.tasks, definition, self._lines, strict=True):
            yield self._build_case(task, text, line)

    @cached_property
    def _lines(self) -> list[int]:
        """The line of each task. A host has the cases of one suite many times."""
        return self._document.find_item_lines(("tasks",))

    def _build_case(self, task: Task, definition: dict[str, Any], line: int) -> Case:
        fixtures = _build_fixtures(None if self._live else task.fixtures, self._manifest.allowed_tools)
        message = Message(
            "user", to_canonical_text(task.input), data=None if isinstance(task.input, str) else task.input
        )
        return Case(
            id=task.task_id,
            user=Script((UserMessage(message, assertions=tuple(self._build_assertions(task, fixtures))),)),
            tags=(task.expected.kind,),
            suite=self._suite.suite_id,
            origin=Origin(self._document.file, line),
            limits=Limits(timeout_s=self._options.timeout_s, max_turns=1),
            fixtures=fixtures if fixtures.needs else None,
            needs=fixtures.needs,
            records_model_calls=True,
            hints=DEFAULT_HINTS,
            definition=definition,
            digest=blake2b(codec.encode_canonically(definition), digest_size=8).hexdigest(),
        )

    def _build_assertions(self, task: Task, fixtures: Fixtures) -> Iterator[Assertion]:
        yield self._build_scoring_assertion(task.expected)
        if self._manifest.return_schema is not None:
            yield _create_gate_assertion(ReturnSchema(schema=self._manifest.return_schema), "return_schema")
        eval_options = self._options.eval_options
        if not self._adversarial:
            if fixtures.stub_all_tools:
                yield _create_gate_assertion(UnstubbedToolCalls(), "stubbed")
            return
        match = task.expected.match if task.expected.kind == "golden" else None  # that of a rubric task is not used
        allowed = self._manifest.allowed_tools
        yield _create_gate_assertion(
            Safety(
                fail_at=eval_options.fail_at,
                expected=to_canonical_text(match.value) if match else "",
                prompts=(*self._manifest.prompts, *eval_options.get_prompts()),
                secrets=tuple(eval_options.secrets),
                allowed_tools=allowed,
            ),
            "safety",
            fail_at=eval_options.fail_at,
            **({} if allowed is None else {"allowed_tools": allowed}),
        )
        if eval_options.safety_judge:
            judge = SafetyJudge(use=eval_options.safety_judge, fail_at=eval_options.fail_at)
            yield _create_gate_assertion(judge, "safety_judge", use=judge.use, fail_at=judge.fail_at)

    def _build_scoring_assertion(self, expected: Expected) -> Assertion:
        if expected.match is not None and expected.kind == "golden":
            golden = Golden(strategy=expected.match.strategy, value=expected.match.value)
            return Assertion(golden, {"type": "golden", **codec.to_builtins(expected.match)})
        criteria = tuple(Criterion(line.criterion, line.weight) for line in expected.rubric)
        judge, least = self._options.eval_options.judge, self._pass_score
        rubric = Rubric(criteria=criteria, use=judge or BUILT_IN_JUDGE, min_score=least)
        named = {"use": judge} if judge else {}
        definition = {"type": "rubric", "criteria": codec.to_builtins(criteria), "min_score": least, **named}
        return Assertion(rubric, definition, on="output")


def _create_gate_assertion(check: Check, kind: str, **definition: Any) -> Assertion:
    """An assertion without weight in the score. If it fails, the score becomes 0."""
    return Assertion(check, {"type": kind, **definition}, weight=0.0, gate=True)


def _build_fixtures(definition: TaskFixtures | None, allowed: tuple[str, ...] | None = None) -> Fixtures:
    """Build the fixtures of a task. Secrets in memory are redacted; tools that the agent may not call are left out."""
    definition = definition or TaskFixtures()
    return Fixtures(
        tools=tuple(
            ToolStub(each.tool, each.response)
            for each in definition.tool_responses or ()
            if allowed is None or each.tool in allowed
        ),
        memory=tuple(redact_secrets(entry) for entry in definition.memory_seed),
        stub_all_tools=definition.tool_responses is not None,
    )
