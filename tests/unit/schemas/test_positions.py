"""The line of a key path in JSON, YAML and TOML."""

import pytest

from viva.schemas.positions import create_yaml_line_finder, explain_json_error, find_json_line, find_toml_line

TEXT = b"""
{ "id": "a",
  "turns": [
    {"input": "x, [1]: {2}"},
    {
      "input": "y",
      "asser\\u0074": [
        {"type": "contains"}, 7
      ]
    }
  ],
  "after": null
}
"""


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ((), 2),
        (("id",), 2),
        (("turns",), 3),
        (("turns", 0), 4),
        (("turns", 0, "input"), 4),
        (("turns", 1), 5),
        (("turns", 1, "assert"), 7),
        (("turns", 1, "assert", 0, "type"), 8),
        (("turns", 1, "assert", 1), 8),
        (("after",), 12),
        (("turns", 1, "absent"), 5),
        (("turns", 9, "input"), 3),
        (("id", "deeper"), 2),
        (("absent", "deeper"), 2),
    ],
)
def test_a_json_path_has_its_line_or_that_of_its_parent(place: tuple[str | int, ...], line: int):
    assert find_json_line(TEXT, place) == line


def test_empty_text_is_line_one():
    assert find_json_line(b"", ("a",)) == 1
    assert find_json_line(b"\xff\xfe", ("a",)) == 1


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (b'{"a": 1}\n{', (2, "is not JSON: extra data (column 1)")),
        (b'{"a":\n "b', (2, "is not JSON: unterminated string starting at (column 2)")),
        (b'{"a": 1,\n', (1, "is not JSON: the value that starts here does not end")),
        (b"{'a': 1}", (1, "is not JSON: expecting property name enclosed in double quotes (column 2)")),
        (b'{"a": "\n\xff"}', (2, "is not UTF-8 (byte 0xff); save the file as UTF-8")),
        (b'{"a":\n1\x00}', (2, "contains a NUL character; is this a text file?")),
    ],
)
def test_broken_json_is_explained(raw: bytes, place: tuple[int, str]):
    assert explain_json_error(raw, ValueError("?")) == place


def test_yaml_lines():
    line = create_yaml_line_finder("# c\n- a: 1\n  b:\n    - x\n    - y\n---\nk: v\n")
    assert [line(0), line(0, 0), line(0, 0, "b"), line(0, 0, "b", 1), line(1, "k"), line(1, "absent")] == [
        2,
        2,
        3,
        5,
        7,
        7,
    ]


TOML = """\
# heading
plugins = ["a"]

[defaults]
agent = "x"

[agents."assistants.expense"]
use = "python:./a.py:a"   # comment
  [agents."assistants.expense".options]
  mode = "chat"
[agents.'b']
headers = { X-Key = "v" }
connectors.c.model = "m"
"""


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("plugins",), 2),
        (("plugins", 0), 2),
        (("defaults",), 4),
        (("defaults", "agent"), 5),
        (("defaults", "absent"), 4),
        (("agents", "assistants.expense", "use"), 8),
        (("agents", "assistants.expense", "options", "mode"), 10),
        (("agents", "b", "headers", "X-Key"), 12),
        (("agents", "b"), 11),
        (("nowhere",), 1),
    ],
)
def test_a_toml_key_has_its_line_or_that_of_its_table(place: tuple[str | int, ...], line: int):
    assert find_toml_line(TOML, place) == line
