"""The names of the distribution and the command, and the words of the code."""

import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PRIVATE_WORDS = re.compile(
    r"\b(?:Utterance|Judged|Sighting|Ending|Talk|Taping|Studio|Desk|Surroundings|Heard|Nobody|Undecidable|NotSent|Garbled)\b"
)
"""Names that the field does not use. The glossary in ARCHITECTURE.md has the right ones."""
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


def test_the_code_uses_the_words_of_the_glossary() -> None:
    sources = (ROOT / "src" / "viva").rglob("*.py")
    found = {path.name: _PRIVATE_WORDS.findall(path.read_text(encoding="utf-8")) for path in sources}
    assert {name: words for name, words in found.items() if words} == {}
