"""The street door from inside: the same commands as in the acceptance tests, without a process for each."""

from pathlib import Path
from typing import Any

import pytest

from project import Ended, Project
from viva.cli.main import main


class Indoors(Project):
    """Runs commands in this process."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, said: pytest.CaptureFixture[str]) -> None:
        super().__init__(folder)
        self._patch = patch
        self._said = said

    def viva(self, *arguments: str, **kwargs: Any) -> Ended:
        self._patch.chdir(self.folder)
        for name, value in kwargs.pop("env", {}).items():
            self._patch.setenv(name, value)
        assert not kwargs, "what else a process may be given needs a process"
        self._said.readouterr()
        with pytest.raises(SystemExit) as left:
            main(arguments)
        said = self._said.readouterr()
        return Ended(int(left.value.code or 0), said.out, said.err)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Project:
    return Indoors(tmp_path, monkeypatch, capsys)
