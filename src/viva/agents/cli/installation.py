"""Whether a CLI is installed, its version, and what is missing.

The version of an npm package is read from its files. Other programs are run with `--version`, with a time limit, in an
empty workspace and the sandbox. A command of the user's config is never run for that: it may do anything.
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

_VERSION_S = 10.0
_VERSION_BYTES = 1_000_000
_KEY = Key("", "version")
_NUMBER = re.compile(r"\d+(?:\.\d+)+")
_versions: dict[tuple[str, int], str | None] = {}


def find_executable(command: str, environ: Mapping[str, str], spec: CliSpec) -> str:
    """The path of a command's program. Unreachable if there is none."""
    path = shutil.which(command, path=environ.get("PATH", os.defpath))
    if path is None:
        install = f"; npm install -g {spec.package} installs it" if spec.package else ""
        raise Unreachable(
            f"{spec.title} is not installed: there is no command {command!r}{install}", deterministic=True
        )
    return str(Path(path).absolute())


async def check_version(
    executable: str, host: Mapping[str, str], spec: CliSpec, workspaces: WorkspaceFactory | None
) -> str | None:
    """The problem of a version that is too old; None if it is new enough or unknown. See `find_version`."""
    if not spec.min_version:
        return None
    version = await find_version(executable, host, spec, workspaces)
    if version is None or _parse_version(version) >= _parse_version(spec.min_version):
        return None
    return f"{spec.title} {version} is too old: {spec.min_version} or newer is needed"


async def find_version(
    executable: str, host: Mapping[str, str], spec: CliSpec, workspaces: WorkspaceFactory | None
) -> str | None:
    """The version of a CLI; None if it is unknown. Cached by the program's path and modification time.

    The program is run in one of the `workspaces`; without them it is not run.
    """
    if not spec.package:  # an unknown command may do anything
        return None
    if (version := _read_package_version(executable, spec.package)) is not None or workspaces is None:
        return version
    key = (executable, _get_modification_time(executable))
    if key not in _versions:
        _versions[key] = await _run_version_command(executable, host, workspaces)
    return _versions[key]


async def inspect_installation(
    command: str,
    environ: Mapping[str, str],
    spec: CliSpec,
    login_home: str | None,
    workspaces: WorkspaceFactory | None = None,
) -> AgentStatus:
    """The state of a CLI for `viva agents`. `login_home` is the HOME whose login files may be copied."""
    try:
        executable = find_executable(command, environ, spec)
    except Unreachable as error:
        return AgentStatus(missing=error.message)
    version = await find_version(executable, environ, spec, workspaces)
    old = await check_version(executable, environ, spec, workspaces)
    return AgentStatus(executable, version, old or find_login_problem(environ, spec, login_home))


def find_login_problem(environ: Mapping[str, str], spec: CliSpec, login_home: str | None) -> str | None:
    """What to do about a missing key or login; None if the CLI may reach its model."""
    if any(environ.get(key) for key in (*spec.key_variables, *spec.keyless_variables)) or not spec.key_variables:
        return None
    if login_home is not None and any((Path(login_home) / name).is_file() for name in spec.login_files):
        return None
    return f'no login: set {" or ".join(spec.key_variables)}, or log in and set login = "copy" in viva.toml'


def _get_modification_time(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def _read_package_version(executable: str, package: str) -> str | None:
    """The version in the `package.json` of the npm package of a program."""
    for folder in Path(executable).resolve().parents:
        try:
            about = codec.decode((folder / "package.json").read_bytes())
        except (OSError, codec.DecodeError):
            continue
        if isinstance(about, dict) and about.get("name") == package:
            return str(about.get("version") or "") or None
    return None


async def _run_version_command(executable: str, host: Mapping[str, str], workspaces: WorkspaceFactory) -> str | None:
    try:
        async with workspaces(WorkspaceSpec("empty"), _KEY) as workspace, asyncio.timeout(_VERSION_S):
            argv, env = workspace.sandbox_command([executable, "--version"]), build_environment(host, workspace)
            async with run_command(
                argv, cwd=workspace.path, env=env, limits=CommandLimits(max_bytes=_VERSION_BYTES)
            ) as process:
                text = "\n".join([line.decode(errors="replace") async for line in process.lines()])
    except (TimeoutError, TrialFault):
        return None
    number = _NUMBER.search(to_one_line(text))
    return number[0] if number else None


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part[:9]) for part in re.findall(r"[0-9]+", version)[:3])
