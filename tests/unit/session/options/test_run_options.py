"""Values of run options: the same checks for the keywords of `viva.run` and the flags of `viva test`."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import viva
from running import run_cases
from viva.cli.test import command
from viva.errors import BadInput
from viva.record.redaction import Redactor
from viva.session.options.keyword_values import build_run_options
from viva.session.options.run_options import RUN_OPTIONS, AllRunOptions, Option
from viva.session.options.saved import (
    apply_resume_flags,
    build_saved_settings,
    restore_agents_with_secrets,
    restore_options,
)
from viva.stats.sequential import SequentialTest


@pytest.mark.parametrize(
    ("keywords", "problem"),
    [
        ({"parallel": 0}, "parallel: 0 is neither a number of at least 1 nor auto"),
        ({"parallel": "many"}, "parallel: 'many' is neither a number of at least 1 nor auto"),
        ({"parallel": True}, "parallel: True is neither a number of at least 1 nor auto"),
        ({"runs": 0}, "runs: 0 is not at least 1"),
        ({"min_pass": 3}, "min_pass: 3 is not from 0 to 1"),
        ({"retry_faults": -1}, "retry_faults: -1 is not at least 0"),
        ({"max_cost": 0}, "max_cost: 0 is not greater than 0"),
        ({"workspace": "nope"}, "workspace: 'nope' is not one of copy, empty, cwd"),
        ({"format": "zz"}, "format: 'zz' is not one of native, playbook, openwop"),
        ({"tags": "smoke"}, "tags: 'smoke' is a string; pass a list: ['smoke']"),
        ({"modes": ["goldn"]}, "modes: 'goldn' is not one of golden, rubric"),
        ({"simulator": 5}, "simulator: 5 is neither the name of an agent nor a function"),
        ({"evaluator": 5}, "evaluator: 5 is neither the name of an agent nor a function"),
        ({"shard": 3}, "shard: 3 is not a string"),
        ({"before": 5}, "before: 5 is neither a function nor the name of one"),
        ({"config": 3}, "config: 3 is not a path"),
        ({"timeout": "soon"}, "timeout: 'soon' is not a duration"),
        ({"turn_timeout": 0}, "turn_timeout: must be greater than 0"),
        ({"fail_fast": "yes"}, "fail_fast: 'yes' is not True or False"),
        ({"sequential": 0.9}, "sequential: 0.9 is not a viva.types.SequentialTest"),
        ({"replay_missing": "live"}, "replay_missing needs replay"),
        ({"shard": "9/8"}, "shard: there is no shard 9 of 8"),
        ({"shard_by": "time"}, "shard_by needs shard"),
        ({"record": "a", "replay": "b"}, "record and replay exclude each other"),
        ({"sequential": SequentialTest(min_pass=0.9), "runs": 5}, "sequential and runs exclude each other"),
    ],
)
def test_an_error_about_a_bad_argument_says_what_would_be_right(keywords: dict[str, Any], problem: str):
    with pytest.raises(BadInput) as raised:
        run_cases({"id": "a", "input": "x"}, print, **keywords)
    assert str(raised.value).startswith(problem)


def test_all_bad_arguments_are_reported_at_once():
    with pytest.raises(BadInput) as raised:
        build_run_options({"parallel": 0, "runs": 0, "tags": "x"})
    assert [problem.message.partition(":")[0] for problem in raised.value.problems] == ["parallel", "runs", "tags"]


def test_an_unknown_keyword_is_a_type_error_with_a_suggestion():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'retry_fault'. Did you mean 'retry_faults'\?"):
        build_run_options({"retry_fault": 2})
    with pytest.raises(BadInput, match=r"options: \{'runs': 3\} is not a viva.RunOptions"):
        viva.run("x", print, options={"runs": 3})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "flags",
    [
        ("--parallel", "0"),
        ("--runs", "0"),
        ("--min-pass", "3"),
        ("--retry-faults", "-1"),
        ("--max-cost", "0"),
        ("--workspace", "nope"),
        ("--format", "zz"),
        ("--modes", "goldn"),
        ("--timeout", "0"),
        ("--shard", "9/8"),
        ("--shard-by", "time"),
        ("--record", "a", "--replay", __file__),
    ],
)
def test_a_bad_flag_is_named(flags: tuple[str, ...]):
    ended = CliRunner().invoke(command, ["-i", "absent.jsonl", *flags])
    assert ended.exit_code != 0
    assert flags[0] in (ended.output + str(ended.exception))


def test_keywords_are_read_as_flags_are():
    options = build_run_options(
        {"timeout": "2m", "outputs": "r.xml", "config": "a.toml", "tags": ["x"], "max_cost": 1, "only": None}
    )
    assert options == AllRunOptions(
        inputs=(), timeout_s=120.0, outputs=(Path("r.xml"),), config=Path("a.toml"), tags=("x",), max_cost_usd=1
    )


def test_the_journal_saves_what_the_command_that_runs_a_case_again_repeats():
    options = AllRunOptions(
        inputs=("x",),
        config=Path("my config.toml"),
        workspace="empty",
        timeout_s=90.0,
        allow_agent_mismatch=True,
        evaluator="http://me:secret@host/",
        fail_fast=True,
        runs=3,
        outputs=(Path("r.md"),),
        modes=("golden", "live-shadow"),
        live=True,
        replay=Path("r.cassette"),
        replay_missing="skip",
    )
    assert build_saved_settings(options, Redactor())["rerun_flags"] == [
        ("--config", "my config.toml"),
        ("--timeout", "1m30s"),
        ("--evaluator", "http://***@host/"),
        ("--workspace", "empty"),
        ("--modes", "golden,live-shadow"),
        ("--live", None),
        ("--allow-agent-mismatch", None),
        ("--replay", "r.cassette"),
        ("--replay-missing", "skip"),
    ]


def test_a_resumed_run_replaces_only_what_may_change(tmp_path: Path):
    saved = build_saved_settings(AllRunOptions(inputs=("x",), runs=3, parallel=2, folder=tmp_path), Redactor())[
        "options"
    ]
    given = AllRunOptions(inputs=(), parallel=8, max_cost_usd=2.0, outputs=(Path("r.md"),), runs=1, tags=("t",))
    options = apply_resume_flags(restore_options(saved), given)
    assert (options.runs, options.tags, options.parallel, options.max_cost_usd) == (3, (), 8, 2.0)
    assert options.outputs == (Path("r.md").absolute(),)


@pytest.mark.parametrize(
    ("before", "now", "problem"),
    [
        ("http://***@host/", None, "pass -n again"),
        ("http://***@host/", "http://a:b@other/", "-n differs"),
        ("me", "me", "remove -n"),
    ],
)
def test_an_agent_with_a_secret_must_be_passed_again(before: str, now: str | None, problem: str):
    with pytest.raises(BadInput, match=problem):
        restore_agents_with_secrets(AllRunOptions(inputs=(), agents=(before,)), {"agents": (now,) if now else ()})


SAMPLES: dict[Any, Any] = {str: "x", int: 3, float: 0.5, Path: Path("file.md"), bool: None}


def sample(option: Option) -> Any:
    """A value that is not the default."""
    if option.type is bool:
        return not option.default
    if option.type is SequentialTest:
        return SequentialTest(min_pass=0.9)
    item = option.choices[-1] if option.choices else SAMPLES.get(option.item_type, "module:name")
    if option.name in ("selected_cases", "shard_cases"):
        item = ("suite", "case")
    if option.name == "parallel":
        item = "auto"
    return (item,) if option.is_list else item


@pytest.mark.parametrize("name", [name for name, option in RUN_OPTIONS.items() if option.on_resume != "drop"])
def test_a_resumed_run_has_the_value_of_every_option(name: str):
    values: dict[str, Any] = {"inputs": (), name: sample(RUN_OPTIONS[name])}
    options = AllRunOptions(**values)
    saved = json.loads(json.dumps(build_saved_settings(options, Redactor())["options"]))
    expected = Path("file.md").absolute() if name == "folder" else values[name]
    assert getattr(restore_options(saved), name) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [("env_file", {}), ("agents", 5), ("runs", "x"), ("before", [1]), ("sequential", {"q": 1}), ("outputs", [5])],
)
def test_a_saved_value_of_another_type_is_refused(name: str, value: Any):  # 12.9
    with pytest.raises(BadInput, match=f"another value of {name}"):
        restore_options({"inputs": [], name: value})
