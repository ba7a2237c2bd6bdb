"""Checks of what goes into a network and what comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import InputError, OutputError

if TYPE_CHECKING:
    from vinoreward.backends.base import TensorSpec


def check_input(batch: NDArray[Any], spec: TensorSpec) -> None:
    """Raise InputError unless ``batch`` is an array exactly as ``spec`` says."""
    if not isinstance(batch, np.ndarray):
        raise InputError(
            f"the network was given a {type(batch).__name__}. Expected a numpy array {spec}; use "
            "numpy.asarray or numpy.stack."
        )
    if batch.dtype != np.dtype(spec.dtype):
        hint = (
            "pass the picture as uint8 from 0 to 255: scaling and normalising is part of the "
            "network"
            if spec.dtype == "uint8"
            else f"convert it with astype({spec.dtype!r})"
        )
        raise InputError(f"the network was given {batch.dtype}. Expected {spec}; {hint}.")
    if not spec.fits(batch):
        hint = (
            "add the batch axis with picture[None]"
            if batch.ndim == len(spec.shape) - 1
            else ("give pictures of the size the network was trained on")
        )
        raise InputError(
            f"the network was given an array of shape {batch.shape}. Expected {spec} with N at "
            f"least 1; {hint}."
        )
    if batch.dtype.kind == "f" and not np.isfinite(batch).all():
        raise InputError(
            "the network was given NaN or infinity. Expected finite numbers; look at where the "
            "observation comes from."
        )


def check_output(result: NDArray[Any], spec: TensorSpec, count: int, name: str) -> None:
    """Raise OutputError unless ``result`` has ``count`` finite rows as ``spec`` says."""
    if not spec.fits(result) or len(result) != count:
        raise OutputError(
            f"the {name} backend returned an array of shape {result.shape} for a batch of {count}. "
            f"Expected {spec}; the model file and its description do not belong together."
        )
    if not np.isfinite(result).all():
        bad = int(np.count_nonzero(~np.isfinite(result).reshape(count, -1).all(axis=1)))
        raise OutputError(
            f"the network returned NaN or infinity for {bad} of {count} inputs. Expected finite "
            "numbers; the weights are broken or overflow, train or export the network again."
        )
