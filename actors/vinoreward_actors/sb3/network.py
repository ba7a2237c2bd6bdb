"""The acting network of a Stable-Baselines3 model, as a policy for any backend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import FlattenExtractor, NatureCNN
from torch import Tensor, nn

from vinoreward.errors import ConfigError
from vinoreward_actors.policies.policy import Floats, Parameter, Policy
from vinoreward_actors.policies.spec import Activation, Conv, Dense, Flatten, Layer, PolicySpec

_ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.ELU: "elu",
    nn.SiLU: "silu",
}


def acting_policy(model: BaseAlgorithm) -> Policy:
    """Copy the network from an observation to the numbers that actions are drawn by.

    These are logits (PPO and A2C, discrete actions), means (PPO and A2C, continuous actions), means
    and then log standard deviations (SAC), actions before the tanh (TD3, DDPG), or values (DQN).

    Raises:
        ConfigError: a model or layer that is not supported; the message says which.
    """
    space = model.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) not in (1, 3):
        raise ConfigError(
            field="model",
            value=space,
            expected="observations that are a Box of numbers (D,) or an image (C, H, W)",
            remedy="flatten a Dict with gymnasium.wrappers.FlattenObservation",
        )
    extractor, modules = _modules(model)
    layers: list[Layer] = []
    parameters: dict[str, Parameter] = {}
    for module in (*_images(extractor), *_flat(modules)):
        if isinstance(module, nn.Flatten):
            layers += [Flatten()] if len(space.shape) > 1 else []
        elif isinstance(module, nn.Linear | nn.Conv2d):
            name = f"layer{len(parameters) // 2}"
            layers.append(_weighted(module, name))
            parameters[f"{name}.weight"] = _array(module.weight)
            bias = torch.zeros(len(module.weight)) if module.bias is None else module.bias
            parameters[f"{name}.bias"] = _array(bias)
        else:
            layers[-1:] = [_activated(layers[-1] if layers else None, module)]
    scaled = model.policy.normalize_images and is_image_space(space)
    head = layers[-1]
    if not isinstance(head, Dense):
        raise _unsupported(modules[-1])
    spec = PolicySpec(
        observation_shape=space.shape,
        layers=tuple(layers),
        head="logits",  # numbers that are passed on as they are
        actions=head.outputs,
        observation_dtype="uint8" if space.dtype == np.uint8 else "float32",
        scale=1.0 / 255.0 if scaled else 1.0,
    )
    return Policy(spec, parameters)


def _modules(model: BaseAlgorithm) -> tuple[nn.Module, list[nn.Module]]:
    """Return the extractor of features, and the modules after it."""
    policy: Any = model.policy
    if getattr(model, "use_sde", False):
        raise ConfigError(
            field="model",
            value="use_sde=True",
            expected="a model without gSDE, whose noise depends on the network's inner layers",
            remedy="make it with use_sde=False",
        )
    if isinstance(model, OnPolicyAlgorithm):
        return policy.pi_features_extractor, [policy.mlp_extractor.policy_net, policy.action_net]
    if isinstance(model, DQN):
        return policy.q_net.features_extractor, [policy.q_net.q_net]
    if isinstance(model, SAC):
        actor = policy.actor
        return actor.features_extractor, [actor.latent_pi, _joined(actor.mu, actor.log_std)]
    if isinstance(model, TD3):
        *before, last = policy.actor.mu
        before += [] if isinstance(last, nn.Tanh) else [last]
        return policy.actor.features_extractor, before
    raise ConfigError(
        field="model",
        value=type(model).__name__,
        expected="PPO, A2C, SAC, TD3, DDPG or DQN of stable_baselines3",
    )


def _images(extractor: nn.Module) -> Iterator[nn.Module]:
    if isinstance(extractor, NatureCNN):
        yield from _flat([extractor.cnn, extractor.linear])
    elif isinstance(extractor, FlattenExtractor):
        yield nn.Flatten()
    else:
        raise _unsupported(extractor)


def _flat(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Yield the modules of nested sequences in order."""
    for module in modules:
        if isinstance(module, nn.Sequential):
            yield from _flat(module)
        elif not isinstance(module, nn.Identity):
            yield module


def _joined(mean: nn.Linear, log_std: nn.Linear) -> nn.Linear:
    """Return one layer with the outputs of both."""
    # On "meta", torch samples no random weights.
    both = nn.Linear(mean.in_features, mean.out_features + log_std.out_features, device="meta")
    both.weight = nn.Parameter(torch.cat([mean.weight, log_std.weight]).detach())
    both.bias = nn.Parameter(torch.cat([mean.bias, log_std.bias]).detach())
    return both


def _weighted(module: nn.Linear | nn.Conv2d, name: str) -> Dense | Conv:
    if isinstance(module, nn.Linear):
        return Dense(name, module.in_features, module.out_features)
    kernel, stride = module.kernel_size, module.stride
    plain = module.padding in (0, (0, 0)) and module.dilation == (1, 1) and module.groups == 1
    if not plain or len({*kernel}) > 1 or len({*stride}) > 1:
        raise _unsupported(module)
    return Conv(
        name, module.in_channels, module.out_channels, kernel[0], int(stride[0]), activation="none"
    )


def _activated(layer: Layer | None, module: nn.Module) -> Layer:
    """Return a layer with the activation that follows it."""
    activation = _ACTIVATIONS.get(type(module))
    if activation is None or not isinstance(layer, Dense | Conv) or layer.activation != "none":
        raise _unsupported(module)
    return replace(layer, activation=activation)


def _unsupported(module: nn.Module) -> ConfigError:
    return ConfigError(
        field="model",
        value=str(module).splitlines()[0],
        expected="linear layers and square convolutions, each followed by ReLU, Tanh, ELU, SiLU or "
        "nothing, after a FlattenExtractor or NatureCNN",
    )


def _array(values: Tensor) -> Floats:
    array: Floats = values.detach().to("cpu", torch.float32).numpy().copy()
    return array
