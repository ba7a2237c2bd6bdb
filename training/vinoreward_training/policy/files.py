"""Policies as files: tensors beside a JSON description."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from vinoreward.errors import ConfigError, ModelCorruptError, ModelNotFoundError
from vinoreward.files import read_json, write_json
from vinoreward.saved_state import save_state
from vinoreward_training.configs.train import TrainConfig
from vinoreward_training.policy.checkpoint import OFF_POLICY, build_model, read_tensors
from vinoreward_training.runs.settings import typed

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm

_DESCRIBED = (
    "algorithm", "algorithm_kwargs", "env", "env_kwargs", "backend", "bundle", "precision",
    "wrap_bundle",
)  # fmt: skip
"""What every version has written of a policy."""


def save_policy(folder: Path, model: BaseAlgorithm, description: Mapping[str, Any]) -> None:
    """Write ``policy.pt`` (tensors) and ``policy.json`` (how to build the network and the env).

    Args:
        folder: where to.
        model: the trained model.
        description: at least ``algorithm`` and ``algorithm_kwargs``; plain data.

    Raises:
        RunFolderError: a file cannot be written.
    """
    save_state(Path(folder) / "policy.pt", model.policy.state_dict())
    write_json(Path(folder) / "policy.json", {"schema_version": 1, **description})


def read_description(folder: Path) -> dict[str, Any]:
    """Read ``policy.json``.

    Raises:
        ModelNotFoundError: the folder holds no policy.
        ModelCorruptError: the file is not one of ours.
    """
    path = Path(folder) / "policy.json"
    if not path.exists():
        if (Path(folder) / "checkpoint.pt").is_file():
            raise ModelNotFoundError(
                f"the training in {folder} was stopped before it wrote a policy. Expected one that "
                f"has ended; continue with: vinoreward train --resume --out {folder}"
            )
        raise ModelNotFoundError(
            f"no policy in {folder}. Expected a folder that `vinoreward train --out` or "
            "`vinoreward actors --out` wrote; train first, or name the folder with --run."
        )
    try:
        found = read_json(path)
        if not isinstance(found, dict) or found.get("schema_version") != 1:
            raise ModelCorruptError("it is not of schema version 1")
        missing = [name for name in _DESCRIBED if name not in found]
        if missing:
            raise ModelCorruptError(f"it does not say {', '.join(missing)}")
        told = {name: value for name, value in found.items() if name != "schema_version"}
        return {"schema_version": 1, **typed(TrainConfig, told)}
    except ConfigError as error:
        raise ModelCorruptError(f"{path} cannot be used: {error}") from error
    except (OSError, ValueError) as error:
        raise ModelCorruptError(
            f"{path} cannot be read: {error}. Expected what `vinoreward train` writes of a policy; "
            "restore the file or train anew."
        ) from error


def load_policy(folder: Path, env: gym.Env[Any, Any]) -> BaseAlgorithm:
    """Load the policy of a run folder for an environment with the spaces it was trained on.

    Raises:
        ModelNotFoundError: the folder holds no policy.
        ModelCorruptError: its files cannot be read, or do not fit this environment.
    """
    description = read_description(folder)
    state = read_tensors(Path(folder) / "policy.pt")
    arguments = {**description["algorithm_kwargs"]}
    if description["algorithm"] in OFF_POLICY:
        arguments["buffer_size"] = 1
    model = build_model(description["algorithm"], env, arguments, seed=0)
    try:
        model.policy.load_state_dict(state)
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ModelCorruptError(
            f"the policy in {folder} does not fit: {error}. Expected an environment with the "
            "spaces it was trained on; leave --env out to play it where it was trained."
        ) from error
    return model
