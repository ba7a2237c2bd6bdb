"""Eager PyTorch, as in the papers' actors; a baseline for benchmarks.

The only backend that imports torch, when it is created.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from vinoreward.errors import needed_for
from vinoreward_actors.policies.backends.base import Infer, PolicyBackend
from vinoreward_actors.policies.policy import ActivationRange, Floats, Policy
from vinoreward_actors.policies.spec import Conv, Dense, PolicySpec

if TYPE_CHECKING:
    from torch import nn


class TorchBackend(PolicyBackend):
    """Runs a policy as an ``nn.Sequential``; copies weights into it.

    Autograd stays on and records an unused graph, as in the published actors. Sets torch to one
    thread for the whole process.
    """

    name: ClassVar[str] = "torch"

    def __init__(self, batch: int) -> None:
        super().__init__(batch)
        with needed_for("the torch backend", "train"):
            import torch
        self._torch = torch
        self._module: nn.Sequential | None = None
        self._key: object = None
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)

    def _load(self, policy: Policy) -> Infer:
        torch = self._torch
        bounds = {name: each for name, each in policy.ranges.items() if policy.in_int8(name)}
        key = (policy.spec, tuple(bounds.items()))
        if self._module is None or key != self._key:
            self._module, self._key = _sequential(policy.spec, bounds), key
        with torch.no_grad():
            for name in policy.spec.parameter_shapes():
                layer, _, kind = name.partition(".")
                if policy.spec.value is not None and layer == policy.spec.value.name:
                    continue
                # Torch refuses read-only arrays, although it only copies from this one.
                source = torch.from_numpy(
                    np.require(policy.float_parameter(name), requirements="W")
                )
                self._module.get_submodule(layer).get_parameter(kind).copy_(source)
        return functools.partial(self._run, self._module)

    def _run(self, module: nn.Sequential, observations: npt.NDArray[Any]) -> Floats:
        torch = self._torch
        seen = torch.from_numpy(np.require(observations, requirements=["C", "W"]))
        return np.asarray(module(seen).detach().numpy())

    def _unload(self) -> None:
        self._module = None


def _sequential(spec: PolicySpec, bounds: dict[str, ActivationRange]) -> nn.Sequential:
    import torch
    from torch import Tensor, nn

    from vinoreward_actors.policies.torch_policy import empty_module

    class Scaled(nn.Module):
        """Images as scaled floats."""

        def forward(self, values: Tensor) -> Tensor:
            return values.to(torch.float32) * spec.scale

    class Rounded(nn.Module):
        """Values rounded to the levels of a range."""

        def __init__(self, bounds: ActivationRange) -> None:
            super().__init__()
            self.bounds = bounds

        def forward(self, values: Tensor) -> Tensor:
            low, step = self.bounds.low, self.bounds.step
            levels = torch.round((values.clamp(low, self.bounds.high) - low) / step)
            return levels * step + low

    activations = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU, "silu": nn.SiLU}
    network = nn.Sequential()
    if spec.observation_dtype == "uint8" or spec.scale != 1.0:
        network.add_module("the scale", Scaled())
    for layer in spec.layers:
        if not isinstance(layer, Dense | Conv):
            network.add_module(f"{layer.name} rows", nn.Flatten())
            continue
        if layer.name in bounds:
            network.add_module(f"{layer.name} rounding", Rounded(bounds[layer.name]))
        network.add_module(layer.name, empty_module(layer))
        if layer.activation != "none":
            activation = activations[layer.activation]()
            network.add_module(f"{layer.name} {layer.activation}", activation)
    return network
