"""bubblewrap around a command: it writes to its workspace and nowhere else, sees nothing of the user's home, and its
processes end with it. The network stays: without it no model can be asked.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from msgspec import Struct

from viva.errors import BadInput

_TRY_S = 20.0
_ALONE = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--new-session", "--cap-drop", "ALL")


class Bubblewrap(Struct, frozen=True):
    """A sandbox that works here. What is `hidden` is empty inside, but for what is `shown` of it, which can be read."""

    binary: str
    hidden: tuple[str, ...]
    readable: tuple[str, ...] = ()
    search_path: str = ""
    """The PATH on which programs are found."""

    def wrap_command(self, argv: Sequence[str], *, path: str, writable: Sequence[str]) -> list[str]:
        """The command inside of the sandbox, at home in `path`."""
        command = [self.binary, *_ALONE, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        for folder in self.hidden:
            command += ["--tmpfs", folder]
        for each in (*self.readable, *self._program(argv[0])):
            command += ["--ro-bind-try", each, each]
        for each in dict.fromkeys(writable):
            command += ["--bind", each, each]
        return [*command, "--chdir", path, "--", *argv]

    def _program(self, name: str) -> list[str]:
        """Where the program is, and where its link leads, if that is hidden."""
        found = shutil.which(name, path=self.search_path)
        places = dict.fromkeys((found, os.path.realpath(found))) if found else ()
        return [each for place in places for each in _homes_of(os.path.dirname(place), self.hidden)]


def find_bubblewrap(environ: Mapping[str, str]) -> Bubblewrap:
    """The sandbox; BadInput with what is missing where there is none, or where it does not work."""
    binary = shutil.which("bwrap", path=environ.get("PATH"))
    if binary is None:
        raise BadInput.of(
            "--sandbox bwrap: bubblewrap is not installed (apt install bubblewrap, dnf install bubblewrap; Linux only)"
        )
    hidden = tuple(dict.fromkeys(os.path.realpath(each) for each in _private(environ) if os.path.isdir(each)))
    found = Bubblewrap(binary, hidden, tuple(_shown(environ, hidden)), environ.get("PATH", ""))
    _try(found)
    return found


def _private(environ: Mapping[str, str]) -> list[str]:
    """The user's home, and where other programs leave their files and sockets."""
    home = environ.get("HOME", "")
    folders = ["/tmp", "/var/tmp", "/run", environ.get("TMPDIR", ""), tempfile.gettempdir(), home]  # noqa: S108 -- hidden
    return [folder for folder in folders if folder and os.path.realpath(folder) != "/"]


def _shown(environ: Mapping[str, str], hidden: Sequence[str]) -> list[str]:
    """Programs that are installed in a hidden place, and how names of hosts are looked up."""
    found: list[str] = []
    for folder in environ.get("PATH", "").split(os.pathsep):
        if os.path.isabs(folder) and os.path.isdir(folder):
            found += _homes_of(folder, hidden)
    resolver = os.path.realpath("/etc/resolv.conf")
    if _is_hidden(resolver, hidden):
        found.append(resolver)
    return list(dict.fromkeys(found))


def _homes_of(folder: str, hidden: Sequence[str]) -> list[str]:
    """A hidden folder of programs, and what they need beside it: all of it, but for places where people keep their own files."""
    if not _is_hidden(folder, hidden) or os.path.realpath(folder) in hidden:
        return []
    above = os.path.dirname(folder)
    if os.path.basename(folder) not in _PROGRAMS or os.path.realpath(above) in hidden:
        return [folder]
    return [folder, f"{above}/lib"] if os.path.basename(above) == ".local" else [above]


_PROGRAMS = frozenset({"bin", ".bin", "sbin", "shims"})


def _is_hidden(path: str, hidden: Sequence[str]) -> bool:
    real = os.path.realpath(path)
    return any(real == folder or real.startswith(f"{folder}/") for folder in hidden)


def _try(sandbox: Bubblewrap) -> None:
    """User namespaces may be off, or forbidden in a container: only trying tells."""
    command = sandbox.wrap_command(["true"], path="/", writable=())
    try:
        ended = subprocess.run(command, capture_output=True, check=False, timeout=_TRY_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as wrong:
        raise BadInput.of(f"--sandbox bwrap: {sandbox.binary} does not run: {wrong}") from wrong
    if ended.returncode:
        said = ended.stderr.decode(errors="replace").strip() or f"exit code {ended.returncode}"
        raise BadInput.of(
            f"--sandbox bwrap: bubblewrap is installed but cannot make a sandbox here ({said}); "
            "it needs unprivileged user namespaces, which the kernel or a container may forbid"
        )
