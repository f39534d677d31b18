"""Caches of other people's texts have a limit in bytes."""

import tracemalloc

from viva.awaiting.detector import detect_awaiting
from viva.llm.price import compute_cost
from viva.model.connector import Connector
from viva.model.message import Reply
from viva.text.pattern import cache_short_texts, compile_pattern


def test_short_texts_are_kept_and_long_ones_are_not():
    asked: list[str] = []

    @cache_short_texts(2, 3)
    def length(text: str) -> int:
        asked.append(text)
        return len(text)

    assert [length(text) for text in ("abc", "abc", "abcd", "abcd")] == [3, 3, 4, 4]
    assert asked == ["abc", "abcd", "abcd"]


def test_long_replies_patterns_and_names_of_models_are_not_kept():  # N23
    connector = Connector(name="c", provider="openai", base_url="")
    detect_awaiting(Reply("Hello?"))
    compute_cost(connector, "m", 1, 1)
    compile_pattern("a")
    tracemalloc.start()
    try:
        for number in range(15):
            text = f"{number} " + "x" * 100_000
            detect_awaiting(Reply(text))
            compute_cost(connector, text, 1, 1)
            compile_pattern(text[:5000])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000
