"""A hundred thousand cases load in a stream."""

import json
import subprocess
import sys
from pathlib import Path

MEASURED = """
import resource, sys
from pathlib import Path
from viva.cli.main import main
try:
    main(["check", *sys.argv[1:]])
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def peak_bytes(folder: Path, name: str, count: int) -> int:
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, name], cwd=folder, capture_output=True, text=True, timeout=300, check=True
    )
    said, peak = done.stdout.splitlines()
    assert said == f"{count} case{'s' if count > 1 else ''} in 1 file: no problems"
    return int(peak)


def test_a_hundred_thousand_cases_are_checked_without_being_held(tmp_path: Path):
    """The file is larger than all the memory that it costs: neither its text nor its objects are kept, let alone both."""
    written = {
        "name": "A case as people write them, with a name, some tags and two turns",
        "tags": ["expense", "smoke"],
        "turns": [
            {"input": "I want to submit an expense", "assertions": [{"type": "contains", "value": "type of expense"}]},
            {"input": "Business travel", "assertions": [{"type": "tool_called", "name": "create_expense"}]},
        ],
        "metadata": {"notes": "x" * 200},
    }
    with (tmp_path / "large.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"id": f"case-{i}", **written}) + "\n" for i in range(100_000))
    (tmp_path / "small.jsonl").write_text(json.dumps({"id": "one", **written}), encoding="utf-8")
    size = (tmp_path / "large.jsonl").stat().st_size
    grown = peak_bytes(tmp_path, "large.jsonl", 100_000) - peak_bytes(tmp_path, "small.jsonl", 1)
    assert size > 50_000_000
    assert grown < size / 2, f"{grown / 1e6:.0f} MB for a file of {size / 1e6:.0f} MB"
