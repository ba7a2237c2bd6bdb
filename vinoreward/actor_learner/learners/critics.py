"""Critics of observations and actions; used only by learners."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vinoreward.policies.spec import Conv, Flatten, PolicySpec


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
        for index in range(len(hidden)):
            layers.append(nn.Linear(sizes[index], sizes[index + 1]))
            if index == 0 and normalised:
                layers += [nn.LayerNorm(sizes[1]), nn.Tanh()]
            else:
                layers.append(nn.ReLU())
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
