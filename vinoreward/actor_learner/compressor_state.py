"""What a compressor remembers between two runs: a file of plain arrays beside the checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vinoreward.compression.chain import CompressorChain
from vinoreward.errors import ConfigError, ModelCorruptError
from vinoreward.files import read_plain
from vinoreward.saved_arrays import read_npz, reason_of

STATE_FILE = "compressor.npz"
MAX_BYTES = 2 << 30


def read_state(path: Path) -> dict[str, Any]:
    """Return what a compressor wrote there.

    Raises:
        ModelCorruptError: the file is damaged.
    """
    try:
        data = read_plain(path, MAX_BYTES)
        state = read_npz(data, len(data), packed=False)
        pushes = state.get("pushes")
        if pushes is None or pushes.shape != () or pushes.dtype.kind != "i" or pushes < 0:
            raise ModelCorruptError("no count of pushes")
    except (OSError, ModelCorruptError) as error:
        raise _damaged(path, error) from error
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
    except (TypeError, ValueError, LookupError) as error:
        if not isinstance(error, ConfigError):
            raise _damaged(path, error) from error
        raise ConfigError(
            f"{path} is of another chain: {error} Or delete the file: the compressor then measures "
            "and teaches anew."
        ) from error


def _damaged(path: Path, error: Exception) -> ModelCorruptError:
    return ModelCorruptError(
        f"{path} is damaged: {reason_of(error)}. Expected the state of a compressor; restore it "
        "from a copy, or delete it: the compressor then measures anew."
    )
