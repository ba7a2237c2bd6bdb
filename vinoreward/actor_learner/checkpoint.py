"""A training's checkpoint: learner, monitor and counters; read back as plain data only."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vinoreward.errors import ModelCorruptError
from vinoreward.saved_state import save_state

CHECKPOINT = "checkpoint.pt"


def save_checkpoint(folder: Path, state: Mapping[str, Any]) -> None:
    """Write ``folder/checkpoint.pt`` whole or not at all.

    Raises:
        RunFolderError: the disk is full or the folder cannot be written.
    """
    save_state(folder / CHECKPOINT, state)


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return what :func:`save_checkpoint` wrote there, None if there is nothing.

    Raises:
        ModelCorruptError: a file that cannot be read as plain tensors.
    """
    import torch

    path = folder / CHECKPOINT
    if not path.is_file():
        return None
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise ModelCorruptError(
            f"{path} cannot be read ({str(error).splitlines()[0]}). Expected a checkpoint of "
            "vinoreward actors; delete it to start anew."
        ) from error
    return dict(value)
