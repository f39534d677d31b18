"""Installs bubblewrap for the tests in a sandbox, where the system's package manager lets us."""

import shutil
import subprocess
import sys

from system_packages import install_packages


def works() -> bool:
    """Is bubblewrap installed, and does the kernel allow a sandbox?"""
    if (binary := shutil.which("bwrap")) is None:
        return False
    command = [binary, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--unshare-pid", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    if not works():
        install_packages("bubblewrap")
    sys.exit(0 if works() else "bubblewrap does not work here: the tests in a sandbox will not run")
