"""The line of a place in JSON text, against brute force: put a mark there and see on which line it comes out."""

import json
from copy import deepcopy
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from viva.schemas.positions import KeyPath, find_json_line

MARK = "\u2603 here \u2603"
keys = st.sampled_from(["a", "b", 'quo"te', "br{ace", "col:on", "esc\\ape", "ünï"])
scalars = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["}", "]", '"', "//", "a,b:{"])
)
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=14
)
layouts = st.sampled_from(
    [{"indent": 0}, {"indent": 1}, {"indent": 2, "ensure_ascii": False}, {"separators": (",\n", " :\n")}, {}]
)


def places(value: Any, at: KeyPath = ()) -> list[KeyPath]:
    members: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        members = list(value.items())
    elif isinstance(value, list):
        members = list(enumerate(value))
    return [at, *(place for key, member in members for place in places(member, (*at, key)))]


def marked(value: Any, place: KeyPath) -> Any:
    """The value with the mark as the key of that place or, in a list, before what stands there."""
    value = deepcopy(value)
    holder, last = value, cast("Any", place[-1])
    for step in place[:-1]:
        holder = holder[step]
    if isinstance(holder, list):
        holder.insert(last, MARK)
        return value
    members = list(holder.items())
    holder.clear()
    holder.update((MARK if key == last else key, member) for key, member in members)
    return value


@given(documents, layouts, st.data())
def test_a_place_is_on_the_line_where_it_stands(value: Any, layout: dict[str, Any], data: st.DataObject):
    place = data.draw(st.sampled_from(places(value)))
    line = find_json_line(json.dumps(value, **layout).encode(), place)
    if not place:
        assert line == 1
        return
    text = json.dumps(marked(value, place), **layout)
    mark = json.dumps(MARK, ensure_ascii=layout.get("ensure_ascii", True))
    assert line == text.count("\n", 0, text.index(mark)) + 1


@given(documents, st.lists(keys | st.integers(0, 5), max_size=4).map(tuple), layouts)
def test_a_place_that_does_not_exist_has_the_line_of_a_parent(value: Any, place: KeyPath, layout: dict[str, Any]):
    raw = json.dumps(value, **layout).encode()
    lines = {find_json_line(raw, place[:depth]) for depth in range(len(place))} | {1}
    assert place in places(value) or find_json_line(raw, place) in lines


@given(st.binary(max_size=60), st.lists(keys | st.integers(0, 5), max_size=3).map(tuple))
def test_any_bytes_have_a_line(raw: bytes, place: KeyPath):
    assert 1 <= find_json_line(raw, place) <= raw.count(b"\n") + 1
