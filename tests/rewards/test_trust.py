"""All alarms behind one object; the bound on the precision of claims from a few labels."""

from __future__ import annotations

import re

import numpy as np
import pytest

from vinoreward import PrecisionBound, RateAlarm, TrustMonitor
from vinoreward.errors import ConfigError
from vinoreward.rewards.alarms import Ended, OodImages

ALPHA = 0.05


def bounds(successes: int, failures: int) -> tuple[float, float]:
    bound = PrecisionBound(successes, failures, alpha=ALPHA)
    return bound.low, bound.high


@pytest.mark.parametrize(
    ("successes", "failures"), [(0, 0), (3, 0), (0, 3), (1, 1), (40, 10), (7, 93), (180, 2)]
)
def test_the_bounds_are_where_the_mixture_is_twenty(successes: int, failures: int) -> None:
    """The mixture restated for each precision of a fine grid."""
    grid = np.arange(100_001) / 100_000
    tilts = [sign * size for size in np.geomspace(0.06, 8, 11) for sign in (1, -1)]
    mixture = np.zeros_like(grid)
    for tilt in tilts:
        mean = np.log(1 + grid * (np.exp(tilt) - 1))
        power = successes * (tilt - mean) - failures * mean
        mixture += np.exp(np.minimum(power, 100)) / len(tilts)
    inside = grid[mixture < 1 / ALPHA]
    assert bounds(successes, failures) == pytest.approx((inside.min(), inside.max()), abs=2e-5)


@pytest.mark.parametrize("precision", [0.3, 0.5, 0.9, 0.97])
@pytest.mark.parametrize("population", [None, 120])
def test_the_precision_is_within_the_bounds_after_every_label(
    precision: float, population: int | None
) -> None:
    """In 95 % of all sittings at least; also where all claims of a small run are labelled."""
    random, sittings, missed = np.random.default_rng(0), 1000, 0
    for _ in range(sittings):
        if population is None:
            true, labels = precision, random.random(300) < precision
        else:
            labels = random.permutation(np.arange(population) < round(precision * population))
            true = float(labels.mean())
        sums = np.cumsum(labels)
        pairs = [(int(s), count - int(s)) for count, s in enumerate(sums, 1)]
        missed += any(not low <= true <= high for low, high in (bounds(*one) for one in pairs))
    assert missed <= ALPHA * sittings
    assert population is not None or missed > 0, "a bound that never fails would pass too"


def test_what_nobody_can_tell_widens_the_bounds() -> None:
    clear, unclear = PrecisionBound(20, 5), PrecisionBound(20, 5, unclear=5)
    assert unclear.low < clear.low and unclear.high > clear.high and unclear.labels == 30
    assert unclear.high == PrecisionBound(25, 5).high


def test_numbers_that_cannot_work_are_refused() -> None:
    for wrong in ({"failures": -1}, {"failures": 0, "alpha": 1.0}):
        with pytest.raises(ConfigError, match="counts from 0"):
            PrecisionBound(1, **wrong)  # type: ignore[arg-type]
    for name in ("window", "earliest"):
        with pytest.raises(ConfigError, match=f"{name} is 0"):
            TrustMonitor(**{name: 0})  # type: ignore[arg-type]


def every_test(**more: object) -> TrustMonitor:
    return TrustMonitor(false=RateAlarm(), ood=RateAlarm(), earliest=3, **more)  # type: ignore[arg-type]


HONEST = Ended(claimed=True, true=True, ood=False, length=4)


@pytest.mark.parametrize(
    ("test", "ended", "said"),
    [
        ("false", Ended(True, False, False, 4), "of the last .* claimed successes are false"),
        ("ood", Ended(True, True, True, 4), "unlike those of"),
        ("early", Ended(True, True, False, 2), "claim before step 3, where no success"),
    ],
)
def test_each_kind_of_episode_raises_its_alarm_alone(test: str, ended: Ended, said: str) -> None:
    monitor = every_test()
    assert not any(monitor.add(HONEST) for _ in range(100))
    alarms = [alarm for _ in range(12) for alarm in monitor.add(ended)]
    assert {alarm.test for alarm in alarms} == {test} and len(alarms) >= 2
    assert [alarm.first for alarm in alarms] == [True] + [False] * (len(alarms) - 1)
    assert re.search(said, alarms[0].text)
    assert monitor.raised[test] == len(alarms) == monitor.readings()["alarms"]


def test_a_test_says_nothing_where_what_it_needs_is_not_known() -> None:
    monitor = every_test()
    assert not any(monitor.add(Ended(claimed=True)) for _ in range(100))
    assert monitor.readings() == {"claim_rate": 1.0, "alarms": 0.0}
    none = TrustMonitor()
    assert not any(none.add(Ended(True, False, True, 1)) for _ in range(100))


def test_rates_are_of_the_last_episodes() -> None:
    monitor = every_test(window=4)
    for claimed, ood in ((1, 0), (1, 1), (0, 1), (0, 1), (0, 0)):
        monitor.add(Ended(claimed, claimed, ood, 2))
    readings = monitor.readings()
    rates = [readings[f"{name}_rate"] for name in ("claim", "ood", "early")]
    assert rates == [0.25, 0.75, 0.25]
    assert monitor.false is not None and readings["false_evidence"] == monitor.false.evidence


def test_labels_raise_an_alarm_once_until_the_bound_recovers() -> None:
    monitor = TrustMonitor()
    assert monitor.labelled(PrecisionBound(9, 1)) == []
    (alarm,) = monitor.labelled(PrecisionBound(9, 9))
    assert alarm.test == "precision" and alarm.first and "9 are no successes" in alarm.text
    assert monitor.labelled(PrecisionBound(9, 10)) == [], "the same finding"
    assert monitor.labelled(PrecisionBound(400, 10)) == []
    (again,) = monitor.labelled(PrecisionBound(400, 100))
    assert not again.first and monitor.raised["precision"] == 2
    readings = monitor.readings()
    assert readings["precision_low"] < 0.8 < readings["precision_high"] < 0.9


def test_an_episode_is_ood_where_a_tenth_of_its_images_are() -> None:
    def many(*strange: float) -> bool | None:
        seen = OodImages()
        for one in strange:
            seen.add({"reward_ood": one, "is_success": False})
        return seen.many

    assert many() is None and many(1.0) is False and many(1.01) is True
    assert many(2.0, *[0.1] * 9) is True and many(2.0, *[0.1] * 10) is False
    assert many(*[0.1] * 180, *[3.0] * 20) is True
    blind = OodImages()
    blind.add({"is_success": True})
    assert blind.many is None
