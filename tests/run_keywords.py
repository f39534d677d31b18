"""Makes src/viva/api/run_options.py: `viva.RunOptions` and the keywords of `viva.run`, from the table of run options.

As a program it says whether the file is stale; with `--write` it writes it: `make reference`.
"""

import ast
import sys
import textwrap
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from viva.session.options.keyword_values import build_keyword_docs
from viva.session.options.run_options import KEYWORDS, Option
from viva.stats.sequential import SequentialTest

FILE = Path(__file__).resolve().parents[1] / "src" / "viva" / "api" / "run_options.py"
HEADER = '''"""The options of `viva.run`. Made from the table in session/options/run_options.py: `make reference` regenerates it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from viva.check import AgentFunction
from viva.session.options.keyword_values import check_keyword_values
from viva.stats.sequential import SequentialTest


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run besides the keywords of `viva.run`: `viva.run(..., options=viva.RunOptions(fail_fast=True))`.

    They are the flags of `viva test`. A wrong value raises BadInput, which names it and says what would be right.
    """

'''
MIDDLE = '''
    def __post_init__(self) -> None:
        check_keyword_values(vars(self))


class RunKeywords(TypedDict, total=False):
    """The keywords of `viva.run`, for functions that pass them on."""

'''


def list_signature_keywords() -> list[str]:
    """The keywords in the signature of `viva.run`. It is read, not imported: it needs the file that is made here."""
    tree = ast.parse((FILE.parent / "run.py").read_text(encoding="utf-8"))
    run = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "run")
    return [each.arg for each in run.args.kwonlyargs if each.arg in KEYWORDS]


def make_module() -> str:
    docs = build_keyword_docs()
    written = list_signature_keywords()
    options = [
        f"    {keyword}: {keyword_type(option)} = {default_text(option)}\n{docstring(docs[keyword])}"
        for keyword, option in KEYWORDS.items()
        if keyword not in (*written, "inputs", "agent")
    ]
    keywords = [f"    {name}: {keyword_type(KEYWORDS[name])}\n{docstring(docs[name])}" for name in written]
    return HEADER + "\n".join(options) + MIDDLE + "\n".join([*keywords, OPTIONS_KEYWORD])


OPTIONS_KEYWORD = '''    options: RunOptions | None
    """The other options of the run."""
'''


def default_text(option: Option) -> str:
    if isinstance(option.default, str):
        return f'"{option.default}"'
    return "Path()" if option.default == Path() else repr(option.default)


def keyword_type(option: Option) -> str:
    """What a keyword takes: also texts for paths and durations, and any sequence."""
    if option.takes_one:
        return "Any"
    if option.is_duration:
        text = "str | float"
    elif option.item_type is Path:
        text = "str | Path | Sequence[str | Path]" if option.is_list else "str | Path"
    elif option.is_list:
        text = f"Sequence[{type_text(option.item_type)}]"
    else:
        text = type_text(option.type) + (" | AgentFunction" if option.takes_function else "")
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
