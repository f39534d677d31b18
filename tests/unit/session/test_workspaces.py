"""Which folder a case works in: the case, the flags, the config."""

from pathlib import Path
from typing import Any

import pytest

from viva.agents.agent_config import list_nameable_kinds
from viva.agents.scripted import ScriptedAgent
from viva.config import Defaults, Settings
from viva.errors import BadInput
from viva.model.case import Case, WorkspaceSpec
from viva.record.redaction import Redactor
from viva.session.agents import AgentFactory, ConfiguredAgent
from viva.session.options.run_options import AllRunOptions
from viva.session.options.saved import dump_options, restore_options
from viva.session.workspaces import WorkspaceProvider
from viva.users.script import Script

COPY, EMPTY = WorkspaceSpec("copy", "/r"), WorkspaceSpec("empty", "/r", ("a",))


def places(
    kind: str = "gemini",
    *,
    unasked: bool | None = True,
    follows_links: bool = True,
    defaults: Defaults | None = None,
    **asked: Any,
) -> WorkspaceProvider:
    made = ScriptedAgent(("x",))
    agent = ConfiguredAgent(
        name="the-agent",
        agent=made,
        kind=kind,
        needs_workspace=kind == "gemini",
        auto_approves=unasked,
        follows_links=follows_links,
    )
    settings = Settings(folder=Path(), defaults=defaults or Defaults(), environ={"PATH": "/nowhere"})
    return WorkspaceProvider(
        AllRunOptions(inputs=(), folder=Path("/r"), **asked), settings, [agent], [Path("/r/books/a.yaml")]
    )


def spec(found: WorkspaceProvider, **case: Any) -> WorkspaceSpec | None:
    return found.assign_workspace(Case(id="a", user=Script(()), **case), "the-agent").workspace


def test_who_has_a_workspace():
    """P5: cases that say so, cases that look at files, and all cases of an agent that is a command."""
    assert spec(places("python")) is None
    assert spec(places("python"), needs=frozenset({"workspace"})) == spec(places("gemini"))
    assert spec(places("gemini"), sessions="each_message") is None
    found = spec(places("gemini"))
    assert found == WorkspaceSpec("copy", "/r", exclude=("/r/books/a.yaml",))


def test_flags_stand_over_the_config_and_both_over_a_copy():
    """P5: a tmpdir has said otherwise."""
    in_place = places(defaults=Defaults(workspace="cwd", link_mode="copy"))
    found = spec(in_place, workspace=COPY)
    assert found is not None
    assert (found.kind, found.link_mode) == ("cwd", "copy")
    found = spec(in_place, workspace=EMPTY)
    assert found is not None
    assert (found.kind, found.link_paths) == ("empty", ("a",))
    found = spec(places(defaults=Defaults(workspace="cwd", link_mode="copy"), workspace="empty", link_mode="symlink"))
    assert found is not None
    assert (found.kind, found.link_mode) == ("empty", "symlink")


def test_links_are_copies_for_an_agent_that_does_not_follow_them():
    """P5: unless a flag or the config asks for links."""
    links = Defaults(link_mode="symlink")
    found = [
        places(),
        places(follows_links=False),
        places(follows_links=False, link_mode="symlink"),
        places(follows_links=False, defaults=links),
    ]
    modes = [placed.link_mode for each in found if (placed := spec(each, workspace=EMPTY))]
    assert modes == ["symlink", "copy", "symlink", "symlink"]
    agents = AgentFactory(Settings(folder=Path()))
    assert [name for name in list_nameable_kinds() if not agents.find_agent(name).follows_links] == ["gemini"]


def test_permissions_of_a_command_are_noted_before_the_run():
    """P10: and nothing of an agent that is none."""
    (message,) = places("gemini").describe_permissions()
    assert (
        message == "the-agent runs in auto-approve mode: every tool runs without asking, unconfined (--sandbox bwrap)"
    )
    (message,) = places("gemini", unasked=False).describe_permissions()
    assert message == "the-agent runs as its config says, unconfined (--sandbox bwrap)"
    assert list(places("python", unasked=None).describe_permissions()) == []


def test_a_missing_sandbox_is_an_error_before_the_run():
    with pytest.raises(BadInput, match="bubblewrap is not installed"):
        places(sandbox="bwrap")
    with pytest.raises(BadInput, match="bubblewrap is not installed"):
        places(defaults=Defaults(sandbox="bwrap"))
    assert list(places("python", defaults=Defaults(sandbox="bwrap"), sandbox="none").describe_permissions()) == []


def test_a_resumed_run_knows_where_it_worked():
    asked = AllRunOptions(
        inputs=("x",),
        evaluator="judge",
        agent_model="m",
        workspace="empty",
        link_mode="copy",
        keep_workspace=True,
        sandbox="none",
    )
    again = restore_options(dump_options(asked, Redactor()))
    for name in ("evaluator", "agent_model", "workspace", "link_mode", "keep_workspace", "sandbox"):
        assert getattr(again, name) == getattr(asked, name)
