"""The limit on open files: raised as far as the conversations at once need it, or said in one sentence."""

import subprocess
import sys

import pytest

from viva.session.file_limit import compute_file_limit

SHOW = """
from resource import RLIMIT_NOFILE, getrlimit
from viva.session.file_limit import raise_file_limit
with raise_file_limit(1000) as warning:
    print(getrlimit(RLIMIT_NOFILE)[0], warning is None)
print(getrlimit(RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("parallel", "soft", "hard", "limit"),
    [(4, 1024, 4096, 1024), (1000, 1024, 4096, 2200), (5000, 1024, 100_000, 10_200), (2000, 1024, 4096, 4096)],
)
def test_it_is_raised_as_far_as_needed(parallel: int, soft: int, hard: int, limit: int):
    assert compute_file_limit(parallel, soft, hard) == (limit, None)


def test_a_system_that_allows_too_few_is_named():
    limit, warning = compute_file_limit(5000, 1024, 4096)
    assert limit == 4096
    assert warning is not None
    assert "4096" in warning
    assert "--parallel" in warning


def test_a_process_raises_its_limit_and_restores_it():
    command = ["sh", "-c", f"ulimit -Hn 4000; ulimit -Sn 256; exec {sys.executable} -c '{SHOW}'"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["2200", "True", "256"]
