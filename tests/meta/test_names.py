"""The names of the distribution and the command."""

import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_INSTALL = re.compile(r"""pip install (?:-\S+ )*['"]?viva(?!-eval)\b""")


def test_the_distribution_is_viva_eval() -> None:
    """`viva` on the package index is another project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (project["name"], list(project["scripts"])) == ("viva-eval", ["viva"])


def test_no_file_says_to_install_the_other_viva() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [
        ROOT / name for name in listed.split() if Path(name).suffix in {".md", ".py", ".yml", ".toml", ".html", ".tsx"}
    ]
    wrong = [str(file.relative_to(ROOT)) for file in files if _INSTALL.search(file.read_text(encoding="utf-8"))]
    assert wrong == []
