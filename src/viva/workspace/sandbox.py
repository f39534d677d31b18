"""Runs a command in bubblewrap: it can write only to its workspace, cannot see the user's home, and its processes end with it.

It keeps the network, which agents need to call models.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from msgspec import Struct

from viva.errors import BadInput

_TEST_TIMEOUT_S = 20.0
_ISOLATION = (
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--die-with-parent",
    "--new-session",
    "--cap-drop",
    "ALL",
)


class Bubblewrap(Struct, frozen=True):
    """A working sandbox. `hidden` folders are empty inside, except for their `readable` parts."""

    binary: str
    hidden: tuple[str, ...]
    readable: tuple[str, ...] = ()
    search_path: str = ""
    """The PATH of programs."""

    def wrap_command(self, argv: Sequence[str], *, path: str, writable: Sequence[str]) -> list[str]:
        """Return the command inside the sandbox, with the working directory `path`."""
        command = [self.binary, *_ISOLATION, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        for folder in self.hidden:
            command += ["--tmpfs", folder]
        for entry in (*self.readable, *self._find_program_folders(argv[0])):
            command += ["--ro-bind-try", entry, entry]
        for entry in dict.fromkeys(writable):
            command += ["--bind", entry, entry]
        return [*command, "--chdir", path, "--", *argv]

    def _find_program_folders(self, name: str) -> list[str]:
        """Return the folders of the program and of its link target, if they are hidden."""
        program = shutil.which(name, path=self.search_path)
        paths = dict.fromkeys((program, os.path.realpath(program))) if program else ()
        return [entry for place in paths for entry in _list_program_folders(os.path.dirname(place), self.hidden)]


def find_bubblewrap(environ: Mapping[str, str]) -> Bubblewrap:
    """Return the sandbox; BadInput if bubblewrap is missing or does not work."""
    binary = shutil.which("bwrap", path=environ.get("PATH"))
    if binary is None:
        raise BadInput.of(
            "--sandbox bwrap: bubblewrap is not installed (apt install bubblewrap, dnf install bubblewrap; Linux only)"
        )
    hidden = tuple(
        dict.fromkeys(os.path.realpath(entry) for entry in _list_private_folders(environ) if os.path.isdir(entry))
    )
    sandbox = Bubblewrap(binary, hidden, tuple(_list_readable_folders(environ, hidden)), environ.get("PATH", ""))
    _test_sandbox(sandbox)
    return sandbox


def _list_private_folders(environ: Mapping[str, str]) -> list[str]:
    """Return the user's home and the folders where programs leave files and sockets."""
    home = environ.get("HOME", "")
    folders = ["/tmp", "/var/tmp", "/run", environ.get("TMPDIR", ""), tempfile.gettempdir(), home]  # noqa: S108 -- hidden
    return [folder for folder in folders if folder and os.path.realpath(folder) != "/"]


def _list_readable_folders(environ: Mapping[str, str], hidden: Sequence[str]) -> list[str]:
    """Return folders of programs inside hidden folders, and the resolver configuration."""
    folders: list[str] = []
    for folder in environ.get("PATH", "").split(os.pathsep):
        if os.path.isabs(folder) and os.path.isdir(folder):
            folders += _list_program_folders(folder, hidden)
    resolver = os.path.realpath("/etc/resolv.conf")
    if _is_hidden(resolver, hidden):
        folders.append(resolver)
    return list(dict.fromkeys(folders))


def _list_program_folders(folder: str, hidden: Sequence[str]) -> list[str]:
    """Return a hidden folder of programs with what they need beside it, but no folder with the user's own files."""
    if not _is_hidden(folder, hidden) or os.path.realpath(folder) in hidden:
        return []
    parent = os.path.dirname(folder)
    if os.path.basename(folder) not in _BIN_NAMES or os.path.realpath(parent) in hidden:
        return [folder]
    return [folder, f"{parent}/lib"] if os.path.basename(parent) == ".local" else [parent]


_BIN_NAMES = frozenset({"bin", ".bin", "sbin", "shims"})


def _is_hidden(path: str, hidden: Sequence[str]) -> bool:
    real = os.path.realpath(path)
    return any(real == folder or real.startswith(f"{folder}/") for folder in hidden)


def _test_sandbox(sandbox: Bubblewrap) -> None:
    """Run a command in the sandbox. BadInput if that fails: user namespaces may be disabled or forbidden."""
    command = sandbox.wrap_command(["true"], path="/", writable=())
    try:
        process = subprocess.run(
            command, capture_output=True, check=False, timeout=_TEST_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadInput.of(f"--sandbox bwrap: {sandbox.binary} cannot be run: {error}") from error
    if process.returncode:
        reason = process.stderr.decode(errors="replace").strip() or f"exit code {process.returncode}"
        raise BadInput.of(
            f"--sandbox bwrap: bubblewrap is installed but cannot create a sandbox here ({reason}); "
            "it needs unprivileged user namespaces, which the kernel or a container may forbid"
        )
