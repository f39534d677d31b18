"""Playbooks: one file is one case. Each step is a user message with a judge's verdict; a persona is a simulated user that
continues until its criteria hold. Reports every problem that the schema cannot express.
"""

import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import Any

from viva import catalog
from viva.errors import BadInput, Problem
from viva.formats.case_files import explain_bad_link
from viva.formats.documents import Document, Documents
from viva.formats.load_options import DEFAULT_HINTS, LoadOptions
from viva.formats.repair import PLAYBOOK_PLACEHOLDERS, replace_invalid
from viva.model import codec
from viva.model.case import Assertion, Case, Checkpoint, Goal, Limits, Origin, Suite, UserMessage, WorkspaceSpec
from viva.model.component import BuildContext
from viva.model.message import Message
from viva.protocols import User
from viva.schemas.positions import KeyPath
from viva.schemas.validation import find_violations
from viva.users.script import Script, UserSequence
from viva.users.simulator import Simulator

DEFAULT_AGENT = "gemini"
"""The default agent of playbooks."""
DEFAULT_TIMEOUT_S = 60
DEFAULT_MAX_TURNS = 10
TAG = "playbook"
DEFAULT_JUDGE = "viva.validator"
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_CRITERIA_PATH = ("persona", "success_criteria")
_NO_EVALUATOR_MESSAGE = (
    "the playbook has no evaluator, which judges the steps and plays the user: set `evaluator_model` here, --evaluator NAME, or `evaluator` in [defaults] "
    "of viva.toml"
)


def load(documents: Documents, name: str, folder: Path, options: LoadOptions) -> Suite:
    """Load the suite of one playbook file: one case. Raises BadInput with every problem at once."""
    problems: list[Problem] = []
    playbooks = list(documents.read_valid(problems))
    if len(playbooks) > 1:
        problems.append(playbooks[1].make_problem((), "is a second playbook in this file; give it a file of its own"))
    if not playbooks and not problems:
        problems.append(Problem(name, 1, "", "is empty; a playbook has a `name`, and `steps` or a `persona`"))
    case = _PlaybookBuilder(playbooks[0], folder, options, problems).build() if playbooks else None
    if problems or case is None:
        raise BadInput(*sorted(set(problems)))
    return Suite(
        id=case.suite,
        kind="playbook",
        cases=partial(_iterate_cases, [case]),
        count=1,
        digest=case.digest,
        origin=case.origin,
        target=DEFAULT_AGENT,
    )


def join_playbooks(parts: Sequence[Suite]) -> Suite:
    """Join the playbooks of a folder to one suite. Raises BadInput if two files have the same id."""
    seen: dict[str, str] = {}
    problems: list[Problem] = []
    for part in parts:
        file = str(part.origin.file) if part.origin else ""
        other = seen.setdefault(get_case_id(file), file)
        if other != file:
            problems.append(
                Problem(file, 1, "", f"id {get_case_id(file)!r} is taken; {other} has it too. Rename one of them")
            )
    if problems:
        raise BadInput(*problems)
    digest = blake2b("".join(part.digest for part in parts).encode(), digest_size=8).hexdigest()

    async def cases() -> AsyncIterator[Case]:
        for part in parts:
            async for case in part.cases():
                yield case

    first = parts[0]
    return Suite(
        id=first.id,
        kind="playbook",
        cases=cases,
        count=len(parts),
        digest=digest,
        origin=Origin(first.id),
        target=first.target,
    )


def get_case_id(file: str) -> str:
    """The id of a playbook: its file name without the extension."""
    return "stdin" if file == "-" else str(PurePath(file).with_suffix(""))


async def _iterate_cases(cases: Sequence[Case]) -> AsyncIterator[Case]:
    for case in cases:
        yield case


class _PlaybookBuilder:
    """Builds one case from one document."""

    def __init__(self, document: Document, folder: Path, options: LoadOptions, problems: list[Problem]) -> None:
        self._document = document
        self._options = options
        self._problems = problems
        self._build_context = BuildContext(str(folder), options.roots, _refuse_nested_assertion)
        self._env: dict[str, str] = {}
        self._invalid_keys: set[str | int | None] = set()
        """Keys that exist but contain a problem; they are not reported as missing."""

    def build(self) -> Case | None:
        """Build the case; None if the document does not fit the schema. Problems are added to the list."""
        value: Any = self._document.value
        if not (violations := find_violations("playbook", value)):
            return self._build_case(value)
        self._problems += [
            self._document.make_problem(each.path, each.message, key=each.unknown_key) for each in violations
        ]
        rest = (
            replace_invalid("playbook", value, violations, PLAYBOOK_PLACEHOLDERS) if isinstance(value, dict) else None
        )
        if rest is not None:
            self._invalid_keys = {step for each in violations for step in (*each.path, each.suggestion)}
            self._build_case(rest)
        return None

    def _build_case(self, value: Mapping[str, Any]) -> Case:
        self._env = self._read_environment(value.get("env", ()))
        steps, persona = value.get("steps", ()), value.get("persona")
        if not steps and persona is None:
            self._report(("steps",), "is empty, and there is no persona: the playbook has no message to send")
        evaluator = self._choose_evaluator(value)
        file = self._document.file
        return Case(
            id=get_case_id(file),
            name=value["name"],
            suite="stdin" if file == "-" else str(PurePath(file).parent),
            origin=Origin(file, self._document.line),
            tags=(TAG,),
            user=self._build_user(steps, persona, evaluator),
            goal=Goal(tuple(self._build_checkpoints(persona, evaluator)), defers_costly_checks=True)
            if persona
            else Goal(),
            limits=Limits(
                timeout_s=None,
                turn_timeout_s=float(value.get("timeout", DEFAULT_TIMEOUT_S)),
                turn_timeout_text=f"{value.get('timeout', DEFAULT_TIMEOUT_S)}s",
                max_turns=int(persona.get("max_turns", DEFAULT_MAX_TURNS)) if persona else len(steps),
                setup_turns=len(steps) if persona else 0,
            ),
            options={"model": value["agent_model"]} if "agent_model" in value else {},
            workspace=self._build_workspace(value.get("tmpdir")),
            hints=DEFAULT_HINTS,
            definition=value,
            digest=blake2b(codec.encode_canonically(value), digest_size=8).hexdigest(),
        )

    def _report(self, path: KeyPath, what: str) -> None:
        self._problems.append(self._document.make_problem(path, what))

    def _read_environment(self, names: Sequence[str]) -> dict[str, str]:
        """The values of the declared environment variables. They are secrets."""
        environ = self._options.environ
        values: dict[str, str] = {}
        for at, name in enumerate(names):
            if not name.isidentifier():
                self._report(
                    ("env", at), f"{name!r} is not the name of a variable; write the name alone, without $ and braces"
                )
            elif environ is not None and name not in environ:
                self._report(("env", at), f"{name} is not set; set it in the environment, or in a file for --env-file")
            elif environ is not None and not _is_utf8(environ[name]):
                self._report(("env", at), f"the value of {name} is not valid UTF-8")
            elif environ is not None:
                values[name] = environ[name]
                self._options.add_secret(name, environ[name])
        return values

    def _fill_text(self, text: str) -> str:
        """Fill in declared variables; other names stay as they are."""
        return _VARIABLE.sub(lambda match: self._env.get(match[1] or match[2], match[0]), text)

    def _require_text(self, text: str, path: KeyPath, why: str) -> str:
        """Fill in variables. If the text is empty then, report a problem and return an empty text."""
        filled = self._fill_text(text)
        if filled.strip():
            return filled
        self._report(path, f"is empty; {why}")
        return ""

    def _choose_evaluator(self, value: Mapping[str, Any]) -> str:
        """The evaluator that judges and plays the user, if one is needed."""
        options = self._options
        chosen = options.evaluator or value.get("evaluator_model") or options.default_evaluator
        if chosen is None:
            has_messages = any(key in self._document.value for key in ("steps", "persona"))
            is_needed = has_messages and "evaluator_model" not in self._invalid_keys and _needs_evaluator(value)
            if options.environ is not None and is_needed:
                self._report((), _NO_EVALUATOR_MESSAGE)
            return DEFAULT_JUDGE
        own = options.evaluator is None and bool(value.get("evaluator_model"))
        for error in options.find_evaluator_problems(chosen) if options.environ is not None else ():
            here = own and not error.file
            self._problems.append(self._document.make_problem(("evaluator_model",), error.message) if here else error)
        return chosen.removeprefix("agents:")

    def _build_user(
        self, steps: Sequence[Mapping[str, str]], persona: Mapping[str, Any] | None, evaluator: str
    ) -> User:
        script = Script(tuple(self._build_step(step, ("steps", at), evaluator) for at, step in enumerate(steps)))
        if persona is None:
            return script
        context = self._require_text(
            persona["context"], ("persona", "context"), "describe who the user is and what they want"
        )
        planned: tuple[UserMessage, ...] = ()
        if "initial_user_input" in persona:
            at = ("persona", "initial_user_input")
            first = self._require_text(persona["initial_user_input"], at, "there would be nothing to send")
            planned = () if steps else (UserMessage(Message("user", first), source="initial"),)
        metadata = {"persona": context, "goal": "as said above"}
        if planned and not _needs_evaluator({"persona": persona}):
            return Script(planned)  # nobody is asked for a message after the first
        user = Simulator(evaluator, {"metadata": metadata}, planned, can_end=False, has_variables=False)
        return UserSequence(script, user) if steps else user

    def _build_step(self, step: Mapping[str, str], at: KeyPath, evaluator: str) -> UserMessage:
        text = self._require_text(step["user_input"], (*at, "user_input"), "there would be nothing to send")
        outcome = (*at, "expected_outcome")
        criteria = self._require_text(step["expected_outcome"], outcome, "describe the expected outcome in words")
        assertion = self._build_assertion(outcome, "judge", criteria=criteria, use=evaluator) if criteria else None
        return UserMessage(Message("user", text), assertions=(assertion,) if assertion else ())

    def _build_checkpoints(self, persona: Mapping[str, Any], evaluator: str) -> Iterator[Checkpoint]:
        """The success criteria as checkpoints, cheap ones first. Criteria about files must hold at the end; others once."""
        criteria: Mapping[str, Any] = persona["success_criteria"]
        if not any(criteria.values()) and "success_criteria" not in self._invalid_keys:
            self._report(_CRITERIA_PATH, "is empty; the case can pass only with at least one criterion")
        seen: dict[str, Mapping[str, Any]] = {}
        for name, place, kind, fields in self._iterate_criteria(criteria, evaluator):
            assertion = self._build_assertion((*_CRITERIA_PATH, *place), kind, **fields)
            if assertion is None or assertion.definition in seen.values():
                continue
            while name in seen:  # two spellings of the same path
                name += "'"  # noqa: PLW2901
            seen[name] = assertion.definition
            about = str(next(iter(fields.values()))) if kind in _TYPES_LABELLED_BY_VALUE else ""
            yield Checkpoint(name, assertion, description=about, stays_reached=not kind.startswith("file_"))

    def _iterate_criteria(
        self, criteria: Mapping[str, Any], evaluator: str
    ) -> Iterator[tuple[str, KeyPath, str, Mapping[str, Any]]]:
        """Yield the name and path of each criterion, and the type and fields of its check.

        Names have variables as they are written: reports and the console show names, and redaction leaves them alone.
        """
        for at, text in enumerate(criteria.get("flow_contains", ())):
            place = ("flow_contains", at)
            if filled := self._require_text(text, (*_CRITERIA_PATH, *place), "every reply contains the empty text"):
                yield f"flow_contains[{at}]", place, "flow_contains", {"value": filled}
        for tool, texts in criteria.get("tool_calls_contain", {}).items():
            fields = {"name": self._fill_text(tool), "values": [self._fill_text(text) for text in texts]}
            yield f"tool_calls_contain: {tool}", ("tool_calls_contain", tool), "tool_calls_contain", fields
        for at, path in enumerate(criteria.get("files_exist", ())):
            if (file := self._resolve_inside(path, ("files_exist", at))) is not None:
                is_folder = self._fill_text(path).endswith("/")
                fields = {"path": f"{file}/" if is_folder else file}
                yield f"files_exist: {os.path.normpath(path)}", ("files_exist", at), "file_exists", fields
        for path, texts in criteria.get("files_contain", {}).items():
            place = ("files_contain", path)
            if (file := self._resolve_inside(path, place)) is None:
                continue
            values = [self._fill_text(text) for text in texts]
            kind, fields = (
                ("file_contains", {"path": file, "value": values}) if values else ("file_exists", {"path": file})
            )
            yield f"files_contain: {os.path.normpath(path)}", place, kind, fields
        for at, text in enumerate(criteria.get("llm_checks", ())):
            place = ("llm_checks", at)
            if filled := self._require_text(text, (*_CRITERIA_PATH, *place), "describe what must hold"):
                yield f"llm_checks[{at}]", place, "judge", {"criteria": filled, "use": evaluator}

    def _resolve_inside(self, path: str, place: KeyPath) -> str | None:
        """The normalized path of a criterion; None after a problem was reported, for example if it leaves the workspace."""
        filled = self._fill_text(path)
        bare = os.path.normpath(filled) if filled.strip() else ""
        if bare in ("", "."):
            self._report((*_CRITERIA_PATH, *place), f"{path!r} is not a file name")
        elif PurePath(bare).is_absolute() or PurePath(bare).parts[0] == "..":
            self._report((*_CRITERIA_PATH, *place), f"{path!r} leaves the workspace; give a path relative to it")
        elif "\0" in bare:
            self._report((*_CRITERIA_PATH, *place), "contains a NUL character, which no path can have")
        else:
            return bare
        return None

    def _build_assertion(self, at: KeyPath, kind: str, **fields: Any) -> Assertion | None:
        """Build an assertion of the given type, as in a native case. Returns None after a problem was reported."""
        known: Any = catalog.find_component("check", kind)
        try:
            check = known.build(fields, self._build_context)
        except (ValueError, codec.ValidationError) as error:
            self._report(at, str(error))
            return None
        return Assertion(check, {"type": kind, **fields}, over="case" if at[0] == "persona" else "turn")

    def _build_workspace(self, tmpdir: Mapping[str, Any] | None) -> WorkspaceSpec:
        root = str(Path(self._options.folder).resolve())
        if tmpdir is None:
            return WorkspaceSpec("copy", root, env=self._env)
        return WorkspaceSpec(
            "empty", root, tuple(self._normalize_link_paths(tmpdir.get("link_paths", ()), root)), env=self._env
        )

    def _normalize_link_paths(self, paths: Sequence[str], root: str) -> list[str]:
        for at, path in enumerate(paths):
            if error := explain_bad_link(path, root):
                self._report(("tmpdir", "link_paths", at), error)
        return [os.path.normpath(path) for path in paths]


_TYPES_LABELLED_BY_VALUE = frozenset({"judge", "flow_contains"})
"""Types of checks whose checkpoint shows the value as description."""


def _is_utf8(value: str) -> bool:
    """Is a value of the environment valid UTF-8? Bytes that are not arrive as lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_nested_assertion(_definition: Mapping[str, Any]) -> Assertion:
    raise ValueError("a criterion of a playbook cannot contain other assertions")


def _needs_evaluator(value: Mapping[str, Any]) -> bool:
    """Does the playbook need a judge or a simulated user?"""
    if value.get("steps"):
        return True
    persona: Mapping[str, Any] = value.get("persona") or {}
    is_single_message = persona.get("max_turns", DEFAULT_MAX_TURNS) == 1 and "initial_user_input" in persona
    return bool(persona) and (not is_single_message or bool(persona["success_criteria"].get("llm_checks")))
