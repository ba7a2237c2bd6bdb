"""Soft actor-critic with a learned temperature (Haarnoja et al. 2018, arXiv:1812.05905)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.learners import networks
from vinoreward_actors.actor_learner.learners.base import seeded
from vinoreward_actors.actor_learner.learners.replay import ReplayConfig, ReplayLearner, Windows
from vinoreward_actors.policies.policy import Floats
from vinoreward_actors.policies.spec import PolicySpec


@dataclass(frozen=True, kw_only=True)
class SACConfig(ReplayConfig):
    """Settings of :class:`SAC`.

    With ``n_step`` above 1, the corrector uses soft values, which include the entropy bonus.

    Attributes:
        hidden: widths of the critics' dense layers.
        tau: step size of the target critics at each update.
        ent_coef: weight of the entropy; ``"auto"`` learns it from 1.0 on, ``"auto_0.1"`` from 0.1.
        target_entropy: target of that learning in nats, for actions in [-1, 1]; ``None`` is -1 per
            dimension.
    """

    hidden: tuple[int, ...] = (256, 256)
    tau: float = 0.005
    ent_coef: float | str = "auto"
    target_entropy: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.tau <= 1 and self.first_ent_coef > 0):
            raise ConfigError(
                f"SAC has tau={self.tau} and ent_coef={self.ent_coef!r}. Expected tau above 0 and "
                "up to 1, and a positive number, 'auto', or 'auto_' and a positive number."
            )

    @property
    def first_ent_coef(self) -> float:
        """Initial weight of the entropy; NaN if ``ent_coef`` is invalid."""
        text = str(self.ent_coef)
        try:
            return 1.0 if text == "auto" else float(text.removeprefix("auto_"))
        except ValueError:
            return math.nan


class Temperature(nn.Module):
    """The logarithm of the entropy's weight, as a trainable parameter."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(start)))


class SAC(ReplayLearner):
    """A stochastic policy and two critics, with a replay.

    Args:
        spec: with a ``tanh_gaussian`` head.
        config: settings.
    """

    config_class = SACConfig
    heads = ("tanh_gaussian",)

    def __init__(self, spec: PolicySpec, config: SACConfig = SACConfig()) -> None:
        super().__init__(spec, config)
        self._sac = config
        with seeded(config.seed + 1):
            self.critics = networks.Twins(spec, config.hidden).to(self.device)
        self.target = networks.frozen_copy(self.critics)
        self.temperature = Temperature(config.first_ent_coef).to(self.device)
        target = config.target_entropy
        self._entropy = -float(spec.actions) if target is None else target
        self.optimizer = config.make_optimizer(self.actor.parameters())
        self.critic_optimizer = config.make_optimizer(self.critics.parameters())
        self.temperature_optimizer = config.make_optimizer(self.temperature.parameters())
        optimizers = ("optimizer", "critic_optimizer", "temperature_optimizer")
        self.save_parts("critics", "target", "temperature", *optimizers)

    def _sampled(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions (N, A) of the current policy; return them and their log densities (N,)."""
        outputs = self.speed(self.actor, observations)[0]
        noise = self.normal(len(outputs), self.spec.actions)
        return networks.sample(self.spec, outputs, noise)

    def _learn(self, windows: Windows) -> tuple[dict[str, float], Floats]:
        observations, actions = self.first(windows)
        self.speed.probe_largest(
            (self.actor, (observations,)), (self.critics, (observations, actions))
        )
        weight = self.temperature.log.detach().exp()
        with torch.no_grad():
            targets = self.targets(windows, self._soft_values, self._executed)
        values = self.speed(self.critics, observations, actions)
        errors = values - targets[:, None]
        importance = self.tensor(windows.weights)
        critic_loss = 0.5 * (importance * errors.square().sum(1)).mean()
        critic_norm = self.step(critic_loss, self.critic_optimizer, self.critics.parameters())

        sampled, log_pi = self._sampled(observations)
        q_values = self.speed(self.critics, observations, sampled).min(1).values
        actor_loss = (weight * log_pi - q_values).mean()
        norm = self.step(actor_loss, self.optimizer, self.actor.parameters())
        if isinstance(self._sac.ent_coef, str):
            loss = -self.temperature.log * (log_pi.detach().mean() + self._entropy)
            self.step(loss, self.temperature_optimizer, self.temperature.parameters())
        networks.polyak_update(self.target, self.critics, self._sac.tau)
        metrics = {
            "loss": float(critic_loss.detach()),
            "actor_loss": float(actor_loss.detach()),
            "value": float(values.detach().mean()),
            "entropy": -float(log_pi.detach().mean()),
            "ent_coef": float(weight),
            "gradient_norm": norm,
            "critic_gradient_norm": critic_norm,
        }
        return metrics, errors.detach().abs().mean(1).cpu().numpy()

    def _executed(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.speed(self.actor, observations)[0]
        q_values = self.speed(self.target, observations, actions).min(1).values
        return networks.log_prob(self.spec, outputs, actions), q_values

    def _soft_values(self, observations: Tensor) -> Tensor:
        """Return (N,) values of one sampled action each, with its entropy."""
        actions, log_pi = self._sampled(observations)
        q_values: Tensor = self.speed(self.target, observations, actions).min(1).values
        return q_values - self.temperature.log.exp() * log_pi
