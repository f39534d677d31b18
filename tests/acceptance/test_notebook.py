"""The notebook in examples/ runs in a real kernel, and shows the run."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook.ipynb"


@pytest.mark.filterwarnings("default")  # of nbclient and its kernel
def test_the_notebook_runs_and_shows_its_results(tmp_path: Path):
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [cell["outputs"] for cell in notebook.cells if cell.cell_type == "code"]
    assert "agent: Order W-1001 is on its way, due Friday." in outputs[1][0]["text"]
    progress, result = outputs[2]
    assert progress["data"]["text/plain"] == "3 of 3 · ✓ 2 ✗ 1"  # one line, updated in place
    assert "unknown" in result["data"]["text/html"]
    assert "passed" in outputs[3][0]["data"]["text/html"]
    assert outputs[4][-1]["data"]["text/plain"] == "6"
    assert not (tmp_path / ".viva").exists()
