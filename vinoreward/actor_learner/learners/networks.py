"""Torch parts of learners: critics, and the differentiable part of policies.distributions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from vinoreward.policies.distributions import EDGE, LOG_STD
from vinoreward.policies.spec import Conv, Flatten, PolicySpec

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def gaussian(spec: PolicySpec, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and log standard deviations (N, A), before the tanh, of a Gaussian head."""
    return outputs[:, : spec.actions], outputs[:, spec.actions :].clamp(*LOG_STD)


def log_prob(spec: PolicySpec, outputs: Tensor, actions: Tensor) -> Tensor:
    """Return the log probability (N,) of executed actions.

    Args:
        spec: with a ``logits`` or ``tanh_gaussian`` head.
        outputs: (N, K).
        actions: (N,) int64, or (N, A) in [-1, 1].
    """
    if spec.discrete:
        return functional.log_softmax(outputs, -1).gather(-1, actions[:, None])[:, 0]
    mean, log_std = gaussian(spec, outputs)
    bounded = actions.clamp(-EDGE, EDGE)
    before = torch.atanh(bounded)
    normal = -0.5 * ((before - mean) * torch.exp(-log_std)) ** 2 - log_std - HALF_LOG_TWO_PI
    return (normal - torch.log1p(-(bounded**2))).sum(-1)


def entropy(spec: PolicySpec, outputs: Tensor) -> Tensor:
    """Return the entropy (N,) in nats; of the Gaussian before the tanh for continuous actions."""
    if spec.discrete:
        logs = functional.log_softmax(outputs, -1)
        return -(logs.exp() * logs).sum(-1)
    _, log_std = gaussian(spec, outputs)
    return (log_std + HALF_LOG_TWO_PI + 0.5).sum(-1)


def sample(spec: PolicySpec, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions (N, A) in [-1, 1] and their log densities (N,), differentiable.

    Args:
        spec: with a ``tanh_gaussian`` head.
        outputs: (N, 2 A).
        noise: (N, A), normally distributed.
    """
    mean, log_std = gaussian(spec, outputs)
    before = mean + log_std.exp() * noise
    normal = -0.5 * noise**2 - log_std - HALF_LOG_TWO_PI
    # log(1 - tanh(u)^2), without cancellation where tanh is near 1.
    bent = 2.0 * (math.log(2.0) - before - functional.softplus(-2.0 * before))
    return torch.tanh(before), (normal - bent).sum(-1)


def project(probabilities: Tensor, returns: Tensor, discounts: Tensor, atoms: Tensor) -> Tensor:
    """Return the distribution of ``returns + discounts * Z`` on the atoms, (B, N).

    Mass between two atoms is split between them by distance; mass outside goes to the outermost
    atom (Bellemare et al. 2017).

    Args:
        probabilities: (B, N) of Z on the atoms.
        returns: (B,), rewards so far.
        discounts: (B,), of Z; 0 after a termination.
        atoms: (N,), evenly spaced.
    """
    step = atoms[1] - atoms[0]
    moved = (returns[:, None] + discounts[:, None] * atoms).clamp(float(atoms[0]), float(atoms[-1]))
    # A triangle over each atom, as wide as the distance to its neighbours.
    shares = (1.0 - (moved[:, None, :] - atoms[:, None]).abs() / step).clamp(min=0.0)
    return (shares * probabilities[:, None, :]).sum(-1)


class Critic(nn.Module):
    """A network from an observation and an action to one or more numbers.

    Images go through convolutions like the policy's, with separate weights.

    Args:
        spec: the policy's network.
        hidden: widths of dense layers.
        outputs: number of outputs.
        normalised: whether the first dense layer has LayerNorm and tanh, so that large observations
            do not saturate later layers.
    """

    def __init__(
        self, spec: PolicySpec, hidden: Sequence[int], outputs: int, *, normalised: bool = False
    ) -> None:
        super().__init__()
        self._scale = spec.scale
        trunk: list[nn.Module] = []
        shapes = spec.shapes()
        width = spec.observation_shape[0]
        for index, layer in enumerate(spec.layers):
            if isinstance(layer, Conv):
                trunk += [
                    nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, layer.stride),
                    nn.ReLU(),
                ]
            elif isinstance(layer, Flatten):
                trunk.append(nn.Flatten())
                width = shapes[index + 1][0]
        self.trunk = nn.Sequential(*trunk)
        layers: list[nn.Module] = []
        sizes = [width + spec.actions, *hidden]
        for index, (inputs, width) in enumerate(itertools.pairwise(sizes)):
            bent = [nn.LayerNorm(width), nn.Tanh()] if normalised and index == 0 else [nn.ReLU()]
            layers += [nn.Linear(inputs, width), *bent]
        layers.append(nn.Linear(sizes[-1], outputs))
        self.dense = nn.Sequential(*layers)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return (N, outputs) for observations (N, *shape) and actions (N, A)."""
        features = self.trunk(observations.float() * self._scale)
        found: Tensor = self.dense(torch.cat([features, actions], 1))
        return found


class Twins(nn.Module):
    """Two critics with one output each (Fujimoto et al. 2018)."""

    def __init__(self, spec: PolicySpec, hidden: Sequence[int]) -> None:
        super().__init__()
        self.one = Critic(spec, hidden, 1)
        self.other = Critic(spec, hidden, 1)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return (N, 2)."""
        both = [self.one(observations, actions), self.other(observations, actions)]
        return torch.cat(both, 1)
