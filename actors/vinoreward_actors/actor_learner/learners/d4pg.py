"""Distributional deterministic policy gradients (Barth-Maron et al. 2018).

Actors explore with normally distributed noise on the policy's output before the tanh, so no action
is clipped at a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.learners import networks
from vinoreward_actors.actor_learner.learners.base import seeded
from vinoreward_actors.actor_learner.learners.replay import ReplayConfig, ReplayLearner, Windows
from vinoreward_actors.policies.distributions import Exploration
from vinoreward_actors.policies.spec import PolicySpec


@dataclass(frozen=True, kw_only=True)
class D4PGConfig(ReplayConfig):
    """Settings of :class:`D4PG`.

    Attributes:
        critic_learning_rate: of the critic; ``learning_rate`` is the policy's.
        hidden: widths of the critic's dense layers.
        num_atoms: number of atoms of the return distribution.
        v_min: smallest return.
        v_max: largest return.
        target_update_interval: updates between copies to the target networks.
        sigma: standard deviation of the actors' noise, before the tanh.
        saturation: weight of the squared excess of outputs over 2 in absolute value before the
            tanh; with a saturated tanh the noise would explore nothing.
    """

    learning_rate: float = 1e-4
    critic_learning_rate: float = 1e-4
    hidden: tuple[int, ...] = (512, 512, 256)
    num_atoms: int = 51
    v_min: float = -150.0
    v_max: float = 150.0
    target_update_interval: int = 100
    sigma: float = 0.3
    saturation: float = 1e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_atoms < 2 or not self.v_min < self.v_max or self.target_update_interval < 1:
            raise ConfigError(
                f"D4PG has {self.num_atoms} atoms from {self.v_min} to {self.v_max} and "
                f"target_update_interval={self.target_update_interval}. Expected at least two "
                "atoms, v_min < v_max, and an interval of at least 1."
            )
        if not (self.critic_learning_rate > 0 and self.sigma >= 0 and self.saturation >= 0):
            raise ConfigError(
                f"D4PG has critic_learning_rate={self.critic_learning_rate}, sigma={self.sigma} "
                f"and saturation={self.saturation}. Expected a positive rate, the others at least "
                "0."
            )


class D4PG(ReplayLearner):
    """A deterministic policy and a critic of the return distribution, with a replay.

    Args:
        spec: with a ``tanh`` head.
        config: settings.
    """

    config_class = D4PGConfig
    heads = ("tanh",)

    def __init__(self, spec: PolicySpec, config: D4PGConfig = D4PGConfig()) -> None:
        super().__init__(spec, config)
        self._d4pg = config
        with seeded(config.seed + 1):
            critic = networks.Critic(spec, config.hidden, config.num_atoms, normalised=True)
        self.critic = critic.to(self.device)
        self.atoms = torch.linspace(
            config.v_min, config.v_max, config.num_atoms, device=self.device
        )
        self.target_actor = networks.frozen_copy(self.actor)
        self.target_critic = networks.frozen_copy(self.critic)
        self.optimizer = config.make_optimizer(self.actor.parameters())
        self.critic_optimizer = config.make_optimizer(
            self.critic.parameters(), config.critic_learning_rate
        )
        self.save_parts("critic", "target_actor", "target_critic", "optimizer", "critic_optimizer")

    @property
    def exploration(self) -> Exploration:
        """Noise before the tanh."""
        return Exploration(sigma=self._d4pg.sigma)

    def _learn(self, windows: Windows) -> dict[str, float]:
        observations, actions = self.first(windows)
        with torch.no_grad():
            targets = self._targets(windows)
        logits = self.computed(self.critic, observations, actions)
        critic_loss = -(targets * functional.log_softmax(logits, 1)).sum(1).mean()
        critic_norm = self.step(critic_loss, self.critic_optimizer, self.critic.parameters())

        outputs = self.computed(self.actor, observations)[0]
        value = self._mean(self.computed(self.critic, observations, torch.tanh(outputs))).mean()
        excess = functional.relu(outputs.abs() - 2.0).square().mean()
        actor_loss = self._d4pg.saturation * excess - value
        norm = self.step(actor_loss, self.optimizer, self.actor.parameters())
        if (self.updates + 1) % self._d4pg.target_update_interval == 0:
            self.target_actor.load_state_dict(self.actor.state_dict())
            self.target_critic.load_state_dict(self.critic.state_dict())
        return {
            "loss": float(critic_loss.detach()),
            "actor_loss": float(actor_loss.detach()),
            "value": float(value.detach()),
            "gradient_norm": norm,
            "critic_gradient_norm": critic_norm,
        }

    def _targets(self, windows: Windows) -> Tensor:
        """Return the critic's target distributions (B, atoms)."""
        returns, discounts, following = self.summed(windows)
        actions = torch.tanh(self.computed(self.target_actor, following)[0])
        logits = self.computed(self.target_critic, following, actions)
        self.check_finite("action values", logits)
        return networks.project(functional.softmax(logits, 1), returns, discounts, self.atoms)

    def _mean(self, logits: Tensor) -> Tensor:
        """Return the expected return (N,) of logits (N, atoms)."""
        return (functional.softmax(logits, 1) * self.atoms).sum(1)
