"""A Stable-Baselines3 model's state as plain tensors and numbers, including its replay."""

# pyright: reportPrivateUsage=false
# Stable-Baselines3's own way to name what a model saves.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.save_util import recursive_getattr

from vinoreward.errors import ConfigError
from vinoreward.saved_state import check_counts, check_names

_ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
_COUNTERS = (
    "num_timesteps",
    "_n_updates",
    "_n_calls",
    "_current_progress_remaining",
    "exploration_rate",
)


def random_state(seed: int | None, device: torch.device) -> dict[str, Any]:
    """Return the states of NumPy's and torch's global generators, after seeding if there is a seed.

    Leaves the generators as they were.
    """
    outside = np.random.get_state()
    devices = [] if device.type == "cpu" else [device.index or 0]
    with torch.random.fork_rng(devices=devices):
        if seed is not None:
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
        _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
        state: dict[str, Any] = {
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "numbers": [int(position), int(has_gauss), float(gauss)],
            "torch": torch.get_rng_state(),
        }
        if devices:
            state["cuda"] = torch.cuda.get_rng_state(devices[0])
    np.random.set_state(outside)
    return state


def load_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Set NumPy's and torch's global generators to a state."""
    keys = state["keys"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, *state["numbers"]))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


def model_state(model: OffPolicyAlgorithm, buffer: ReplayBuffer) -> dict[str, Any]:
    """Return weights, optimisers, counters and replay; tensors may share memory."""
    filled = buffer.buffer_size if buffer.full else buffer.pos
    names = model._get_torch_save_params()[1]
    return {
        "parameters": model.get_parameters(),
        "variables": {name: recursive_getattr(model, name).detach() for name in names},
        "counters": {name: getattr(model, name) for name in _COUNTERS if hasattr(model, name)},
        "replay": {
            "capacity": buffer.buffer_size,
            "position": buffer.pos,
            "full": buffer.full,
            "arrays": {name: torch.from_numpy(getattr(buffer, name)[:filled]) for name in _ARRAYS},
        },
    }


def load_model_state(
    model: OffPolicyAlgorithm, buffer: ReplayBuffer, state: Mapping[str, Any]
) -> None:
    """Restore a model and its replay from :func:`model_state`'s result.

    Raises:
        ConfigError: a model of other sizes.
        ModelCorruptError: unknown names, or invalid counters.
    """
    parameters, variables = model._get_torch_save_params()
    check_names(state, parameters=parameters, variables=variables, counters=_COUNTERS)
    check_counts(state["counters"])
    replay = state["replay"]
    shapes = {name: tuple(array.shape[1:]) for name, array in replay["arrays"].items()}
    wanted = {name: getattr(buffer, name).shape[1:] for name in _ARRAYS}
    if replay["capacity"] != buffer.buffer_size or shapes != wanted:
        raise ConfigError(
            f"the saved replay has {replay['capacity']} rows of {shapes}. Expected "
            f"{buffer.buffer_size} of {wanted}: make the model as at the start of the run."
        )
    try:
        model.set_parameters(state["parameters"], exact_match=True, device=model.device)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"the saved weights do not fit the model ({error}). Expected a model made as at the "
            "start of the run."
        ) from error
    with torch.no_grad():
        for name, value in state["variables"].items():
            recursive_getattr(model, name).copy_(value)
    for name, value in state["counters"].items():
        setattr(model, name, value)
    for name in _ARRAYS:
        array = replay["arrays"][name].numpy()
        getattr(buffer, name)[: len(array)] = array
    buffer.pos, buffer.full = int(replay["position"]), bool(replay["full"])


def check_buffer(model: OffPolicyAlgorithm) -> ReplayBuffer:
    """Return a model's replay; raise ConfigError if it cannot take other actors' transitions."""
    buffer = model.replay_buffer
    if buffer is None or type(buffer) not in (ReplayBuffer, NStepReplayBuffer):
        raise ConfigError(
            f"the model's replay is {type(buffer).__name__}. Expected ReplayBuffer or "
            "NStepReplayBuffer; leave replay_buffer_class out."
        )
    if buffer.optimize_memory_usage:
        raise ConfigError(
            "the model's replay takes each observation's successor from the next step, which here "
            "may be another actor's. Expected optimize_memory_usage=False."
        )
    if isinstance(buffer, NStepReplayBuffer) and not buffer.handle_timeout_termination:
        raise ConfigError(
            "the model's replay sums several steps but does not handle time limits. Expected "
            "handle_timeout_termination=True."
        )
    return buffer
