"""The environment of a command: small, and without personal values."""

from pathlib import Path

from trial_workspaces import folders, opened
from viva.model.case import WorkspaceSpec
from viva.workspace.environment import build_environment
from viva.workspace.folders import TrialWorkspace

HOST = {
    "PATH": "/bin",
    "LANG": "de_DE.UTF-8",
    "LC_TIME": "C",
    "TMPDIR": "/var/tmp",
    "https_proxy": "http://proxy:1",
    "NO_PROXY": "localhost",
    "HOME": "/home/me",
    "XDG_CONFIG_HOME": "/home/me/.config",
    "XDG_RUNTIME_DIR": "/run/user/1",
    "GEMINI_API_KEY": "key",
    "OPENAI_API_KEY": "other key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "SSH_AUTH_SOCK": "/run/ssh",
    "NODE_OPTIONS": "--inspect",
}


def test_a_command_gets_path_locale_proxy_its_key_and_a_home_and_tmpdir_of_its_own(tmp_path: Path):
    """P10."""

    async def use(folder: TrialWorkspace) -> None:
        found = build_environment(HOST, folder, ["GEMINI_API_KEY", "NOT_SET"], {"ADDED": "by config", "BOTH": "config"})
        home = folder.home
        assert found == {
            "PATH": "/bin",
            "LANG": "de_DE.UTF-8",
            "LC_TIME": "C",
            "https_proxy": "http://proxy:1",
            "NO_PROXY": "localhost",
            "GEMINI_API_KEY": "key",
            "HOME": home,
            "TMPDIR": folder.tmp,
            "XDG_CONFIG_HOME": f"{home}/.config",
            "XDG_CACHE_HOME": f"{home}/.cache",
            "XDG_DATA_HOME": f"{home}/.local/share",
            "XDG_STATE_HOME": f"{home}/.local/state",
            "CASE": "of the playbook",
            "BOTH": "config",
            "ADDED": "by config",
        }

    taken = {name: HOST[name] for name in ("HOME", "TMPDIR", "XDG_CONFIG_HOME")}
    spec = WorkspaceSpec("empty", env={"CASE": "of the playbook", "BOTH": "case", **taken})
    opened(folders(tmp_path), spec, use)
