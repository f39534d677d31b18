"""The project of the command-line tests: it runs `viva` in this process."""

from pathlib import Path

import pytest

from project import InProcessProject


@pytest.fixture
def project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> InProcessProject:
    return InProcessProject(tmp_path, capsys)
