"""Agreement of people with verdicts."""

import pytest

from viva.model.label import Label, LabelValue
from viva.model.record import Status
from viva.stats.agreement import measure_agreement


@pytest.mark.parametrize(
    ("given", "kappa"),
    [
        ([("passed", "agree"), ("failed", "agree")], 1.0),
        ([("passed", "disagree"), ("failed", "disagree")], -1.0),
        ([("passed", "agree"), ("passed", "disagree")], None),  # all verdicts are the same
        ([("failed", "agree"), ("failed", "disagree")], None),
        ([("passed", "agree"), ("failed", "disagree")], None),  # all people's verdicts are the same
        ([("failed", "agree"), ("passed", "disagree")], None),
        ([("passed", "unsure")], None),
    ],
)
def test_agreement_beyond_chance_needs_both_verdicts_of_both_sides(
    given: list[tuple[Status, LabelValue]], kappa: float | None
):
    agreement = measure_agreement(
        Label(at="", who="ada", suite="s", case=str(number), verdict=verdict, label=label)
        for number, (verdict, label) in enumerate(given)
    )
    assert agreement is not None
    assert agreement.kappa == kappa
