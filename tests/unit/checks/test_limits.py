"""max_latency, max_first_token, max_cost, max_tokens, max_turns."""

import pytest

from viva.model.message import ModelCall, Reply, ToolCall
from viva.testing.check_context import make_check_context


def used(*calls: ModelCall) -> Reply:
    return Reply("ok", calls=calls)


CHEAP = ModelCall("m", input_tokens=60, output_tokens=40, cost_usd=0.01)
UNPRICED = ModelCall("mystery-1", input_tokens=60, output_tokens=40)


@pytest.mark.parametrize(
    ("value", "over", "status"),
    [
        ("100ms", "turn", "passed"),
        ("99ms", "turn", "failed"),
        (0.1, "turn", "passed"),
        (1, "turn", "passed"),
        ("200ms", "case", "failed"),
        ("300ms", "case", "passed"),
        ("1m", "case", "passed"),
    ],
)
def test_max_latency(bench, value, over, status):  # N25: three turns of 100 ms each
    assert (
        bench.evaluate({"type": "max_latency", "value": value}, make_check_context("a", "b", "c", over=over)).status
        == status
    )


def streamed(first_token_ms: float | None) -> Reply:
    return Reply("ok", first_token_ms=first_token_ms)


@pytest.mark.parametrize(
    ("value", "replies", "over", "status"),
    [
        ("300ms", [streamed(300)], "turn", "passed"),
        ("299ms", [streamed(300)], "turn", "failed"),
        (0.3, [streamed(900), streamed(300)], "turn", "passed"),
        (0.3, [streamed(900), streamed(300)], "case", "failed"),
        ("1s", [streamed(900), streamed(None)], "case", "error"),
        ("1s", [streamed(None), streamed(900)], "case", "error"),
        ("1s", [streamed(900), streamed(None)], "turn", "error"),
    ],
)
def test_max_first_token(bench, value, replies, over, status):
    verdict = bench.evaluate({"type": "max_first_token", "value": value}, make_check_context(*replies, over=over))
    assert verdict.status == status  # N24: an unknown time is an error


@pytest.mark.parametrize(
    ("reply", "reason"),
    [(Reply("ok"), "was not streamed"), (Reply(tool_calls=(ToolCall("clock"),)), "had no text")],
)
def test_an_unknown_time_to_the_first_token_says_why(bench, reply, reason):  # N24
    verdict = bench.evaluate({"type": "max_first_token", "value": "1s"}, make_check_context(reply))
    assert reason in verdict.reason


@pytest.mark.parametrize(
    ("value", "replies", "over", "status"),
    [
        (0.01, [used(CHEAP)], "turn", "passed"),
        (0.009, [used(CHEAP)], "turn", "failed"),
        (0.015, [used(CHEAP), used(CHEAP)], "turn", "passed"),
        (0.015, [used(CHEAP), used(CHEAP)], "case", "failed"),
        (0.02, [used(CHEAP, CHEAP)], "turn", "passed"),
        (0.06, [used(*[CHEAP] * 6)], "turn", "passed"),  # the sum is 0.060000000000000005
        (0.0599999, [used(*[CHEAP] * 6)], "turn", "failed"),
        (0, ["no usage was reported"], "turn", "error"),
        (1, [used(CHEAP, UNPRICED)], "turn", "error"),
        (0, [used(CHEAP, UNPRICED)], "turn", "error"),
        (1, [used(UNPRICED), used(CHEAP)], "turn", "passed"),
        (1, [used(UNPRICED), used(CHEAP)], "case", "error"),
    ],
)
def test_max_cost(bench, value, replies, over, status):  # N25; N24: an unknown price is an error
    assert (
        bench.evaluate({"type": "max_cost", "value": value}, make_check_context(*replies, over=over)).status == status
    )


@pytest.mark.parametrize(
    ("call", "remedy"), [(UNPRICED, "give its connector a `price`"), (ModelCall(input_tokens=1), "report its `model`")]
)
def test_an_unknown_price_says_what_to_do(bench, call: ModelCall, remedy: str):
    verdict = bench.evaluate({"type": "max_cost", "value": 1}, make_check_context(used(call)))
    assert (verdict.status, remedy in verdict.reason) == ("error", True)


def test_an_unknown_price_is_an_error_also_with_negate(bench):  # N24
    verdict = bench.evaluate({"type": "max_cost", "value": 1, "negate": True}, make_check_context(used(UNPRICED)))
    assert verdict.status == "error"
    assert "mystery-1" in verdict.reason


@pytest.mark.parametrize(
    ("value", "replies", "over", "status"),
    [
        (100, [used(CHEAP)], "turn", "passed"),
        (99, [used(CHEAP)], "turn", "failed"),
        (150, [used(CHEAP), used(CHEAP)], "turn", "passed"),
        (150, [used(CHEAP), used(CHEAP)], "case", "failed"),
        (100, ["words", used(CHEAP)], "case", "passed"),
        (100, ["words"], "turn", "error"),
        (100, [used(ModelCall("m"))], "turn", "error"),
    ],
)
def test_max_tokens(bench, value, replies, over, status):  # N25
    assert (
        bench.evaluate({"type": "max_tokens", "value": value}, make_check_context(*replies, over=over)).status == status
    )


@pytest.mark.parametrize(
    ("value", "over", "status"),
    [(3, "turn", "passed"), (2, "turn", "failed"), (3, "case", "passed"), (2, "case", "failed")],
)
def test_max_turns(bench, value, over, status):  # N25
    assert (
        bench.evaluate({"type": "max_turns", "value": value}, make_check_context("a", "b", "c", over=over)).status
        == status
    )


@pytest.mark.parametrize(
    ("definition", "replies", "reason"),
    [
        ({"type": "max_latency", "value": "50ms"}, ["a"], "took 100ms, allowed 50ms"),
        ({"type": "max_cost", "value": 0.005}, [used(CHEAP)], "cost $0.01, allowed $0.005"),
        ({"type": "max_tokens", "value": 50}, [used(CHEAP)], "used 100 tokens, allowed 50"),
        ({"type": "max_turns", "value": 1}, ["a", "b"], "took 2 turns, allowed 1"),
    ],
)
def test_a_failure_shows_both_numbers(bench, definition, replies, reason):
    assert bench.evaluate(definition, make_check_context(*replies)).reason == reason


@pytest.mark.parametrize(
    ("type_", "reply", "actual"),
    [("max_latency", "a", "100ms"), ("max_first_token", streamed(1234.5), "1.2345s")],
)
def test_durations_are_not_bare_seconds(bench, type_, reply, actual):
    verdict = bench.evaluate({"type": type_, "value": 0.05}, make_check_context(reply))
    assert (verdict.expected, verdict.actual) == ("50ms", actual)


@pytest.mark.parametrize(
    ("type_", "value", "label"),
    [
        ("max_latency", 90, "max_latency 1m30s"),
        ("max_cost", 0.05, "max_cost $0.05"),
        ("max_tokens", 1000, "max_tokens 1000"),
        ("max_turns", 5, "max_turns 5"),
    ],
)
def test_labels(bench, type_, value, label):
    assert bench.label(type_, value=value) == label
