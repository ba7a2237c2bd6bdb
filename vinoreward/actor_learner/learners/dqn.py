"""Deep Q-learning: double Q (van Hasselt et al. 2016), a target network, one or several steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from vinoreward.actor_learner.learners.base import LearnerConfig
from vinoreward.actor_learner.learners.off_policy import (
    ReplayConfig,
    ReplayLearner,
    frozen_copy,
    polyak_update,
)
from vinoreward.actor_learner.learners.replay import Windows
from vinoreward.errors import ConfigError
from vinoreward.policies.distributions import Exploration
from vinoreward.policies.spec import Head, PolicySpec


@dataclass(frozen=True, kw_only=True)
class DQNConfig(ReplayConfig):
    """Settings of :class:`DQN`.

    Attributes:
        double: whether the current network chooses the successor's action and the target network
            evaluates it; otherwise the target network does both.
        target_update_interval: updates between copies to the target network.
        huber: error above which the loss is linear.
        target_epsilon: fraction of random actions of the learned policy. For correctors, whose
            traces a greedy policy would cut at each explored action.
        epsilon_start: the actors' initial fraction of random actions.
        epsilon_end: the final one.
        epsilon_decay_steps: transitions over which it decays linearly.
    """

    max_grad_norm: float = 10.0
    batch_size: int = 64
    double: bool = True
    target_update_interval: int = 100
    huber: float = 1.0
    target_epsilon: float = 0.0
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_decay_steps: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = (self.target_epsilon, self.epsilon_start, self.epsilon_end)
        if not all(0 <= share <= 1 for share in shares) or not self.huber > 0:
            raise ConfigError(
                f"DQN has epsilons {shares} and huber={self.huber}. Expected epsilons from 0 to 1 "
                "and a positive huber."
            )
        if min(self.target_update_interval, self.epsilon_decay_steps) < 1:
            raise ConfigError(
                f"DQN has target_update_interval={self.target_update_interval} and "
                f"epsilon_decay_steps={self.epsilon_decay_steps}. Expected at least 1."
            )


class DQN(ReplayLearner):
    """Action values, with a replay.

    Args:
        spec: with a ``q`` head.
        config: settings.
    """

    config_class: ClassVar[type[LearnerConfig]] = DQNConfig
    heads: ClassVar[tuple[Head, ...]] = ("q",)

    def __init__(self, spec: PolicySpec, config: DQNConfig = DQNConfig()) -> None:
        super().__init__(spec, config)
        self._dqn = config
        self.target = frozen_copy(self.actor)
        self.optimizer = config.make_optimizer(self.actor.parameters())
        self.save_parts("target", "optimizer")

    @property
    def exploration(self) -> Exploration:
        """Epsilon-greedy, by the number of transitions so far."""
        config = self._dqn
        done = min(1.0, self.replay.inserted / config.epsilon_decay_steps)
        return Exploration(
            epsilon=config.epsilon_start + done * (config.epsilon_end - config.epsilon_start)
        )

    def _learn(self, windows: Windows) -> tuple[dict[str, float], npt.NDArray[np.float32]]:
        observations, actions = self.first(windows)
        self.speed.probe(self.actor, observations)
        with torch.no_grad():
            targets = self.targets(windows, self._state_values, self._executed)
        values = self.speed(self.actor, observations)[0]
        chosen = values.gather(1, actions[:, None])[:, 0]
        errors = functional.huber_loss(chosen, targets, reduction="none", delta=self._dqn.huber)
        loss = (self.tensor(windows.weights) * errors).mean()
        norm = self.step(loss, self.optimizer, self.actor.parameters())
        if (self.updates + 1) % self._dqn.target_update_interval == 0:
            polyak_update(self.target, self.actor, 1.0)
        difference: npt.NDArray[np.float32] = (targets - chosen).detach().cpu().numpy()
        metrics = {
            "loss": float(loss.detach()),
            "value": float(chosen.detach().mean()),
            "error": float(np.abs(difference).mean()),
            "gradient_norm": norm,
        }
        return metrics, difference

    def _state_values(self, observations: Tensor) -> Tensor:
        valued: Tensor = self.speed(self.target, observations)[0]
        return (self._probabilities(observations, valued) * valued).sum(1)

    def _executed(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        chosen = self._probabilities(observations).gather(1, actions[:, None])[:, 0]
        valued = self.speed(self.target, observations)[0].gather(1, actions[:, None])[:, 0]
        # log(0) is -infinity: the policy never takes this action.
        return chosen.log(), valued

    def _probabilities(self, observations: Tensor, valued: Tensor | None = None) -> Tensor:
        """Return the learned policy's probabilities (N, A), greedy up to ``target_epsilon``."""
        network, deciding = (self.actor, None) if self._dqn.double else (self.target, valued)
        if deciding is None:
            deciding = self.speed(network, observations)[0]
        greedy = functional.one_hot(deciding.argmax(1), self.spec.actions).float()
        share = self._dqn.target_epsilon
        return (1.0 - share) * greedy + share / self.spec.actions
