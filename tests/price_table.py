"""Makes the table of model prices, `src/viva/llm/prices.json`, from the package genai-prices.

Run as a program it says whether the table is stale; with `--write` it writes it. `make prices` installs the newest
genai-prices first, and the table's version becomes the pinned one of pyproject.toml.
"""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import genai_prices
from genai_prices import types
from genai_prices.data import providers

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "src/viva/llm/prices.json"
PROJECT = ROOT / "pyproject.toml"
RATES = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok", "requests_kcount")
"""The prices of what Viva counts. genai-prices has others, of pictures and searches, for example."""
_PIN = re.compile(r'"genai-prices==[^"]*"')
_LITERALS = re.compile(r"(?:(?:[\w:/-]|\\[.-])(?![?*{]))*")
_SIGNS = {
    types.ClauseEquals: ("=", "equals"),
    types.ClauseStartsWith: ("^", "starts_with"),
    types.ClauseEndsWith: ("$", "ends_with"),
    types.ClauseContains: ("*", "contains"),
    types.ClauseRegex: ("~", "regex"),
}


def render_table() -> str:
    """The table as JSON, one model per line."""
    rows = [_encode_provider(each) for each in providers]
    head = _dump({"source": f"genai-prices {genai_prices.__version__}"})
    return f'{head[:-1]},"providers":[\n' + ",\n".join(rows) + "\n]}\n"


def _encode_provider(provider: types.Provider) -> str:
    head = {
        "id": provider.id,
        "url_start": _find_literal_start(provider.api_pattern),
        "url": provider.api_pattern,
        "names": provider.provider_match and _encode_clause(provider.provider_match),
        "models_named": provider.model_match and _encode_clause(provider.model_match),
        "fallbacks": provider.fallback_model_providers or [],
    }
    models = ",\n".join("  " + _dump(_encode_model(each)) for each in provider.models)
    return f'{_dump({key: value for key, value in head.items() if value})[:-1]},"models":[\n{models}\n]}}'


def _find_literal_start(pattern: str) -> str:
    """The text that every match of a pattern starts with: a URL that does not start with it cannot match."""
    depth = 0
    for character in re.sub(r"\\.|\[[^]]*]", "", pattern):
        depth += (character == "(") - (character == ")")
        assert character != "|" or depth, f"{pattern} has two starts"
    start = _LITERALS.match(pattern)
    return re.sub(r"\\(.)", r"\1", start[0]) if start else ""


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _encode_clause(clause: Any) -> Any:
    """A sign and a text; a list means any of them, an object all of them."""
    if isinstance(clause, types.ClauseOr):
        return [_encode_clause(each) for each in clause.or_]
    if isinstance(clause, types.ClauseAnd):
        return {"all": [_encode_clause(each) for each in clause.and_]}
    sign, field = _SIGNS[type(clause)]
    text = getattr(clause, field)
    return sign + (text if sign == "~" else text.lower())


def _encode_model(model: types.ModelInfo) -> list[Any]:
    """Which names it has, its price, and the prices of certain times: the last one that applies counts."""
    if isinstance(model.prices, types.ModelPrice):
        return [_encode_clause(model.match), _encode_price(model.prices)]
    first, *others = model.prices
    assert all(each.constraint is not None for each in others), model.id
    timed = [[_encode_time(each.constraint), _encode_price(each.prices)] for each in others]
    return [_encode_clause(model.match), _encode_price(first.prices), *timed]


def _encode_time(constraint: Any) -> str:
    """A first day, or the hours of a day: `2026-10-01`, `16:30-00:30`. Both are UTC."""
    if isinstance(constraint, types.StartDateConstraint):
        return constraint.start_date.isoformat()
    hours = (constraint.start_time, constraint.end_time)
    assert all(not each.second and not each.microsecond and not each.utcoffset() for each in hours), constraint
    return "-".join(f"{each:%H:%M}" for each in hours)


def _encode_price(price: types.ModelPrice) -> list[Any]:
    """The rates in the order of RATES. One that depends on the length of the input: `[base, start, rate, start, rate]`."""
    rates = [_encode_rate(getattr(price, name)) for name in RATES]
    while rates and rates[-1] is None:
        rates.pop()
    return rates


def _encode_rate(rate: Any) -> Any:
    if isinstance(rate, types.TieredPrices):
        return [_number(rate.base), *_flatten((tier.start, _number(tier.price)) for tier in rate.tiers)]
    return None if rate is None else _number(rate)


def _flatten(pairs: Iterable[tuple[int, int | float]]) -> list[int | float]:
    return [each for pair in pairs for each in pair]


def _number(value: Any) -> int | float:
    return int(value) if value == int(value) else float(value)


def pin_version(project: str) -> str:
    """The text of pyproject.toml with the installed version of genai-prices."""
    return _PIN.sub(f'"genai-prices=={genai_prices.__version__}"', project)


def main() -> None:
    table, project = render_table(), pin_version(PROJECT.read_text(encoding="utf-8"))
    if "--write" in sys.argv:
        TABLE.write_text(table, encoding="utf-8")
        PROJECT.write_text(project, encoding="utf-8")
    elif TABLE.read_text(encoding="utf-8") != table:
        sys.exit("stale: run `make prices`")


if __name__ == "__main__":
    main()
