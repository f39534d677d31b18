"""Installs Debian's chromium for the browser tests, where the system's package manager lets us; says so where it does not."""

import shutil
import sys

from system_packages import install_packages

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGES = ("chromium", "fonts-dejavu-core")


def found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


if __name__ == "__main__":
    if found() is None:
        install_packages(*PACKAGES)
    if found() is None:
        print("NOT RUN: the browser tests: there is no chromium, and it cannot be installed here", file=sys.stderr)
        sys.exit(1)
