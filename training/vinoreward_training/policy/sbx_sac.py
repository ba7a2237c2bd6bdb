"""SBX's SAC, in JAX, with checkpoints of plain arrays and a policy that Stable-Baselines3 plays.

SBX saves its networks as a pickle, which runs what a stranger's file says. Here a checkpoint holds
arrays by name, and the trained networks become those of SB3's policy, which are of the same layers:
playing them takes no JAX.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import SAC
from torch import Tensor, nn

from vinoreward.errors import ConfigError, needed_for
from vinoreward_training.policy.device_sac import linear_layers

# Read when JAX is first imported: one thread, as PyTorch has here, and no GPU for small networks.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)
with needed_for("--learner sbx", "sbx"):
    import sbx
    from flax.serialization import from_state_dict, to_state_dict
    from jax.random import PRNGKey

_OF_POLICY = ("net_arch", "n_critics")
"""Arguments of SBX's policy with which it has the layers of SB3's."""
_STATES = {"actor": "policy.actor_state", "critics": "policy.qf_state", "entropy": "ent_coef_state"}
_KEYS = {"key": "key", "policy_key": "policy.key", "noise_key": "policy.noise_key"}


class SbxSAC(sbx.SAC):  # type: ignore[misc]
    """SBX's SAC, whose parameters are nested tables of tensors, as SB3's are."""

    def get_parameters(self) -> dict[str, Any]:
        """Return networks, optimisers, target networks and random keys as tensors by name."""
        found = {name: _tensors(to_state_dict(_at(self, at))) for name, at in _STATES.items()}
        keys = {name: _tensors(np.asarray(_at(self, at))) for name, at in _KEYS.items()}
        return {**found, "keys": keys}

    def set_parameters(
        self,
        load_path_or_dict: Any,
        exact_match: bool = True,
        device: torch.device | str = "auto",
    ) -> None:
        """Put back what :meth:`get_parameters` returned; ValueError if it does not fit."""
        for name, at in _STATES.items():
            before = _at(self, at)
            given = _arrays(load_path_or_dict[name])
            wanted = _shapes(to_state_dict(before))
            if _shapes(given) != wanted:
                raise ValueError(f"its {name} has other layers than {self.policy_kwargs}")
            _put(self, at, from_state_dict(before, given))
        for name, at in _KEYS.items():
            key = load_path_or_dict["keys"][name].numpy().astype(np.uint32)
            if key.shape != np.shape(PRNGKey(0)):
                raise ValueError(f"its random key {name} has the shape {key.shape}")
            _put(self, at, key)

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return [*_STATES, "keys"], []

    def copy_into(self, model: SAC) -> None:
        """Give the networks to SB3's SAC of the same arguments."""
        with torch.no_grad():
            actor: Any = model.actor
            latent = linear_layers(actor.latent_pi)
            heads = [actor.mu, actor.log_std]
            _fill([*latent, *heads], self.policy.actor_state.params["params"])
            for critics, params in (
                (model.critic, self.policy.qf_state.params),
                (model.critic_target, self.policy.qf_state.target_params),
            ):
                (stacked,) = params["params"].values()
                for i, network in enumerate(critics.q_networks):
                    _fill(linear_layers(network), stacked, i)


def checked_arguments(arguments: Mapping[str, Any], space: gym.Space[Any]) -> dict[str, Any]:
    """Return the arguments for SBX; ConfigError for those that SB3 could not play a policy of."""
    if len(space.shape or ()) != 1:
        raise ConfigError(
            f"found the observation {space} with --learner sbx. Expected a vector of numbers; use "
            "--encoder, or --learner sb3."
        )
    known = inspect.signature(SAC.__init__).parameters
    unknown = sorted(set(arguments) - set(known))
    unknown += sorted(set(arguments.get("policy_kwargs") or {}) - set(_OF_POLICY))
    if unknown:
        raise ConfigError(
            f"found {', '.join(unknown)} with --learner sbx. Expected arguments that SB3's SAC has "
            f"too, and of policy_kwargs {' and '.join(_OF_POLICY)}, so that SB3 can play the "
            "policy; leave them out of --algorithm-kwargs."
        )
    weight = arguments.get("ent_coef", "auto")
    return {**arguments, "ent_coef": float(weight) if isinstance(weight, int) else weight}


def _fill(layers: list[nn.Linear], params: Mapping[str, Any], index: int | None = None) -> None:
    """Copy SBX's layers ``Dense_0``, ``Dense_1``, … into PyTorch's; ``index`` is of a stack."""
    for i, layer in enumerate(layers):
        found = params[f"Dense_{i}"]
        kernel, bias = (np.array(found[name]) for name in ("kernel", "bias"))
        if index is not None:
            kernel, bias = kernel[index], bias[index]
        layer.weight.copy_(torch.from_numpy(kernel.T.copy()))
        layer.bias.copy_(torch.from_numpy(bias))


def _at(model: Any, place: str) -> Any:
    for name in place.split("."):
        model = getattr(model, name)
    return model


def _put(model: Any, place: str, value: Any) -> None:
    *folders, name = place.split(".")
    setattr(_at(model, ".".join(folders)) if folders else model, name, value)


def _tensors(state: Any) -> Any:
    if isinstance(state, Mapping):
        return {name: _tensors(part) for name, part in state.items()}
    array = np.array(state)
    # A key's numbers have no dtype that every version of PyTorch's files knows.
    return torch.from_numpy(array.astype(np.int64) if array.dtype == np.uint32 else array)


def _arrays(state: Any) -> Any:
    if isinstance(state, Mapping):
        return {name: _arrays(part) for name, part in state.items()}
    return state.numpy() if isinstance(state, Tensor) else state


def _shapes(state: Any) -> Any:
    if isinstance(state, Mapping):
        return {name: _shapes(part) for name, part in state.items()}
    return np.shape(state)
