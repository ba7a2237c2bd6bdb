"""Where a batch of environments keeps its numbers: NumPy arrays, or torch tensors on a device.

The two share the names of what the batch needs (``where``, ``clip``, ``hypot``), so its arithmetic
is written once. PyTorch is imported only where tensors are asked for.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vinoreward.arrays import Array, to_numpy
from vinoreward.errors import ConfigError, UnknownDeviceError, needed_for
from vinoreward_envs.camera.spec import check_choice

Kind = Literal["numpy", "torch"]
CPU = "cpu"


class Arrays:
    """Makes arrays of one kind on one device, and brings them back to the host.

    Args:
        kind: ``"numpy"``, always in the host's memory, or ``"torch"``.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``: where images and tensors are.

    Raises:
        ConfigError: another kind, or no such name of a device.
        UnknownDeviceError: PyTorch has no such device here.
        MissingExtraError: PyTorch is not installed.
    """

    def __init__(self, kind: Kind = "numpy", device: str = CPU) -> None:
        check_choice("array", kind, get_args(Kind))
        self.kind = kind
        self.device = checked_device(device)
        self.xp: ModuleType = np
        """``numpy`` or ``torch``."""
        self.copy: Callable[[Array], Array] = np.copy
        """Returns a copy in memory of its own."""
        if kind == "torch":
            with needed_for('array="torch"', "train"):
                import torch
            self.xp, self.copy = torch, torch.clone
            there = [CPU, *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
            if self.device not in there:
                raise UnknownDeviceError(
                    f"PyTorch has no device {self.device!r} here. Expected one of "
                    f"{', '.join(there)}; choose one of these."
                )

    def of(self, values: NDArray[Any]) -> Array:
        """Return a copy of a NumPy array, of this kind and on this device."""
        if self.kind == "numpy":
            return np.array(values)
        with self.plain():
            return self.xp.tensor(values, device=self.device)

    @contextlib.contextmanager
    def plain(self) -> Iterator[None]:
        """Compute with tensors that any later step may change, and without gradients.

        Those that are made in a caller's ``inference_mode`` could not be changed outside it.

        Raises:
            ConfigError: the device has too little memory.
        """
        if self.kind == "numpy":
            yield
            return
        try:
            with self.xp.inference_mode(False), self.xp.no_grad():
                yield
        except self.xp.OutOfMemoryError as error:
            raise ConfigError(
                f"{self.device} has too little free memory: {str(error).split('. ')[0]}. Expected "
                "room for the environments beside what else is there; make fewer (num_envs), and "
                "make them anew, as this step was not finished."
            ) from error

    def masked(self, mask: Array, values: Array) -> Array:
        """Return a copy of ``(N,)`` values that is 0, or False, where ``mask`` is not True."""
        return self.xp.where(mask, values, self.xp.zeros_like(values))

    def host(self, values: Array) -> NDArray[Any]:
        """Return an array in the host's memory as NumPy's, copied only from another device."""
        return values if self.kind == "numpy" else to_numpy(values)


def checked_device(device: str) -> str:
    """Return a device's full name: ``"cpu"`` or ``"cuda:N"``; ConfigError for no such name."""
    found = re.fullmatch(r"(?i)(cpu)|cuda(?::(\d{1,3}))?", str(device))
    if found is None:
        raise ConfigError(
            f'Found device={device!r}; expected "cpu", "cuda" or "cuda:N". Pass one of them.'
        )
    return CPU if found[1] else f"cuda:{int(found[2] or 0)}"
