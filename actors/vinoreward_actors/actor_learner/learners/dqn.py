"""Deep Q-learning: double Q (van Hasselt et al. 2016), a target network, one or several steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.learners import networks
from vinoreward_actors.actor_learner.learners.replay import ReplayConfig, ReplayLearner, Windows
from vinoreward_actors.policies.distributions import Exploration
from vinoreward_actors.policies.spec import PolicySpec


@dataclass(frozen=True, kw_only=True)
class DQNConfig(ReplayConfig):
    """Settings of :class:`DQN`.

    Attributes:
        target_update_interval: updates between copies to the target network.
        epsilon_start: the actors' initial fraction of random actions.
        epsilon_end: the final one.
        epsilon_decay_steps: transitions over which it decays linearly.
    """

    max_grad_norm: float = 10.0
    batch_size: int = 64
    target_update_interval: int = 100
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_decay_steps: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = (self.epsilon_start, self.epsilon_end)
        if not all(0 <= share <= 1 for share in shares):
            raise ConfigError(f"DQN has epsilons {shares}. Expected epsilons from 0 to 1.")
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

    config_class = DQNConfig
    heads = ("q",)

    def __init__(self, spec: PolicySpec, config: DQNConfig = DQNConfig()) -> None:
        super().__init__(spec, config)
        self._dqn = config
        self.target = networks.frozen_copy(self.actor)
        self.optimizer = config.make_optimizer(self.actor.parameters())
        self.save_parts("target", "optimizer")

    @property
    def exploration(self) -> Exploration:
        """Epsilon-greedy, by the number of transitions so far."""
        start, end = self._dqn.epsilon_start, self._dqn.epsilon_end
        done = min(1.0, self.replay.inserted / self._dqn.epsilon_decay_steps)
        return Exploration(epsilon=start + done * (end - start))

    def _learn(self, windows: Windows) -> dict[str, float]:
        observations, actions = self.first(windows)
        with torch.no_grad():
            returns, discounts, following = self.summed(windows)
            # Double Q-learning: the current network chooses, the target network evaluates.
            best = self.computed(self.actor, following)[0].argmax(1)
            ahead = self.computed(self.target, following)[0].gather(1, best[:, None])[:, 0]
            targets = returns + discounts * ahead
        values = self.computed(self.actor, observations)[0]
        chosen = values.gather(1, actions[:, None])[:, 0]
        loss = functional.huber_loss(chosen, targets)
        norm = self.step(loss, self.optimizer, self.actor.parameters())
        if (self.updates + 1) % self._dqn.target_update_interval == 0:
            self.target.load_state_dict(self.actor.state_dict())
        return {
            "loss": float(loss.detach()),
            "value": float(chosen.detach().mean()),
            "error": float((targets - chosen).detach().abs().mean()),
            "gradient_norm": norm,
        }
