"""The PPO of skrl, with the loop, the networks and the checkpoints of the others.

The last reward of a truncated episode includes the discounted value of its own last observation,
as in SB3 (Pardo et al., Time Limits in Reinforcement Learning, 2018), and skrl's agent takes the
episode as terminated: skrl's trainers would bootstrap from the next episode's first observation.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, ClassVar

import gymnasium as gym
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor, nn

from vinoreward.errors import OutputError, needed_for
from vinoreward_training.policy.tensor_steps import no_optimizer, refuse_others, tensor_step

with needed_for("--learner skrl", "skrl"):
    from skrl.agents.torch.ppo import PPO as Agent
    from skrl.agents.torch.ppo import PPO_CFG
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import Model

_ONLY: dict[str, Any] = {
    "use_sde": False, "normalize_advantage": True, "clip_range_vf": None, "target_kl": None,
}  # fmt: skip
"""Arguments of SB3's PPO that are not supported, and the one value that each may have."""


class SkrlPPO(PPO):
    """SB3's PPO whose agent is skrl's; it takes and writes the same.

    Observations are vectors, actions continuous. Advantages are normalised over the whole rollout.
    """

    LEARNER: ClassVar[str] = "skrl"

    def _setup_model(self) -> None:
        refuse_others(self, self.LEARNER, _ONLY)
        if not isinstance(self.action_space, gym.spaces.Box):
            raise ValueError(
                f"--learner {self.LEARNER} has continuous actions, and the actions are "
                f"{self.action_space}; use --learner sb3"
            )
        self.policy_kwargs = {**self.policy_kwargs, "optimizer_class": no_optimizer}
        self.rollout_buffer_class = _NoBuffer
        with warnings.catch_warnings():
            # It supposes rollouts in the host's memory.
            warnings.filterwarnings("ignore", "You are trying to run .* on the GPU", UserWarning)
            super()._setup_model()
        spaces = {"observation_space": self.observation_space, "action_space": self.action_space}
        place = {"device": self.device, **spaces}
        network = _ActorCritic(self.policy, **place)
        taken = self.n_steps * self.n_envs
        self.agent = Agent(
            models={"policy": network, "value": network},
            memory=RandomMemory(memory_size=self.n_steps, num_envs=self.n_envs, device=self.device),
            cfg=PPO_CFG(
                rollouts=self.n_steps,
                learning_epochs=self.n_epochs,
                mini_batches=max(1, math.ceil(taken / self.batch_size)),
                discount_factor=self.gamma,
                gae_lambda=self.gae_lambda,
                grad_norm_clip=self.max_grad_norm,
                value_clip=0.0,
                entropy_loss_scale=self.ent_coef,
                value_loss_scale=self.vf_coef,
                # Logs and checkpoints are the training's own.
                experiment={"write_interval": 0, "checkpoint_interval": 0},
            ),
            **place,
        )
        for group in self.agent.optimizer.param_groups:
            group["eps"] = 1e-5  # as SB3 has it for these policies
        self.agent.init()
        self.agent.enable_training_mode(True)

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "agent.optimizer"], []

    @torch.no_grad()
    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutBuffer,
        n_rollout_steps: int,
    ) -> bool:
        """Take ``n_rollout_steps`` steps of all environments, see SB3's."""
        callback.on_rollout_start()
        self.agent.memory.reset()  # a rollout that was stopped is not gone on with
        agent = self.agent
        space: Any = self.action_space
        low, high = (torch.as_tensor(end, device=self.device) for end in (space.low, space.high))
        seen = torch.as_tensor(self._last_obs, dtype=torch.float32, device=self.device)
        for _ in range(n_rollout_steps):
            actions, _ = agent.act(seen, None, timestep=0, timesteps=0)
            step = tensor_step(env, torch.clamp(actions, low, high), self.device)
            self.num_timesteps += env.num_envs
            callback.update_locals({"infos": step.infos, "dones": step.dones})
            going_on = callback.on_step()
            self._update_info_buffer(step.infos, step.dones)
            ended = torch.as_tensor(step.dones, device=self.device)[:, None]
            rewards = step.rewards[:, None]
            if step.dones.any():  # in the host's memory
                values = self.policy.predict_values(step.last)
                cut = ended & ~step.terminated[:, None].bool()
                # What follows an end may be no number.
                rewards = rewards + torch.where(cut, self.gamma * values, 0.0)
            agent.record_transition(
                observations=seen,
                states=None,
                actions=actions,
                rewards=rewards,
                next_observations=step.observations,
                next_states=None,
                terminated=ended,
                truncated=torch.zeros_like(ended),
                infos={},
                timestep=0,
                timesteps=0,
            )
            seen = step.observations
            self._last_obs = seen  # type: ignore[assignment]
            if not going_on:
                return False
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def train(self) -> None:
        """Learn from the rollout."""
        agent = self.agent
        clip: Any = self.clip_range
        agent.cfg.ratio_clip = float(clip(self._current_progress_remaining))
        rate = self.lr_schedule(self._current_progress_remaining)
        for group in agent.optimizer.param_groups:
            group["lr"] = rate
        agent.enable_models_training_mode(True)
        agent.write_interval = 1  # so that losses are kept
        agent.update(timestep=0, timesteps=0)
        agent.write_interval = 0
        agent.enable_models_training_mode(False)
        self._n_updates += self.n_epochs
        losses = {
            name: float(agent.tracking_data[f"Loss / {name.capitalize()} loss"][-1])
            for name in ("policy", "value")
        }
        agent.tracking_data.clear()
        if not all(map(math.isfinite, losses.values())):
            raise OutputError(
                f"after {self._n_updates} epochs the losses are {losses}. Expected finite numbers: "
                "training has diverged. Lower learning_rate in --algorithm-kwargs and start again, "
                "or resume from the checkpoint."
            )
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/learning_rate", rate)
        for name, loss in losses.items():
            self.logger.record(f"train/{name}_loss", loss)


class _NoBuffer(RolloutBuffer):
    """Stands in where SB3 keeps a rollout in the host's memory: skrl's agent has its own."""

    def reset(self) -> None:
        self.pos, self.full = 0, False


class _ActorCritic(Model):  # type: ignore[misc]
    """SB3's policy as a model of skrl's, for actions and for values."""

    def __init__(self, policy: nn.Module, **place: Any) -> None:
        super().__init__(**place)
        self.policy: Any = policy
        self._last: tuple[Any, Any, Any] = (None, None, None)

    def compute(self, inputs: dict[str, Tensor], *, role: str = "") -> Any:
        return self.act(inputs, role=role)

    def act(self, inputs: dict[str, Tensor], *, role: str = "") -> tuple[Tensor, dict[str, Tensor]]:
        """Return actions (B, A) and their log densities (B, 1), or values (B, 1)."""
        seen = inputs["observations"]
        if role == "value":
            # Asked right after the actions of the same observations, which gave both.
            of, values, _ = self._last
            self._last = (None, None, self._last[2])
            return (values if of is seen else self.policy.predict_values(seen)), {}
        if "taken_actions" in inputs:
            actions = inputs["taken_actions"]
            values, density, entropy = self.policy.evaluate_actions(seen, actions)
        else:
            actions, values, density = self.policy(seen)
            entropy = None
        self._last = seen, values, entropy
        return actions, {"log_prob": density[:, None]}

    def distribution(self, *, role: str = "") -> Any:
        """Return the distribution of the last actions."""
        return self.policy.action_dist.distribution

    def get_entropy(self, *, role: str = "") -> Tensor:
        """Return the entropies (B,) of the last actions."""
        entropy: Tensor = self._last[2]
        return entropy
