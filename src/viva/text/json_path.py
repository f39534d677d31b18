"""JSONPath (RFC 9535). Paths are compiled once; patterns in them have a time limit."""

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, cast

from viva.errors import CheckError
from viva.model import codec
from viva.text.pattern import PATTERN_TIMEOUT_S, LazyPattern, cache_short_texts

_DOT = LazyPattern(r"\\.|\[(?:\\.|[^\]\\])*\]|\.", re.DOTALL)
_PLAIN_PATH = re.compile(r"\$(?:\.[A-Za-z_][A-Za-z0-9_]*|\[(?:0|[1-9][0-9]{0,8})\])*")
_PLAIN_STEP = re.compile(r"\.(\w+)|([0-9]+)")


def add_path_root(path: str) -> str:
    """The path from the root: `a.b` means `$.a.b`, `[0]` means `$[0]`."""
    if path.startswith("$"):
        return path
    return f"${path}" if path.startswith(("[", ".")) else f"$.{path}"


FindValues = Callable[[Any], list[Any]]
"""Finds the values of all nodes of a document, or raises CheckError."""


@cache_short_texts(4096, 2000)
def compile_path(path: str) -> FindValues:
    """Compiles a path; raises ValueError, with the mistake, for an invalid one."""
    if not path.strip():
        raise ValueError("the path is empty; write for example $.order.status")
    rooted = add_path_root(path)
    if _PLAIN_PATH.fullmatch(rooted):  # most paths are: `$.order.items[0].price`
        return partial(_follow_steps, [step[1] or int(step[2]) for step in _PLAIN_STEP.finditer(rooted)])
    return _compile_with_library(path, rooted)


def _compile_with_library(path: str, rooted: str) -> FindValues:
    from jsonpath_rfc9535 import JSONPathError  # imported with the first path that needs it, to keep start-up fast

    try:
        query = _create_environment().compile(rooted)
    except JSONPathError as error:
        hint = "; write such a key as $['some-key']" if "-" in path or " " in path else ""
        raise ValueError(f"{path!r} is not a JSONPath (RFC 9535): {str(error).splitlines()[0]}{hint}") from error
    if query.singular_query():  # `$['some-key'][-1]`
        selectors = [selector for segment in query.segments for selector in segment.selectors]
        return partial(_follow_steps, [each.name if hasattr(each, "name") else each.index for each in selectors])

    def find_values(document: Any) -> list[Any]:
        try:
            return query.find(document).values()
        except JSONPathError as error:
            raise CheckError(f"path {path}: {error}", deterministic=True) from error
        except TimeoutError:
            raise CheckError(
                f"path {path}: its pattern took more than {PATTERN_TIMEOUT_S:g}s: make it simpler"
            ) from None

    return find_values


def _follow_steps(steps: Sequence[str | int], document: Any) -> list[Any]:
    """The value at the end of the keys and indexes, if it is there."""
    for step in steps:
        if not isinstance(document, dict if isinstance(step, str) else list):
            return []
        try:
            document = cast("Any", document)[step]
        except (KeyError, IndexError):
            return []
    return [document]


def find_values_at(path: str, document: Any) -> list[Any]:
    """The values of all nodes at `path` in a document. Raises CheckError if a search of it fails."""
    return compile_path(path)(document)


@cache
def _create_environment() -> Any:
    """RFC 9535 with a time limit on the patterns of `match()` and `search()`."""
    import regex
    from iregexp_check import check
    from jsonpath_rfc9535 import JSONPathEnvironment
    from jsonpath_rfc9535.function_extensions import Match

    class LimitedMatch(Match):
        def __init__(self, *, whole: bool) -> None:
            self.whole = whole

        def __call__(self, string: object, pattern: object) -> bool:
            if not isinstance(string, str) or not isinstance(pattern, str) or not check(pattern):
                return False
            compiled = regex.compile(_DOT.sub(lambda sign: r"[^\n\r]" if sign[0] == "." else sign[0], pattern))
            test = compiled.fullmatch if self.whole else compiled.search
            return test(string, timeout=PATTERN_TIMEOUT_S) is not None

    environment = JSONPathEnvironment()
    environment.max_recursion_depth = codec.OWN_MAX_DEPTH
    environment.function_extensions["match"] = LimitedMatch(whole=True)
    environment.function_extensions["search"] = LimitedMatch(whole=False)
    return environment
