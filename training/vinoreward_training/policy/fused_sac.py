"""SAC of Stable-Baselines3 with fused gradient steps: loop, replay and learning on one device.

The networks are those of SB3's policy, so a policy is saved, loaded and played as any other. The
gradients are written out: a gradient step of SB3's costs more than the batch that it learns from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor, nn
from torch.nn import functional

from vinoreward.errors import OutputError
from vinoreward_actors.actor_learner.learners.networks import HALF_LOG_TWO_PI, gaussian
from vinoreward_actors.policies.distributions import LOG_STD
from vinoreward_actors.policies.spec import Dense, PolicySpec
from vinoreward_training.policy.tensor_steps import no_optimizer, refuse_others, tensor_step

LEARNER = "fused"
"""Its name as an option."""
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


class Perceptrons:
    """K multilayer perceptrons of equal shape with ReLU, without autograd.

    One product computes a layer of all K. For networks as small as these autograd takes three times
    as long. All parameters are one vector, of which the layers' own parameters are views.

    Args:
        layers: for each layer its modules: one of each perceptron, or, of a single perceptron,
            several whose outputs are concatenated.
        count: K.
    """

    def __init__(self, layers: Sequence[Sequence[nn.Linear]], count: int) -> None:
        stacked = [
            torch.stack([getattr(one, name).detach() for one in layer])
            for layer in layers
            for name in ("weight", "bias")
        ]
        self.vector = torch.cat([part.flatten() for part in stacked])
        """All parameters; change it, and the layers have changed."""
        self.gradient = torch.zeros_like(self.vector)
        """Of the last :meth:`backward`."""
        sizes = [part.numel() for part in stacked]
        own = zip(torch.split(self.vector, sizes), stacked, strict=True)
        for layer in layers:
            for name in ("weight", "bias"):
                part, like = next(own)
                for one, values in zip(layer, part.view(like.shape), strict=True):
                    getattr(one, name).data = values

        def parts(whole: Tensor) -> list[Tensor]:  # weights (K, out, in) and biases (K, 1, out)
            rows = [(-1, part.shape[-1]) if part.ndim == 3 else (1, -1) for part in stacked]
            pairs = zip(torch.split(whole, sizes), rows, strict=True)
            return [part.view(count, *row) for part, row in pairs]

        self._parts, self._gradients = parts(self.vector), parts(self.gradient)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return the inputs of each layer, ``(K, B, ...)``, and then the outputs.

        ``inputs`` are ``(B, D)``.
        """
        activations = [inputs.expand(len(self._parts[0]), -1, -1)]
        for weights, biases in zip(self._parts[::2], self._parts[1::2], strict=True):
            if len(activations) > 1:
                activations[-1].relu_()
            activations.append(torch.baddbmm(biases, activations[-1], weights.mT))
        return activations

    def backward(
        self, activations: list[Tensor], gradient: Tensor, *, of_inputs: bool = False
    ) -> Tensor:
        """Write the gradient of the parameters, or return that of the inputs, ``(K, B, D)``.

        Args:
            activations: what :meth:`forward` returned; they are overwritten.
            gradient: of the outputs, ``(K, B, out)``.
            of_inputs: return the inputs' gradient, and leave the parameters' as it is.
        """
        for layer in reversed(range(len(self._parts) // 2)):
            if not of_inputs:
                weights, biases = self._gradients[2 * layer : 2 * layer + 2]
                torch.bmm(gradient.mT, activations[layer], out=weights)
                torch.sum(gradient, 1, keepdim=True, out=biases)
            if layer or of_inputs:
                gradient = torch.bmm(gradient, self._parts[2 * layer])
            if layer:
                gradient.mul_(activations[layer].sign_())  # 1 where ReLU let it through
        return gradient


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


class FusedSAC(SAC):
    """SAC whose gradient steps are few large operations, equal in their results to SB3's.

    It takes the arguments of SB3's, and refuses gSDE, n-step returns, action noise, delayed targets
    and another optimiser. Actor and critics are multilayer perceptrons of vectors. Random numbers
    are torch's.
    """

    replay_buffer: TensorReplay  # type: ignore[assignment]

    def _setup_model(self) -> None:
        refuse_others(self, LEARNER, _ONLY)
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

    def _set_up_learner(self, entropy_weight: float, *, learned: bool) -> None:
        """Take the networks apart into vectors; the entropy's weight is learned or stays."""
        kinds = nn.ReLU | nn.Linear | nn.Sequential | nn.ModuleList
        plain = all(isinstance(module, kinds) for module in self.actor.latent_pi.modules())
        if not plain or not isinstance(self.actor.features_extractor, FlattenExtractor):
            raise ValueError(
                "--learner fused trains perceptrons with ReLU, and policy_kwargs asks for "
                "something else; use --learner sb3"
            )
        actor: Any = self.actor
        own = [(one,) for one in linear_layers(actor.latent_pi)]
        self._actor = Perceptrons([*own, (actor.mu, actor.log_std)], 1)
        self._critics, self._targets = (
            Perceptrons(
                list(zip(*map(linear_layers, critics.q_networks), strict=True)),
                len(critics.q_networks),
            )
            for critics in (self.critic, self.critic_target)
        )
        actions = actor.mu.out_features
        layer = Dense("head", actor.mu.in_features, 2 * actions, "none")
        self._head = PolicySpec((layer.inputs,), (layer,), "tanh_gaussian", actions)
        self.adam_actor, self.adam_critics = Adam(self._actor.vector), Adam(self._critics.vector)
        self._log_weight = torch.tensor([math.log(entropy_weight) if learned else 0.0])
        self._log_weight = self._log_weight.to(self.device)
        fixed = torch.tensor([entropy_weight], device=self.device)
        self._fixed_weight = None if learned else fixed
        self.adam_entropy = Adam(self._log_weight)

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
        noise = torch.randn((len(seen), self._actions), device=self.device)
        return sample(self._head, self._actor.forward(seen)[-1][0], noise)[0]

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Make gradient steps, each on a batch of its own."""
        self._n_updates += gradient_steps
        losses = self._learn_from_replay(gradient_steps, batch_size)
        if not all(map(math.isfinite, losses)):
            raise OutputError(
                f"gradient step {self._n_updates} has the losses {losses[0]:.4g} and "
                f"{losses[1]:.4g}. Expected finite numbers: training has diverged. Start again "
                "with a lower learning_rate in --algorithm-kwargs, or resume from the checkpoint."
            )
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/ent_coef", self._weight().item())
        self.logger.record("train/critic_loss", losses[0])
        self.logger.record("train/actor_loss", losses[1])

    @torch.no_grad()
    def _learn_from_replay(self, gradient_steps: int, batch_size: int) -> tuple[float, float]:
        rate = self.lr_schedule(self._current_progress_remaining)
        # Drawn as SB3 draws it in one gradient step: first for the state, then for what follows.
        shape = gradient_steps, 2, batch_size, self._actions
        noise = torch.randn(shape, device=self.device)
        batch = self.replay_buffer.sample(gradient_steps, batch_size)
        critic_loss = actor_loss = torch.zeros(())
        for i in range(gradient_steps):
            part = Transitions(*(values[i] for values in vars(batch).values()))
            critic_loss, actor_loss = self._learn(part, noise[i], rate)
        return critic_loss.item(), actor_loss.item()

    def _weight(self) -> Tensor:
        """Return the weight of the entropy, (1,)."""
        return self._log_weight.exp() if self._fixed_weight is None else self._fixed_weight

    def _learn(self, batch: Transitions, noise: Tensor, rate: float) -> tuple[Tensor, Tensor]:
        """Make one gradient step; ``noise`` is (2, B, A). Return the losses."""
        weight, count = self._weight(), len(batch.rewards)
        # The critics' step leaves the actor as it is, so that it acts in both states at once.
        activations = self._actor.forward(torch.cat([batch.observations, batch.next_observations]))
        actions, density = sample(self._head, activations[-1][0], noise.flatten(0, 1))
        values = _values(self._targets, batch.next_observations, actions[count:])[-1]
        targets = batch.rewards + self.gamma * (1.0 - batch.terminated) * (
            values[..., 0].amin(0) - weight * density[count:]
        )
        valued = _values(self._critics, batch.observations, batch.actions)
        errors = valued[-1] - targets[:, None]
        self._critics.backward(valued, errors / count)  # of half the squares' mean
        self.adam_critics.step(self._critics.gradient, rate)

        activations, actions = [part[:, :count] for part in activations], actions[:count]
        valued = _values(self._critics, batch.observations, actions)
        least, critic = valued[-1].min(0, keepdim=True)
        gradient = torch.zeros_like(valued[-1]).scatter_(0, critic, -1.0 / count)
        of_actions = self._critics.backward(valued, gradient, of_inputs=True).sum(0)
        gradient = self._gradient_of_outputs(
            activations[-1][0], noise[0], actions, of_actions[:, -self._actions :], weight
        )
        self._actor.backward(activations, gradient[None])
        self.adam_actor.step(self._actor.gradient, rate)
        self._targets.vector.lerp_(self._critics.vector, self.tau)
        density = density[:count].mean()
        if self._fixed_weight is None:
            # Of -log(weight) (log pi + target entropy), as SB3 has it.
            self.adam_entropy.step(-(density + float(self.target_entropy))[None], rate)
        return 0.5 * errors.square().sum(0).mean(), weight * density - least.mean()

    def _gradient_of_outputs(
        self, outputs: Tensor, noise: Tensor, actions: Tensor, of_actions: Tensor, weight: Tensor
    ) -> Tensor:
        """Return the gradient of the actor's loss with respect to its outputs, ``(B, 2 A)``.

        ``of_actions`` is the part that comes through the critics, with respect to the actions. The
        rest comes of the log density, through ``-log(1 - tanh(u)^2)`` and ``-log_std``.
        """
        given = outputs[:, self._actions :]
        log_std = given.clamp(*LOG_STD)
        share = weight / len(outputs)
        of_mean = 2.0 * share * actions + of_actions * (1.0 - actions.square())
        of_log_std = (of_mean * (log_std.exp() * noise) - share) * (log_std == given)
        return torch.cat([of_mean, of_log_std], 1)


def _values(critics: Perceptrons, observations: Tensor, actions: Tensor) -> list[Tensor]:
    """Return the activations of K critics, the last of which are their values ``(K, B, 1)``."""
    return critics.forward(torch.cat([observations, actions], 1))


def linear_layers(module: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of a module, in order."""
    return [one for one in module.modules() if isinstance(one, nn.Linear)]


def sample(spec: PolicySpec, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions (N, A) in [-1, 1] of a ``tanh_gaussian`` head, and log densities (N,).

    Both are differentiable; ``noise`` (N, A) is normally distributed.
    """
    mean, log_std = gaussian(spec, outputs)
    before = mean + log_std.exp() * noise
    normal = -0.5 * noise**2 - log_std - HALF_LOG_TWO_PI
    # log(1 - tanh(u)^2), without cancellation where tanh is near 1.
    log_slope = 2.0 * (math.log(2.0) - before - functional.softplus(-2.0 * before))
    return torch.tanh(before), (normal - log_slope).sum(-1)
