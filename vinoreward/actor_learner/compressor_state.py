"""What a compressor remembers between two runs: a file of plain arrays beside the checkpoint."""

from __future__ import annotations

import copy
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vinoreward.compression.chain import CompressorChain
from vinoreward.errors import ConfigError, ModelCorruptError

STATE_FILE = "compressor.npz"


def read_state(path: Path) -> dict[str, Any]:
    """Return what a compressor wrote there.

    Raises:
        ModelCorruptError: the file is damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            state = {name: stored[name] for name in stored.files}
        if "pushes" not in state:
            raise ValueError("no count of pushes")
    except (
        OSError,
        ValueError,
        EOFError,
        LookupError,
        AttributeError,
        zipfile.BadZipFile,
    ) as error:
        raise ModelCorruptError(
            f"{path} is damaged ({type(error).__name__}). Expected the state of a compressor; "
            "restore it from a copy, or delete it: the compressor then measures anew."
        ) from error
    return state


def chain_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chain's part of what :func:`read_state` gave."""
    return {
        name: value.item() if value.ndim == 0 else value
        for name, value in state.items()
        if name != "pushes"
    }


def check_state(path: Path, chain: CompressorChain) -> None:
    """Raise unless a chain can go on from what a compressor wrote; the chain stays as it is.

    Raises:
        ModelCorruptError: the file is damaged.
        ConfigError: it is that of another chain.
    """
    state = chain_state(read_state(path))
    try:
        copy.deepcopy(chain).load_state(state)
    except ConfigError as error:
        raise ConfigError(
            f"{path} is of another chain: {error} Or delete the file: the compressor then measures "
            "and teaches anew."
        ) from error
