"""A reward model that is given predictions, for tests of what they pay."""

from __future__ import annotations

import dataclasses
from typing import Any

from vinoreward import Bundle
from vinoreward.arrays import Arrays
from vinoreward.rewards.classifier import Prediction
from vinoreward.rewards.decision import RewardOptions, Scores
from vinoreward.rewards.reward_model import RewardModel

BUNDLE = Bundle.load("panda-hover-classifier")


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
        return self.score((probability, log_odds, ood_score), env_rewards, terminated, mask)

    def begin(self, mask: Any, probability: Any) -> None:
        """Start episodes whose first images have this probability."""
        self.reset(mask, (probability, probability, None))

    def _predict(self, images: Any, mask: Any) -> Prediction:
        return Prediction(*images)
