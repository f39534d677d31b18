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
from viva.formats.documents import Document, Documents
from viva.formats.links import explain_bad_link
from viva.formats.load_options import HINTS, LoadOptions
from viva.formats.placeholders import PLAYBOOK_PLACEHOLDERS
from viva.formats.repair import replace_invalid
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
TIMEOUT_S = 60
MAX_TURNS = 10
TAG = "playbook"
DEFAULT_JUDGE = "viva.validator"
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_CRITERIA = ("persona", "success_criteria")
_NO_EVALUATOR = (
    "nobody grades it and plays the user: give `evaluator_model` here, --evaluator NAME, or `evaluator` in [defaults] "
    "of viva.toml"
)


def load(documents: Documents, name: str, folder: Path, options: LoadOptions) -> Suite:
    """Load the suite of one playbook file: one case. Raises BadInput with every problem at once."""
    problems: list[Problem] = []
    found = list(documents.read_valid(problems))
    if len(found) > 1:
        problems.append(found[1].make_problem((), "is a second playbook in this file; give it a file of its own"))
    if not found and not problems:
        problems.append(Problem(name, 1, "", "holds nothing; a playbook has a `name`, and `steps` or a `persona`"))
    case = _Builder(found[0], folder, options, problems).build() if found else None
    if problems or case is None:
        raise BadInput(*sorted(set(problems)))
    return Suite(
        id=case.suite,
        kind="playbook",
        cases=partial(_each, [case]),
        count=1,
        digest=case.digest,
        origin=case.origin,
        target=DEFAULT_AGENT,
    )


def join_suites(parts: Sequence[Suite]) -> Suite:
    """The suite of a folder: each file is a case; two files must not have the same id."""
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


async def _each(cases: Sequence[Case]) -> AsyncIterator[Case]:
    for case in cases:
        yield case


class _Builder:
    """Builds one case from one document."""

    def __init__(self, document: Document, folder: Path, reading: LoadOptions, problems: list[Problem]) -> None:
        self._document = document
        self._reading = reading
        self._problems = problems
        self._building = BuildContext(str(folder), reading.roots, _no_assertions)
        self._env: dict[str, str] = {}
        self._unclear: set[str | int | None] = set()
        """Keys that exist but contain a problem; they are not reported as missing."""

    def build(self) -> Case | None:
        """The case, or None if the document does not fit the schema. Problems are collected on the way."""
        value: Any = self._document.value
        if not (found := find_violations("playbook", value)):
            return self._built(value)
        self._problems += [self._document.make_problem(each.path, each.message, key=each.unknown_key) for each in found]
        rest = replace_invalid("playbook", value, found, PLAYBOOK_PLACEHOLDERS) if isinstance(value, dict) else None
        if rest is not None:
            self._unclear = {step for each in found for step in (*each.path, each.suggestion)}
            self._built(rest)
        return None

    def _built(self, value: Mapping[str, Any]) -> Case:
        self._env = self._environment(value.get("env", ()))
        steps, persona = value.get("steps", ()), value.get("persona")
        if not steps and persona is None:
            self._report(("steps",), "is empty, and there is no persona: nothing would be said")
        evaluator = self._evaluator(value)
        file = self._document.file
        return Case(
            id=get_case_id(file),
            name=value["name"],
            suite="stdin" if file == "-" else str(PurePath(file).parent),
            origin=Origin(file, self._document.line),
            tags=(TAG,),
            user=self._user(steps, persona, evaluator),
            goal=Goal(tuple(self._checkpoints(persona, evaluator)), defers_costly=True) if persona else Goal(),
            limits=Limits(
                timeout_s=None,
                turn_timeout_s=float(value.get("timeout", TIMEOUT_S)),
                turn_timeout_text=f"{value.get('timeout', TIMEOUT_S)}s",
                max_turns=int(persona.get("max_turns", MAX_TURNS)) if persona else len(steps),
                setup_turns=len(steps) if persona else 0,
            ),
            options={"model": value["agent_model"]} if "agent_model" in value else {},
            workspace=self._workspace(value.get("tmpdir")),
            hints=HINTS,
            definition=value,
            digest=blake2b(codec.canonical_bytes(value), digest_size=8).hexdigest(),
        )

    def _report(self, path: KeyPath, what: str) -> None:
        self._problems.append(self._document.make_problem(path, what))

    def _environment(self, names: Sequence[str]) -> dict[str, str]:
        """The values of the declared environment variables. They are secrets."""
        environ = self._reading.environ
        found: dict[str, str] = {}
        for at, name in enumerate(names):
            if not name.isidentifier():
                self._report(("env", at), f"{name!r} is no name of a variable; write it bare, without $ and braces")
            elif environ is not None and name not in environ:
                self._report(("env", at), f"{name} is not set; set it in the environment, or in a file for --env-file")
            elif environ is not None and not _is_text(environ[name]):
                self._report(("env", at), f"the value of {name} is no UTF-8 text")
            elif environ is not None:
                found[name] = environ[name]
                self._reading.add_secret(name, environ[name])
        return found

    def _said(self, text: str) -> str:
        """Fill in declared variables; other names stay as they are."""
        return _VARIABLE.sub(lambda match: self._env.get(match[1] or match[2], match[0]), text)

    def _worded(self, text: str, path: KeyPath, why: str) -> str:
        """The text, which must not be empty; empty after a problem was reported."""
        said = self._said(text)
        if said.strip():
            return said
        self._report(path, f"is empty; {why}")
        return ""

    def _evaluator(self, value: Mapping[str, Any]) -> str:
        """The evaluator that judges and plays the user, if one is needed."""
        reading = self._reading
        chosen = reading.evaluator or value.get("evaluator_model") or reading.default_evaluator
        if chosen is None:
            says_something = any(key in self._document.value for key in ("steps", "persona"))
            is_asked = says_something and "evaluator_model" not in self._unclear and _asks_somebody(value)
            if reading.environ is not None and is_asked:
                self._report((), _NO_EVALUATOR)
            return DEFAULT_JUDGE
        own = reading.evaluator is None and bool(value.get("evaluator_model"))
        for error in reading.find_evaluator_problems(chosen) if reading.environ is not None else ():
            here = own and not error.file
            self._problems.append(self._document.make_problem(("evaluator_model",), error.message) if here else error)
        return chosen.removeprefix("agents:")

    def _user(self, steps: Sequence[Mapping[str, str]], persona: Mapping[str, Any] | None, evaluator: str) -> User:
        script = Script(tuple(self._step(step, ("steps", at), evaluator) for at, step in enumerate(steps)))
        if persona is None:
            return script
        context = self._worded(persona["context"], ("persona", "context"), "say who the user is and what they want")
        lines: tuple[UserMessage, ...] = ()
        if "initial_user_input" in persona:
            at = ("persona", "initial_user_input")
            first = self._worded(persona["initial_user_input"], at, "there would be nothing to send")
            lines = () if steps else (UserMessage(Message("user", first), source="initial"),)
        metadata = {"persona": context, "goal": "as said above"}
        user = Simulator(evaluator, {"metadata": metadata}, lines, can_end=False, has_variables=False)
        return UserSequence(script, user) if steps else user

    def _step(self, step: Mapping[str, str], at: KeyPath, evaluator: str) -> UserMessage:
        said = self._worded(step["user_input"], (*at, "user_input"), "there would be nothing to send")
        outcome = (*at, "expected_outcome")
        criteria = self._worded(step["expected_outcome"], outcome, "say what has to come of it, in words")
        assertion = self._assertion(outcome, "judge", criteria=criteria, use=evaluator) if criteria else None
        return UserMessage(Message("user", said), assertions=(assertion,) if assertion else ())

    def _checkpoints(self, persona: Mapping[str, Any], evaluator: str) -> Iterator[Checkpoint]:
        """The criteria as checkpoints, cheap ones first. File criteria must hold at the end; others are reached for good."""
        criteria: Mapping[str, Any] = persona["success_criteria"]
        if not any(criteria.values()) and "success_criteria" not in self._unclear:
            self._report(_CRITERIA, "holds nothing; without a criterion the case could not pass")
        seen: dict[str, Mapping[str, Any]] = {}
        for name, place, kind, fields in self._criteria(criteria, evaluator):
            assertion = self._assertion((*_CRITERIA, *place), kind, **fields)
            if assertion is None or assertion.definition in seen.values():
                continue
            while name in seen:  # two ways to write one path
                name += "'"  # noqa: PLW2901
            seen[name] = assertion.definition
            about = str(next(iter(fields.values()))) if kind in _SAID else ""
            yield Checkpoint(name, assertion, description=about, is_lasting=not kind.startswith("file_"))

    def _criteria(
        self, criteria: Mapping[str, Any], evaluator: str
    ) -> Iterator[tuple[str, KeyPath, str, Mapping[str, Any]]]:
        """For each criterion: its name, its path, and the type and fields of its check."""
        for at, text in enumerate(criteria.get("flow_contains", ())):
            place = ("flow_contains", at)
            if said := self._worded(text, (*_CRITERIA, *place), "every text holds that"):
                yield f"flow_contains[{at}]", place, "flow_contains", {"value": said}
        for tool, texts in criteria.get("tool_calls_contain", {}).items():
            name = self._said(tool)
            fields = {"name": name, "values": [self._said(text) for text in texts]}
            yield f"tool_calls_contain: {name}", ("tool_calls_contain", tool), "tool_calls_contain", fields
        for at, path in enumerate(criteria.get("files_exist", ())):
            if (file := self._inside(path, ("files_exist", at))) is not None:
                yield f"files_exist: {file}", ("files_exist", at), "file_exists", {"path": file}
        for path, texts in criteria.get("files_contain", {}).items():
            place = ("files_contain", path)
            if (file := self._inside(path, place)) is None:
                continue
            wanted = [self._said(text) for text in texts]
            kind, fields = (
                ("file_contains", {"path": file, "value": wanted}) if wanted else ("file_exists", {"path": file})
            )
            yield f"files_contain: {file}", place, kind, fields
        for at, text in enumerate(criteria.get("llm_checks", ())):
            place = ("llm_checks", at)
            if said := self._worded(text, (*_CRITERIA, *place), "say what has to be true"):
                yield f"llm_checks[{at}]", place, "judge", {"criteria": said, "use": evaluator}

    def _inside(self, path: str, place: KeyPath) -> str | None:
        """A path of a criterion, which must stay inside the workspace."""
        said = self._said(path)
        bare = os.path.normpath(said) if said.strip() else ""
        if bare in ("", "."):
            self._report((*_CRITERIA, *place), f"{path!r} names no file")
        elif PurePath(bare).is_absolute() or PurePath(bare).parts[0] == "..":
            self._report((*_CRITERIA, *place), f"{path!r} leaves the workspace; give a path relative to it")
        elif "\0" in bare:
            self._report((*_CRITERIA, *place), "holds a character that no path has")
        else:
            return bare
        return None

    def _assertion(self, at: KeyPath, kind: str, **fields: Any) -> Assertion | None:
        """A check with its fields, as in an assertion of a native case."""
        known: Any = catalog.find_component("check", kind)
        try:
            check = known.build(fields, self._building)
        except (ValueError, codec.ValidationError) as error:
            self._report(at, str(error))
            return None
        return Assertion(check, {"type": kind, **fields}, over="case" if at[0] == "persona" else "turn")

    def _workspace(self, tmpdir: Mapping[str, Any] | None) -> WorkspaceSpec:
        root = str(Path(self._reading.folder).resolve())
        if tmpdir is None:
            return WorkspaceSpec("copy", root, env=self._env)
        return WorkspaceSpec("empty", root, tuple(self._links(tmpdir.get("link_paths", ()), root)), env=self._env)

    def _links(self, paths: Sequence[str], root: str) -> list[str]:
        for at, path in enumerate(paths):
            if error := explain_bad_link(path, root):
                self._report(("tmpdir", "link_paths", at), error)
        return [os.path.normpath(path) for path in paths]


_SAID = frozenset({"judge", "flow_contains"})
"""Checks whose label needs the value, because the type alone says too little."""


def _is_text(value: str) -> bool:
    """Replace undecodable bytes of the environment, which cannot be written again."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_assertions(_written: Mapping[str, Any]) -> Assertion:
    raise ValueError("no criterion is made of others")


def _asks_somebody(value: Mapping[str, Any]) -> bool:
    """Does the playbook need a judge or a simulated user?"""
    if value.get("steps"):
        return True
    persona: Mapping[str, Any] = value.get("persona") or {}
    one_line = persona.get("max_turns", MAX_TURNS) == 1 and "initial_user_input" in persona
    return bool(persona) and (not one_line or bool(persona["success_criteria"].get("llm_checks")))
