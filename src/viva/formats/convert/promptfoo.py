"""Converts configs of promptfoo: prompts with variables, tests with assertions, conversations, simulated users."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from viva.formats.convert.foreign_document import (
    ForeignDocument,
    JsonObject,
    build_same_answer_assertion,
    escape_braces,
)
from viva.formats.documents import parse_yaml_documents
from viva.model import codec
from viva.schemas.positions import KeyPath

_VARIABLE = re.compile(r"\{\{-?\s*([A-Za-z_][\w.]*)\s*-?\}\}")
_CODE_FILES = (".py", ".js", ".ts", ".mjs", ".cjs")
_TEMPLATE_CODE = re.compile(r"\{%|\{\{[^}]*\|")
_JUDGE_CRITERIA = {
    "llm-rubric": "{}",
    "g-eval": "{}",
    "model-graded-closedqa": "{}",
    "model-graded-factuality": "The reply agrees with the facts in this answer: {}",
    "factuality": "The reply agrees with the facts in this answer: {}",
    "answer-relevance": "The reply answers the user's question",
    "is-refusal": "The assistant refuses the request",
}


def convert_promptfoo(source: ForeignDocument) -> Iterator[dict[str, Any]]:
    """One case per test and prompt; tests of one `metadata.conversationId` become the turns of one case."""
    config = source.value
    if config.get("scenarios"):
        source.note(("scenarios",), "is not converted: write its tests under `tests`")
    default = _load_referenced_files(config.get("defaultTest") or {}, source, ("defaultTest",))
    prompts = list(_read_prompts(config.get("prompts") or ["{{prompt}}"], source))
    conversations: dict[tuple[int, str], dict[str, Any]] = {}
    for number, (path, loaded) in enumerate(_read_tests(config.get("tests") or [], source), 1):
        test = _load_referenced_files(loaded, source, path)
        converter = _TestConverter(source, path, test, default)
        conversation = (test.get("metadata") or {}).get("conversationId")
        name = test.get("description") or conversation
        if (simulated := converter.convert_simulated()) is not None:
            yield {"id": source.create_id(name, f"test-{number}"), **simulated}
            continue
        values_of_cases = list(_expand_variable_lists({**default.get("vars", {}), **test.get("vars", {})}))
        for (at, prompt), values in product(enumerate(prompts), values_of_cases):
            turn = converter.convert_turn(prompt, values)
            if conversation is None:
                yield {"id": source.create_id(name, f"test-{number}"), **turn}
            elif (case := conversations.get((at, conversation))) is not None:
                case["turns"].append({**turn, "input": _get_last_message(turn["input"])})
            else:
                case_id = source.create_id(name, f"test-{number}")
                conversations[at, conversation] = {"id": case_id, "turns": [turn]}
    yield from conversations.values()


def _get_last_message(chat: Any) -> Any:
    """The last message of a chat: in a later turn, the earlier messages are part of the conversation already."""
    return chat[-1]["content"] if isinstance(chat, list) else chat


class _TestConverter:
    """Converts one test with what `defaultTest` adds to it."""

    def __init__(self, source: ForeignDocument, path: KeyPath, test: JsonObject, default: JsonObject) -> None:
        self._source = source
        self._path = path
        self._test = test
        self._default = default
        options = {**(default.get("options") or {}), **(test.get("options") or {})}
        for key in ("transform", "transformVars", "prefix", "suffix"):
            if options.get(key):
                source.note((*path, "options"), f"`{key}` is not converted")
        if test.get("threshold") is not None:
            source.note((*path, "threshold"), "is not converted: every assertion of a case must hold")

    def convert_turn(self, prompt: Any, values: JsonObject) -> dict[str, Any]:
        assertions = [
            converted
            for path, assertion in self._list_assertions()
            for converted in self._convert_assertion(_fill_variables(assertion, values), path)
        ]
        filled = _fill_variables(prompt, values)
        for name in dict.fromkeys(_list_variables(filled)):
            self._source.note(self._path, f"the variable {name!r} has no value and is sent as it is")
        return escape_braces({"input": filled, "assertions": assertions})

    def convert_simulated(self) -> dict[str, Any] | None:
        """The case of a test whose provider is `promptfoo:simulated-user`."""
        provider = self._test.get("provider") or self._default.get("provider")
        if not isinstance(provider, Mapping) or provider.get("id") != "promptfoo:simulated-user":
            return None
        values = {**self._default.get("vars", {}), **self._test.get("vars", {})}
        config = {**(provider.get("config") or {})}
        goal = _fill_variables(str(values.get("instructions") or config.get("instructions") or ""), values)
        assertions = self.convert_turn("", values)["assertions"]
        goal_met = {"type": "judge", "criteria": f"The user's goal is reached: {goal}"}
        return {
            "simulator": {
                "use": "viva.simulator",
                "options": {"metadata": {"persona": "A user of the assistant", "goal": escape_braces(goal)}},
            },
            "checkpoints": [{"id": "goal", "assertion": escape_braces(goal_met)}],
            "max_turns": config.get("maxTurns", 10),
            **({"final_assertions": assertions} if assertions else {}),
        }

    def _list_assertions(self) -> Iterator[tuple[KeyPath, JsonObject]]:
        for path, holder in ((self._path, self._test), (("defaultTest",), self._default)):
            for at, assertion in enumerate(holder.get("assert") or ()):
                yield (*path, "assert", at), assertion

    def _convert_assertion(self, assertion: JsonObject, path: KeyPath) -> Iterator[dict[str, Any]]:
        kind = str(assertion.get("type", ""))
        is_negated = kind.startswith("not-")
        converted = self._convert_assertion_type(kind.removeprefix("not-"), assertion, path)
        if converted is None:
            self._source.note(path, f"the assertion type {kind!r} has no counterpart and is left out")
            return
        if assertion.get("weight") == 0:
            self._source.note(path, "has weight 0, so it decides nothing, and is left out")
            return
        extra = {"weight": assertion["weight"]} if assertion.get("weight") else {}
        yield converted | extra | ({"negate": True} if is_negated else {})

    def _convert_assertion_type(self, kind: str, assertion: JsonObject, path: KeyPath) -> dict[str, Any] | None:
        value = assertion.get("value")
        if kind in _JUDGE_CRITERIA:
            judge = {"type": "judge", "criteria": _JUDGE_CRITERIA[kind].format(_to_text(value))}
            return judge | ({"min_score": assertion["threshold"]} if assertion.get("threshold") is not None else {})
        match kind:
            case "equals" | "regex":
                return {"type": kind, "value": value}
            case "contains" | "icontains":
                return _build_contains(value, kind)
            case "contains-all" | "icontains-all" | "contains-any" | "icontains-any":
                texts = value if isinstance(value, list) else str(value).split(",")
                return {
                    "type": kind[-3:],
                    "assertions": [_build_contains(_strip_if_text(text), kind) for text in texts],
                }
            case "starts-with":
                return {"type": "regex", "pattern": rf"\A{re.escape(str(value))}"}
            case "is-json" | "contains-json":
                return {"type": "json_schema", "schema": value if isinstance(value, dict) else True}
            case "latency":
                return {"type": "max_latency", "value": f"{assertion['threshold']}ms"}
            case "cost":
                return {"type": "max_cost", "value": assertion["threshold"]}
            case "similar":
                self._source.note(path, "similarity of embeddings becomes a judge")
                return build_same_answer_assertion(value)
            case "assert-set":
                inner = [each for one in assertion.get("assert") or () for each in self._convert_assertion(one, path)]
                return {"type": "all", "assertions": inner} if inner and "threshold" not in assertion else None
            case "trajectory:tool-used" if isinstance(value, str):
                return {"type": "tool_called", "name": value}
            case _:
                return None


def _build_contains(text: Any, kind: str) -> dict[str, Any]:
    assertion = {"type": "contains", "value": _to_text(text)}
    return assertion | ({"ignore_case": True} if kind.startswith("i") else {})


def _strip_if_text(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else codec.compact_json(value)


def _fill_variables(value: Any, values: JsonObject) -> Any:
    """Replace `{{name}}` and `{{name.key}}` in all strings; names without a value stay."""
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _look_up_variable(match[1], values, otherwise=match[0]), value)
    if isinstance(value, Mapping):
        return {key: _fill_variables(item, values) for key, item in value.items()}
    return [_fill_variables(item, values) for item in value] if isinstance(value, list) else value


def _look_up_variable(name: str, values: JsonObject, otherwise: str) -> str:
    value: Any = values
    for key in name.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return otherwise
        value = value[key]
    return _to_text(value)


def _list_variables(value: Any) -> list[str]:
    if isinstance(value, str):
        return _VARIABLE.findall(value)
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [name for item in items for name in _list_variables(item)]


def _load_referenced_files(value: Any, source: ForeignDocument, path: KeyPath) -> Any:
    """Replace each `file://` text in a value by the content of the file: data of .json and .yaml, else text. Names of code files stay."""
    if isinstance(value, str) and value.startswith("file://"):
        if value.endswith(_CODE_FILES):
            source.note(path, f"{value} is code, which is not converted")
            return value
        content = source.read_file(value, path)
        if value.endswith((".json", ".yaml", ".yml")):
            (document, _), *_ = parse_yaml_documents(content, value)
            return document.value
        return content.decode(errors="replace").strip()
    if isinstance(value, Mapping):
        return {key: _load_referenced_files(item, source, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_load_referenced_files(item, source, (*path, at)) for at, item in enumerate(value)]
    return value


def _expand_variable_lists(values: JsonObject) -> Iterator[dict[str, Any]]:
    """Each combination of values: a variable with a list of values makes one test per value, as in promptfoo."""
    choices = [value if isinstance(value, list) else [value] for value in values.values()]
    for row in product(*choices):
        yield dict(zip(values, row, strict=True))


def _read_prompts(prompts: Any, source: ForeignDocument) -> Iterator[Any]:
    """Texts, and chats as lists of messages."""
    for at, prompt in enumerate(
        prompts if isinstance(prompts, Sequence) and not isinstance(prompts, str) else [prompts]
    ):
        path: KeyPath = ("prompts", at)
        text = prompt.get("raw") or prompt.get("id") if isinstance(prompt, Mapping) else prompt
        text = str(text)
        if text.startswith("file://"):
            if text.endswith(_CODE_FILES):
                raise source.create_error(path, "a prompt made by code cannot be converted; write its text here")
            text = source.read_file(text, path).decode(errors="replace").strip()
        if _TEMPLATE_CODE.search(text):
            source.note(path, "only {{name}} is replaced; filters and blocks of the template stay as they are")
        yield _parse_chat(text)


def _parse_chat(text: str) -> Any:
    if not text.lstrip().startswith("["):
        return text
    try:
        chat = codec.decode(text.encode())
    except codec.DecodeError:
        return text
    is_chat = isinstance(chat, list) and all(isinstance(each, dict) and "role" in each for each in chat)
    return chat if is_chat else text


def _read_tests(tests: Any, source: ForeignDocument) -> Iterator[tuple[KeyPath, JsonObject]]:
    for at, test in enumerate(tests if isinstance(tests, list) else [tests]):
        path: KeyPath = ("tests", at) if isinstance(tests, list) else ("tests",)
        if not isinstance(test, str):
            yield path, test
        elif test.endswith((".yaml", ".yml", ".json")):
            (document, _), *_ = parse_yaml_documents(source.read_file(test, path), test)
            yield from ((path, each) for each in document.value)
        else:
            raise source.create_error(path, f"{test!r} cannot be read: write the tests here, or as .yaml or .json")
