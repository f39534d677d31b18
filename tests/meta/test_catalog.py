"""The catalog and the schemas."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, get_args

import pytest

from viva import catalog
from viva.agents.cli.cli_agent import find_acp_spec, find_cli_spec
from viva.agents.cli.command import OutputFormat
from viva.errors import BadInput
from viva.model import codec
from viva.schemas.validation import PUBLIC_SCHEMAS, read_schema


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in catalog.BUILT_IN.items() for name in names])
def test_every_built_in_component_exists(kind: Any, name: str):
    assert isinstance(catalog.find_component(kind, name), type)


def test_a_coding_cli_is_found_wherever_one_is_named():
    """`type = "command"` can parse its stream, and `acp:COMMAND` knows its keys and its login."""
    assert catalog.CLI_AGENTS == ("gemini", "claude", "codex", "qwen", "opencode")
    assert get_args(OutputFormat) == ("text", "jsonl", *catalog.CLI_AGENTS)
    for name in catalog.CLI_AGENTS:
        spec = find_cli_spec(name)
        assert spec is not None
        assert spec.name == name
        assert [find_acp_spec(command) for command in spec.acp_commands] == [spec] * len(spec.acp_commands)
    assert find_cli_spec("command") is None
    assert find_acp_spec("unknown") is None


@pytest.mark.parametrize("name", PUBLIC_SCHEMAS)
def test_every_schema_is_valid_and_describes_its_keys(name: Any):
    import jsonschema_rs

    schema = codec.decode(read_schema(name))
    assert jsonschema_rs.meta.is_valid(schema)
    for key, value in schema["properties"].items():
        explained = value.keys() & {"description", "$ref", "properties", "additionalProperties"}
        assert explained, f"{name}: {key} has no description"


def test_an_unknown_name_is_none_and_a_path_that_does_not_import_is_an_error():
    assert catalog.find_component("check", "no_such_check") is None
    with pytest.raises(BadInput, match=r"no_such_package:Check.*does not import"):
        catalog.find_component("check", "no_such_package:Check")


def test_judge_and_agent_are_names_of_one_check():
    assert catalog.find_component("check", "agent") is catalog.find_component("check", "judge")
    assert {"agent", "judge"} <= set(catalog.list_components("check"))


PLUGIN = """
from viva.catalog import register

@register("check", "polite")
class Polite:
    pass
"""


@pytest.mark.parametrize("archive", [False, True])
def test_a_plugin_of_an_installed_package_is_found(tmp_path: Path, archive: bool):
    """Most installations have none, and the search for one is part of every start."""
    files = {
        "polite_plugin.py": PLUGIN,
        "polite-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: polite\nVersion: 1.0\n",
        "polite-1.0.dist-info/entry_points.txt": "[console_scripts]\nx = y:z\n\n[viva]\npolite = polite_plugin\n",
    }
    place = tmp_path / "packages.zip"
    with zipfile.ZipFile(place, "w") as file:
        for name, text in files.items():
            file.writestr(name, text)
    if not archive:
        with zipfile.ZipFile(place) as file:
            file.extractall(tmp_path / "packages")
        place = tmp_path / "packages"
    code = "from viva import catalog; catalog.load_plugins((), None); print(catalog.find_component('check', 'polite').__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(place)}, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("Polite\n", "")


def test_help_texts_name_every_report_format():
    assert re.findall(r"\.\w+", catalog.REPORT_FORMATS) == list(catalog.BUILT_IN["reporter"])
