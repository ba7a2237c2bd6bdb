"""A model's acting network on a backend: its actions, and its distance from the model."""

# pyright: reportPrivateUsage=false
# Stable-Baselines3 has no public way to these.

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch import Tensor

from vinoreward.errors import ConfigError
from vinoreward_actors.compression.chain import CompressionContext
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.policies.backends.base import PolicyBackend, make_backend
from vinoreward_actors.policies.policy import Floats, forward
from vinoreward_actors.sb3.network import acting_policy

SECONDS = 0.1
"""For which each part is timed."""
SAME = 1e-4
"""Greatest difference of an FP32 output, relative to the largest, from the model's own."""
SEEN = 16
"""Observations by which the copied network is compared with the model's."""
BATCH = 4096
"""Observations of a rollout whose values are computed at once."""


class ActingNetwork:
    """A model's acting network on a backend, and its distribution."""

    def __init__(self, model: BaseAlgorithm, backend: str, precision: str) -> None:
        self._model, self.backend, self.precision = model, backend, precision
        self._backend: PolicyBackend | None = None
        self._quantize = Quantize("int8")
        self._updates: tuple[int, str] = (-1, precision)

    def refresh(self, observations: Callable[[], npt.NDArray[Any]]) -> None:
        """Take over the model's weights, if it was updated; INT8 by observations (N, *shape)."""
        updates = self._model._n_updates, self.precision
        if updates == self._updates:
            return
        self._updates = updates
        policy = acting_policy(self._model)
        if self._backend is None:
            self._backend = make_backend(self.backend, self._model.n_envs)
        if self.precision == "int8":
            rows = observations().astype(policy.spec.observation_dtype, copy=False)
            policy = self._quantize.compress(policy, CompressionContext(policy, rows))
        self._backend.refresh(policy)

    def act(self, obs: Tensor) -> Any:
        """Return what the replaced method does, see :func:`drawn`."""
        return drawn(self._model, self.outputs(obs))

    def outputs(self, obs: Tensor) -> Tensor:
        """Return the network's outputs (n_envs, K)."""
        backend = self._backend
        if backend is None or backend.policy is None:
            raise ConfigError("the acting network has no weights. Expected refresh() first.")
        rows = obs.cpu().numpy()
        seen = rows.astype(backend.policy.spec.observation_dtype, copy=False)
        return torch.from_numpy(backend.infer(seen)).to(self._model.device)

    def close(self) -> None:
        """Release the backend."""
        if self._backend is not None:
            self._backend.close()
            self._backend = None


def drawn(model: BaseAlgorithm, outputs: Tensor) -> Any:
    """Return what the model's own method returns for the network's outputs (n_envs, K).

    Of PPO and A2C that is ``ActorCriticPolicy.forward``: actions, values, which are zero until a
    rollout ends, and log probabilities. Of the others it is ``BasePolicy._predict``: actions.
    """
    if isinstance(model, OnPolicyAlgorithm):
        distribution = _distribution(model, outputs)
        taken = distribution.get_actions()
        log_prob = distribution.log_prob(taken)
        shape: Any = model.action_space.shape
        zeros = torch.zeros(len(taken), 1, device=log_prob.device)
        return taken.reshape((-1, *shape)), zeros, log_prob
    if isinstance(model, DQN):
        return outputs.argmax(dim=1)
    if isinstance(model, SAC):
        mean, log_std = outputs.chunk(2, dim=1)
        squashed: Any = model.policy.actor.action_dist
        return squashed.actions_from_params(mean, log_std.clamp(-20, 2))
    return torch.tanh(outputs)


def shared_seconds(model: BaseAlgorithm, rows: npt.NDArray[Any]) -> float:
    """Return the seconds of an action beside the acting network's, the same on every backend.

    They draw the action and compute the values, of all observations ``rows`` (N, *shape) at once.
    """
    policy = acting_policy(model)
    seen = np.resize(rows, (model.n_envs, *rows.shape[1:])).astype(policy.spec.observation_dtype)
    outputs = torch.from_numpy(forward(policy, seen)).to(model.device)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        seconds = _per_call(lambda: drawn(model, outputs))
        if isinstance(model, OnPolicyAlgorithm):
            many = torch.from_numpy(rows).to(model.device)
            all_values = _per_call(lambda: model.policy.predict_values(many))
            seconds += all_values * model.n_envs / len(rows)
    return seconds


def _per_call(call: Callable[[], Any]) -> float:
    """Return the median seconds of a call."""
    call()
    seconds: list[float] = []
    end = time.perf_counter() + SECONDS
    while (began := time.perf_counter()) < end:
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def check_same(model: BaseAlgorithm, rows: npt.NDArray[Any]) -> None:
    """Raise ConfigError unless the copied network computes what the model does.

    A subclass of a policy may use the same layers in another way.
    """
    copy = acting_policy(model)
    seen = rows[:SEEN].astype(copy.spec.observation_dtype, copy=False)
    with torch.no_grad():
        own = _drawn_by(model, torch.from_numpy(rows[:SEEN]).to(model.device))
        outputs = _as_drawn_by(model, torch.from_numpy(forward(copy, seen)).to(model.device))
    difference = float((own - outputs).abs().max())
    if not difference <= SAME * float(own.abs().max()):
        raise ConfigError(
            field="model",
            value=type(model.policy).__name__,
            expected="a policy that uses its layers as stable_baselines3 does; a copy of them "
            f"gives outputs that differ by {difference:.3g}",
        )


def _drawn_by(model: BaseAlgorithm, obs: Tensor) -> Tensor:
    """Return the numbers (N, K) that the model itself draws actions by."""
    policy: Any = model.policy
    if isinstance(model, OnPolicyAlgorithm):
        return _parameters(policy.get_distribution(obs))
    if isinstance(model, SAC):
        mean, log_std, _ = policy.actor.get_action_dist_params(obs)
        return torch.cat([mean, log_std], 1)
    network: Any = policy.q_net if isinstance(model, DQN) else policy.actor
    values: Tensor = network(obs)
    return values


def _as_drawn_by(model: BaseAlgorithm, outputs: Tensor) -> Tensor:
    """Return the same numbers from the outputs of :func:`acting_policy`."""
    if isinstance(model, OnPolicyAlgorithm):
        return _parameters(_distribution(model, outputs))
    if isinstance(model, SAC):
        mean, log_std = outputs.chunk(2, 1)
        return torch.cat([mean, log_std.clamp(-20, 2)], 1)
    return outputs.tanh() if isinstance(model, TD3) else outputs


def _distribution(model: BaseAlgorithm, outputs: Tensor) -> Any:
    policy: Any = model.policy
    arguments = [policy.log_std] if hasattr(policy, "log_std") else []
    return policy.action_dist.proba_distribution(outputs, *arguments)


def _parameters(distribution: Any) -> Tensor:
    """Return the parameters (N, K) of one of Stable-Baselines3's distributions."""
    inner = distribution.distribution
    if isinstance(inner, list):  # one for each of several discrete actions
        return torch.cat([one.logits for one in inner], 1)
    parameters: Tensor = (
        inner.mean if isinstance(inner, torch.distributions.Normal) else inner.logits
    )
    return parameters


def complete_values(model: OnPolicyAlgorithm) -> float:
    """Fill in a rollout's values; return the estimated KL divergence of its actions' policy.

    The estimate is ``mean(r - 1 - log r)`` with ``r`` the ratio of the model's own probability to
    that of the network that acted (Schulman 2020, http://joschu.net/blog/kl-approx.html).
    """
    buffer: Any = model.rollout_buffer
    steps, envs = buffer.values.shape
    rows = buffer.observations.reshape(-1, *buffer.observations.shape[2:])
    actions = buffer.actions.reshape(-1, *buffer.actions.shape[2:])
    values: list[Floats] = []
    logs: list[Floats] = []
    for first in range(0, len(rows), BATCH):
        part = slice(first, first + BATCH)
        taken = torch.from_numpy(actions[part]).to(model.device)
        if isinstance(model.action_space, spaces.Discrete):
            taken = taken.long().flatten()
        with torch.no_grad():
            seen = torch.from_numpy(rows[part]).to(model.device)
            value, log_prob, _ = model.policy.evaluate_actions(seen, taken)
        values.append(value.flatten().cpu().numpy())
        logs.append(log_prob.cpu().numpy())
    buffer.values[:] = np.concatenate(values).reshape(steps, envs)
    log_ratio = np.concatenate(logs).astype(np.float64) - buffer.log_probs.reshape(-1)
    return float(np.mean(np.expm1(log_ratio) - log_ratio))
