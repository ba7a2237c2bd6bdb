"""Checkpoints of a training: learner, monitor and counters; loaded as plain data only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vinoreward.actor_learner.transport.trajectory import ARRAYS
from vinoreward.errors import ModelCorruptError
from vinoreward.saved_state import MAX_CHECKPOINT, read_state, save_state

CHECKPOINT = "checkpoint.pt"
PARTS = ("learner", "monitor", "steps", "version", "returns", "episodes", "observations")


def save_checkpoint(folder: Path, state: Mapping[str, Any]) -> None:
    """Write ``folder/checkpoint.pt`` atomically.

    Raises:
        RunFolderError: the disk is full or the folder cannot be written.
    """
    save_state(folder / CHECKPOINT, state)


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return what :func:`save_checkpoint` wrote, or None if there is no checkpoint.

    Raises:
        ModelCorruptError: the file cannot be read as plain tensors, or is incomplete.
    """
    path = folder / CHECKPOINT
    try:
        value = read_state(path, MAX_CHECKPOINT)
    except FileNotFoundError:
        return None
    except ModelCorruptError as why:
        raise ModelCorruptError(
            f"{path} is damaged or not a checkpoint: {why}. Expected a checkpoint of vinoreward "
            "actors; restore it from a copy, or delete it to start over."
        ) from why
    missing = [name for name in PARTS if name not in value]
    if missing:
        raise ModelCorruptError(
            f"{path} has no {', '.join(missing)}. Expected a checkpoint of vinoreward actors with "
            f"{', '.join(PARTS)}; restore it from a copy, or delete it to start over."
        )
    # The file calls pending trajectories "held"; older checkpoints have none.
    wrong = [name for name in (*PARTS, "held") if not _sound(name, value.get(name, []))]
    if wrong:
        raise ModelCorruptError(
            f"{path} has invalid values for {', '.join(wrong)}. Expected a checkpoint of "
            "vinoreward actors; restore it from a copy, or delete it to start over."
        )
    return value


def _sound(name: str, value: object) -> bool:
    """Return whether a part has the type that a training writes."""
    import torch

    if name in ("steps", "version", "episodes"):
        return isinstance(value, int) and value >= 0
    if name == "returns":
        return isinstance(value, list) and all(isinstance(each, int | float) for each in value)
    if name == "observations":
        return isinstance(value, torch.Tensor) and value.ndim > 1 and len(value) > 0
    if name == "held":
        return isinstance(value, list) and all(
            isinstance(one, dict)
            and set(one) == set(ARRAYS)
            and all(isinstance(array, torch.Tensor) for array in one.values())
            for one in value
        )
    return isinstance(value, dict) or (name == "monitor" and value is None)
