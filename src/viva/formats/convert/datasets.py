"""Converts datasets with one object per case: goldens of deepeval, samples of Inspect, datasets of pydantic-evals."""

from collections.abc import Iterator, Sequence
from typing import Any

from viva.formats.convert.foreign_document import (
    ForeignDocument,
    JsonObject,
    build_same_answer_assertion,
    escape_braces,
)
from viva.model import codec
from viva.schemas.positions import KeyPath

Case = dict[str, Any]
Assertions = list[dict[str, Any]]


def convert_deepeval(source: ForeignDocument) -> Iterator[Case]:
    """Goldens, as `EvaluationDataset.save_as` writes them: single turns, or conversations with a scenario."""
    for number, golden in enumerate(source.value):
        path: KeyPath = (number,)
        case_id = source.create_id(golden.get("name"), f"golden-{number + 1}")
        for key in ("context", "retrieval_context"):
            if golden.get(key):
                source.note((*path, key), "Viva has no checks of retrieval; it is in the metadata of the case")
        extra = {key: golden[key] for key in ("context", "retrieval_context", "comments") if golden.get(key)}
        case = {"id": case_id, **({"metadata": extra} if extra else {})}
        if "scenario" in golden:
            yield case | _convert_conversational_golden(golden)
            continue
        assertions: Assertions = []
        if golden.get("expected_output"):
            assertions.append(build_same_answer_assertion(golden["expected_output"]))
        assertions += [_build_tool_assertion(tool) for tool in golden.get("expected_tools") or ()]
        yield case | escape_braces({"input": golden["input"], "assertions": assertions})


def _convert_conversational_golden(golden: JsonObject) -> Case:
    persona = {"persona": golden.get("user_description") or "A user of the assistant", "goal": golden["scenario"]}
    outcome = golden.get("expected_outcome") or f"The assistant has handled this: {golden['scenario']}"
    return escape_braces(
        {
            "simulator": {"use": "viva.simulator", "options": {"metadata": persona}},
            "checkpoints": [{"id": "expected-outcome", "assertion": {"type": "judge", "criteria": outcome}}],
        }
    )


def _build_tool_assertion(tool: JsonObject) -> dict[str, Any]:
    arguments = tool.get("input_parameters")
    return {"type": "tool_called", "name": tool["name"], **({"arguments": arguments} if arguments else {})}


def convert_inspect(source: ForeignDocument) -> Iterator[Case]:
    """Samples: `input`, `target`, `choices`. The scorer is in the task's code, so `includes` is assumed."""
    for number, sample in enumerate(source.value):
        path: KeyPath = (number,)
        for key in ("sandbox", "files", "setup"):
            if sample.get(key):
                source.note((*path, key), "is not converted: use `workspace` of the case and a CLI agent")
        text = sample["input"]
        choices = sample.get("choices") or ()
        if isinstance(choices, str):  # in a .csv file, choices are one cell
            choices = [choice.strip() for choice in choices.split(",")]
        if choices and isinstance(text, str):
            letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
            text += "\n\n" + "\n".join(f"{letter}) {choice}" for letter, choice in zip(letters, choices, strict=False))
            text += "\n\nEnd with a line: ANSWER: LETTER"
        case_id = source.create_id(sample.get("id"), f"sample-{number + 1}")
        metadata = {"metadata": sample["metadata"]} if sample.get("metadata") else {}
        assertions = _build_target_assertions(sample.get("target"), is_choice=bool(choices))
        yield {"id": case_id, **metadata, **escape_braces({"input": text, "assertions": assertions})}


def _build_target_assertions(target: object, *, is_choice: bool) -> Assertions:
    targets = [str(each) for each in (target if isinstance(target, list) else [target]) if each not in (None, "")]
    if not targets:
        return []
    if is_choice:
        return [{"type": "regex", "pattern": rf"(?i)ANSWER:\s*{','.join(targets)}\b"}]
    assertions = [{"type": "contains", "value": each, "ignore_case": True} for each in targets]
    return assertions if len(assertions) == 1 else [{"type": "any", "assertions": assertions}]


def convert_pydantic_evals(source: ForeignDocument) -> Iterator[Case]:
    """A dataset file of pydantic-evals, with the evaluators of each case and of all cases."""
    dataset = source.value
    shared: Sequence[Any] = dataset.get("evaluators") or ()
    for number, case in enumerate(dataset["cases"]):
        path: KeyPath = ("cases", number)
        own: Sequence[Any] = case.get("evaluators") or ()
        assertions: Assertions = []
        for place, evaluators in ((path, own), ((), shared)):
            for at, evaluator in enumerate(evaluators):
                assertions += _convert_evaluator(evaluator, case, source, (*place, "evaluators", at))
        text = case["inputs"]
        if not isinstance(text, str):
            source.note((*path, "inputs"), "is not a text: it is sent as JSON")
            text = _encode_as_text(text)
        metadata = {"metadata": case["metadata"]} if isinstance(case.get("metadata"), dict) else {}
        case_id = source.create_id(case.get("name"), f"case-{number + 1}")
        yield {"id": case_id, **metadata, **escape_braces({"input": text, "assertions": assertions})}


def _convert_evaluator(evaluator: Any, case: JsonObject, source: ForeignDocument, path: KeyPath) -> Assertions:
    """`Name`, `Name: value` or `Name: {argument: value}`."""
    name, argument = next(iter(evaluator.items()), ("{}", None)) if isinstance(evaluator, dict) else (evaluator, None)
    arguments = argument if isinstance(argument, dict) else {}
    match name:
        case "EqualsExpected" if case.get("expected_output") is not None:
            return [{"type": "equals", "value": case["expected_output"]}]
        case "Equals":
            return [{"type": "equals", "value": arguments.get("value", argument)}]
        case "Contains":
            assertion = {"type": "contains", "value": str(arguments.get("value", argument))}
            return [assertion | ({"ignore_case": True} if arguments.get("case_sensitive") is False else {})]
        case "LLMJudge":
            return [{"type": "judge", "criteria": arguments.get("rubric", argument)}]
        case "MaxDuration":
            return [{"type": "max_latency", "value": f"{arguments.get('seconds', argument)}s"}]
        case "IsInstance" if (kind := _JSON_TYPES.get(arguments.get("type_name", argument))) is not None:
            return [{"type": "type", "value": kind}]
        case _:
            source.note(path, f"{name} has no counterpart; write it as a Python function (`script`)")
            return []


_JSON_TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}


def _encode_as_text(value: Any) -> str:
    return codec.compact_json(value)
