"""Policies as torch modules, for learners and distillation. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.policies.policy import Parameter, Policy
from vinoreward_actors.policies.spec import Activation, Conv, Dense, PolicySpec

_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "elu": functional.elu,
    "silu": functional.silu,
    "none": lambda values: values,
}


def empty_module(layer: Dense | Conv) -> nn.Module:
    """Return a torch layer whose weights are to be set."""
    # On "meta", torch samples no weights, which is slow and consumes the global generator.
    module: nn.Module
    if isinstance(layer, Dense):
        module = nn.Linear(layer.inputs, layer.outputs, device="meta")
    else:
        module = nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, layer.stride, device="meta")
    return module.to_empty(device="cpu")


class TorchPolicy(nn.Module):
    """The network of a spec, with parameters under the spec's names.

    ``head_gain`` is the gain of the head's orthogonal initialisation; small, so that a policy
    starts nearly uniform. Without ``initialise`` no weights are sampled, which is slow for wide
    layers.
    """

    def __init__(
        self, spec: PolicySpec, *, head_gain: float = 0.01, initialise: bool = True
    ) -> None:
        super().__init__()
        self.spec = spec
        for layer in (*spec.weighted, *([spec.value] if spec.value else [])):
            module = empty_module(layer)
            self.add_module(layer.name, module)
            if not initialise:
                continue
            gain = {"relu": 2.0**0.5, "tanh": 5.0 / 3.0}.get(layer.activation, 1.0)
            if layer is spec.layers[-1]:
                gain = head_gain
            weight, bias = module.get_parameter("weight"), module.get_parameter("bias")
            nn.init.orthogonal_(weight, gain)
            nn.init.zeros_(bias)

    def features(self, observations: Tensor) -> Tensor:
        """Return the head's input (N, F) for observations (N, *shape) of any dtype."""
        first = self.get_parameter(f"{self.spec.weighted[0].name}.weight")
        values = observations.to(first.dtype) * self.spec.scale
        for layer in self.spec.layers[:-1]:
            if isinstance(layer, Dense | Conv):
                values = _ACTIVATIONS[layer.activation](self.get_submodule(layer.name)(values))
            else:
                values = values.flatten(1)
        return values

    def outputs(self, features: Tensor) -> Tensor:
        """Return the head's outputs (N, K) for its input (N, F)."""
        outputs: Tensor = self.get_submodule(self.spec.layers[-1].name)(features)
        return outputs

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the head's outputs (N, K), and values (N,) if there is a value head."""
        features = self.features(observations)
        outputs = self.outputs(features)
        if self.spec.value is None:
            return outputs, None
        value: Tensor = self.get_submodule(self.spec.value.name)(features)
        return outputs, value[:, 0]


def to_policy(module: TorchPolicy, *, version: int = 0) -> Policy:
    """Copy a module's weights into a policy; InputError if one is NaN or infinite."""
    parameters: dict[str, Parameter] = {}
    for name in module.spec.parameter_shapes():
        value = module.get_parameter(name).detach().to("cpu", torch.float32).numpy().copy()
        if not np.isfinite(value).all():
            raise InputError(
                f"the learner's {name} has NaN or infinity. Expected finite weights: training has "
                "diverged. Lower the learning rate, and resume from the last checkpoint."
            )
        parameters[name] = value
    return Policy(module.spec, parameters, version=version)


def load_policy(module: TorchPolicy, policy: Policy) -> None:
    """Copy a policy's weights, dequantized if necessary, into a module of the same spec."""
    if policy.spec != module.spec:
        raise ConfigError(
            f"cannot load a policy of {len(policy.spec.layers)} layers into a module of another "
            "spec. Expected the same layers."
        )
    with torch.no_grad():
        for name, value in policy.float_parameters().items():
            module.get_parameter(name).copy_(torch.from_numpy(np.array(value)))


def from_policy(policy: Policy) -> TorchPolicy:
    """Return a new module with a policy's weights."""
    module = TorchPolicy(policy.spec, initialise=False)
    load_policy(module, policy)
    return module
