"""Tensors and plain data written whole or not at all."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vinoreward.files import write_bytes


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a table of tensors and plain data, as ``torch.load(weights_only=True)`` reads it.

    Args:
        path: the file; its previous version stays until the new one is complete.
        state: what to write. While it is written, memory holds it a second time.

    Raises:
        RunFolderError: the disk is full or the folder cannot be written.
    """
    import torch

    # torch.save reports a full disk as a RuntimeError about its own C++; writing bytes names it.
    stream = io.BytesIO()
    torch.save(state, stream)
    write_bytes(path, stream.getvalue())
