"""Every indicator against a naive restatement, SciPy, or a case with a known answer."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.monitoring import (
    KL,
    CumulativeReward,
    EffectiveSampleSize,
    MonitorBatch,
    PairedReturns,
    PolicyLag,
    QRegret,
    ReturnGap,
    paired_gap,
)
from vinoreward_actors.policies.distributions import Exploration, effective_sample_size
from vinoreward_actors.policies.spec import mlp

LOGITS = mlp(3, 4, head="logits", hidden=(8,))
Q = mlp(3, 4, head="q", hidden=(8,))
GAUSSIAN = mlp(3, 2, head="tanh_gaussian", hidden=(8,))
TANH = mlp(3, 2, head="tanh", hidden=(8,))
NOISE = Exploration(sigma=0.1)
ROWS = 100


def batch(spec, pi, mu, **more):
    rows = len(mu)
    given_by = {
        "versions": np.full(rows, 7),
        "learner_version": 7,
        "network": np.ones(rows, dtype=np.uint8),
        "exploration": NOISE if spec.head == "tanh" else Exploration(),
        **more,
    }
    return MonitorBatch(spec, pi.astype(np.float32), mu.astype(np.float32), **given_by)


def outputs(spec, seed, rows=ROWS):
    return np.random.default_rng(seed).normal(size=(rows, spec.outputs)).astype(np.float32)


@given(seed=st.integers(0, 10_000), scale=st.floats(0.1, 3.0))
def test_discrete_divergences_are_scipys(seed, scale):
    pi, mu = outputs(LOGITS, seed) * np.float32(scale), outputs(LOGITS, seed + 1)
    seen = batch(LOGITS, pi, mu)

    def softmax(logits):
        powers = np.exp(logits.astype(np.float64))
        return powers / powers.sum(1, keepdims=True)

    forward = stats.entropy(softmax(mu), softmax(pi), axis=1)
    backward = stats.entropy(softmax(pi), softmax(mu), axis=1)
    assert KL("mean").update(seen) == pytest.approx(forward.mean(), abs=1e-6)
    assert KL("variance").update(seen) == pytest.approx(forward.var(), abs=1e-6)
    assert KL("max").update(seen) == pytest.approx(forward.max(), abs=1e-6)
    assert KL("mean", "pi_mu").update(seen) == pytest.approx(backward.mean(), abs=1e-6)
    assert KL("max", "pi_mu").update(seen) == pytest.approx(backward.max(), abs=1e-6)


@given(
    logits=hnp.arrays(np.float32, (2, ROWS, 4), elements=st.floats(-(2.0**100), 2.0**100, width=32))
)
def test_unbounded_logits_give_finite_divergences(logits):
    seen = batch(LOGITS, logits[0], logits[1])
    for statistic in ("mean", "variance", "max"):
        assert math.isfinite(KL(statistic).update(seen))
    assert KL("max").update(seen) <= 20.0 + 1e-6


@pytest.mark.parametrize("spec", [LOGITS, Q, GAUSSIAN, TANH], ids=lambda spec: spec.head)
def test_outputs_that_are_not_finite_are_infinitely_far_off(spec):
    pi, mu = outputs(spec, 0), outputs(spec, 1)
    # An infinite action before the tanh is still an action.
    for broken in (np.nan,) if spec.head == "tanh" else (np.nan, np.inf, -np.inf):
        mu[3, 1] = broken
        for statistic in ("max", "variance"):
            assert KL(statistic).update(batch(spec, pi, mu)) == math.inf


def test_deterministic_actions_differ_in_units_of_the_noise():
    pi, mu = outputs(TANH, 0), outputs(TANH, 1)
    apart = (np.tanh(mu.astype(np.float64)) - np.tanh(pi.astype(np.float64))) / 0.1
    seen = batch(TANH, pi, mu)
    # As Gaussians of that sigma: half the squared distance.
    assert KL("max").update(seen) == pytest.approx((0.5 * (apart**2).sum(1)).max(), rel=1e-6)


def test_saturated_actions_that_are_the_same_do_not_count_as_different():
    pi = np.full((ROWS, 2), 9.0)
    assert KL("max").update(batch(TANH, pi, pi + 3.0)) < 1e-6


def test_one_row_in_a_thousand_is_seen_by_the_maximum_until_the_window_has_passed():
    maximum, mean = KL("max", window=1000), KL("mean", window=1000)
    pi = outputs(GAUSSIAN, 0)
    mu = pi.copy()
    mu[17, 0] += 20.0
    largest = maximum.update(batch(GAUSSIAN, pi, mu))
    mean.update(batch(GAUSSIAN, pi, mu))
    assert largest > 20.0
    for _ in range(9):
        assert maximum.update(batch(GAUSSIAN, pi, pi)) == largest
        small = mean.update(batch(GAUSSIAN, pi, pi))
    assert small == pytest.approx(largest / 1000)
    assert maximum.update(batch(GAUSSIAN, pi, pi)) == 0.0
    maximum.update(batch(GAUSSIAN, pi, mu))
    maximum.reset()
    assert maximum.update(batch(GAUSSIAN, pi, pi)) == 0.0


def test_only_compressed_rows_count_unless_said_otherwise():
    pi, mu = outputs(LOGITS, 0), outputs(LOGITS, 0)
    mu[::2] += np.float32([3, 0, 0, 0])
    network = np.arange(ROWS) % 2  # the rows that are off acted in full precision: staleness
    seen = batch(LOGITS, pi, mu, network=network)
    assert KL("max").update(seen) == pytest.approx(0.0)
    assert KL("max", rows="full").update(seen) > 0.5
    assert KL("max", rows="full").name == "kl_mu_pi_max_full"
    assert KL("max", rows="all").update(seen) > 0.5


def test_rows_of_an_earlier_setting_do_not_count():
    pi, mu = outputs(LOGITS, 0), outputs(LOGITS, 1)
    seen = batch(LOGITS, pi, mu, versions=np.repeat([4, 6], ROWS // 2))
    assert math.isnan(KL("max").update(dataclasses.replace(seen, after=6)))
    later = KL("max").update(dataclasses.replace(seen, after=4))
    assert later == KL("max").update(batch(LOGITS, pi[ROWS // 2 :], mu[ROWS // 2 :]))


def test_compression_is_told_from_staleness():
    pi, mu = outputs(LOGITS, 0), outputs(LOGITS, 1)
    # The source says that nothing was lost by compression: all the difference is age.
    old = batch(LOGITS, pi, mu, source=mu, versions=np.full(ROWS, 1))
    assert KL("max", against="source").update(old) == pytest.approx(0.0)
    assert KL("max", against="source").name == "compression_kl_mu_pi_max"
    assert KL("max").update(old) > 0.5
    # Without it, only rows of the learner's very version tell.
    mixed = batch(LOGITS, pi, mu, versions=np.repeat([6, 7], ROWS // 2))
    fresh = batch(LOGITS, pi[ROWS // 2 :], mu[ROWS // 2 :])
    assert KL("max", against="source").update(mixed) == KL("max").update(fresh)
    stale = batch(LOGITS, pi, mu, versions=np.full(ROWS, 6))
    assert math.isnan(KL("max", against="source").update(stale))
    q = batch(Q, pi, mu, source=mu * np.float32(3), versions=np.full(ROWS, 1))
    assert QRegret("max", against="source").update(q) == 0.0
    assert QRegret("max").update(q) > 0.5


@pytest.mark.parametrize("spec", [LOGITS, Q, GAUSSIAN, TANH], ids=lambda spec: spec.head)
def test_no_rows_and_other_heads_give_no_reading(spec):
    full = batch(spec, outputs(spec, 0), outputs(spec, 1), network=np.zeros(ROWS, dtype=int))
    assert math.isnan(KL("max").update(full))
    few = batch(spec, outputs(spec, 0, 5), outputs(spec, 1, 5))
    assert math.isnan(KL("mean").update(few))
    assert math.isnan(EffectiveSampleSize().update(full))
    assert math.isnan(ReturnGap().update(full))
    assert math.isnan(QRegret().update(batch(spec, full.pi, full.mu))) == (spec.head != "q")


def test_a_batch_without_new_rows_gives_no_reading_of_the_old_ones():
    seen = batch(LOGITS, outputs(LOGITS, 0), outputs(LOGITS, 1))
    full = batch(LOGITS, seen.pi, seen.mu, network=np.zeros(ROWS, dtype=int))
    divergence = KL("max")
    before = divergence.update(seen)
    assert math.isnan(divergence.update(full))
    assert divergence.update(seen) == before
    gap = ReturnGap("mean")
    pairs = PairedReturns(np.array([3.0, 5.0]), np.array([1.0, 4.0]))
    assert gap.update(MonitorBatch.of_returns(LOGITS, pairs, 3)) == 1.5
    assert math.isnan(gap.update(full))


def test_lag_is_counted_in_versions():
    pi = outputs(LOGITS, 0, 4)
    seen = batch(LOGITS, pi, pi, versions=np.array([7, 6, 2, 9]))
    assert PolicyLag("mean").update(seen) == pytest.approx(6 / 4)
    assert PolicyLag("max").update(seen) == 5.0


@given(ratios=hnp.arrays(np.float64, st.integers(64, 200), elements=st.floats(-30, 30)))
def test_effective_sample_size_is_its_definition(ratios):
    pi = outputs(LOGITS, 0, len(ratios))
    seen = batch(LOGITS, pi, pi, log_pi=ratios, log_mu=np.zeros(len(ratios)))
    expected = effective_sample_size(ratios)
    assert EffectiveSampleSize().update(seen) == pytest.approx(expected, rel=1e-6)


def test_equal_policies_waste_no_experience():
    pi = outputs(LOGITS, 0)
    rounded = np.random.default_rng(0).normal(scale=1e-6, size=ROWS)
    seen = batch(LOGITS, pi, pi, log_pi=rounded - 800.0, log_mu=np.full(ROWS, -800.0))
    assert EffectiveSampleSize().update(seen) == pytest.approx(1.0)
    assert EffectiveSampleSize("compressed").name == "ess_compressed"
    broken = batch(LOGITS, pi, pi, log_pi=rounded, log_mu=np.full(ROWS, np.nan))
    assert EffectiveSampleSize().update(broken) == 0.0


def test_q_regret_is_what_the_other_choice_costs_and_forgets_the_scale_of_the_reward():
    pi = np.tile(np.float32([1.0, 5.0, 3.0, 3.0]), (ROWS, 1))
    mu = pi.copy()
    mu[0] = [0.0, 0.0, 1.0, 0.0]  # one row in a hundred takes the action worth 3 instead of 5
    for scale in (1.0, 1000.0):
        seen = batch(Q, pi * scale, mu)
        assert QRegret("mean").update(seen) == pytest.approx(2.0 / ROWS / 2.0)
        assert QRegret("max").update(seen) == pytest.approx(2.0 / 2.0)
    assert QRegret("max").update(batch(Q, pi * 0.0, mu)) == 0.0
    assert QRegret("max").update(batch(Q, pi, pi * 1.2 + 7.0)) == 0.0
    mu[5, 2] = np.nan
    assert QRegret("mean").update(batch(Q, pi, mu)) == math.inf


@given(returns=hnp.arrays(np.float64, (2, 12), elements=st.integers(-500, 500).map(float)))
@settings(max_examples=50)
def test_the_return_gap_is_decided_as_by_a_paired_t_test(returns):
    gap = paired_gap(PairedReturns(*returns))
    assert gap.mean == pytest.approx((returns[0] - returns[1]).mean(), abs=1e-9)
    if gap.error > 1e-6:
        test = stats.ttest_rel(returns[0], returns[1], alternative="greater")
        assert gap.mean / gap.error == pytest.approx(test.statistic, rel=1e-6, abs=1e-6)
        if abs(test.pvalue - 0.05) > 1e-6:
            assert gap.worse == (test.pvalue < 0.05)


def test_pairs_show_a_gap_that_the_spread_of_start_states_hides():
    random = np.random.default_rng(0)
    full = random.normal(-150, 90, size=20)
    pairs = PairedReturns(full, full - 5 + random.normal(scale=2, size=20))
    gap = paired_gap(pairs)
    assert gap.worse
    assert not paired_gap(pairs, tolerance=10.0).worse
    assert not paired_gap(PairedReturns(full, full)).worse
    assert stats.ttest_ind(full, pairs.compressed, alternative="greater").pvalue > 0.3
    seen = MonitorBatch.of_returns(LOGITS, pairs, 3)
    assert ReturnGap("mean").update(seen) == pytest.approx(gap.mean)
    assert ReturnGap("relative").update(seen) == pytest.approx(gap.lower / full.std(ddof=1))
    assert ReturnGap("error").update(seen) == pytest.approx(gap.error)
    assert CumulativeReward().update(seen) == pytest.approx(full.mean())
    assert math.isnan(KL("max").update(seen))


def test_the_full_policys_return_needs_no_pair_and_the_gap_does():
    seen = MonitorBatch.of_returns(LOGITS, np.array([3.0, 5.0]), 3)
    assert CumulativeReward().update(seen) == 4.0
    assert all(math.isnan(ReturnGap(each).update(seen)) for each in ("mean", "relative"))
    assert math.isnan(CumulativeReward().update(MonitorBatch.of_returns(LOGITS, np.zeros(0), 3)))


ROW = np.zeros((1, 4))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: batch(LOGITS, ROW[:, :2], ROW), "got pi of shape"),
        (lambda: batch(LOGITS, ROW, ROW, versions=np.zeros(3, dtype=int)), "versions"),
        (lambda: batch(TANH, ROW[:, 2:], ROW[:, 2:], exploration=Exploration()), "sigma above 0"),
        (lambda: PairedReturns(np.zeros(3), np.zeros(4)), "one pair per environment seed"),
        (lambda: PairedReturns(np.zeros(3), np.full(3, np.nan)), "finite"),
        (lambda: paired_gap(PairedReturns(np.zeros(1), np.zeros(1))), "at least 2"),
        (lambda: paired_gap(PairedReturns(ROW[0], ROW[0]), confidence=1.0), "confidence"),
        (lambda: KL("median"), "median"),
        (lambda: KL("max", "pi_pi"), "pi_pi"),
        (lambda: KL("max", rows="some"), "some"),
        (lambda: KL("max", against="some"), "some"),
        (lambda: KL("max", window=0), "0"),
        (lambda: QRegret("median"), "median"),
        (lambda: PolicyLag("median"), "median"),
        (lambda: EffectiveSampleSize("some"), "some"),
        (lambda: ReturnGap("median"), "median"),
    ],
)
def test_what_does_not_fit_is_refused(make, said):
    with pytest.raises((InputError, ConfigError), match=said):
        make()
