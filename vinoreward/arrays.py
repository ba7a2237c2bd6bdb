"""NumPy arrays and torch tensors by the same names, so that arithmetic is written once."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = Any
"""A NumPy array or a torch tensor on any device."""


def is_tensor(values: object) -> bool:
    """Return whether ``values`` are a torch tensor; torch is not imported."""
    return hasattr(values, "detach")


def to_numpy(values: Array) -> NDArray[Any]:
    """Return an array in the host's memory; a tensor on another device is copied."""
    if is_tensor(values):
        values = values.detach().cpu().numpy()
    return np.asarray(values)


class Arrays(NamedTuple):
    """A library, and the device on which it makes arrays."""

    xp: ModuleType = np
    """``numpy`` or ``torch``, whose common functions are called by name."""
    device: Any = None
    """A torch device; None for NumPy."""

    @classmethod
    def like(cls, values: Array) -> Arrays:
        """Return the library and device of an array."""
        if not is_tensor(values):
            return cls()
        import torch

        return cls(torch, values.device)

    @property
    def on_host(self) -> bool:
        """Whether these are NumPy arrays."""
        return self.device is None

    def full(self, count: int, value: float, dtype: str) -> Array:
        """Return ``(count,)`` times the value; ``dtype`` is a name such as ``"float64"``."""
        if self.on_host:
            return np.full(count, value, dtype)
        return self.xp.full((count,), value, dtype=getattr(self.xp, dtype), device=self.device)

    def cast(self, values: Any, dtype: str) -> Array:
        """Return values as an array here, of this dtype; copied only where they must be."""
        if self.on_host:
            return np.asarray(to_numpy(values), dtype)
        return self.xp.asarray(values, dtype=getattr(self.xp, dtype), device=self.device)
