"""A kind of agent is one class in one file: its fields make the schema, its errors, its line in `viva agents` and its docs."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agent_schema
from reference_schemas import config_page
from viva import catalog, config
from viva.agents.agent_config import (
    AgentConfig,
    agents_schema,
    decode_entry,
    entry_schema,
    find_kind,
    find_reference_kind,
)
from viva.cli.main import main
from viva.errors import BadInput
from viva.model import codec
from viva.schemas import validation
from viva.schemas.validation import find_violations
from viva.session.agents import AgentFactory
from viva.workspace.folders import LocalWorkspaces

KIND = '''
from contextlib import asynccontextmanager
from typing import Annotated

from msgspec import Meta, Struct

from viva.agents.agent_config import AgentConfig, AgentStatus
from viva.model.message import Reply


class Parrot(Struct, frozen=True):
    suffix: str
    provides = frozenset()

    @asynccontextmanager
    async def open(self, context):
        yield self

    async def send(self, message, options):
        return Reply(message.text + self.suffix)

    async def inspect(self, workspaces):
        return AgentStatus(version="7.0", missing=None if self.suffix else "it has no suffix")


class ParrotConfig(AgentConfig, frozen=True, kw_only=True):
    """Repeats what it hears."""

    suffix: str
    """What it adds to each message."""
    times: Annotated[int, Meta(ge=1)] = 1
    """How often it adds it."""

    def build(self, setup):
        return Parrot(setup.expand(self.suffix, "suffix") * self.times)
'''


@pytest.fixture(params=["catalog", "module:Class"])
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a new kind: one line in the catalog, or a class of a plugin."""
    (tmp_path / "parrots.py").write_text(KIND, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalog, "_registered_components", dict(catalog._registered_components))
    if request.param == "module:Class":
        yield "parrots:ParrotConfig"
        return
    agents = {**catalog.BUILT_IN["agent"], "parrot": "parrots:ParrotConfig"}
    monkeypatch.setitem(catalog.BUILT_IN, "agent", agents)
    schema = codec.decode(validation.read_schema("config"))
    schema["$defs"]["agent"] = agents_schema(agents)
    monkeypatch.setattr(validation, "read_schema", lambda _name: codec.encode(schema))
    monkeypatch.setattr("reference_schemas.read_schema", validation.read_schema)
    validation._compile_named_schema.cache_clear()
    yield "parrot"
    validation._compile_named_schema.cache_clear()


def write_config(folder: Path, kind: str, fields: str) -> None:
    (folder / "viva.toml").write_text(f'[agents.polly]\ntype = "{kind}"\n{fields}\n', encoding="utf-8")


def test_a_new_kind_has_a_schema(kind: str):
    schema: Any = entry_schema(find_kind(kind))  # type: ignore[arg-type]
    assert schema["required"] == ["suffix"]
    assert schema["properties"]["suffix"] == {"type": "string", "description": "What it adds to each message."}
    assert (schema["properties"]["times"]["minimum"], schema["properties"]["times"]["default"]) == (1, 1)
    assert set(AgentConfig.__struct_fields__) < set(schema["properties"])


@pytest.mark.parametrize(
    ("fields", "line", "message"),
    [
        ('sufix = "!"', 3, "unknown key 'sufix'; did you mean 'suffix'?"),
        ('suffix = "!"\ntimes = "two"', 4, "should be an integer"),
        ('suffix = "!"\n\ntimes = 0', 5, "should be at least 1"),
        ("", 1, "is missing 'suffix'"),
        ('suffix = "$NOT_SET_ANYWHERE"', 3, "NOT_SET_ANYWHERE is not set"),
    ],
)
def test_a_wrong_field_has_file_and_line(kind: str, tmp_path: Path, fields: str, line: int, message: str):
    write_config(tmp_path, kind, fields)
    with pytest.raises(BadInput) as raised:
        AgentFactory(config.load_settings(None, tmp_path)).find_agent("polly")
    (problem,) = raised.value.problems
    assert (Path(problem.file).name, problem.line) == ("viva.toml", line)
    assert message in problem.message


def test_all_wrong_fields_are_reported_together(kind: str, tmp_path: Path):
    write_config(tmp_path, kind, 'times = "two"\ncolour = "red"')
    with pytest.raises(BadInput) as raised:
        AgentFactory(config.load_settings(None, tmp_path)).find_agent("polly")
    assert sorted(problem.line for problem in raised.value.problems) == [1, 3, 4]


def test_it_is_built_and_listed(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_config(tmp_path, kind, 'suffix = "!"\ntimes = 2\ndescription = "a bird"\nparallel = 3')
    found = AgentFactory(config.load_settings(None, tmp_path)).find_agent("polly")
    assert (found.kind, found.description, found.parallel) == (kind, "a bird", 3)
    assert asyncio.run(found.agent.inspect(LocalWorkspaces())).version == "7.0"  # type: ignore[attr-defined]
    with pytest.raises(SystemExit):
        main(["agents", "--json"])
    (row,) = json.loads(capsys.readouterr().out)["agents"]
    assert (row["name"], row["kind"], row["version"]) == ("polly", kind, "7.0")


def test_a_built_in_kind_is_in_the_reference(kind: str):
    page = "\n".join(config_page(pytest.fail))
    assert ("### type = parrot" in page) == (kind == "parrot")
    assert ("| `suffix` | string | What it adds to each message. **Required.** |" in page) == (kind == "parrot")


def test_an_agent_struct_is_a_kind_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "parrots.py").write_text(KIND, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    parrot: Any = find_kind("parrots:Parrot")
    agent_config, agent = decode_entry(parrot, {"type": "parrots:Parrot", "suffix": "?", "description": "d"})
    assert (agent_config.description, agent.suffix) == ("d", "?")  # type: ignore[union-attr]
    write_config(tmp_path, "parrots:Parrot", 'suffix = "?"\nend = "!"')
    with pytest.raises(BadInput, match=r"viva\.toml:4: agent 'polly' \(parrots:Parrot\): unknown key 'end'"):
        AgentFactory(config.load_settings(None, tmp_path)).find_agent("polly")


def test_a_kind_with_references_has_a_field_for_them():
    """Without `use` the schema of the kind refuses the entry that a reference stands for."""
    kinds: dict[str, Any] = {name: find_kind(name) for name in catalog.BUILT_IN["agent"]}
    with_references = [each for each in kinds if find_reference_kind(f"{each}:x") is not None]
    assert len(with_references) > 10
    assert [each for each in with_references if "use" not in kinds[each].__struct_fields__] == []


def test_the_schema_of_the_config_is_that_of_the_kinds():
    assert not agent_schema.is_stale(), "run `make reference`"


@pytest.mark.parametrize("name", catalog.BUILT_IN["agent"])
def test_every_built_in_kind_is_a_config(name: str):
    assert issubclass(find_kind(name), AgentConfig)  # type: ignore[arg-type]
    assert find_violations("config", {"agents": {"a": {"type": name, "no_such_field": 1}}})
