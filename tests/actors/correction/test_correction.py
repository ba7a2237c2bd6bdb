"""The correctors as plugs: one contract for all of them, and their composition."""

import math
from dataclasses import replace

import numpy as np
import pytest
from correction_batches import Broken, Multiplying, make_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.errors import ConfigError, OutputError
from vinoreward_actors.correction import (
    Correction,
    ImportanceSampling,
    NoCorrection,
    OffPolicyBatch,
    VTrace,
)


def select(batch, index):
    """The batch with ``index`` applied to every array."""
    fields = vars(batch).items()
    return OffPolicyBatch(**{n: v[index] if isinstance(v, np.ndarray) else v for n, v in fields})


CHAINS = [
    [VTrace()],
    [VTrace(rho=2.0, c=0.5, lam=0.9), ImportanceSampling()],
    [NoCorrection()],
    [NoCorrection(lam=0.5), ImportanceSampling(rho=2.0)],
]


@pytest.mark.parametrize("chain", CHAINS, ids=str)
class TestEveryCorrection:
    def test_answers_are_new_arrays_of_the_batchs_shape_and_precision(self, chain):
        rounded, precise = (
            Correction(chain)(make_batch(dtype=dtype)) for dtype in (np.float32, np.float64)
        )
        for corrected, dtype in ((rounded, np.float32), (precise, np.float64)):
            for array in (corrected.targets, corrected.advantages, corrected.weights):
                assert array.shape == (5, 4) and array.dtype == dtype
                assert array.flags.owndata and array.flags.writeable
            assert type(corrected.ess) is float and 0 < corrected.ess <= 1
            assert type(corrected.clipped) is float and 0 <= corrected.clipped <= 1
        np.testing.assert_allclose(rounded.targets, precise.targets, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(rounded.advantages, precise.advantages, rtol=1e-5, atol=1e-5)

    def test_the_batch_is_left_as_it_was(self, chain):
        batch, same = make_batch(), make_batch()
        for array in vars(batch).values():
            if isinstance(array, np.ndarray):
                array.flags.writeable = False
        Correction(chain)(batch)
        for name, value in vars(batch).items():
            np.testing.assert_array_equal(value, getattr(same, name))

    @settings(max_examples=20, deadline=None)
    @given(order=st.permutations(range(4)), seed=st.integers(0, 1000))
    def test_trajectories_do_not_see_each_other(self, chain, order, seed):
        batch = make_batch(seed)
        corrected = Correction(chain)(batch)
        mixed_up = Correction(chain)(select(batch, np.index_exp[:, order]))
        alone = Correction(chain)(select(batch, np.index_exp[:, :1]))
        for name in ("targets", "advantages", "weights"):
            array = getattr(corrected, name)
            np.testing.assert_allclose(getattr(mixed_up, name), array[:, order], rtol=1e-12)
            np.testing.assert_allclose(getattr(alone, name), array[:, :1], rtol=1e-12)
        assert mixed_up.ess == pytest.approx(corrected.ess)
        assert mixed_up.clipped == pytest.approx(corrected.clipped)

    @pytest.mark.parametrize("end", ["terminated", "truncated"])
    def test_nothing_passes_the_end_of_an_episode(self, chain, end):
        flags = np.zeros((5, 4), dtype=np.bool_)
        last = flags.copy()
        last[2] = True
        ends = {"terminated": flags, "truncated": flags, end: last}
        batch = make_batch(1, **ends)
        corrected = Correction(chain)(batch)
        first = Correction(chain)(select(batch, np.index_exp[:3]))
        np.testing.assert_allclose(corrected.targets[:3], first.targets, rtol=1e-12)
        np.testing.assert_allclose(corrected.advantages[:3], first.advantages, rtol=1e-12)

    def test_truncation_and_the_last_step_bootstrap_and_termination_does_not(self, chain):
        none = np.zeros((1, 4), dtype=np.bool_)
        base = make_batch(2, steps=1, terminated=none, truncated=none)
        worth = 0.9 * base.next_values
        one_step = base.rewards + worth
        last = Correction(chain)(base)
        truncated = Correction(chain)(replace(base, truncated=~none))
        both = Correction(chain)(replace(base, truncated=~none, terminated=~none))
        terminated = Correction(chain)(replace(base, terminated=~none))
        # With one step the advantage before the weight is the temporal difference of all of them.
        np.testing.assert_allclose(last.advantages, last.weights * (one_step - base.values))
        np.testing.assert_array_equal(truncated.targets, last.targets)
        np.testing.assert_array_equal(truncated.advantages, last.advantages)
        difference = last.weights * worth
        np.testing.assert_allclose(last.advantages - terminated.advantages, difference)
        np.testing.assert_array_equal(both.targets, terminated.targets)
        np.testing.assert_array_equal(both.advantages, terminated.advantages)

    def test_a_terminal_states_value_is_not_read(self, chain):
        batch = make_batch(3)
        unread = np.where(batch.terminated, np.nan, batch.next_values)
        np.testing.assert_array_equal(
            Correction(chain)(replace(batch, next_values=unread)).targets,
            Correction(chain)(batch).targets,
        )

    def test_impossible_actions_of_the_target_policy_have_a_ratio_of_zero(self, chain):
        never = np.full((5, 4), -np.inf)
        corrected = Correction(chain)(make_batch(5, log_pi=never))
        assert np.isfinite(corrected.targets).all()
        assert corrected.ess == 0.0


# Composition


def test_vtrace_and_importance_sampling_apply_the_weight_once():
    batch = make_batch()
    ratios = np.exp(batch.log_pi - batch.log_mu)
    alone = Correction([VTrace(rho=1.0)])(batch)
    together = Correction([VTrace(rho=1.0), ImportanceSampling(rho=1.0)])(batch)
    np.testing.assert_allclose(together.weights, np.minimum(1.0, ratios))
    for name in ("weights", "advantages", "targets"):
        np.testing.assert_array_equal(getattr(together, name), getattr(alone, name))
    assert together.clipped == alone.clipped == np.mean(ratios > 1.0)
    on_policy = Correction([VTrace()])(replace(batch, log_mu=batch.log_pi))
    assert (on_policy.ess, on_policy.clipped) == (1.0, 0.0)


def test_the_policy_gradients_corrector_replaces_vtraces_weight():
    batch = make_batch()
    ratios = np.exp(batch.log_pi - batch.log_mu)
    alone = Correction([VTrace()])(batch)
    both = Correction([VTrace(), ImportanceSampling(rho=2.0)])(batch)
    np.testing.assert_allclose(both.weights, np.minimum(2.0, ratios))
    np.testing.assert_allclose(both.advantages, both.weights / alone.weights * alone.advantages)
    np.testing.assert_array_equal(both.targets, alone.targets)


def test_clipped_is_the_share_of_truncated_ratios():
    log_pi = np.log([[0.5, 0.9], [0.2, 0.8]])
    log_mu = np.log([[0.5, 0.3], [0.4, 0.5]])  # ratios 1, 3, 0.5, 1.6
    changes = {"log_pi": log_pi, "log_mu": log_mu}
    batch = make_batch(steps=2, batch=2, **changes)
    assert Correction([VTrace(rho=2.0)])(batch).clipped == 0.25
    assert Correction([VTrace(rho=math.inf)])(batch).clipped == 0.0
    assert Correction([VTrace(rho=2.0), ImportanceSampling(1.5)])(batch).clipped == 0.5
    assert Correction([NoCorrection(), ImportanceSampling(1.7)])(batch).clipped == 0.25


def test_a_users_corrector_that_multiplies_does_not_apply_the_ratio_twice():
    batch = make_batch()
    corrected = Correction([VTrace(), Multiplying()])(batch)
    np.testing.assert_allclose(corrected.weights, np.exp(batch.log_pi - batch.log_mu))


def test_a_users_target_starts_from_the_one_step_estimate():
    batch = make_batch()
    corrected = Correction([Broken("target")])(batch)  # changes nothing
    one_step = batch.rewards + 0.9 * np.where(batch.terminated, 0.0, batch.next_values)
    np.testing.assert_allclose(corrected.targets, one_step)
    np.testing.assert_allclose(corrected.advantages, one_step - batch.values)
    np.testing.assert_array_equal(corrected.weights, 1.0)
    assert corrected.clipped == 0.0


@pytest.mark.parametrize(
    ("corrector", "error", "message"),
    [
        (Broken("target", targets=lambda a: a[:-1]), OutputError, r"targets of shape \(4, 4\)"),
        (Broken("target", weights=lambda a: 1.0), OutputError, r"weights of shape \(\)"),
        (Broken("target", clipped=lambda a: a[0]), OutputError, r"clipped of shape \(4,\)"),
        (Broken("target", targets=lambda a: a * np.nan), OutputError, "targets that are not"),
        (Broken("target", advantages=lambda a: a + np.inf), OutputError, "advantages that are"),
        (Broken("policy_gradient", weights=lambda a: -a / 0.0), OutputError, "weights that are"),
        (Broken("policy_gradient", targets=lambda a: a + 1), ConfigError, "changed the targets"),
        (Broken("policy_gradient", advantages=lambda a: a * 2), ConfigError, "changed the adv"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
def test_what_a_corrector_returns_is_checked(corrector, error, message):
    chain = [corrector] if corrector.role == "target" else [VTrace(), corrector]
    with pytest.raises(error, match=message):
        Correction(chain)(make_batch())


def test_overflowing_products_are_an_error_with_the_remedy():
    far = {"log_pi": np.zeros((60, 1)), "log_mu": np.full((60, 1), -50.0)}
    none = np.zeros((60, 1), dtype=np.bool_)
    batch = make_batch(steps=60, batch=1, terminated=none, truncated=none, **far)
    with pytest.raises(OutputError, match=r"truncate them \(rho, c\)"):
        Correction([VTrace(rho=math.inf, c=math.inf)])(batch)
    assert np.isfinite(Correction([VTrace()])(batch).targets).all()
