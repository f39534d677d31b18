"""`for`: expands one case definition into one case per row."""

from collections.abc import Mapping
from typing import Any, cast

from viva.model import codec
from viva.schemas.validation import find_violations
from viva.text.template import fill_variables, unescape_template


def expand_rows(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The case itself or, with `for`, one case per row with `{{key}}` filled in and a suffix on its id."""
    if "for" not in value:
        return [value]
    rest = {key: item for key, item in value.items() if key != "for"}
    rows = cast("list[Mapping[str, Any]]", value["for"])
    filled = [_with_texts(_unescape(fill_variables(rest, row, keep_unknown=True))) for row in rows]
    # An id that names a variable tells its rows apart by itself.
    return [
        case if case["id"] != value["id"] else {**case, "id": f"{value['id']}-{i}"} for i, case in enumerate(filled, 1)
    ]


_FILLED_LATER = frozenset(
    {"input", "attachments", "assertions", "assert", "turns", "simulator", "checkpoints", "final_assertions"}
)
"""Fields that are filled again when the case runs. In all others only `for` fills variables."""


def _unescape(case: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item if key in _FILLED_LATER else unescape_template(item) for key, item in case.items()}


def _with_texts(case: Any) -> Any:
    """Convert a filled-in number to text where only text is allowed."""
    for violation in find_violations("native", case):
        holder, last = case, violation.path[-1:]
        for step in violation.path[:-1]:
            holder = holder[step]
        if last and isinstance(holder[last[0]], bool | int | float):
            holder[last[0]] = codec.compact_json(holder[last[0]])
    return case
