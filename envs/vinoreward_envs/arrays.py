"""Where a batch of environments keeps its numbers: NumPy arrays, or torch tensors on a device.

The two share the names of what the batch needs (``where``, ``clip``, ``hypot``), so its arithmetic
is written once. PyTorch is imported only where tensors are asked for.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vinoreward.arrays import Array, Arrays
from vinoreward.errors import ConfigError, UnknownDeviceError, needed_for
from vinoreward_envs.camera.spec import check_choice

Kind = Literal["numpy", "torch"]
CPU = "cpu"


def make_arrays(kind: Kind, device: str = CPU) -> Arrays:
    """Return the library of a kind of arrays, and for ``"torch"`` the device.

    Raises:
        ConfigError: another kind, or no such name of a device.
        UnknownDeviceError: PyTorch has no such device here.
        MissingExtraError: PyTorch is not installed.
    """
    check_choice("array", kind, get_args(Kind))
    if kind == "numpy":
        return Arrays()
    with needed_for('array="torch"', "train"):
        import torch
    named = checked_device(device)
    there = [CPU, *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if named not in there:
        raise UnknownDeviceError(
            f"PyTorch has no device {named!r} here. Expected one of {', '.join(there)}; choose one "
            "of these."
        )
    return Arrays(torch, torch.device(named))


def placed(values: NDArray[Any], arrays: Arrays) -> Array:
    """Return a copy of a NumPy array, of this kind and on this device."""
    return arrays.cast(np.array(values), values.dtype.name)


@contextlib.contextmanager
def plain(arrays: Arrays) -> Iterator[None]:
    """Compute with tensors that any later step may change, and without gradients.

    Those that are made in a caller's ``inference_mode`` could not be changed outside it.

    Raises:
        ConfigError: there is too little memory.
    """
    full: tuple[type[BaseException], ...] = (MemoryError,)
    with contextlib.ExitStack() as modes:
        if not arrays.on_host:
            full = (MemoryError, arrays.xp.OutOfMemoryError)
            modes.enter_context(arrays.xp.inference_mode(False))
            modes.enter_context(arrays.xp.no_grad())
        try:
            yield
        except full as error:
            raise ConfigError(
                f"{arrays.device or 'the host'} has too little free memory: "
                f"{str(error).split('. ')[0]}. Expected room for all environments; make fewer "
                "(num_envs), and create them again, as these are not complete."
            ) from error


def checked_device(device: str) -> str:
    """Return a device's full name: ``"cpu"`` or ``"cuda:N"``; ConfigError for no such name."""
    found = re.fullmatch(r"(?i)(cpu)|cuda(?::(\d{1,3}))?", str(device))
    if found is None:
        raise ConfigError(
            f'Found device={device!r}; expected "cpu", "cuda" or "cuda:N". Pass one of them.'
        )
    return CPU if found[1] else f"cuda:{int(found[2] or 0)}"
