"""The acting network of a Stable-Baselines3 model, as a policy for any backend."""

# pyright: reportPrivateUsage=false
# Stable-Baselines3's noise has no public parameters.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.noise import NormalActionNoise, VectorizedActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import FlattenExtractor, NatureCNN
from torch import Tensor, nn

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.learners.base import outputs_of
from vinoreward_actors.policies.distributions import ActionNoise
from vinoreward_actors.policies.policy import Floats, Parameter, Policy
from vinoreward_actors.policies.spec import (
    Activation,
    Conv,
    Dense,
    Flatten,
    Head,
    Layer,
    PolicySpec,
)
from vinoreward_actors.policies.torch_policy import TorchPolicy

_ACTIVATIONS: dict[type[nn.Module], Activation] = {nn.ReLU: "relu", nn.Tanh: "tanh"}
_CHECKED = 16


def acting_network(model: OffPolicyAlgorithm) -> Any:
    """Return the acting part of a model: SAC's and TD3's actor, DQN's action values."""
    return model.q_net if isinstance(model, DQN) else model.actor


def _flat(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Yield the modules of nested sequences in order."""
    for module in modules:
        if isinstance(module, nn.Sequential):
            yield from _flat(module)
        else:
            yield module


def _chain(model: OffPolicyAlgorithm) -> tuple[list[nn.Module], Head]:
    """Return the modules from the observation to the head, and the kind of head."""
    network = acting_network(model)
    extractor = network.features_extractor
    modules: list[nn.Module] = []
    if isinstance(extractor, NatureCNN):
        modules += [extractor.cnn, extractor.linear]
    elif isinstance(extractor, FlattenExtractor):
        modules.append(nn.Flatten())
    else:
        raise ConfigError(
            f"the model's observations go through {type(extractor).__name__}. Expected a flat "
            "vector or one image (FlattenExtractor or NatureCNN), which actors can compute "
            "without torch: flatten a Dict with gymnasium.wrappers.FlattenObservation."
        )
    head: Head
    if isinstance(model, DQN):
        modules.append(network.q_net)
        head = "q"
    elif isinstance(model, SAC):
        if model.use_sde:
            raise ConfigError(
                "the model explores with gSDE, whose noise depends on weights that actors do not "
                "have. Expected use_sde=False."
            )
        modules += [network.latent_pi, _joined(network.mu, network.log_std)]
        head = "tanh_gaussian"
    else:
        modules.append(network.mu)
        head = "tanh"
    chain = list(_flat(modules))
    # Actors apply the tanh themselves, after the noise.
    if head == "tanh" and isinstance(chain[-1], nn.Tanh):
        chain.pop()
    return chain, head


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
        raise ConfigError(
            f"the model has the layer {module}. Expected square convolutions without padding, "
            "dilation or groups; actors can compute no others."
        )
    return Conv(
        name, module.in_channels, module.out_channels, kernel[0], int(stride[0]), activation="none"
    )


def _array(values: Tensor) -> Floats:
    array: Floats = values.detach().to("cpu", torch.float32).numpy().copy()
    return array


def policy_of(model: OffPolicyAlgorithm, *, version: int = 0) -> Policy:
    """Copy the acting network of SAC, TD3, DDPG or DQN; ConfigError if actors cannot compute it.

    SAC's means and standard deviations become one head; an image's division by 255 becomes the
    spec's scale. Actions are in [-1, 1], as in the model's replay; the environment's side scales
    them to its bounds.
    """
    check_model(model)
    modules, head = _chain(model)
    space = cast(spaces.Box, model.observation_space)
    layers: list[Layer] = []
    parameters: dict[str, Parameter] = {}
    for module in modules:
        if isinstance(module, nn.Flatten):
            if len(space.shape) > 1:
                layers.append(Flatten())
        elif isinstance(module, nn.Linear | nn.Conv2d):
            name = f"layer{len(parameters) // 2}"
            layers.append(_weighted(module, name))
            parameters[f"{name}.weight"] = _array(module.weight)
            bias = torch.zeros(len(module.weight)) if module.bias is None else module.bias
            parameters[f"{name}.bias"] = _array(bias)
        elif (
            (activation := _ACTIVATIONS.get(type(module)))
            and layers
            and not isinstance(last := layers[-1], Flatten)
            and last.activation == "none"
        ):
            layers[-1] = replace(last, activation=activation)
        else:
            raise ConfigError(
                f"the model's network has the layer {module}. Expected linear layers and "
                "convolutions, each followed by ReLU, Tanh or nothing."
            )
    scaled = acting_network(model).normalize_images and is_image_space(space)
    actions = model.action_space
    spec = PolicySpec(
        observation_shape=space.shape,
        layers=tuple(layers),
        head=head,
        actions=int(actions.n) if isinstance(actions, spaces.Discrete) else int(actions.shape[0]),  # type: ignore[index]
        observation_dtype="uint8" if space.dtype == np.uint8 else "float32",
        scale=1.0 / 255.0 if scaled else 1.0,
    )
    return Policy(spec, parameters, version=version)


def check_model(model: OffPolicyAlgorithm) -> None:
    """Raise ConfigError unless a model can learn from other actors' transitions."""
    if not isinstance(model, SAC | TD3 | DQN):
        raise ConfigError(
            f"the model is {type(model).__name__}. Expected SAC, TD3, DDPG or DQN of "
            "stable_baselines3."
        )
    space = model.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) not in (1, 3):
        raise ConfigError(
            f"the model observes {space}. Expected a Box of numbers (D,) or images (C, H, W): "
            "flatten a Dict with gymnasium.wrappers.FlattenObservation, which also makes a "
            "Discrete observation a vector."
        )
    actions = model.action_space
    if isinstance(actions, spaces.Box) and len(actions.shape) != 1:
        raise ConfigError(
            f"the model's actions have shape {actions.shape}. Expected (A,): flatten them in "
            "the environment."
        )
    if model.get_vec_normalize_env() is not None:
        raise ConfigError(
            "the model was made with VecNormalize, whose statistics change only when its own "
            "environments step, which they do not here. Expected an environment without it; scale "
            "observations by constants in a wrapper instead."
        )


def noise_of(model: OffPolicyAlgorithm, sigma: float | None) -> ActionNoise | None:
    """Return the noise on a model's actions, or None.

    For TD3 and DDPG, Gaussian noise of standard deviation ``sigma`` replaces the model's own.
    """
    noise = model.action_noise
    if sigma is not None and isinstance(model, TD3):
        return ActionNoise((0.0,), (sigma,)) if sigma else None
    if isinstance(noise, VectorizedActionNoise):
        noise = noise.base_noise
    if noise is None:
        return None
    if isinstance(model, SAC):
        raise ConfigError(
            f"the model is SAC with {type(noise).__name__} on top of its own exploration; the "
            "probabilities of such actions are unknown. Expected action_noise=None."
        )
    if type(noise) is NormalActionNoise:
        return ActionNoise(_numbers(model, noise._mu), _numbers(model, noise._sigma))
    raise ConfigError(
        f"the model's action noise is {type(noise).__name__}. Expected NormalActionNoise of "
        "stable_baselines3."
    )


def _numbers(model: OffPolicyAlgorithm, values: Any) -> tuple[float, ...]:
    """Return one number per action, or a single one if they are equal."""
    space = cast(spaces.Box, model.action_space)
    try:
        each = np.broadcast_to(np.asarray(values, dtype=np.float64), space.shape).tolist()
    except ValueError as error:
        raise ConfigError(
            f"the model's action noise has shape {np.shape(values)}, its actions have shape "
            f"{space.shape}. Expected the same."
        ) from error
    return tuple(each[:1] if len(set(each)) == 1 else each)


def own_outputs(model: OffPolicyAlgorithm, observations: npt.NDArray[np.generic]) -> Floats:
    """Return a model's own head outputs (N, K) for observations (N, *shape).

    For a deterministic head these are actions, after the tanh.
    """
    network = acting_network(model)
    with torch.no_grad():
        tensor, _ = model.policy.obs_to_tensor(cast(Any, observations))
        if isinstance(model, SAC):
            mean, log_std, _ = network.get_action_dist_params(tensor)
            return _array(torch.cat([mean, log_std], 1))
        return _array(network(tensor))


def check_same(model: OffPolicyAlgorithm, copied: TorchPolicy) -> None:
    """Raise ConfigError unless a copied network's outputs equal the model's.

    Detects subclasses that compute something else with the same layers.
    """
    space = cast(spaces.Box, model.observation_space)
    random, shape = np.random.default_rng(0), (_CHECKED, *space.shape)
    seen: npt.NDArray[Any]
    if space.dtype == np.uint8:
        seen = random.integers(0, 256, shape).astype(np.uint8)
    else:
        seen = np.clip(random.standard_normal(shape), space.low, space.high).astype(np.float32)
    wanted, outputs = own_outputs(model, seen), outputs_of(copied, seen)
    if copied.spec.head == "tanh":
        outputs = np.tanh(outputs)
    elif copied.spec.head == "tanh_gaussian":
        half = copied.spec.actions
        outputs[:, half:] = np.clip(outputs[:, half:], -20.0, 2.0)
    if not np.allclose(outputs, wanted, rtol=1e-3, atol=1e-4):
        raise ConfigError(
            "the copied network and the model compute different outputs, which differ by up to "
            f"{np.abs(outputs - wanted).max():.3g}. Expected a policy that uses its layers as "
            "stable_baselines3 does; custom policies cannot be copied."
        )
