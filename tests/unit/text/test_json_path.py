"""Paths that name one place are followed step by step, with the result that the library gives. N25"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonpath_rfc9535 import JSONPathError

from viva.text.json_path import _compile_with_library, _create_environment, add_path_root, compile_path

DOCUMENTS = [
    {"a": {"b": [5, {"c": None}], "": 1, "0": "text"}, "x y": [[]]},
    [[1, 2], {"a": 3}],
    "text",
    None,
    {},
]
PATHS = ["$", "a", "$.a.b[0]", "$.a.b[1].c", "$.a.b[-1]", "$.a.b[2]", "$.a.b[-3]", "$.a['']", "$.a[0]", "$['x y'][0]", "[0][1]", "$[1].a", "$.a.b.c", "$..a", "$.a.*"]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_a_path_finds_what_the_library_finds(path: str):
    query = _create_environment().compile(add_path_root(path))
    for document in DOCUMENTS:
        assert compile_path(path)(document) == query.find(document).values()


@given(st.text("$.[]abé_019-'* ", min_size=1, max_size=10), st.sampled_from(DOCUMENTS))
def test_a_path_is_valid_if_it_is_for_the_library(path: str, document: object):  # N25
    rooted = add_path_root(path)
    try:
        expected = _create_environment().compile(rooted).find(document).values()
    except JSONPathError:
        with pytest.raises(ValueError, match=r"(?i)path"):
            compile_path(path)
    else:
        assert compile_path(path)(document) == _compile_with_library(path, rooted)(document) == expected
