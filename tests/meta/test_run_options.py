"""One table of run options: an option that is added to it appears everywhere."""

import inspect
import json
import subprocess
import sys
import typing
from dataclasses import fields
from pathlib import Path

import pytest

import run_keywords
import viva
from viva.api import run_options as api_options
from viva.api.run import run
from viva.session.options import run_options
from viva.session.options.keyword_values import list_signature_keywords, parse_value
from viva.session.options.run_options import FLAGS, GROUPS, KEYWORDS, RUN_OPTIONS

DUMMY = """\
    dummy_level: Annotated[int | None, Option(
        flags=("--dummy-level",), group=LIMITS, metavar="N", range=Range(1), is_repeated=True, actions=("chat",),
        on_resume="replace", help="A dummy option.")] = None
"""
PROBE = """
import importlib.util, inspect, json, sys
from pathlib import Path

name = "viva.session.options.run_options"
spec = importlib.util.find_spec(name)
source = Path(spec.origin).read_text()
before = "    fail_fast: Annotated["
assert source.count(before) == 1
module = importlib.util.module_from_spec(spec)
sys.modules[name] = module
exec(compile(source.replace(before, sys.argv[1] + before), spec.origin, "exec"), module.__dict__)

import click, reference, run_keywords, viva
from viva.cli.run_flags import build_options, list_flags_of_action
from viva.cli.test import command
from viva.record.redaction import Redactor
from viva.reporters.commands import list_rerun_flags
from viva.session.options.keyword_values import build_run_options
from viva.session.options.saved import apply_resume_flags, restore_options, build_saved_settings

def parse(*arguments):
    with command.make_context("viva", list(arguments)) as context:
        return build_options(context.params)

options = parse("-i", "x", "--dummy-level", "3")
saved = json.loads(json.dumps(build_saved_settings(options, Redactor())))
def problem(**keywords):
    try:
        build_run_options(keywords)
    except viva.errors.BadInput as error:
        return str(error)
print(json.dumps({
    "flag": options.dummy_level,
    "help": "--dummy-level N" in command.get_help(click.Context(command)),
    "keyword": build_run_options({"dummy_level": 3}).dummy_level,
    "problem": problem(dummy_level=0),
    "typed": "dummy_level: int | None = None" in run_keywords.make_module(),
    "doc": "A dummy option." in run_keywords.make_module(),
    "saved": saved["options"]["dummy_level"],
    "restored": restore_options(saved["options"]).dummy_level,
    "replaced": apply_resume_flags(restore_options(saved["options"]), parse("-i", "x", "--dummy-level", "5")).dummy_level,
    "rerun": list(map(list, list_rerun_flags(saved))),
    "chat": "dummy_level" in list_flags_of_action("chat"),
    "resume": "dummy_level" in list_flags_of_action("resume"),
    "reference": "| `--dummy-level` `N` | A dummy option. |" in reference.Pages().texts["commands.md"],
}))
"""


def test_an_option_that_is_added_to_the_table_appears_everywhere():
    tests = str(Path(__file__).resolve().parents[1])
    arguments = [sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r})\n{PROBE}", DUMMY]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "flag": 3,
        "help": True,
        "keyword": 3,
        "problem": "dummy_level: 0 is not at least 1",
        "typed": True,
        "doc": True,
        "saved": 3,
        "restored": 3,
        "replaced": 5,
        "rerun": [["--dummy-level", "3"]],
        "chat": True,
        "resume": True,
        "reference": True,
    }


def test_typed_keywords_are_those_of_the_table():
    """`make reference` writes the file."""
    assert run_keywords.FILE.read_text(encoding="utf-8") == run_keywords.make_module()


def test_the_signature_of_run_agrees_with_the_table():
    named = [name for name in list_signature_keywords(run) if name not in ("inputs", "options")]
    for name in named:
        assert name in KEYWORDS
        assert name == "agent" or (run.__kwdefaults__ or {}).get(name) == KEYWORDS[name].default, name
        assert name == "agent" or f"- `{name}`: " in (run.__doc__ or "")
    options = {field.name: field.default for field in fields(viva.RunOptions)}
    assert set(options) == set(KEYWORDS) - {*named, "inputs"}
    assert options == {name: KEYWORDS[name].default for name in options}
    assert set(api_options.RunKeywords.__annotations__) == {*named, "options"} - {"agent"}
    hints = typing.get_type_hints(run)
    for name in named:
        kind = eval(run_keywords.keyword_type(KEYWORDS[name]), dict(vars(api_options)))
        assert name == "agent" or hints[name] == kind, name


def test_arun_has_the_signature_of_run():
    assert inspect.signature(viva.arun) == inspect.signature(viva.run)


def test_keywords_are_the_names_of_the_flags():
    """Others are the plural of a repeatable flag, the positive of a `--no-` flag, and what Python cannot name `run`."""
    others = {
        keyword
        for keyword, option in KEYWORDS.items()
        if option.flags and f"--{keyword.replace('_', '-')}" not in option.flags
    }
    assert others == {"inputs", "agent", "only", "tags", "outputs", "history"}


def test_every_option_has_its_help_and_its_group():
    for option in (*FLAGS.values(), *RUN_OPTIONS.values()):
        assert option.help.endswith("."), option.name
        assert not option.flags or option.group in GROUPS, option.name
    assert set(GROUPS) == {option.group for option in FLAGS.values()}


@pytest.mark.parametrize("name", FLAGS)
def test_rules_of_flags_name_flags(name: str):
    option = FLAGS[name]
    assert {*option.excludes, *([option.needs] if option.needs else [])} <= FLAGS.keys()


def test_a_default_is_a_value_that_the_option_takes():
    for option in KEYWORDS.values():
        if option.default is not None:
            assert parse_value(option, option.default) == option.default


def test_the_table_is_small_enough_to_read():
    assert len(inspect.getsource(run_options).splitlines()) < 450
