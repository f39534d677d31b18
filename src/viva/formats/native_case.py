"""Builds one native case from its document and reports every problem that the schema cannot express."""

import os
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

from msgspec import Struct, structs

from viva.agents.replies import parse_tool_calls
from viva.agents.rules import Rules
from viva.catalog import find_script
from viva.errors import AgentFailed
from viva.formats.assertions import AssertionBuilder, ReportProblem
from viva.formats.case_files import Attachments, explain_bad_link
from viva.formats.documents import Document
from viva.formats.hooks import AFTER_ARGUMENTS, BEFORE_ARGUMENTS, find_hook
from viva.formats.load_options import DEFAULT_HINTS, DEFAULT_TIMEOUT_S, LoadOptions
from viva.formats.unset_variables import find_unset_variables
from viva.model import codec
from viva.model.case import (
    Case,
    Checkpoint,
    Fixtures,
    Goal,
    Hook,
    Interactive,
    Limits,
    Origin,
    ToolStub,
    UserMessage,
    WorkspaceSpec,
)
from viva.model.message import Message, ToolCall
from viva.protocols import User
from viva.schemas.positions import KeyPath
from viva.text.duration import parse_duration
from viva.text.json_path import compile_path
from viva.text.template import is_template
from viva.users.script import Script
from viva.users.simulator import Simulator

DEFAULT_MAX_TURNS = 20


class SuiteContext(Struct, frozen=True):
    """What the cases of one suite share."""

    options: LoadOptions
    assertion_builder: AssertionBuilder
    attachments: Attachments

    def without_variable_checks(self) -> "SuiteContext":
        """A copy for cases whose variables cannot be checked."""
        return structs.replace(self, options=structs.replace(self.options, has_before_run=True))


def may_hold_variables(document: Document) -> bool:
    """False if no text of the document can contain a variable."""
    raw = document.raw
    return not raw or b"{{" in raw or b"\\u007" in raw  # a brace may be escaped


def compute_digest(definition: Mapping[str, Any]) -> str:
    """The hash of the definition of a case."""
    return blake2b(codec.encode_canonically(definition), digest_size=8).hexdigest()


def describe_skip(skip: bool | str) -> str | None:
    """Why a case is skipped, by its `skip`; None if it is not."""
    return (skip if isinstance(skip, str) else "marked to be skipped") if skip else None


class CaseBuilder:
    """Builds one case from one checked document."""

    def __init__(
        self, suite: SuiteContext, document: Document, value: Mapping[str, Any], report: ReportProblem
    ) -> None:
        self._suite = suite
        self._document = document
        self._value = value
        self._report = report
        self._reads_files = False

    def build(self, *, read_files: bool = False) -> Case:
        """Build the case. With `read_files`, attached files are read; otherwise only their existence is checked."""
        value = self._value
        self._reads_files = read_files
        self._check_turn_fields()
        assertions = self._suite.assertion_builder
        assertions.may_hold_variables = may_hold_variables(self._document)
        if assertions.may_hold_variables and not read_files:
            self._check_variables()
        assertions.needs.clear()
        history, lines = self._build_user_messages()
        goal = self._build_goal()
        assertions.add_connector(value.get("options", {}), None, ())
        final_assertions = assertions.build_all(
            value.get("final_assertions"), ("final_assertions",), self._report, over="case"
        )
        fixtures = self._build_fixtures(value["fixtures"]) if value.get("fixtures") else None
        max_turns = value.get("max_turns", DEFAULT_MAX_TURNS)
        if "turns" in value and "max_turns" in value and max_turns < len(lines):
            self._report(("max_turns",), f"is {max_turns}, but there are {len(lines)} turns", None)
        return Case(
            id=value["id"],
            user=self._build_user(lines),
            name=value.get("name", ""),
            description=value.get("description", ""),
            tags=tuple(dict.fromkeys(value.get("tags", ()))),  # rates by tag count a case once
            suite=self._document.file,
            origin=Origin(self._document.file, self._document.line),
            goal=goal,
            final_assertions=final_assertions,
            history=history,
            limits=Limits(
                timeout_s=self._parse_duration(value, "timeout", ()) or self._suite.options.timeout_s,
                turn_timeout_s=self._parse_duration(value, "turn_timeout", ()),
                max_turns=max(max_turns, len(lines)),
            ),
            on_missing_input=value.get("on_missing_input"),
            hints=DEFAULT_HINTS,
            interactive=self._build_interactive(),
            fixtures=fixtures,
            workspace=self._build_workspace(),
            needs=frozenset(assertions.needs) | (fixtures.needs if fixtures else frozenset()),
            options=value.get("options", {}),
            metadata=value.get("metadata", {}),
            before=self._find_hook("before", BEFORE_ARGUMENTS),
            after=self._find_hook("after", AFTER_ARGUMENTS),
            skip_reason=describe_skip(value.get("skip", False)),
            runs=value.get("runs"),
            definition=value,
            digest=compute_digest(value),
        )

    def _check_turn_fields(self) -> None:
        value, report = self._value, self._report
        static, dynamic = "turns" in value, "checkpoints" in value or "simulator" in value
        if static and dynamic:
            report(
                (),
                "has turns and simulator/checkpoints; choose one: turns for a script, the others for a simulated user",
                None,
            )
        elif "simulator" in value and "checkpoints" not in value:
            report((), "has a simulator but no checkpoints; add checkpoints that say what must happen", None)
        elif "checkpoints" in value and "simulator" not in value and self._suite.options.simulator is None:
            report((), "has checkpoints but no simulator; add one, or give a default with --simulator", None)
        elif not static and not dynamic and "input" not in value:
            report((), "is missing 'input' (one turn), 'turns' (a script) or 'simulator' with 'checkpoints'", None)
        if static and "input" in value:
            report((), "has input and turns; put the input into the first turn", "input")
        for key in ("assertions", "assert"):
            if key in value and (static or dynamic):
                where = "a turn or 'final_assertions'" if static else "'checkpoints' or 'final_assertions'"
                report((), f"{key!r} cannot be used here, where no turn is checked; move it to {where}", key)
        self._check_named_mode(static=static, dynamic=dynamic)

    def _check_named_mode(self, *, static: bool, dynamic: bool) -> None:
        mode = self._value.get("mode")
        possible = ("dynamic",) if dynamic else ("static",) if static else ("static", "single")
        if mode is None or mode in possible:
            return
        has = "'simulator' or 'checkpoints'" if dynamic else "'turns'" if static else "only an 'input'"
        needed = {"dynamic": "'simulator' and 'checkpoints'", "static": "'turns'", "single": "only an 'input'"}
        what = f"mode is {mode!r}, but the case has {has}, which makes it {possible[-1]!r}"
        self._report((), f"{what}; give it {needed[mode]}, or leave 'mode' out", "mode")

    def _check_variables(self) -> None:
        """Report variables that nothing sets. With a `before` hook only the run can tell."""
        if "before" not in self._value and not self._suite.options.has_before_run:
            for at, what in find_unset_variables(self._value):
                self._report(at, what, None)

    def _build_user(self, lines: tuple[UserMessage, ...]) -> User:
        if not self._is_dynamic:
            templates = self._suite.assertion_builder.may_hold_variables
            return Script(lines, has_variables=templates and is_template([line.message.text for line in lines]))
        definition: Mapping[str, Any] = self._value.get("simulator") or {"use": self._suite.options.simulator or ""}
        use = str(definition["use"]).removeprefix("agents:")
        if use.startswith("scripts:"):
            self._report(("simulator",), f"{use!r} is a script; only an agent can play the user", "use")
        elif use:  # a missing simulator is reported by `_check_turn_fields`
            self._suite.assertion_builder.references.setdefault(use, ("simulator",))
        options = definition.get("options", {})
        self._suite.assertion_builder.add_connector(options, use, ("simulator",))
        if use == "viva.rules":
            try:
                Rules.from_metadata(options.get("metadata", {}))
            except (ValueError, codec.ValidationError) as error:
                self._report(("simulator", "options"), str(error), "metadata")
        return Simulator(use, options, lines)

    def _build_user_messages(self) -> tuple[tuple[Message, ...], tuple[UserMessage, ...]]:
        """The prior history, and the messages that are known before the run."""
        value = self._value
        if "turns" not in value:
            if "input" not in value:
                return (), ()
            history, line = self._build_user_message(value, (), "initial" if "checkpoints" in value else "static")
            return history, (line,)
        histories, lines = zip(
            *(self._build_user_message(turn, ("turns", i), "static") for i, turn in enumerate(value["turns"])),
            strict=True,
        )
        for i, history in enumerate(histories):
            if i and history:
                self._report(
                    ("turns", i, "input"),
                    "is a list of several messages; only the first turn may bring a history",
                    None,
                )
        return histories[0], lines

    def _build_user_message(
        self, turn: Mapping[str, Any], at: KeyPath, by: Any
    ) -> tuple[tuple[Message, ...], UserMessage]:
        messages = self._build_messages(turn["input"], (*at, "input"))
        attached = self._suite.attachments.build_parts(
            turn.get("attachments", ()), (*at, "attachments"), self._report, read_files=self._reads_files
        )
        line = messages[-1]
        if line.role != "user":
            self._report((*at, "input"), f"the message to send has the role {line.role!r}; it must be the user's", None)
        if attached:
            line = Message("user", (*self._suite.attachments.convert_to_parts(line.content), *attached))
        key = self._choose_spelling(turn, at, "assertions")
        assertions = (
            self._suite.assertion_builder.build_all(turn.get(key), (*at, key), self._report)
            if self._value is not turn or not self._is_dynamic
            else ()
        )
        if self._value is not turn:
            self._suite.assertion_builder.add_connector(turn.get("options", {}), None, at)
        return messages[:-1], UserMessage(
            message=line,
            source=by,
            assertions=assertions,
            options=turn.get("options", {}) if self._value is not turn else {},
            variables=self._check_variable_paths(turn.get("set", {}), (*at, "set")),
            timeout_s=self._parse_duration(turn, "turn_timeout", at) if self._value is not turn else None,
        )

    @property
    def _is_dynamic(self) -> bool:
        return "checkpoints" in self._value

    def _build_messages(self, definition: Any, at: KeyPath) -> tuple[Message, ...]:
        if isinstance(definition, str):
            return (Message("user", definition),)
        items = cast("list[Mapping[str, Any]]", definition if isinstance(definition, list) else [definition])
        return tuple(
            self._build_message(item, (*at, i) if isinstance(definition, list) else at) for i, item in enumerate(items)
        )

    def _build_message(self, definition: Mapping[str, Any], at: KeyPath) -> Message:
        content = definition["content"]
        if not isinstance(content, str):
            content = self._suite.attachments.build_parts(
                content, (*at, "content"), self._report, read_files=self._reads_files
            )
        return Message(
            role=definition.get("role", "user"),
            content=content,
            name=definition.get("name"),
            tool_calls=self._build_tool_calls(definition.get("tool_calls"), at),
            tool_call_id=definition.get("tool_call_id"),
        )

    def _build_tool_calls(self, definition: Any, at: KeyPath) -> tuple[ToolCall, ...]:
        try:
            return parse_tool_calls(definition)
        except AgentFailed as error:  # the message is written for the reply of an agent
            self._report(at, error.message.removeprefix("returned "), "tool_calls")
            return ()

    def _check_variable_paths(self, definition: Mapping[str, str], at: KeyPath) -> Mapping[str, str]:
        for name, path in definition.items():
            try:
                compile_path(path)
            except ValueError as error:
                self._report((*at, name), str(error), None)
        return definition

    def _build_goal(self) -> Goal:
        definition = cast("list[Mapping[str, Any]]", self._value.get("checkpoints", ()))
        if not definition:
            return Goal()
        built = [self._build_checkpoint(item, ("checkpoints", i)) for i, item in enumerate(definition)]
        checkpoints = tuple(c for c in built if c is not None)
        self._check_checkpoint_order(definition)
        if not any(item.get("required", True) for item in definition):
            self._report(
                ("checkpoints",),
                "no checkpoint is required, so the case could never fail; remove `required: false` from one",
                None,
            )
        return Goal(checkpoints)

    def _build_checkpoint(self, definition: Mapping[str, Any], at: KeyPath) -> Checkpoint | None:
        key = self._choose_spelling(definition, at, "assertion")
        if key not in definition:
            self._report(at, "is missing 'assertion'", None)
            return None
        assertions = self._suite.assertion_builder.build_all(
            definition[key], (*at, key), self._report, on="reply_and_tools"
        )
        if not assertions:
            return None
        return Checkpoint(
            id=definition["id"],
            assertion=assertions[0],
            description=definition.get("description", ""),
            after=tuple(definition.get("after", ())),
            required=definition.get("required", True),
        )

    def _check_checkpoint_order(self, definition: list[Mapping[str, Any]]) -> None:
        """Check that ids are unique, `after` names checkpoints of this case, and there is no cycle."""
        after: dict[str, list[str]] = {}
        for i, item in enumerate(definition):
            if item["id"] in after:
                self._report(("checkpoints", i), f"id {item['id']!r} is taken by another checkpoint", "id")
            after[item["id"]] = list(item.get("after", ()))
        for i, item in enumerate(definition):
            for name in item.get("after", ()):
                if name not in after:
                    known = ", ".join(after)
                    self._report(
                        ("checkpoints", i),
                        f"after names a checkpoint that does not exist: {name!r}; there are {known}",
                        "after",
                    )
        free: set[str] = set()
        waiting = set(after)
        while ready := {name for name in waiting if all(d in free or d not in after for d in after[name])}:
            free |= ready
            waiting -= ready
        if waiting:
            names = ", ".join(name for name in after if name in waiting)
            self._report(
                ("checkpoints",), f"the `after` of these checkpoints form a cycle: {names}; remove one of them", None
            )

    def _build_workspace(self) -> WorkspaceSpec | None:
        definition = self._value.get("workspace")
        if definition is None:
            return None
        kind, paths, root = (
            definition.get("kind", "copy"),
            definition.get("link_paths", ()),
            self._suite.options.folder,
        )
        if paths and kind != "empty":
            self._report(
                ("workspace",),
                f"a workspace of the kind {kind!r} cannot have links; use the kind 'empty'",
                "link_paths",
            )
        for at, path in enumerate(paths):
            if error := explain_bad_link(path, root):
                self._report(("workspace", "link_paths", at), error, None)
        return WorkspaceSpec(kind, str(Path(root).resolve()), tuple(map(os.path.normpath, paths)))

    def _find_hook(self, key: str, arguments: Sequence[str]) -> Hook | None:
        if key not in self._value:
            return None
        try:
            builder = self._suite.assertion_builder
            return find_hook(self._value[key], builder.roots, arguments, builder.functions)
        except ValueError as error:
            self._report((), str(error), key)
            return None

    def _build_fixtures(self, definition: Mapping[str, Any]) -> Fixtures:
        """Build the fixtures. If `tools` is given, even as an empty list, no tool runs live."""
        tools = [
            self._build_tool_stub(each, ("fixtures", "tools", i)) for i, each in enumerate(definition.get("tools", ()))
        ]
        return Fixtures(tuple(tools), tuple(definition.get("memory", ())), stub_all_tools="tools" in definition)

    def _build_tool_stub(self, definition: Mapping[str, Any], at: KeyPath) -> ToolStub:
        fields = dict(definition)
        reference, builder = fields.pop("function", None), self._suite.assertion_builder
        if reference is None:
            return ToolStub(**fields)
        if "response" in fields or "error" in fields:
            self._report(at, "has 'function' together with 'response' or 'error'; keep one of them", "function")
        try:
            function = builder.functions.get(reference) or find_script(reference, builder.roots)[1]
            if function is None:
                raise ValueError(f"{reference!r} is a module; name the function in it")
        except ValueError as error:
            self._report(at, str(error), "function")
            function = None
        return ToolStub(definition["tool"], function)

    def _build_interactive(self) -> Interactive:
        definition = self._value.get("interactive", {})
        timeout_s = self._parse_duration(definition, "timeout", ("interactive",))
        return Interactive(
            bool(definition.get("enabled", False)), DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
        )

    def _parse_duration(self, definition: Mapping[str, Any], key: str, at: KeyPath) -> float | None:
        if key not in definition:
            return None
        try:
            seconds = parse_duration(definition[key])
        except ValueError as error:
            self._report((*at, key), str(error), None)
            return None
        if seconds <= 0:
            self._report((*at, key), "must be greater than 0", None)
        return seconds

    def _choose_spelling(self, definition: Mapping[str, Any], at: KeyPath, usual: str) -> str:
        if usual in definition and "assert" in definition:
            self._report(at, f"gives both {usual!r} and 'assert'; keep one of them", "assert")
        return usual if usual in definition else "assert"
