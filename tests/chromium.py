"""Installs Debian's chromium for the browser tests, where the system's package manager lets us; says so where it does not."""

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGES = ("chromium", "fonts-dejavu-core")


def found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def install() -> bool:
    """As root with apt-get only: nobody's password is asked for."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    quietly = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    wait = ("-o", "DPkg::Lock::Timeout=120")
    commands = (("update",), ("install", "-y", "--no-install-recommends", *PACKAGES))
    for command in commands:
        done = subprocess.run(["apt-get", "-qq", *wait, *command], env=quietly, stdout=subprocess.DEVNULL, check=False)
        if done.returncode != 0 and command[0] == "install":
            return False
    return found() is not None


if __name__ == "__main__":
    if found() is None and not install():
        print("NOT RUN: the browser tests: there is no chromium, and it cannot be installed here", file=sys.stderr)
        sys.exit(1)
