"""Checks, agents and reports that a project brings along: found beside its config, and named when they are wrong."""

import pytest

from project import Project, case

pytestmark = pytest.mark.process

HOUSE = """
import viva
from viva.plugins import LocalCheck
from viva.plugins import Report
from contextlib import asynccontextmanager
from msgspec import Struct

@viva.plugins.register("check", "max_words")
class MaxWords(LocalCheck, frozen=True, kw_only=True):
    value: int
    label = "max_words"

    def check(self, evidence):
        words = len(evidence.text.split())
        return viva.plugins.Verdict("passed" if words <= self.value else "failed", f"{words} words")

@viva.plugins.register("agent", "shouting")
class Shouting(Struct, frozen=True, kw_only=True):
    end: str = "!"
    provides = frozenset()

    @asynccontextmanager
    async def open(self, context):
        yield self

    async def send(self, message, options):
        return viva.Reply(message.text.upper() + self.end)

@viva.plugins.register("reporter", ".count")
class Count(Report):
    def write(self, out, ended):
        out.write(f"{ended.summary.passed} passed".encode())
"""
CONFIG = 'plugins = ["house"]\n[agents.loud]\ntype = "shouting"\nend = "?"\n'


@pytest.fixture
def house(project: Project) -> Project:
    project.write("house.py", HOUSE)
    project.write("viva.toml", CONFIG)
    return project


def test_plugins_stand_beside_the_config(house: Project) -> None:
    """By registered name and by path, from the config's folder and from one below it."""
    assertions = [
        {"type": "max_words", "value": 1},
        {"type": "house:MaxWords", "value": 1},
        {"type": "contains", "value": "HELLO?"},
    ]
    house.suite(case("loud", assertions=assertions), name="below/suite.jsonl")
    house.test("-i", "below/suite.jsonl", "-o", "run.count", agent=None, code=0)
    assert (house.folder / "run.count").read_text() == "1 passed"


def test_a_folder_named_like_viva_does_no_harm(house: Project) -> None:
    """What the project calls `viva` is not mistaken for Viva."""
    house.write("viva/notes.txt", "no package")
    house.suite(case("loud", assertions=[{"type": "max_words", "value": 1}]))
    assert house.test(agent=None).code == 0


def test_what_is_wrong_with_a_plugin_is_bad_input(house: Project) -> None:
    """An unknown field of an agent, a plugin that is not there: exit 4 with its name, not a bug of ours."""
    house.suite(case("loud"))
    house.write("viva.toml", CONFIG.replace("end =", "ent ="))
    assert "agent 'loud' (shouting)" in house.test(agent=None, code=4).err
    house.write("viva.toml", CONFIG.replace('"house"', '"mouse"'))
    assert "'mouse' does not import" in house.test(agent=None, code=4).err
