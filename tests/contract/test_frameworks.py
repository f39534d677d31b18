"""The contract of frameworks (`tests/frameworks/framework_contract.py`), run in the environment of each, with the real framework."""

import os
import subprocess

import pytest

from real_frameworks import ENVIRONMENTS, EVERY_RUN, FOLDER, find_python


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in EVERY_RUN else pytest.mark.soak) for name in ENVIRONMENTS]
)
def test_the_adapter_of_a_framework_keeps_the_contract(name: str):
    python = find_python(name)
    if python is None:
        return  # said at the end of the run: NOT RUN
    keys = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "OPENAI_", "LANG"))}
    files = ["framework_contract.py", *sorted(path.name for path in FOLDER.glob(f"{name}_*.py"))]
    command = [python, "-m", "pytest", "-c", "pytest.ini", *files]
    done = subprocess.run(
        command, cwd=FOLDER, env=keys | {"FRAMEWORK": name}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
