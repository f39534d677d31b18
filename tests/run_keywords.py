"""Makes src/viva/api/run_keywords.py: the typed keywords of `viva.run`, from the table of run options.

As a program it says whether the file is stale; with `--write` it writes it: `make reference`.
"""

import sys
import textwrap
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from viva.session.option_values import list_keyword_docs, list_written_keywords
from viva.session.run_options import KEYWORDS, Option
from viva.stats.sequential import SequentialTest

FILE = Path(__file__).resolve().parents[1] / "src" / "viva" / "api" / "run_keywords.py"
HEADER = '''"""Keywords of `viva.run`. Made from the table in session/run_options.py: `make reference` writes it anew."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from viva.stats.sequential import SequentialTest


class RunKeywords(TypedDict, total=False):
    """The keywords of `viva.run` beside those that its signature names."""
'''


def make_module() -> str:
    docs = list_keyword_docs()
    from viva.api.run import run

    fields = [
        f"    {keyword}: {keyword_type(option)}\n{docstring(docs[keyword])}"
        for keyword, option in KEYWORDS.items()
        if keyword not in list_written_keywords(run)
    ]
    return HEADER + "\n" + "\n".join(fields)


def keyword_type(option: Option) -> str:
    """What a keyword takes: also texts for paths and durations, and any sequence."""
    if option.is_duration:
        text = "str | float"
    elif option.item_type is Path:
        text = "str | Path | Sequence[str | Path]" if option.is_list else "str | Path"
    elif option.is_list:
        text = f"Sequence[{type_text(option.item_type)}]"
    else:
        text = type_text(option.type)
    return text if option.default is not None or "Any" in text.split(" | ") or "None" in text else f"{text} | None"


def type_text(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "Literal[" + ", ".join(f'"{choice}"' for choice in get_args(kind)) + "]"
    if get_origin(kind) in (UnionType, Union):
        return " | ".join(map(type_text, get_args(kind)))
    if kind is type(None):
        return "None"
    if kind in (SequentialTest, bool, int, float, str):
        return kind.__name__
    return str(kind).replace("collections.abc.", "").replace("typing.", "")


def docstring(text: str) -> str:
    if len(text) <= 108:
        return f'    """{text}"""\n'
    lines = textwrap.wrap(text, 115)
    return "".join(f"    {line}\n" for line in (f'"""{lines[0]}', *lines[1:], '"""'))


if __name__ == "__main__":
    made = make_module()
    is_stale = not FILE.exists() or FILE.read_text(encoding="utf-8") != made
    if is_stale and "--write" in sys.argv:
        FILE.write_text(made, encoding="utf-8")
        print("wrote", FILE)
        is_stale = False
    sys.exit(is_stale)
