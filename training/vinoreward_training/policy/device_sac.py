"""SAC for a batch of environments: what it replays and learns from stays on one device.

The gradient steps are this module's: SB3's cost more than the batch they learn from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from vinoreward.actor_learner.learners.networks import sample
from vinoreward.policies.spec import Dense, PolicySpec
from vinoreward_training.policy.tensor_sac import TensorSAC, Transitions


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


class DeviceSAC(TensorSAC):
    """SAC whose gradient steps are few large operations, equal in their results to SB3's.

    Actor and critics are multilayer perceptrons of vectors. Random numbers are torch's.
    """

    LEARNER = "device"

    def _set_up_learner(self, entropy_weight: float, *, learned: bool) -> None:
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
        self._log_weight = torch.tensor([math.log(entropy_weight) if learned else 0.0])
        self._log_weight = self._log_weight.to(self.device)
        fixed = torch.tensor([entropy_weight], device=self.device)
        self._fixed_weight = None if learned else fixed
        self.adam_entropy = Adam(self._log_weight)

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "adam_actor", "adam_critics", "adam_entropy"], ["_log_weight"]

    def _act(self, seen: Tensor) -> Tensor:
        noise = torch.randn((len(seen), self._actions), device=self.device)
        return self._sampled(self._actor.parts, seen, noise)[0]

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

    def _entropy_weight(self) -> float:
        return self._weight().item()

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
