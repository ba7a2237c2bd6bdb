"""The monitor: it stops a compression that hurts before returns show it, and says why."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.errors import ConfigError
from vinoreward_actors.monitoring import (
    KL,
    CompressionSetting,
    Indicator,
    KLMonitor,
    LinearAlpha,
    Monitor,
    MonitorBatch,
    PairedReturns,
    PolicyLag,
    Strategy,
    SwitchPrecision,
    Threshold,
    default_monitor,
)
from vinoreward_actors.monitoring.monitor import GAUSSIAN_KL_MAX
from vinoreward_actors.monitoring.strategy import Limit
from vinoreward_actors.policies.distributions import Exploration
from vinoreward_actors.policies.spec import mlp

GAUSSIAN = mlp(3, 1, head="tanh_gaussian", hidden=(8,))
SOFTMAX = mlp(3, 2, head="logits", hidden=(8,))
LOGITS = mlp(3, 4, head="logits", hidden=(8,))
INT8 = CompressionSetting(bits=8)
LEARNER_KL_MAX = Limit("kl_mu_pi_max", bad=6.0, good=3.0)
ROWS = 256


def batch(spec, pi, mu, version, **more):
    rows = {
        "versions": np.full(len(mu), version),
        "network": np.ones(len(mu), dtype=np.uint8),
        **more,
    }
    return MonitorBatch(
        spec, pi.astype(np.float32), mu.astype(np.float32), learner_version=version, **rows
    )


def gaussian_batch(usual, rare, part, version, seed=0):
    """Return rows whose KL is about ``usual`` squared and, in a part of them, up to ``rare``."""
    random = np.random.default_rng([seed, version])
    log_std = np.full((ROWS, 1), -1.0)
    mean = random.normal(scale=0.7, size=(ROWS, 1))
    # Half the squared distance in standard deviations is the divergence.
    off = random.normal(scale=np.sqrt(usual), size=(ROWS, 1))
    off[random.random(ROWS) < part] = np.sqrt(2.0 * rare)
    pi = np.concatenate([mean, log_std], 1)
    mu = np.concatenate([mean + off * np.exp(-1.0), log_std], 1)
    return batch(GAUSSIAN, pi, mu, version)


# What trained policies showed (mean and largest KL); part is how rare the largest ones are.
HARMFUL = {
    "nncf_default": (0.02, 92.0, 0.007),
    "nncf_mixed": (0.02, 24.0, 0.02),
    "four_bits_collapsed": (0.02, 13.6, 0.01),
}
HARMLESS = {
    "fp16": (1e-7, 1e-6, 0.01),
    "int8_minmax_first_layer_fp32": (2e-5, 0.01, 0.01),
    "four_bits": (0.002, 0.035, 0.01),
    "pruned_distilled": (0.004, 0.32, 0.01),
    "int8_minmax": (0.02, 1.4, 0.01),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_the_default_stops_what_hurts_though_the_mean_error_is_small(name):
    usual, rare, part = HARMFUL[name]
    monitor = default_monitor("tanh_gaussian", INT8)
    for version in range(1, 9):
        setting = monitor.observe(gaussian_batch(usual, rare, part, version))
    assert not setting.enabled
    # No evaluation has taken place yet: the returns have had no say.
    change = monitor.changes[0]
    assert change.update <= 4
    assert change.what == "enabled True -> False"
    assert change.reason.startswith("compression_kl_mu_pi_max is ")
    assert "above its limit 6" in str(change)
    before = monitor.readings[change.update - 1].values
    assert before["compression_kl_mu_pi_max"] > GAUSSIAN_KL_MAX.bad
    assert before["compression_kl_mu_pi_mean"] < GAUSSIAN_KL_MAX.bad / 3


@pytest.mark.parametrize("name", HARMLESS)
def test_the_default_lets_through_what_does_not_hurt(name):
    usual, rare, part = HARMLESS[name]
    monitor = default_monitor("tanh_gaussian", INT8)
    for version in range(1, 41):
        setting = monitor.observe(gaussian_batch(usual, rare, part, version))
    assert setting == INT8
    assert not monitor.changes


def test_rare_decisive_rows_count_though_most_batches_have_none():
    monitor = default_monitor("tanh_gaussian", INT8)
    for version in range(1, 100):
        part = 1.5 / ROWS if version % 12 == 0 else 0.0
        if not monitor.observe(gaussian_batch(0.001, 90.0, part, version)).enabled:
            break
    assert monitor.changes[0].update <= 36
    assert monitor.readings[-1].values["kl_mu_pi_mean"] < 0.5


def softmax_batch(rare, version, *, age=0.0):
    """Return rows of a softmax policy: one in 128 has a KL of ``rare``, all are ``age`` old."""
    random = np.random.default_rng(version)
    source = random.normal(size=(ROWS, 2))
    mu = source.copy()
    low, high = 0.0, 20.0
    for _ in range(60):  # moves the odds until they are that far off
        middle = 0.5 * (low + high)
        odds = np.exp([0.0, middle])
        p = odds / odds.sum()
        low, high = (low, middle) if (p * np.log(2.0 * p)).sum() > rare else (middle, high)
    source[::128] = 0.0
    mu[::128] = [0.0, low]
    pi = source + random.normal(scale=age, size=source.shape)
    return batch(SOFTMAX, pi, mu, version, source=source, versions=np.full(ROWS, version - 3))


@pytest.mark.parametrize(
    ("rare", "acts"), [(0.001, True), (0.063, True), (0.235, False), (0.381, False)]
)
def test_softmax_policies_have_a_limit_of_their_own_which_age_does_not_touch(rare, acts):
    monitor = default_monitor("logits", INT8)
    for version in range(5, 12):
        monitor.observe(softmax_batch(rare, version, age=0.5))
    assert monitor.setting.enabled is acts
    assert monitor.readings[0].values["compression_kl_mu_pi_max"] == pytest.approx(rare, rel=1e-3)
    assert monitor.readings[0].values["kl_mu_pi_max"] > 0.2


def test_without_sources_what_no_age_explains_is_still_caught():
    monitor = default_monitor("tanh_gaussian", INT8)
    for version in range(5, 10):
        seen = gaussian_batch(0.02, 92.0, 0.01, version)
        monitor.observe(batch(GAUSSIAN, seen.pi, seen.mu, version, versions=seen.versions - 2))
    assert not monitor.setting.enabled
    assert monitor.changes[0].reason.startswith("kl_mu_pi_max_unsourced is ")


@pytest.mark.parametrize("head", ["tanh", "tanh_gaussian"])
def test_a_learner_that_moves_far_in_one_push_keeps_a_compression_that_is_exact(head):
    spec = mlp(3, 2, head=head, hidden=(8,))
    monitor = default_monitor(head, INT8)
    random = np.random.default_rng(0)
    for version in range(5, 20):
        source = random.normal(size=(ROWS, spec.outputs))
        pi = source + 4.0
        pi[:, 2:] = source[:, 2:] = -1.0
        rows = batch(
            spec, pi, source + 1e-4, version,
            source=source.astype(np.float32), versions=np.full(ROWS, version - 1),
            exploration=Exploration(sigma=0.2),
        )  # fmt: skip
        assert monitor.observe(rows) == INT8
    readings = monitor.readings[-1].values
    assert readings["kl_mu_pi_max"] > 6.0
    assert readings["compression_kl_mu_pi_max"] < 0.01


def test_a_deterministic_policy_of_unknown_source_is_left_to_the_returns():
    spec = mlp(3, 2, head="tanh", hidden=(8,))
    monitor = default_monitor("tanh", INT8)
    mu = np.random.default_rng(0).normal(size=(ROWS, 2))
    for version in range(5, 15):
        rows = batch(
            spec, mu + 4.0, mu, version,
            versions=np.full(ROWS, version - 1), exploration=Exploration(sigma=0.2),
        )  # fmt: skip
        assert monitor.observe(rows) == INT8


@pytest.mark.parametrize("head", ["logits", "q", "tanh_gaussian", "tanh"])
def test_the_default_watches_every_head(head):
    spec = mlp(3, 4, head=head, hidden=(8,))
    random = np.random.default_rng(0)
    good, bad = default_monitor(head, INT8), default_monitor(head, INT8)
    more = {"exploration": Exploration(sigma=0.1)} if head == "tanh" else {}
    for version in range(1, 6):
        pi = random.normal(size=(ROWS, spec.outputs)) * (100.0 if head == "q" else 1.0)
        pi[:3, :2] = 4.0, -4.0  # decisive rows; for Q more than the usual spread of 100
        pi[:3] *= 200.0 if head == "q" else 1.0
        mu = pi.copy()
        mu[:3] = -pi[:3]
        good.observe(batch(spec, pi, pi * 1.001, version, **more))
        bad.observe(batch(spec, pi, mu, version, **more))
    assert good.setting == INT8
    assert not bad.setting.enabled


def test_a_worse_return_stops_what_the_divergence_did_not_show():
    monitor = default_monitor("tanh_gaussian", INT8)
    random = np.random.default_rng(0)
    full = random.normal(-150, 90, size=20)
    harmless = PairedReturns(full, full - 0.3)
    assert monitor.observe(MonitorBatch.of_returns(GAUSSIAN, harmless, 1)) == INT8
    worse = PairedReturns(full, full - 200 + random.normal(scale=30, size=20))
    assert not monitor.observe(MonitorBatch.of_returns(GAUSSIAN, worse, 2)).enabled
    assert "return_gap_relative" in monitor.changes[0].reason


@pytest.mark.parametrize(
    ("spec", "broken"), [(GAUSSIAN, math.nan), (LOGITS, math.inf), (LOGITS, -math.inf)]
)
@pytest.mark.parametrize(
    "make",
    [lambda head: default_monitor(head, INT8), lambda _: Monitor([PolicyLag()], None, INT8)],
    ids=["default", "no strategy"],
)
def test_one_output_that_is_not_a_number_stops_compression_at_once_and_for_good(make, spec, broken):
    pi = np.random.default_rng(0).normal(size=(ROWS, spec.outputs))
    mu = pi.copy()
    mu[5, 1] = broken
    monitor = make(spec.head)
    assert monitor.observe(batch(spec, pi, pi, 1)).enabled
    assert not monitor.observe(batch(spec, pi, mu, 2)).enabled
    assert monitor.changes[-1].reason == "the compressed network gave NaN or infinity in 1 rows"
    for version in range(3, 30):
        assert not monitor.observe(batch(spec, pi, pi, version)).enabled
    assert len(monitor.changes) == 1
    monitor.begin(INT8)
    assert monitor.observe(batch(spec, pi, pi, 40)).enabled


def test_a_network_that_could_not_act_stops_compression_at_once_and_for_good():
    """Also between two looks, and although no row of it is ever seen."""
    pi = np.zeros((ROWS, 4))
    monitor = default_monitor("logits", INT8)
    assert monitor.observe(batch(LOGITS, pi, pi, 1)).enabled
    assert not monitor.halt("actor 3 fell over it", 5).enabled
    assert str(monitor.changes[-1]).startswith("learner version 5: ")
    assert monitor.changes[-1].reason == monitor.halted == "actor 3 fell over it"
    assert monitor.changes[-1].update > monitor.readings[-1].update
    monitor.halt("another one", 6)
    again = default_monitor("logits", INT8)
    again.load_state(monitor.state())
    for one in (monitor, again):
        for version in range(7, 20):
            assert not one.observe(batch(LOGITS, pi, pi, version)).enabled
        assert one.halted == "actor 3 fell over it"
        assert len(one.changes) == 1
    monitor.begin(INT8)
    assert monitor.observe(batch(LOGITS, pi, pi, 40)).enabled


@pytest.mark.parametrize(
    ("whose", "said"),
    [
        ("full", "full precision network"),
        ("learner", "learner's network"),
        ("log_mu", "compressed network"),
    ],
)
def test_whose_numbers_are_broken_is_said(whose, said):
    sound, broken, log_mu = np.zeros((ROWS, 4)), np.zeros((ROWS, 4)), np.zeros(ROWS)
    broken[0] = log_mu[0] = np.nan
    seen = {
        "full": batch(LOGITS, sound, broken, 1, network=np.zeros(ROWS, dtype=np.uint8)),
        "learner": batch(LOGITS, broken, sound, 1),
        "log_mu": batch(LOGITS, sound, sound, 1, log_pi=log_mu, log_mu=log_mu),
    }[whose]
    monitor = default_monitor("logits", INT8)
    assert not monitor.observe(seen).enabled
    assert said in monitor.halted


def test_rows_of_before_a_change_do_not_count_after_it():
    guard = Threshold((LEARNER_KL_MAX,), ({"bits": 16}, {"enabled": False}), cooldown=0)
    monitor = Monitor([KL("max")], guard, INT8)
    bad = gaussian_batch(0.01, 50.0, 0.1, 10)
    assert monitor.observe(bad).bits == 16
    # The ring still holds experience of the earlier network; the window has been emptied.
    for _ in range(5):
        assert monitor.observe(bad).enabled
        assert "kl_mu_pi_max" not in monitor.readings[-1].values
    assert not monitor.observe(gaussian_batch(0.01, 50.0, 0.1, 11)).enabled


class Does(Strategy):
    """Wants the same at every look."""

    def __init__(self, wants):
        self.wants = wants

    def decide(self, readings, setting):
        return self.wants(readings, setting)


def test_alpha_does_not_empty_windows():
    wants = Does(lambda _, setting: setting.changed({"alpha": 0.5}))
    monitor = Monitor([KL("max")], wants, INT8)
    pi = np.zeros((ROWS, 4))
    mu = pi.copy()
    mu[0, 0] = 3.0
    assert monitor.observe(batch(LOGITS, pi, mu, 1)).alpha == 0.5
    monitor.observe(batch(LOGITS, pi, pi, 1))
    assert monitor.readings[-1].values["kl_mu_pi_max"] > 0.5


def test_kl_monitor_is_accerls_example():
    monitor = KLMonitor(threshold=14.0)
    pi = np.zeros((ROWS, 4))
    pi[:, 0] = 30.0
    mu = pi.copy()
    mu[0, :2] = 10.0, 20.0
    assert monitor.observe(batch(LOGITS, pi, mu, 1)).bits == 8
    assert monitor.readings[-1].values["kl_pi_mu_max"] == pytest.approx(10.0, rel=1e-3)
    mu[0, :2] = 0.0, 30.0
    assert monitor.observe(batch(LOGITS, pi, mu, 2)).bits == 16
    assert str(monitor.changes[-1]).startswith(
        "learner version 2: bits 8 -> 16, because kl_pi_mu_max is"
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Monitor([KL("max")], SwitchPrecision()), "decides by kl_pi_mu_max"),
        (lambda: Monitor([KL("max"), KL("max")]), "distinct names"),
    ],
)
def test_a_monitor_that_could_never_decide_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


class Reads(Indicator):
    """Reads what a function makes of a batch."""

    name = "own"

    def __init__(self, read):
        self.read = read

    def update(self, batch):
        return self.read(batch)


def test_a_users_plug_that_fails_is_named():
    seen = gaussian_batch(0.0, 0.0, 0.0, 1)
    with pytest.raises(ConfigError, match=r"indicator 'own' failed: ZeroDivisionError.*line \d+"):
        Monitor([Reads(lambda _: 1 / 0)]).observe(seen)
    with pytest.raises(ConfigError, match="strategy Does failed: KeyError: 'a'") as error:
        Monitor([], Does(lambda readings, _: readings["a"])).observe(seen)
    assert isinstance(error.value.__cause__, KeyError)
    with pytest.raises(ConfigError, match="Does returned None"):
        Monitor([], Does(lambda *_: None)).observe(seen)


def test_users_plugs_have_one_method_each_and_a_change_without_a_reason_has_words():
    assert Indicator.__abstractmethods__ == {"update"}
    assert Strategy.__abstractmethods__ == {"decide"}
    halve = Does(lambda seen, now: now.changed({"alpha": 0.5}) if seen["own"] > 1 else now)
    monitor = Monitor([Reads(lambda batch: len(batch.mu))], halve)
    assert monitor.observe(gaussian_batch(0.0, 0.0, 0.0, 1)).alpha == 0.5
    assert monitor.changes[0].reason == "Does decided it (own 256)"
    assert halve.state() == {}


def test_history_is_bounded():
    monitor = Monitor([PolicyLag()], history=10)
    for version in range(30):
        monitor.observe(gaussian_batch(0.0, 0.0, 0.0, version))
    assert [reading.version for reading in monitor.readings] == list(range(20, 30))


@given(cut=st.integers(0, 30), seed=st.integers(0, 50))
@settings(max_examples=15, deadline=None)
def test_a_resumed_monitor_goes_on_as_it_was(cut, seed):
    def made():
        # One-row-deep windows: what indicators forget over a resume makes no difference then.
        rungs = [{"bits": 16}, {"enabled": False}]
        guard = Threshold((LEARNER_KL_MAX,), rungs, patience=3, cooldown=1)
        return Monitor([KL("max", window=1)], guard, INT8)

    whole, resumed = made(), made()
    parts = np.random.default_rng(seed).choice([0.0, 1.0], p=[0.8, 0.2], size=30)
    for version, part in enumerate(parts):
        if version == cut:
            plain = json.loads(json.dumps(resumed.state()))
            resumed = made()
            resumed.load_state(plain)
        seen = gaussian_batch(0.001, 30.0, float(part), version)
        assert whole.observe(seen) == resumed.observe(seen)
    assert whole.state() == resumed.state()
    assert [str(change) for change in whole.changes] == [str(change) for change in resumed.changes]


def test_a_state_of_something_else_is_refused():
    state = default_monitor("logits").state()
    with pytest.raises(ConfigError, match="only one of the monitor"):
        Monitor([PolicyLag()]).load_state(state)
    with pytest.raises(ConfigError, match="resume with the strategy"):
        Monitor([KL("mean", "pi_mu")], LinearAlpha(0.1, 0.5)).load_state(state)
    with pytest.raises(ConfigError, match="cannot read"):
        default_monitor("logits").load_state({"setting": {}})


def test_beginning_anew_forgets_what_there_was_to_go_back_to():
    monitor = default_monitor("tanh_gaussian", INT8)
    assert not monitor.observe(gaussian_batch(0.01, 50.0, 0.1, 1)).enabled
    six = CompressionSetting(bits=6)
    monitor.begin(six)
    for version in range(2, 150):
        assert monitor.observe(gaussian_batch(1e-6, 0.0, 0.0, version)) == six
