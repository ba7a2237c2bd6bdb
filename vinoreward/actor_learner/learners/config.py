"""Settings common to all learners."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import nn

from vinoreward.actor_learner.learners.precision import Precision
from vinoreward.errors import ConfigError
from vinoreward.policies.policy import Floats


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """Settings common to all learners of this package.

    Attributes:
        gamma: discount per step; n-step targets use its powers.
        learning_rate: of every network, unless a learner has a second one.
        optimizer: ``"adam"``, or ``"rmsprop"`` as in the IMPALA paper.
        optimizer_epsilon: added to the root of the squared gradients.
        max_grad_norm: maximum norm of a gradient.
        reward_scale: factor for rewards. A network needs hundreds of updates to reach a value of
            100, and until then the policy learns from wrong values.
        reward_clip: clips scaled rewards to plus or minus this; ``None`` for no clipping.
        device: ``"auto"`` uses CUDA if available.
        precision: ``"fp32"``, ``"bf16"`` (autocast), or ``"auto"``: the faster one, timed at the
            first update if the hardware supports bfloat16. Use ``"fp32"`` for runs that must
            repeat bit by bit on any machine.
        data_parallel: ``"auto"`` splits batches over several CUDA devices if that is faster.
        seed: of initial weights and all random choices.
    """

    gamma: float = 0.99
    learning_rate: float = 3e-4
    optimizer: Literal["adam", "rmsprop"] = "adam"
    optimizer_epsilon: float = 1e-8
    max_grad_norm: float = 40.0
    reward_scale: float = 1.0
    reward_clip: float | None = None
    device: str = "auto"
    precision: Precision = "auto"
    data_parallel: Literal["auto", "off"] = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        positive = {
            "learning_rate": self.learning_rate,
            "optimizer_epsilon": self.optimizer_epsilon,
            "max_grad_norm": self.max_grad_norm,
            "reward_scale": self.reward_scale,
            "reward_clip": 1.0 if self.reward_clip is None else self.reward_clip,
        }
        wrong = {name: value for name, value in positive.items() if not value > 0}
        if wrong or not 0.0 <= self.gamma <= 1.0 or self.optimizer not in ("adam", "rmsprop"):
            raise ConfigError(
                f"the learner has gamma={self.gamma}, optimizer={self.optimizer!r} and "
                f"{wrong or 'valid other settings'}. Expected gamma from 0 to 1, adam or rmsprop, "
                "and positive numbers."
            )

    def make_optimizer(
        self, parameters: Iterator[nn.Parameter], learning_rate: float | None = None
    ) -> torch.optim.Optimizer:
        """Return an optimiser for some parameters."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, lr=rate, eps=self.optimizer_epsilon, fused=True)
        return torch.optim.RMSprop(parameters, lr=rate, alpha=0.99, eps=self.optimizer_epsilon)

    def rewards(self, rewards: Floats) -> Floats:
        """Return scaled and clipped rewards."""
        scaled: Floats = rewards * self.reward_scale
        if self.reward_clip is None:
            return scaled
        return np.clip(scaled, -self.reward_clip, self.reward_clip)
