"""Policies as files: tensors beside a JSON description."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from vinoreward.errors import ModelCorruptError, ModelNotFoundError
from vinoreward.files import write_json
from vinoreward.saved_state import save_state
from vinoreward_training.policy.checkpoint import OFF_POLICY, build_model, read_tensors

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm


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
    if not path.is_file():
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
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelCorruptError(
            f"{path} cannot be read: {error}. Expected JSON as `vinoreward train` writes it; "
            "restore the file or train anew."
        ) from error
    if not isinstance(found, dict) or found.get("schema_version") != 1:
        raise ModelCorruptError(
            f"{path} is not a policy of schema version 1. Expected one written by this version of "
            "vinoreward; train anew."
        )
    return found


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
    except (RuntimeError, KeyError, TypeError) as error:
        raise ModelCorruptError(
            f"the policy in {folder} does not fit: {error}. Expected an environment with the "
            "spaces it was trained on; leave --env out to play it where it was trained."
        ) from error
    return model
