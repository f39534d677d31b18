"""Installs packages of the system that tests need, where its package manager lets us.

`python tests/system_packages.py nginx systemd-analyze=systemd` installs what has no such command: `command=package`, or one
name for both.
"""

import os
import shutil
import subprocess
import sys


def install_packages(*packages: str) -> None:
    """As root with apt-get only: no password is asked for. Services are not started."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    quietly = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (("update",), ("install", "-y", "--no-install-recommends", *packages)):
        argv = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", *command]
        subprocess.run(argv, env=quietly, stdout=subprocess.DEVNULL, check=False)


def main() -> int:
    pairs = [(name.partition("=")[0], name.rpartition("=")[2]) for name in sys.argv[1:]]
    if missing := [package for command, package in pairs if shutil.which(command) is None]:
        install_packages(*missing)
    left = [command for command, _ in pairs if shutil.which(command) is None]
    for command in left:
        print(f"{command} cannot be installed here: the tests with it will not run", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
