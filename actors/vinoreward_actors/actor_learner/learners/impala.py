"""The actor-critic of IMPALA (Espeholt et al. 2018), which uses each trajectory once.

The actors' networks are compressed and some updates old. A correction needs only the probability of
each executed action under the actor's network, which every step includes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.actor_learner.learners import networks
from vinoreward_actors.actor_learner.learners.base import (
    Consumption,
    Learner,
    LearnerConfig,
    seeded,
)
from vinoreward_actors.actor_learner.transport.trajectory import ARRAYS, Trajectory
from vinoreward_actors.correction import Correction, Corrector, OffPolicyBatch, VTrace
from vinoreward_actors.policies.spec import Dense, PolicySpec
from vinoreward_actors.policies.torch_policy import TorchPolicy


@dataclass(frozen=True, kw_only=True)
class ImpalaConfig(LearnerConfig):
    """Settings of :class:`Impala`.

    Attributes:
        trajectories: per update.
        correctors: one of role target, at most one of role policy_gradient.
        entropy_coef: weight of the entropy bonus.
        value_coef: weight of the squared error of values.
    """

    learning_rate: float = 6e-4
    trajectories: int = 4
    correctors: tuple[Corrector, ...] = (VTrace(),)
    entropy_coef: float = 0.01
    value_coef: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trajectories < 1 or not (self.entropy_coef >= 0 and self.value_coef > 0):
            raise ConfigError(
                f"Impala has trajectories={self.trajectories}, entropy_coef={self.entropy_coef} "
                f"and value_coef={self.value_coef}. Expected at least one trajectory, entropy_coef "
                "of at least 0, and value_coef above 0."
            )


class Impala(Learner):
    """Off-policy corrected advantage actor-critic.

    Args:
        spec: with a ``logits`` or ``tanh_gaussian`` head. Its value head is the critic; without
            one, the critic is a separate network of the same layers, unknown to actors.
        config: settings.
    """

    config_class = ImpalaConfig
    heads = ("logits", "tanh_gaussian")

    def __init__(self, spec: PolicySpec, config: ImpalaConfig = ImpalaConfig()) -> None:
        super().__init__(spec, config)
        self._config = config
        self.correction = Correction(config.correctors)
        self.critic: TorchPolicy | None = None
        if spec.value is None:
            with seeded(config.seed + 1):
                self.critic = TorchPolicy(critic_spec(spec), head_gain=1.0).to(self.device)
            self.save_parts("critic")
        self.optimizer = config.make_optimizer(iter(self._trained()))
        self.save_parts("optimizer")

    @property
    def consumption(self) -> Consumption:
        """Fresh trajectories."""
        return Consumption(self._config.trajectories)

    def _trained(self) -> list[torch.nn.Parameter]:
        networks = [self.actor] if self.critic is None else [self.actor, self.critic]
        return [parameter for network in networks for parameter in network.parameters()]

    def _values(self, observations: Tensor) -> Tensor:
        if self.critic is None:
            return cast(Tensor, self.computed(self.actor, observations)[1])
        return cast(Tensor, self.computed(self.critic, observations)[0][:, 0])

    def update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Make one step on several trajectories; see :meth:`Learner.update`."""
        batch = concatenate(trajectories)
        observations = self.tensor(batch.observations.reshape(-1, *self.spec.observation_shape))
        actions = self.tensor(batch.actions.reshape(-1, *batch.actions.shape[2:]))
        outputs, values = self.computed(self.actor, observations)
        if self.critic is not None:
            values = self._values(observations)
        self.check_finite("outputs", outputs)
        self.check_finite("values", values)
        log_pi = networks.log_prob(self.spec, outputs, actions)
        corrected = self.correction(self._off_policy(batch, log_pi, values))
        policy_loss = -(self.tensor(corrected.advantages).reshape(-1) * log_pi).mean()
        value_loss = 0.5 * (self.tensor(corrected.targets).reshape(-1) - values).square().mean()
        entropy = networks.entropy(self.spec, outputs).mean()
        loss = (
            policy_loss + self._config.value_coef * value_loss - self._config.entropy_coef * entropy
        )
        norm = self.step(loss, self.optimizer, iter(self._trained()))
        self.updates += 1
        return {
            "loss": float(loss.detach()),
            "policy_loss": float(policy_loss.detach()),
            "value_loss": float(value_loss.detach()),
            "entropy": float(entropy.detach()),
            "value": float(values.detach().mean()),
            "gradient_norm": norm,
            "ess": corrected.ess,
            "clipped": corrected.clipped,
        }

    def _off_policy(self, batch: Trajectory, log_pi: Tensor, values: Tensor) -> OffPolicyBatch:
        """Return the detached inputs of correctors; successors get the current network's values."""
        shape = batch.rewards.shape
        present = self.array(values, shape)
        following = np.empty_like(present)
        # Within an episode, the successor is the next row, whose value is already known.
        following[:-1] = present[1:]
        stops = batch.terminated | batch.truncated
        stops[-1] = True
        with torch.no_grad():
            last = self._values(self.tensor(batch.next_observations[stops]))
        self.check_finite("values", last)
        following[stops] = last.float().cpu().numpy()
        return OffPolicyBatch(
            log_pi=self.array(log_pi, shape),
            log_mu=batch.log_mu,
            rewards=self._config.rewards(batch.rewards),
            terminated=batch.terminated,
            truncated=batch.truncated,
            values=present,
            next_values=following,
            gamma=self._config.gamma,
        )


def concatenate(trajectories: Sequence[Trajectory]) -> Trajectory:
    """Concatenate trajectories of equally many steps over their environments."""
    lengths = sorted({len(trajectory.rewards) for trajectory in trajectories})
    if len(lengths) != 1:
        raise InputError(
            f"trajectories have {lengths or 'no'} steps. Expected at least one trajectory, all of "
            "the same length."
        )
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(each, name) for each in trajectories], axis=1)
        for name in ARRAYS
    }
    return Trajectory(**arrays)


def critic_spec(spec: PolicySpec) -> PolicySpec:
    """Return a network of the same layers with one output, the value."""
    head = cast(Dense, spec.layers[-1])
    layers = (*spec.layers[:-1], Dense("state_value", head.inputs, 1))
    return replace(spec, layers=layers, head="q", actions=1)
