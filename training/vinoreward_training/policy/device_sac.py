"""SAC for a batch of environments: what it replays and learns from stays on one device.

The networks are those of Stable-Baselines3's policy, so a policy is saved, loaded and played as any
other. The loop, the replay and the gradient steps are this module's: SB3's cost more than the
batch they learn from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from vinoreward.actor_learner.learners.networks import sample
from vinoreward.errors import OutputError
from vinoreward.policies.spec import Dense, PolicySpec
from vinoreward.wrappers.batched import BatchedVecEnv

_UNSUPPORTED: Mapping[str, Any] = {
    "use_sde": False, "n_steps": 1, "action_noise": None, "optimize_memory_usage": False,
    "target_update_interval": 1,
}  # fmt: skip
"""SB3's arguments of SAC that this one has no such thing for, and the value that it takes."""


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


class Weights:
    """The parameters of linear layers in one vector, which the layers' own parameters look into.

    Several networks of equal shape are stacked, so that one product computes a layer of all.

    Args:
        layers: for each layer the modules that are stacked.
    """

    def __init__(self, layers: Sequence[Sequence[nn.Linear]]) -> None:
        stacked = [
            torch.stack([getattr(one, name).detach() for one in layer])
            for layer in layers
            for name in ("weight", "bias")
        ]
        self.vector = torch.cat([part.flatten() for part in stacked])
        """All parameters; change it, and the layers have changed."""
        self.parts = [
            part.view(like.shape)
            for part, like in zip(
                torch.split(self.vector, [part.numel() for part in stacked]), stacked, strict=True
            )
        ]
        """Weights (K, out, in) and biases (K, out) of each layer, views of the vector."""
        own = iter(self.parts)
        for layer in layers:
            for name in ("weight", "bias"):
                for one, part in zip(layer, next(own), strict=True):
                    getattr(one, name).data = part
        self.trained = [part.detach().requires_grad_() for part in self.parts]
        """The same, for gradients."""

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient of a loss of :attr:`trained`, as one vector."""
        found = torch.autograd.grad(loss, self.trained)
        return torch.cat([part.flatten() for part in found])


class Adam:
    """Adam (Kingma & Ba 2015) for one vector.

    PyTorch's own loads what compiles networks when it is first made, which takes longer than a
    hover task does to learn.
    """

    def __init__(self, vector: Tensor) -> None:
        self._vector = vector
        self.mean, self.square = torch.zeros_like(vector), torch.zeros_like(vector)
        self.steps = 0

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float) -> None:
        """Change the vector against its gradient."""
        self.steps += 1
        first, second = 1.0 - 0.9**self.steps, 1.0 - 0.999**self.steps
        self.mean.lerp_(gradient, 0.1)
        self.square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        root = self.square.sqrt().mul_(second**-0.5).add_(1e-8)
        self._vector.addcdiv_(self.mean, root, value=-rate / first)

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` takes."""
        return {"mean": self.mean, "square": self.square, "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on from a state."""
        self.mean.copy_(state["mean"])
        self.square.copy_(state["square"])
        self.steps = int(state["steps"])


class DeviceSAC(SAC):
    """SB3's SAC with its loop, replay and gradient steps on tensors.

    It makes the same updates from the same arguments, except those of gSDE, n-step returns, action
    noise and delayed targets, which it refuses. Actor and critics are multilayer perceptrons of
    vectors. Random numbers are torch's.
    """

    replay_buffer: TensorReplay  # type: ignore[assignment]

    def _setup_model(self) -> None:
        for name, value in _UNSUPPORTED.items():
            if getattr(self, name) != value:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is not for --learner device, which takes "
                    f"{value!r}; use --learner sb3"
                )
        if len(self.observation_space.shape or ()) != 1:
            raise ValueError(
                "--learner device learns from vectors of numbers, and the observation is "
                f"{self.observation_space}; use --encoder, or --learner sb3"
            )
        self.replay_buffer_class = TensorReplay  # type: ignore[assignment]
        self.policy_kwargs["optimizer_class"] = _no_optimizer
        super(SAC, self)._setup_model()
        self._create_aliases()
        self.target_entropy = (
            -float(math.prod(self.action_space.shape or ()))
            if self.target_entropy == "auto"
            else float(self.target_entropy)
        )
        self._set_up_networks()
        learned = isinstance(self.ent_coef, str)
        given = str(self.ent_coef).removeprefix("auto").removeprefix("_") or "1"
        if not float(given) > 0 and learned:
            raise ValueError(f"ent_coef={self.ent_coef!r} starts at or below 0")
        self._log_weight = torch.tensor([math.log(float(given))] if learned else [0.0])
        self._log_weight = self._log_weight.to(self.device)
        self._fixed_weight = None if learned else torch.tensor([float(given)], device=self.device)
        self.adam_entropy = Adam(self._log_weight)

    def _set_up_networks(self) -> None:
        kinds = nn.ReLU | nn.Linear | nn.Sequential | nn.ModuleList
        plain = all(isinstance(module, kinds) for module in self.actor.latent_pi.modules())
        if not plain or not isinstance(self.actor.features_extractor, FlattenExtractor):
            raise ValueError(
                "--learner device trains perceptrons with ReLU, and policy_kwargs asks for "
                "something else; use --learner sb3"
            )
        actor: Any = self.actor
        own = [(one,) for one in linear_layers(actor.latent_pi)]
        self._actor = Weights([*own, (actor.mu, actor.log_std)])
        self._critics, self._targets = (
            Weights(list(zip(*map(linear_layers, critics.q_networks), strict=True)))
            for critics in (self.critic, self.critic_target)
        )
        actions = actor.mu.out_features
        layer = Dense("head", actor.mu.in_features, 2 * actions, "none")
        self._head = PolicySpec((layer.inputs,), (layer,), "tanh_gaussian", actions)
        self.adam_actor, self.adam_critics = Adam(self._actor.vector), Adam(self._critics.vector)

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "adam_actor", "adam_critics", "adam_entropy"], ["_log_weight"]

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
        seen = torch.as_tensor(self._last_obs, device=self.device)
        for _ in range(train_freq.frequency):
            actions = self._explore(seen, random=self.num_timesteps < learning_starts)
            step = self._step(env, low + 0.5 * (actions + 1.0) * (high - low))
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
        shape = len(seen), self._head.actions
        if random:
            return 2.0 * torch.rand(shape, device=self.device) - 1.0
        return self._sampled(self._actor.parts, seen, torch.randn(shape, device=self.device))[0]

    def _step(self, env: VecEnv, actions: Tensor) -> _Step:
        """Step all environments; what they tell goes to this learner's device."""

        def tensor(values: Any) -> Tensor:
            return torch.as_tensor(values, dtype=torch.float32, device=self.device)

        if isinstance(env, BatchedVecEnv):
            told = env.step_batch(actions)
            arrays: Any = told.observations, told.rewards, told.last(), told.terminated
            dones, infos = told.dones, told.infos
        else:
            stepped: Any = env.step(actions.cpu().numpy())
            observations, rewards, dones, infos = stepped
            last, terminated = observations.copy(), dones.copy()
            for i in np.flatnonzero(dones).tolist():
                last[i] = infos[i]["terminal_observation"]
                terminated[i] = not infos[i]["TimeLimit.truncated"]
            arrays = observations, rewards, last, terminated
        seen, paid, following, ended = (tensor(values) for values in arrays)
        return _Step(seen, paid, following, ended, dones, infos)

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Make gradient steps, each on a batch of its own."""
        rate = self.lr_schedule(self._current_progress_remaining)
        # Drawn as SB3 draws it in one gradient step: first for the state, then for what follows.
        shape = gradient_steps, 2, batch_size, self._head.actions
        noise = torch.randn(shape, device=self.device)
        batch = self.replay_buffer.sample(gradient_steps, batch_size)
        self._n_updates += gradient_steps
        critic_loss = actor_loss = torch.zeros(())
        for i in range(gradient_steps):
            part = Transitions(*(values[i] for values in vars(batch).values()))
            critic_loss, actor_loss = self._learn(part, noise[i], rate)
        losses = critic_loss.item(), actor_loss.item()
        if not all(map(math.isfinite, losses)):
            raise OutputError(
                f"gradient step {self._n_updates} has the losses {losses[0]:.4g} and "
                f"{losses[1]:.4g}. Expected finite numbers: training has diverged. Lower "
                "learning_rate in --algorithm-kwargs and start anew, or resume from the checkpoint."
            )
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/ent_coef", self._weight().item())
        self.logger.record("train/critic_loss", losses[0])
        self.logger.record("train/actor_loss", losses[1])

    def _weight(self) -> Tensor:
        """Return the weight of the entropy, (1,)."""
        return self._log_weight.exp() if self._fixed_weight is None else self._fixed_weight

    def _learn(self, batch: Transitions, noise: Tensor, rate: float) -> tuple[Tensor, Tensor]:
        """Make one gradient step; ``noise`` is (2, B, A)."""
        weight = self._weight()
        with torch.no_grad():
            following, density = self._sampled(self._actor.parts, batch.next_observations, noise[1])
            values = _values(self._targets.parts, batch.next_observations, following).amin(0)
            targets = batch.rewards + self.gamma * (1.0 - batch.terminated) * (
                values - weight * density
            )
        errors = _values(self._critics.trained, batch.observations, batch.actions) - targets
        critic_loss = 0.5 * errors.square().sum(0).mean()
        self.adam_critics.step(self._critics.gradient(critic_loss), rate)

        actions, density = self._sampled(self._actor.trained, batch.observations, noise[0])
        values = _values(self._critics.parts, batch.observations, actions).amin(0)
        actor_loss = (weight * density - values).mean()
        self.adam_actor.step(self._actor.gradient(actor_loss), rate)
        with torch.no_grad():
            self._targets.vector.lerp_(self._critics.vector, self.tau)
            if self._fixed_weight is None:
                # Of -log(weight) (log pi + target entropy), as SB3 has it.
                surplus = -(density.mean() + float(self.target_entropy))
                self.adam_entropy.step(surplus[None], rate)
        return critic_loss.detach(), actor_loss.detach()

    def _sampled(
        self, parts: Sequence[Tensor], observations: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return actions (B, A) in -1 to 1 of the policy, and their log densities (B,)."""
        *hidden, weights, biases = parts
        for weight, bias in zip(hidden[::2], hidden[1::2], strict=True):
            observations = relu(linear(observations, weight[0], bias[0]))
        outputs = linear(observations, weights.flatten(0, 1), biases.flatten())
        return sample(self._head, outputs, noise)


@dataclass(frozen=True)
class _Step:
    """A step of all environments, as tensors on the learner's device."""

    observations: Tensor
    rewards: Tensor
    last: Tensor
    """What followed in the same episodes."""
    terminated: Tensor
    dones: Any
    infos: list[dict[str, Any]]


def _values(parts: Sequence[Tensor], observations: Tensor, actions: Tensor) -> Tensor:
    """Return (K, B) values by K critics."""
    count = len(parts[0])
    inputs = torch.cat([observations, actions], 1).expand(count, -1, -1)
    pairs = list(zip(parts[::2], parts[1::2], strict=True))
    for at, (weights, biases) in enumerate(pairs):
        inputs = torch.baddbmm(biases[:, None], inputs, weights.transpose(1, 2))
        if at < len(pairs) - 1:
            inputs = relu(inputs)
    return inputs[..., 0]


def linear_layers(module: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of a module, in order."""
    return [one for one in module.modules() if isinstance(one, nn.Linear)]


def _no_optimizer(parameters: Any, **arguments: Any) -> None:
    """Stand in where SB3 makes an optimiser; :class:`Adam` is the one."""
