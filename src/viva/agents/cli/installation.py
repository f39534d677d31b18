"""Is a CLI there, which version is it, and what does it miss? Versions are read beside the program where npm put it: that
takes no process. Others are asked, within a time limit, in an empty workspace that the sandbox confines if there is one.
A command that the user has configured may be anything, so it is not run for that.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from viva.agents.agent_config import AgentStatus
from viva.agents.cli.output_text import to_one_line
from viva.agents.cli.spec import CliSpec
from viva.errors import TrialFault, Unreachable
from viva.model import codec
from viva.model.case import Key, WorkspaceSpec
from viva.protocols import WorkspaceFactory
from viva.workspace.environment import build_environment
from viva.workspace.processes import CommandLimits, run_command

_ASKED_S = 10.0
_ASKED_BYTES = 1_000_000
_KEY = Key("", "version")
_NUMBER = re.compile(r"\d+(?:\.\d+)+")
_known: dict[tuple[str, int], str | None] = {}


def find_executable(command: str, environ: Mapping[str, str], spec: CliSpec) -> str:
    """The program behind a command; Unreachable if there is none."""
    found = shutil.which(command, path=environ.get("PATH", os.defpath))
    if found is None:
        install = f"; npm install -g {spec.package} installs it" if spec.package else ""
        raise Unreachable(f"{spec.title} is not installed: there is no command {command!r}{install}")
    return str(Path(found).absolute())


async def check_version(
    executable: str, host: Mapping[str, str], spec: CliSpec, workspaces: WorkspaceFactory | None
) -> str | None:
    """What is wrong with its version; None if nothing is, or if nobody can say. See `version_of`."""
    if not spec.min_version:
        return None
    version = await find_version(executable, host, spec, workspaces)
    if version is None or _order(version) >= _order(spec.min_version):
        return None
    return f"{spec.title} {version} is too old: {spec.min_version} or newer is needed"


async def find_version(
    executable: str, host: Mapping[str, str], spec: CliSpec, workspaces: WorkspaceFactory | None
) -> str | None:
    """Its version; None if it does not say. Looked up once for each program as it stands there now.

    It is run in one of the `workspaces`, with the small environment of any command; without them it is not run at all.
    """
    if not spec.package:  # who knows what a command does that is none of these
        return None
    if (version := _beside(executable, spec.package)) is not None or workspaces is None:
        return version
    key = (executable, _changed_at(executable))
    if key not in _known:
        _known[key] = await _asked(executable, host, workspaces)
    return _known[key]


async def inspect_installation(
    command: str,
    environ: Mapping[str, str],
    spec: CliSpec,
    login_home: str | None,
    workspaces: WorkspaceFactory | None = None,
) -> AgentStatus:
    """All of that, for people. `logins` is the HOME that its login files may be copied from, None if they may not."""
    try:
        executable = find_executable(command, environ, spec)
    except Unreachable as gone:
        return AgentStatus(missing=gone.message)
    version = await find_version(executable, environ, spec, workspaces)
    old = await check_version(executable, environ, spec, workspaces)
    return AgentStatus(executable, version, old or find_login_problem(environ, spec, login_home))


def find_login_problem(environ: Mapping[str, str], spec: CliSpec, login_home: str | None) -> str | None:
    """What is to be done where it has neither a key nor, in the HOME `logins`, a login; None if it may reach its model."""
    if any(environ.get(key) for key in (*spec.key_variables, *spec.keyless_variables)) or not spec.key_variables:
        return None
    if login_home is not None and any((Path(login_home) / name).is_file() for name in spec.login_files):
        return None
    return f'no login: set {" or ".join(spec.key_variables)}, or log in and say login = "copy" in viva.toml'


def _changed_at(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def _beside(executable: str, package: str) -> str | None:
    """The version in the `package.json` of the npm package that a program belongs to."""
    for folder in Path(executable).resolve().parents:
        try:
            about = codec.decode((folder / "package.json").read_bytes())
        except (OSError, codec.DecodeError):
            continue
        if isinstance(about, dict) and about.get("name") == package:
            return str(about.get("version") or "") or None
    return None


async def _asked(executable: str, host: Mapping[str, str], workspaces: WorkspaceFactory) -> str | None:
    try:
        async with workspaces(WorkspaceSpec("empty"), _KEY) as workspace, asyncio.timeout(_ASKED_S):
            argv, env = workspace.sandbox_command([executable, "--version"]), build_environment(host, workspace)
            async with run_command(
                argv, cwd=workspace.path, env=env, limits=CommandLimits(max_bytes=_ASKED_BYTES)
            ) as process:
                text = "\n".join([line.decode(errors="replace") async for line in process.lines()])
    except (TimeoutError, TrialFault):
        return None
    number = _NUMBER.search(to_one_line(text))
    return number[0] if number else None


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
