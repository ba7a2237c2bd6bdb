"""Strategies on readings that the test makes up: steps, hysteresis, cooldown, both ways, memory."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vinoreward.errors import ConfigError
from vinoreward_actors.command.settings import presets
from vinoreward_actors.monitoring import (
    CompressionSetting,
    Limit,
    LinearAlpha,
    Staged,
    SwitchPrecision,
    Threshold,
    default_strategy,
)
from vinoreward_actors.monitoring.strategies import trend
from vinoreward_actors.monitoring.strategy import difference

INT8 = CompressionSetting(bits=8, sparsity=0.5)
LIMIT = Limit("kl", bad=4.0, good=1.0)
LADDER = ({"bits": 16, "sparsity": 0.0}, {"enabled": False})


def run(strategy, setting, values, name="kl"):
    """Return the setting after each reading."""
    found = []
    for value in values:
        setting = strategy.decide({name: value}, setting)
        found.append(setting)
    return found


def changes(settings):
    return sum(a != b for a, b in itertools.pairwise(settings))


def test_a_passed_limit_steps_up_the_ladder_at_once_and_says_why():
    strategy = Threshold((LIMIT,), LADDER, cooldown=0)
    assert strategy.decide({"kl": 4.0}, INT8) == INT8
    safer = strategy.decide({"kl": 4.01}, INT8)
    assert (safer.bits, safer.sparsity, safer.enabled) == (16, 0.0, True)
    assert strategy.reason == "kl is 4.01, above its limit 4"
    stopped = strategy.decide({"kl": float("inf")}, safer)
    assert not stopped.enabled
    assert not stopped.compresses
    assert strategy.decide({"kl": 99.0}, stopped) == stopped


def test_rungs_that_change_nothing_are_passed_over():
    strategy = Threshold((LIMIT,), LADDER, cooldown=0, patience=2)
    half = CompressionSetting(bits=16)
    stopped = strategy.decide({"kl": 9.0}, half)
    assert not stopped.enabled
    assert run(strategy, stopped, [0.0, 0.0])[-1] == half
    assert strategy.rung == 0


def test_it_goes_back_after_patience_good_readings_in_a_row_only():
    strategy = Threshold((LIMIT,), LADDER, cooldown=0, patience=5)
    safer = strategy.decide({"kl": 5.0}, INT8)
    assert run(strategy, safer, [0.5, 0.5, 0.5, 0.5, 2.0, 0.5, 0.5, 0.5, 0.5]) == [safer] * 9
    assert strategy.decide({"kl": 0.5}, safer) == INT8
    assert strategy.reason.startswith("5 good rounds")


def test_nothing_is_judged_during_the_cooldown():
    strategy = Threshold((LIMIT,), LADDER, cooldown=3, patience=1)
    safer = strategy.decide({"kl": 5.0}, INT8)
    assert run(strategy, safer, [9.0, 9.0, 0.0]) == [safer] * 3
    assert not strategy.decide({"kl": 9.0}, safer).enabled


@given(values=st.lists(st.floats(1.0, 4.0), max_size=60), bad=st.booleans())
def test_readings_between_the_limits_change_nothing(values, bad):
    strategy = Threshold((LIMIT,), LADDER, cooldown=0, patience=1)
    setting = strategy.decide({"kl": 5.0}, INT8) if bad else INT8
    assert all(found == setting for found in run(strategy, setting, values))


def test_a_compression_that_always_fails_is_tried_less_and_less_often():
    strategy = Threshold((LIMIT,), LADDER[:1], cooldown=2, patience=10)
    setting, tried = INT8, []
    for round_ in range(3000):
        found = strategy.decide({"kl": 50.0 if setting.bits == 8 else 0.0}, setting)
        if found != setting and found.bits == 8:
            tried.append(round_)
        setting = found
    assert len(tried) <= 9  # 10 * (2^8 - 1) rounds; without doubling it would be 200
    gaps = np.diff(tried)
    assert (gaps[1:] > 1.7 * gaps[:-1]).all()


@given(seed=st.integers(0, 1000))
def test_noise_around_a_limit_does_not_flap(seed):
    strategy = Threshold((LIMIT,), LADDER[:1], cooldown=2, patience=20)
    noise = np.random.default_rng(seed).normal(4.0, 1.0, size=500)
    assert changes([INT8, *run(strategy, INT8, noise.tolist())]) <= 1


def test_a_long_good_stretch_makes_up_for_a_relapse():
    strategy = Threshold((LIMIT,), LADDER[:1], cooldown=0, patience=2)
    setting = run(strategy, INT8, [9.0, 0.0, 0.0, 9.0])[-1]
    assert strategy.judge.relapses == 1
    setting = run(strategy, setting, [0.0] * 4)[-1]
    assert setting == INT8
    run(strategy, setting, [0.0] * 4)
    assert strategy.judge.relapses == 0


def test_a_stopped_compression_gets_trials_with_doubling_waits():
    strategy = Threshold((LIMIT,), cooldown=0, retry=10)
    setting, waits, waited = strategy.decide({"kl": 9.0}, INT8), [], 0
    for _ in range(200):
        waited += 1
        # Stopped, nothing compressed acts: no readings. On trial it fails again.
        found = strategy.decide({"kl": 9.0} if setting.enabled else {}, setting)
        if found.enabled and not setting.enabled:
            assert "stopped for" in strategy.reason
            waits.append(waited)
            waited = 0
        setting = found
    assert waits == [10, 21, 41, 81]
    never = Threshold((LIMIT,), cooldown=0, retry=None)
    stopped = never.decide({"kl": 9.0}, INT8)
    assert all(never.decide({}, stopped) == stopped for _ in range(5000))


def test_one_bad_reading_is_enough_and_all_must_be_good():
    """Also where small readings are the bad ones."""
    strategy = Threshold((LIMIT, Limit("ess", bad=0.1, good=0.3)), cooldown=0, patience=1)
    stopped = strategy.decide({"kl": 0.0, "ess": 0.05}, INT8)
    assert not stopped.enabled
    assert strategy.reason == "ess is 0.05, below its limit 0.1"
    assert strategy.decide({"kl": 0.0, "ess": 0.2}, stopped) == stopped
    assert strategy.decide({"kl": 0.0, "ess": 0.9}, stopped) == INT8


def test_only_what_a_step_changed_is_put_back():
    strategy = Threshold((LIMIT,), LADDER, cooldown=0, patience=1)
    safer = strategy.decide({"kl": 5.0}, INT8)
    found = strategy.decide({"kl": 0.0}, safer.changed({"alpha": 0.5}))
    assert found == INT8.changed({"alpha": 0.5})


def test_switch_precision_is_accerls_rule():
    strategy = SwitchPrecision("int8", "fp16", patience=3, cooldown=0)
    begun = strategy.decide({}, CompressionSetting(bits=None))
    assert begun.bits == 8
    assert run(strategy, begun, [13.0, 14.0, 15.0, 13.0, 1.0, 1.0, 1.0], "kl_pi_mu_max") == [
        begun.changed({"bits": bits}) for bits in (8, 8, 16, 16, 16, 16, 8)
    ]

    assert SwitchPrecision("fp16", "fp32").decide({}, INT8).bits == 16


def test_alpha_is_one_at_the_low_end_least_at_the_high_end_and_straight_between():
    strategy = LinearAlpha(0.1, 0.5, reading="kl", least=0.0, step=0.0)
    values = [0.0, 0.1, 0.2, 0.3, 0.5, 7.0, float("inf"), 0.1]
    alphas = [setting.alpha for setting in run(strategy, INT8, values)]
    assert alphas == pytest.approx([1.0, 1.0, 0.75, 0.5, 0.0, 0.0, 0.0, 1.0])
    measuring = LinearAlpha(0.1, 0.5, reading="kl")
    assert measuring.decide({"kl": 9.0}, INT8).alpha == 0.05
    assert measuring.decide({}, INT8) == INT8


def test_alpha_does_not_follow_small_noise():
    strategy = LinearAlpha(0.0, 1.0, reading="kl", step=0.1)
    noise = np.random.default_rng(0).uniform(0.48, 0.52, size=100)
    assert changes(run(strategy, INT8, noise.tolist())) == 0


def test_stages_follow_the_return():
    random = np.random.default_rng(0)
    returns = np.concatenate(
        [np.full(20, -20.0), np.linspace(-20, 18, 20), np.full(20, 18.0), np.linspace(18, 0, 8)]
    )
    strategy, setting, stages = Staged(), CompressionSetting(), []
    for value in returns + random.normal(scale=0.3, size=len(returns)):
        setting = strategy.decide({"return": value}, setting)
        stages.append((strategy.stage, setting.bits, setting.sparsity))
    assert stages[0] == stages[19] == ("exploration", 8, 0.75)
    assert stages[39] == ("improving", 16, 0.25)
    assert stages[59] == ("convergence", 8, 0.5)
    assert stages[-1] == ("improving", 16, 0.25)
    assert "changes again" in strategy.reason
    assert strategy.decide({}, INT8) == INT8


def test_stages_of_the_preset_follow_a_curve_like_pongs():
    """From -21 to 20 between 1 and 3.5 million steps, as in AcceRL's figure 5."""
    every = presets()["accerl/pong-staged"]["evaluate_every"]
    steps = np.arange(every, 6_000_001, every)
    returns = np.interp(steps, [1.0e6, 3.5e6], [-21.0, 20.0])
    for seed in range(5):
        noise = np.random.default_rng(seed).normal(scale=1.0, size=len(steps))
        strategy, begins = Staged(), {}
        for step, value in zip(steps, returns + noise, strict=True):
            strategy.decide({"return": value}, INT8)
            begins.setdefault(strategy.stage, step)
        # Before a quarter of the rise, and not long after its end.
        assert 1.0e6 <= begins["improving"] <= 1.625e6
        assert 3.5e6 <= begins["convergence"] <= 4.5e6


def test_a_return_that_only_jitters_rarely_looks_like_progress():
    stages = []
    for seed in range(200):
        strategy = Staged()
        values = np.random.default_rng(seed).normal(scale=0.5, size=60).tolist()
        run(strategy, INT8, values, "return")
        stages.append(strategy.stage)
    assert stages.count("exploration") >= 180


@given(seed=st.integers(0, 1000), count=st.integers(3, 20))
def test_a_trend_is_the_textbooks_regression(seed, count):
    values = np.random.default_rng(seed).normal(size=count)
    expected = stats.linregress(np.arange(count), values)
    rise, error, begin = trend(values.tolist())
    assert rise == pytest.approx(expected.slope * (count - 1), abs=1e-9)
    assert error == pytest.approx(expected.stderr * (count - 1), abs=1e-9)
    assert begin == pytest.approx(expected.intercept, abs=1e-9)


MAKERS = {
    "threshold": lambda: Threshold((LIMIT,), LADDER, patience=3, cooldown=1, retry=4),
    "switch": lambda: SwitchPrecision(limits=(LIMIT,), patience=3),
    "alpha": lambda: LinearAlpha(0.5, 5.0, reading="kl"),
    "staged": lambda: Staged(reading="kl", window=4, patience=2),
}


@pytest.mark.parametrize("name", MAKERS)
@given(
    values=st.lists(st.one_of(st.none(), st.floats(0, 8)), min_size=1, max_size=60),
    cut=st.integers(0, 60),
)
def test_a_resumed_strategy_decides_as_if_it_had_not_stopped(name, values, cut):
    whole, resumed = MAKERS[name](), MAKERS[name]()
    one = other = INT8
    for index, value in enumerate(values):
        readings = {} if value is None else {"kl": value}
        if index == cut:
            plain = json.loads(json.dumps(resumed.state()))
            resumed = MAKERS[name]()
            resumed.load_state(plain)
            # What was handed over is the strategy's own: changing it changes nothing.
            plain.clear()
        one, other = whole.decide(readings, one), resumed.decide(readings, other)
        assert one == other
    assert whole.state() == resumed.state()


@pytest.mark.parametrize(
    ("safer", "first"), [(({"bits": None},), {"bits": None}), ((), {"enabled": False})]
)
def test_the_default_strategy_tries_what_is_safer_and_then_stops(safer, first):
    setting = CompressionSetting(bits=8, sparsity=0.5)
    strategy = default_strategy("logits", safer)
    found = [setting]
    for _ in range(20):
        found.append(strategy.decide({"compression_kl_mu_pi_max": 100.0}, found[-1]))
    steps = [one for before, one in itertools.pairwise(found) if one != before]
    assert steps[0] == setting.changed(first)
    assert not steps[-1].enabled


def test_a_state_of_another_strategy_is_refused():
    with pytest.raises(ConfigError, match="resume with the strategy"):
        Staged().load_state(SwitchPrecision().state())
    with pytest.raises(ConfigError, match="resume with the strategy"):
        default_strategy().load_state({"stage": None})


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (Limit, [("kl", 1.0, 1.0), ("kl", float("inf"), 1.0)]),
        (Threshold, [((),), ((LIMIT,), ()), ((LIMIT,), ({"bit": 16},))]),
        (Threshold, [((LIMIT,), ({"bits": 12},))]),
        (lambda patience: Threshold((LIMIT,), patience=patience), [(0,)]),
        (SwitchPrecision, [("fp16", "int8"), ("fp32", "fp32"), ("int9", "fp16")]),
        (LinearAlpha, [(0.5, 0.1)]),
        (lambda retry: Threshold((LIMIT,), retry=retry), [(0,)]),
        (lambda window: Staged(window=window), [(2,)]),
        (Staged, [({"colour": 3},)]),
        (INT8.changed, [({"bits": 9},), ({"sparsity": 1.0},), ({"alpha": 1.5},), ({"x": 1},)]),
        (CompressionSetting.from_dict, [({"bits": 8},)]),
    ],
)
def test_impossible_strategies_and_settings_are_refused(make, wrong):
    for arguments in wrong:
        with pytest.raises(ConfigError):
            make(*arguments)


def test_a_setting_is_plain_data_that_says_what_changed():
    setting = CompressionSetting(bits=32, sparsity=0.25)
    assert setting.bits is None
    assert CompressionSetting.from_dict(json.loads(json.dumps(setting.to_dict()))) == setting
    assert CompressionSetting(bits=None).compresses is False
    assert CompressionSetting(bits=None, sparsity=0.5).compresses
    assert not CompressionSetting(alpha=0.0).compresses
    assert INT8.same_network(INT8.changed({"alpha": 0.5}))
    assert not INT8.same_network(INT8.changed({"sparsity": 0.0}))
    changed = INT8.changed({"bits": None, "alpha": 0.25})
    assert difference(INT8, changed) == "bits 8 -> 32, alpha 1 -> 0.25"
