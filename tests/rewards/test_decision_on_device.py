"""Decisions on torch tensors are those on NumPy arrays."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward import Bundle
from vinoreward.arrays import Arrays
from vinoreward.bundles.schema import Progress
from vinoreward.rewards.classifier import Prediction
from vinoreward.rewards.decision import RewardOptions, Scores
from vinoreward.rewards.reward_model import RewardModel

SHIPPED = Bundle.load("panda-hover-classifier")
SPEC = dataclasses.replace(SHIPPED.spec, progress=Progress(horizon=9))
BUNDLE = dataclasses.replace(SHIPPED, spec=SPEC)


class PredictedRewards(RewardModel):
    """Takes predictions in place of images."""

    def __init__(
        self,
        options: RewardOptions,
        threshold: float,
        num_envs: int,
        exit_threshold: float | None = None,
        arrays: Arrays = Arrays(),  # noqa: B008
    ) -> None:
        limits = {"success_threshold": threshold, "success_exit_threshold": exit_threshold}
        super().__init__(BUNDLE, dataclasses.replace(options, **limits), num_envs)
        self.use(arrays)

    def decide(
        self,
        mask: Any,
        probability: Any,
        log_odds: Any,
        env_rewards: Any,
        terminated: Any,
        ood_score: Any = None,
    ) -> Scores:
        """Score a step in which the network says this."""
        seen = probability, log_odds, ood_score, 1 - probability
        return self.score(seen, env_rewards, terminated, mask)

    def begin(self, mask: Any, probability: Any) -> None:
        """Start episodes whose first images have this probability."""
        self.reset(mask, (probability, probability, None, 1 - probability))

    def _predict(self, images: Any, mask: Any) -> Prediction:
        return Prediction(*images)


COUNT = 4
TORCH = Arrays(torch, torch.device("cpu"))
PROBABILITY = st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.7, 1.0])
STEP = st.tuples(
    *(
        st.lists(values, min_size=COUNT, max_size=COUNT)
        for values in (PROBABILITY, st.sampled_from([0.5, 1.0, 2.0]), st.booleans(), st.booleans())
    )
)


@settings(max_examples=40)
@given(
    steps=st.lists(STEP, min_size=1, max_size=8),
    mode=st.sampled_from(["sparse", "probability", "log_odds", "potential", "progress"]),
    hold=st.integers(1, 3),
    leave=st.sampled_from([0.0, 0.2, 0.5]),
    detected=st.booleans(),
    on_ood=st.sampled_from(["withhold", "ignore"]),
    replaces=st.booleans(),
)
def test_tensors_are_paid_as_arrays(
    steps: list[Any],
    mode: Any,
    hold: int,
    leave: float,
    detected: bool,
    on_ood: Any,
    replaces: bool,
) -> None:
    options = RewardOptions(
        success_reward=100.0,
        step_reward=0.25,
        env_reward_weight=0.5,
        success_replaces_env_reward=replaces,
        reward_mode=mode,
        success_hold_steps=hold,
        on_ood=on_ood,
    )
    host = PredictedRewards(options, 0.5, COUNT, leave)
    device = PredictedRewards(options, 0.5, COUNT, leave, TORCH)
    own, ended = np.array([-1.0, -5.0, -1.0, 2.0]), np.array([False, True, False, False])
    for probabilities, scores, stepped, begun in steps:
        probability = np.array(probabilities, np.float32)
        log_odds = np.log(probability + np.float32(1e-3))
        arrays = [np.array(stepped), probability, log_odds, own, ended]
        ood_score = np.array(scores, np.float32) if detected else None
        expected = host.decide(*arrays, ood_score=ood_score)
        tensors = [torch.tensor(array) for array in arrays]
        found = device.decide(
            *tensors, ood_score=None if ood_score is None else torch.tensor(ood_score)
        )
        every = "rewards", "claimed", "terminated", "probability", "returns", "lengths", "progress"
        for name in every:
            one, other = getattr(found, name), getattr(expected, name)
            np.testing.assert_array_equal(one.numpy(), other)
            assert one.numpy().dtype == other.dtype
        host.begin(np.array(begun), probability)
        device.begin(torch.tensor(begun), torch.tensor(probability))


def test_what_is_no_number_claims_nothing_and_pays_as_a_failure() -> None:
    every, zeros = torch.ones(2, dtype=torch.bool), torch.zeros(2, dtype=torch.float64)
    probability = torch.tensor([float("nan"), 0.0])
    for mode, paid in (("sparse", 0.0), ("probability", 0.0), ("log_odds", -20.0)):
        decision = PredictedRewards(RewardOptions(reward_mode=mode), 0.0, 2, arrays=TORCH)
        found = decision.decide(every, probability, probability, zeros, ~every)
        assert found.claimed.tolist() == [False, True]
        assert found.rewards[0] == paid
