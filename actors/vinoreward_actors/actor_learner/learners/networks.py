"""Torch parts of learners: critics, and probabilities of actions."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from vinoreward_actors.policies.distributions import EDGE, LOG_STD, LOWEST_LOG
from vinoreward_actors.policies.spec import Conv, Flatten, PolicySpec

Module = TypeVar("Module", bound=nn.Module)
HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def gaussian(spec: PolicySpec, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and log standard deviations (N, A), before the tanh, of a Gaussian head."""
    return outputs[:, : spec.actions], outputs[:, spec.actions :].clamp(*LOG_STD)


def log_prob(spec: PolicySpec, outputs: Tensor, actions: Tensor) -> Tensor:
    """Return the log probability (N,) of executed actions, (N,) int64 or (N, A) in [-1, 1].

    Densities are float64 and computed as actors do, so that identical networks have a ratio of 1.
    """
    if spec.discrete:
        return functional.log_softmax(outputs, -1).gather(-1, actions[:, None])[:, 0]
    mean, log_std = gaussian(spec, outputs.double())
    bounded = actions.double().clamp(-EDGE, EDGE)
    apart = -0.5 * ((torch.atanh(bounded) - mean) / torch.exp(log_std)) ** 2
    log_slope = torch.log1p(-bounded) + torch.log1p(bounded)
    normal = apart.clamp(min=LOWEST_LOG) - log_std - HALF_LOG_TWO_PI
    return (normal - log_slope).sum(-1)


def entropy(spec: PolicySpec, outputs: Tensor) -> Tensor:
    """Return the entropy (N,) in nats; of the Gaussian before the tanh for continuous actions."""
    if spec.discrete:
        logs = functional.log_softmax(outputs, -1)
        return -(logs.exp() * logs).sum(-1)
    _, log_std = gaussian(spec, outputs)
    return (log_std + HALF_LOG_TWO_PI + 0.5).sum(-1)


def project(probabilities: Tensor, returns: Tensor, discounts: Tensor, atoms: Tensor) -> Tensor:
    """Return the distribution (B, N) of ``returns + discounts * Z`` on N evenly spaced atoms.

    ``probabilities`` (B, N) are those of Z, ``returns`` and ``discounts`` (B,). Mass between two
    atoms is split between them by distance; mass outside goes to the outermost atom (Bellemare et
    al. 2017).
    """
    step = atoms[1] - atoms[0]
    moved = (returns[:, None] + discounts[:, None] * atoms).clamp(float(atoms[0]), float(atoms[-1]))
    # A triangle over each atom, as wide as the distance to its neighbours.
    shares = (1.0 - (moved[:, None, :] - atoms[:, None]).abs() / step).clamp(min=0.0)
    return (shares * probabilities[:, None, :]).sum(-1)


class Critic(nn.Module):
    """A network from an observation and an action to one or more numbers.

    Images go through convolutions like the policy's, with separate weights. ``normalised`` gives
    the first dense layer LayerNorm and tanh: large observations do not saturate later layers.
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
            normal = normalised and index == 0
            activation = [nn.LayerNorm(width), nn.Tanh()] if normal else [nn.ReLU()]
            layers += [nn.Linear(inputs, width), *activation]
        layers.append(nn.Linear(sizes[-1], outputs))
        self.dense = nn.Sequential(*layers)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return (N, outputs) for observations (N, *shape) and actions (N, A)."""
        features = self.trunk(observations.float() * self._scale)
        outputs: Tensor = self.dense(torch.cat([features, actions], 1))
        return outputs


def frozen_copy(module: Module) -> Module:
    """Return a copy of a network, without gradients."""
    return copy.deepcopy(module).requires_grad_(False)
