"""Steps of SB3's environments as tensors on a learner's device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from vinoreward_training.sb3 import BatchedVecEnv


@dataclass(frozen=True)
class TensorStep:
    """A step of all environments, as tensors on the learner's device."""

    observations: Tensor
    rewards: Tensor
    last: Tensor
    """What followed in the same episodes: at their end their last observations, never a reset's."""
    terminated: Tensor
    """``(N,)`` float32, 1 where nothing follows; an episode that was cut short has 0."""
    dones: Any
    infos: list[dict[str, Any]]


def tensor_step(env: VecEnv, actions: Tensor, device: torch.device) -> TensorStep:
    """Step all environments; return the step on this device."""

    def tensor(values: Any) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float32, device=device)

    if isinstance(env, BatchedVecEnv):
        step = env.step_batch(actions)
        arrays: Any = step.observations, step.rewards, step.last(), step.terminated
        dones, infos = step.dones, step.infos
    else:
        stepped: Any = env.step(actions.cpu().numpy())
        observations, rewards, dones, infos = stepped
        last, terminated = observations.copy(), dones.copy()
        for i in np.flatnonzero(dones).tolist():
            last[i] = infos[i]["terminal_observation"]
            terminated[i] = not infos[i]["TimeLimit.truncated"]
        arrays = observations, rewards, last, terminated
    observations, rewards, last, terminated = map(tensor, arrays)
    return TensorStep(observations, rewards, last, terminated, dones, infos)


def refuse_others(model: Any, learner: str, only: dict[str, Any]) -> None:
    """Raise ValueError for what a learner does not take: observations that are no vectors, an
    optimiser, or an argument of SB3's whose value is not the one in ``only``."""
    for name, value in only.items():
        if getattr(model, name) != value:
            raise ValueError(
                f"{name}={getattr(model, name)!r} is not for --learner {learner}, which takes "
                f"{value!r}; use --learner sb3"
            )
    if len(model.observation_space.shape or ()) != 1:
        raise ValueError(
            f"--learner {learner} learns from vectors of numbers, and the observation is "
            f"{model.observation_space}; use --encoder, or --learner sb3"
        )
    if of_optimizer := sorted({"optimizer_class", "optimizer_kwargs"} & set(model.policy_kwargs)):
        raise ValueError(
            f"{' and '.join(of_optimizer)} in policy_kwargs is not for --learner {learner}, which "
            "has its own Adam; leave it out, or use --learner sb3"
        )


def no_optimizer(parameters: Any, **arguments: Any) -> None:
    """Stand in where SB3 makes an optimiser: the learner has its own."""
