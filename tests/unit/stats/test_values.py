"""Means and percentiles by nearest rank."""

from random import Random

import numpy as np
import pytest

from viva.stats.values import ValueSummary, nearest_rank, summarize_values


def test_no_values_have_no_summary():
    assert summarize_values([]) is None


def test_one_value_is_every_number_of_its_summary():
    assert summarize_values([3.5]) == ValueSummary(1, 3.5, 3.5, 3.5)


def test_order_does_not_matter():
    values = [float(value) for value in range(1, 101)]
    Random(1).shuffle(values)
    assert summarize_values(values) == ValueSummary(100, 50.5, 50.0, 95.0)


def test_p95_is_the_maximum_below_twenty_values_and_not_from_twenty_on():
    assert summarize_values(range(1, 20)) == ValueSummary(19, 10.0, 10, 19)
    assert summarize_values(range(1, 21)) == ValueSummary(20, 10.5, 10, 19)


@pytest.mark.parametrize("count", [1, 2, 19, 20, 21, 99, 100, 101])
def test_nearest_rank_is_numpys_inverted_cdf(count):
    ordered = sorted(Random(count).random() for _ in range(count))
    for percent in range(1, 101):
        # numpy takes the share as a float: half a rank less keeps 0.07 * 100 from being more than 7.
        share = (percent * count - 50) / (100 * count) if percent * count % 100 == 0 else percent / 100
        assert nearest_rank(ordered, percent) == np.quantile(ordered, share, method="inverted_cdf")


def test_there_is_no_percentile_outside_one_to_a_hundred():
    for percent in (0, -1, 101):
        with pytest.raises(ValueError, match="from 1 to 100"):
            nearest_rank([1.0], percent)
