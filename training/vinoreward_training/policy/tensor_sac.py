"""SAC of Stable-Baselines3 whose loop and replay are tensors on one device.

The networks are those of SB3's policy, so a policy is saved, loaded and played as any other. What
learns from the replay is for a subclass to say.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium as gym
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from vinoreward.errors import OutputError
from vinoreward_training.policy.tensor_steps import no_optimizer, refuse_others, tensor_step

_ONLY: dict[str, Any] = {
    "use_sde": False, "n_steps": 1, "action_noise": None, "optimize_memory_usage": False,
    "target_update_interval": 1,
}  # fmt: skip
"""Arguments of SB3's SAC that are not supported, and the one value that each may have."""


@dataclass(frozen=True)
class Transitions:
    """Transitions as tensors, ``(..., D)`` observations and ``(..., A)`` actions in -1 to 1."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    """``(...)`` float32."""
    next_observations: Tensor
    """What followed in the same episode: at its end its last observation, never a reset's."""
    terminated: Tensor
    """``(...)`` float32, 1 where nothing follows; an episode that was cut short has 0."""


class TensorReplay:
    """A ring of transitions in tensors on one device, with the attributes of SB3's replay buffer.

    Args:
        buffer_size: transitions of all environments.
        observation_space: of one environment, a vector.
        action_space: of one environment.
        device: where the tensors are.
        n_envs: environments, each with a column of its own.
        optimize_memory_usage: must be False.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: gym.spaces.Box,
        action_space: gym.spaces.Box,
        device: torch.device | str = "cpu",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
    ) -> None:
        rows = max(buffer_size // n_envs, 1)
        (seen,), (done,) = observation_space.shape, action_space.shape

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(rows, n_envs, *shape, device=device)

        self.observations, self.next_observations = zeros(seen), zeros(seen)
        self.actions, self.rewards, self.terminated = zeros(done), zeros(), zeros()
        self.buffer_size = rows
        """Steps of the batch that fit."""
        self.n_envs = n_envs
        self.pos = 0
        self.full = False

    def size(self) -> int:
        """Return how many steps of the batch are held."""
        return self.buffer_size if self.full else self.pos

    def add(self, step: Transitions) -> None:
        """Keep one step of the batch, ``(N, ...)``, in place of the oldest if it is full."""
        for name, values in vars(step).items():
            getattr(self, name)[self.pos] = values
        self.pos = (self.pos + 1) % self.buffer_size
        self.full |= self.pos == 0

    def sample(self, *shape: int) -> Transitions:
        """Return transitions ``(*shape, ...)``, each drawn from all with torch's generator."""
        device = self.rewards.device
        chosen = torch.randint(self.size() * self.n_envs, shape, device=device)
        return Transitions(
            **{
                name: getattr(self, name).flatten(0, 1)[chosen]
                for name in Transitions.__dataclass_fields__
            }
        )


class TensorSAC(SAC):
    """SAC with the networks and arguments of SB3's, whose loop and replay are tensors.

    It refuses gSDE, n-step returns, action noise, delayed targets and another optimiser.
    Observations are vectors.
    """

    LEARNER: ClassVar[str]
    """Its name as an option."""

    replay_buffer: TensorReplay  # type: ignore[assignment]

    def _setup_model(self) -> None:
        refuse_others(self, self.LEARNER, _ONLY)
        self.replay_buffer_class = TensorReplay  # type: ignore[assignment]
        self.policy_kwargs = {**self.policy_kwargs, "optimizer_class": no_optimizer}
        super(SAC, self)._setup_model()
        self._create_aliases()
        self._actions = math.prod(self.action_space.shape or ())
        wanted = self.target_entropy
        self.target_entropy = -float(self._actions) if wanted == "auto" else float(wanted)
        learned = isinstance(self.ent_coef, str)
        weight = float(str(self.ent_coef).removeprefix("auto").removeprefix("_") or "1")
        if not weight > 0 and learned:
            raise ValueError(f"ent_coef={self.ent_coef!r} starts at or below 0")
        self._set_up_learner(weight, learned=learned)

    @abstractmethod
    def _set_up_learner(self, entropy_weight: float, *, learned: bool) -> None:
        """Make what learns; the weight of the entropy is learned or stays."""

    @abstractmethod
    def _act(self, seen: Tensor) -> Tensor:
        """Return actions (N, A) in -1 to 1 that the policy draws."""

    @abstractmethod
    def _learn_from_replay(self, gradient_steps: int, batch_size: int) -> tuple[float, float]:
        """Make gradient steps; return the last losses of critics and actor."""

    @abstractmethod
    def _entropy_weight(self) -> float:
        """Return the weight of the entropy."""

    def collect_rollouts(  # type: ignore[override]
        self,
        env: VecEnv,
        callback: BaseCallback,
        train_freq: TrainFreq,
        replay_buffer: TensorReplay,
        action_noise: None = None,
        learning_starts: int = 0,
        log_interval: int | None = None,
    ) -> RolloutReturn:
        """Take ``train_freq`` steps of all environments, see SB3's."""
        if train_freq.unit != TrainFrequencyUnit.STEP:
            raise ValueError(f"train_freq={train_freq!r} is not in steps")
        callback.on_rollout_start()
        episodes = self._episode_num
        space: Any = self.action_space
        low, high = (torch.as_tensor(end, device=self.device) for end in (space.low, space.high))
        seen = torch.as_tensor(self._last_obs, dtype=torch.float32, device=self.device)
        for _ in range(train_freq.frequency):
            actions = self._explore(seen, random=self.num_timesteps < learning_starts)
            step = tensor_step(env, low + 0.5 * (actions + 1.0) * (high - low), self.device)
            self.num_timesteps += env.num_envs
            callback.update_locals({"infos": step.infos, "dones": step.dones})
            callback.on_step()
            self._update_info_buffer(step.infos, step.dones)
            self._episode_num += int(step.dones.sum())
            replay_buffer.add(Transitions(seen, actions, step.rewards, step.last, step.terminated))
            seen = step.observations
            self._last_obs = seen  # type: ignore[assignment]
            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
        if log_interval and self._episode_num // log_interval > episodes // log_interval:
            self.dump_logs()
        callback.on_rollout_end()
        taken = train_freq.frequency
        return RolloutReturn(taken * env.num_envs, self._episode_num - episodes, True)

    @torch.no_grad()
    def _explore(self, seen: Tensor, *, random: bool) -> Tensor:
        """Return actions ``(N, A)`` in -1 to 1: uniform ones, or of the policy."""
        if random:
            return 2.0 * torch.rand((len(seen), self._actions), device=self.device) - 1.0
        return self._act(seen)

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Make gradient steps, each on a batch of its own."""
        self._n_updates += gradient_steps
        losses = self._learn_from_replay(gradient_steps, batch_size)
        if not all(map(math.isfinite, losses)):
            raise OutputError(
                f"gradient step {self._n_updates} has the losses {losses[0]:.4g} and "
                f"{losses[1]:.4g}. Expected finite numbers: training has diverged. Lower "
                "learning_rate in --algorithm-kwargs and start anew, or resume from the checkpoint."
            )
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/ent_coef", self._entropy_weight())
        self.logger.record("train/critic_loss", losses[0])
        self.logger.record("train/actor_loss", losses[1])
