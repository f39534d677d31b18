"""The laws of `{{variables}}`."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.errors import Undetermined
from viva.text.template import escape_template, fill_variables, has_variables, is_template, list_variables

names = st.sampled_from(["a", "b_1", "c-d", "e.f"])
plain = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="{}"), max_size=6)
pieces = st.lists(
    plain | names.map(lambda name: f"{{{{{name}}}}}") | names.map(lambda name: f"{{{{ {name} }}}}"), max_size=4
).map("".join)
values = st.recursive(
    st.none() | st.integers() | pieces,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=3),
    max_leaves=8,
)
known = st.dictionaries(names, st.integers() | plain | st.lists(st.integers(), max_size=2))


@given(values, known)
def test_what_is_known_is_filled_in_and_the_rest_stays(value: Any, variables: dict[str, Any]):
    filled = fill_variables(value, variables, keep_unknown=True)
    assert set(list_variables(filled)) == set(list_variables(value)) - set(variables)
    assert fill_variables(filled, variables, keep_unknown=True) == filled


@given(values)
def test_without_variables_nothing_changes(value: Any):
    assert fill_variables(value, {}, keep_unknown=True) == value
    if not has_variables(value):
        assert fill_variables(value, {}) == value


@given(values, known)
def test_one_that_is_not_set_is_an_error(value: Any, variables: dict[str, Any]):
    missing = set(list_variables(value)) - set(variables)
    if missing:
        with pytest.raises(Undetermined, match="is not set"):
            fill_variables(value, variables)  # N21
    else:
        assert not has_variables(fill_variables(value, variables))


@given(st.integers() | st.lists(st.integers()) | st.dictionaries(plain, st.integers()))
def test_a_text_that_is_one_variable_becomes_its_value(value: Any):
    assert fill_variables("{{x}}", {"x": value}) == value
    assert fill_variables({"k": ["{{ x }}"]}, {"x": value}) == {"k": [value]}
    assert isinstance(fill_variables("a {{x}}", {"x": value}), str)


texts = st.lists(st.sampled_from(["{{", "{", "}}", "}", "\\", "a", " ", "{{a}}"]), max_size=8).map("".join)


@given(texts)
def test_a_text_that_was_escaped_is_filled_to_itself(text: str):
    written = escape_template(text)
    assert not has_variables(written)
    assert fill_variables(written, {"a": 1}) == text  # N21
    assert is_template(written) == ("{{" in text)


@given(texts, known)
def test_an_escape_survives_until_the_last_filling(text: str, variables: dict[str, Any]):
    once = fill_variables(escape_template(text), variables, keep_unknown=True)
    assert fill_variables(once, variables) == text  # N21: the rows of `for` are filled in first


def test_a_backslash_before_two_braces_is_not_a_variable():
    assert list_variables(r"\{{a}} {{b}}") == ["b"]
    assert fill_variables(r"\{{a}} {{b}}", {"a": 1, "b": 2}) == "{{a}} 2"  # N21
    assert fill_variables(r"{{b}}\{{", {"b": 2}) == "2{{"
