"""What the correctors refuse, and the importance weights themselves."""

import math
from dataclasses import replace

import numpy as np
import pytest
from correction_batches import Broken, Multiplying, make_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.correction import (
    Correction,
    ImportanceSampling,
    NoCorrection,
    VTrace,
    check_correctors,
)
from vinoreward_actors.correction.returns import LOG_RATIO_LIMIT, log_ratios, truncated_weights
from vinoreward_actors.policies.distributions import effective_sample_size


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ([], "none at all"),
        ([ImportanceSampling()], "no corrector of role 'target'.*NoCorrection"),
        ([VTrace(), VTrace(rho=2.0)], "both have the role 'target'"),
        ([VTrace(), NoCorrection()], "both have the role 'target'"),
        ([VTrace(), ImportanceSampling(), ImportanceSampling(2.0)], "'policy_gradient'"),
        ([VTrace(), ImportanceSampling(), Multiplying()], "apply the ratio twice"),
        ([VTrace], r"Call it: VTrace\(\)"),
        (["vtrace"], "'vtrace' is not a corrector"),
        ([Broken("critic")], "has the role 'critic'"),
        ([Broken(None)], "has the role None"),
    ],
)
def test_correctors_that_do_not_go_together_are_refused(chain, message):
    with pytest.raises(ConfigError, match=message):
        check_correctors(chain)
    with pytest.raises(ConfigError, match=message):
        Correction(chain)


def test_the_target_comes_first():
    pair = (VTrace(), ImportanceSampling())
    assert check_correctors(pair[::-1]) == Correction(pair[::-1]).correctors == pair


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VTrace(rho=0.0), "rho is 0.0"),
        (lambda: VTrace(rho=math.nan), "rho is nan"),
        (lambda: VTrace(c=-1.0), "c is -1.0"),
        (lambda: VTrace(rho=1.0, c=1.5), "c <= rho"),
        (lambda: VTrace(lam=1.1), "lam is 1.1"),
        (lambda: ImportanceSampling(rho=-1.0), "rho is -1.0"),
        (lambda: NoCorrection(lam=-1.0), "lam is -1.0"),
    ],
)
def test_parameters_that_cannot_work_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


# The batch


def with_value(array, value):
    changed = array.copy()
    changed[1, 2] = value
    return changed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log_mu", np.nan),
        ("log_mu", np.inf),
        ("log_mu", -np.inf),
        ("log_pi", np.nan),
        ("log_pi", np.inf),
        ("rewards", np.nan),
        ("values", np.inf),
        ("next_values", -np.inf),
    ],
)
def test_numbers_that_are_not_finite_are_said_with_their_place(name, value):
    batch = make_batch(terminated=np.zeros((5, 4), dtype=np.bool_))
    expected = rf"{name} has 1 of 20 values that are not finite.*\[t, b\] = \[1, 2\]"
    with pytest.raises(InputError, match=expected):
        replace(batch, **{name: with_value(getattr(batch, name), value)})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"values": np.zeros((6, 4))}, InputError, r"values has shape \(6, 4\).*T \+ 1"),
        ({"truncated": np.zeros((4, 5), bool)}, InputError, r"truncated has shape \(4, 5\)"),
        ({"log_pi": np.zeros(5)}, InputError, r"log_pi has shape \(5,\); expected \(T, B\)"),
        ({"log_pi": np.zeros((0, 4))}, InputError, "at least one step"),
        ({"rewards": [[0.0] * 4] * 5}, InputError, r"rewards is a list.*detach"),
        ({"rewards": np.zeros((5, 4), int)}, InputError, "rewards has dtype int64"),
        ({"terminated": np.zeros((5, 4))}, InputError, "terminated has dtype float64.*bool"),
        ({"rewards": None}, InputError, "rewards"),
        ({"values": None}, InputError, "values"),
        ({"next_values": None}, InputError, "next_values"),
        ({"gamma": 1.01}, ConfigError, "gamma is 1.01"),
        ({"gamma": math.nan}, ConfigError, "gamma is nan"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(changes, error, message):
    with pytest.raises(error, match=message):
        make_batch(**changes)


# Importance weights


def test_log_ratios_are_bounded_above_only():
    ratios = log_ratios(np.array([[0.0, -1.0, -900.0, -np.inf]]), np.array([[-900.0, -3, 0, 0]]))
    np.testing.assert_array_equal(ratios, [[LOG_RATIO_LIMIT, 2.0, -900.0, -np.inf]])
    weights = truncated_weights(ratios, math.inf)
    np.testing.assert_array_equal(weights, [[math.exp(20.0), math.exp(2.0), 0.0, 0.0]])


def test_log_ratios_of_float32_are_subtracted_in_float64():
    # Both are exact in float32; their difference is not.
    log_pi, log_mu = np.float32([[-16777216.0]]), np.float32([[-0.5]])
    np.testing.assert_array_equal(log_ratios(log_pi, log_mu), [[-16777215.5]])


@settings(max_examples=200, deadline=None)
@given(logs=st.lists(st.floats(-20, 20), min_size=1, max_size=8), shift=st.floats(-500, 500))
def test_effective_sample_size_is_kishs_and_ignores_the_scale(logs, shift):
    weights = [math.exp(log) for log in logs]
    expected = sum(weights) ** 2 / (len(weights) * sum(w * w for w in weights))
    ess = effective_sample_size(np.array(logs))
    assert ess == pytest.approx(expected)
    assert 1 / len(logs) - 1e-9 <= ess <= 1 + 1e-9
    assert effective_sample_size(np.array(logs) + shift) == pytest.approx(ess)


def test_effective_sample_size_at_its_ends():
    assert effective_sample_size(np.zeros((3, 2))) == 1.0
    assert effective_sample_size(np.array([0.0, -np.inf, -np.inf, -np.inf])) == 0.25
    assert effective_sample_size(np.array([-np.inf, -np.inf])) == 0.0
    with pytest.raises(InputError, match="at least one step"):
        effective_sample_size(np.zeros((0, 2)))


# The pure functions by themselves


def test_what_a_batch_derives():
    batch = make_batch(terminated=np.eye(5, 4) > 0, truncated=np.eye(5, 4, 1) > 0)
    np.testing.assert_array_equal(batch.discounts, np.where(np.eye(5, 4), 0.0, 0.9))
    np.testing.assert_array_equal(
        batch.successor_values, np.where(np.eye(5, 4), 0.0, batch.next_values)
    )
    np.testing.assert_array_equal(batch.ends, (np.eye(5, 4) + np.eye(5, 4, 1)) > 0)
    assert (make_batch(gamma=0.0).gamma, make_batch(gamma=1.0).gamma) == (0.0, 1.0)
    assert make_batch(dtype=np.float32).dtype == np.float32
    assert make_batch(dtype=np.float32, values=np.zeros((5, 4))).dtype == np.float64


def test_the_defaults_are_those_of_the_papers():
    assert VTrace() == VTrace(rho=1.0, c=1.0, lam=1.0)
    assert ImportanceSampling() == ImportanceSampling(rho=1.0)
    assert NoCorrection() == NoCorrection(lam=1.0)
