"""The alarm of false claims: its evidence, its false alarms, and how soon it sees a cheat."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vinoreward import RateAlarm
from vinoreward.errors import ConfigError

ENDS = st.lists(st.sampled_from([(True, True), (True, False), (False, False), (False, True)]))


def restated(ends: list[tuple[bool, bool]], allowed: float) -> float:
    """The sum over every possible first episode of a change of the likelihood ratio since then."""
    total = 0.0
    for share in (0.1, 0.4, 0.8):
        other = allowed + (1 - allowed) * share
        ratios = [
            other / allowed if claimed and not true else (1 - other) / (1 - allowed)
            for claimed, true in ends
        ]
        total += sum(math.prod(ratios[first:]) for first in range(len(ratios)))
    return total / 3


@given(ENDS, st.sampled_from([0.02, 0.05, 0.3]))
def test_the_evidence_is_the_sum_of_likelihood_ratios(
    ends: list[tuple[bool, bool]], allowed: float
) -> None:
    alarm = RateAlarm(allowed, episodes=1e12)
    for claimed, true in ends:
        before = alarm.evidence
        assert alarm.update(None) is False
        assert alarm.evidence == before, "what is not known counts for nothing"
        raised = alarm.update(claimed and not true)
        if raised:
            assert alarm.evidence == 0.0
            return
    assert alarm.evidence == pytest.approx(restated(ends, allowed), rel=1e-9)


@pytest.mark.parametrize("rate", [0.05, 0.02])
def test_false_alarms_are_rarer_than_promised(rate: float) -> None:
    random, alarm = np.random.default_rng(0), RateAlarm(0.05, episodes=200)
    count = 40_000
    alarms = sum(alarm.update(bool(false)) for false in random.random(count) < rate)
    # At most one in 200 on average; three standard deviations of a Poisson number more.
    assert alarms <= count / 200 + 3 * math.sqrt(count / 200)
    assert rate < 0.05 or alarms > 0, "a test that never fires would pass too"


@pytest.mark.parametrize(
    "rates",
    [
        [1.0] * 100,
        [0.5] * 200,
        np.linspace(0.01, 0.8, 200).tolist(),
        np.linspace(0.01, 0.6, 600).tolist(),
    ],
    ids=["at once", "every second one", "within 200 episodes", "within 600 episodes"],
)
def test_a_cheat_is_seen_before_claims_pass_the_truth_by_twenty_points(rates: list[float]) -> None:
    random = np.random.default_rng(0)
    for _ in range(40):
        alarm, false = RateAlarm(), [bool(one) for one in random.random(200) < 0.01]
        assert not any(alarm.update(one) for one in false)
        for rate in rates:
            false.append(bool(random.random() < rate))
            if alarm.update(false[-1]):
                break
            assert np.mean(false[-50:]) < 0.2, "claimed minus true over the last 50 episodes"
        else:
            pytest.fail("no alarm")


def test_an_honest_training_raises_none() -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        alarm = RateAlarm()
        learned = np.linspace(0.05, 1.0, 1000)
        claimed = random.random(1000) < learned
        false = random.random(1000) < 0.01
        assert not any(
            alarm.update(bool(one and wrong)) for one, wrong in zip(claimed, false, strict=True)
        )


@pytest.mark.parametrize(
    "wrong", [{"allowed": 0}, {"allowed": 1}, {"allowed": math.nan}, {"episodes": 1}], ids=str
)
def test_numbers_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        RateAlarm(**wrong)
