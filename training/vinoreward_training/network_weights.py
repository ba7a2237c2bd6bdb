"""Reading weights and checkpoints: tensors and plain data, never code."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vinoreward.errors import ModelCorruptError, ModelNotFoundError


def load_weights(net: nn.Module, path: Path) -> list[str]:
    """Load weights from a ``.safetensors`` or ``.pt`` file; return the names left untrained.

    Layers whose shape differs (a head for other classes) keep their fresh values.

    Raises:
        ModelNotFoundError: there is no such file.
        ModelCorruptError: it is not a plain state dict, or nothing in it fits.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelNotFoundError(
            f"there are no weights at {path}. Expected a .safetensors or .pt file; correct "
            "--weights or leave it out to train from scratch."
        )
    given = _read_weights(path)
    own = net.state_dict()
    # torchvision's head is a Sequential with dropout first, ours starts with the convolution.
    renamed = {
        name.replace("classifier.1.", "classifier.0."): value for name, value in given.items()
    }
    given = {name.removeprefix("net."): value for name, value in renamed.items()}
    fits = {
        name: value
        for name, value in given.items()
        if name in own and own[name].shape == value.shape
    }
    if not fits:
        raise ModelCorruptError(
            f"nothing in {path} fits the network ({len(given)} tensors, {len(own)} wanted). "
            "Expected a state dict of the same architecture; choose it with --architecture."
        )
    net.load_state_dict({**own, **fits})
    return sorted(set(own) - set(fits))


def _read_weights(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return dict(load_file(path))
        except (SafetensorError, OSError) as error:
            raise ModelCorruptError(
                f"{path} cannot be read as safetensors ({error}). Expected a whole file; copy or "
                "download it again."
            ) from error
    state = load_plain(path)
    values = {
        name: value
        for name, value in state.get("state_dict", state).items()
        if isinstance(value, Tensor)
    }
    if not values:
        raise ModelCorruptError(f"{path} holds no tensors. Expected a state dict; save one anew.")
    return values


def load_plain(path: Path) -> dict[str, Any]:
    """Read a file of ``torch.save`` that holds a mapping of tensors and plain data.

    Raises:
        ModelCorruptError: it cannot be read, or needs code to be read.
    """
    try:
        # Tensors and plain data only: a file from elsewhere must not run code.
        value = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise ModelCorruptError(
            f"{path} cannot be read as plain tensors ({str(error).splitlines()[0]}). Expected a "
            "whole file made by torch.save of a state dict; delete it or make it anew."
        ) from error
    if not isinstance(value, Mapping):
        raise ModelCorruptError(
            f"{path} holds a {type(value).__name__}. Expected a state dict; save "
            "model.state_dict() instead."
        )
    return dict(value)
