"""The array types of this package and the checks on shapes and finite numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import InputError

Floats = NDArray[np.floating[Any]]
"""Floating-point array of any precision, time-major ``(T, B)`` unless said otherwise."""
Doubles = NDArray[np.float64]
Mask = NDArray[np.bool_]


def check_time_major(**arrays: NDArray[Any]) -> None:
    """Check that all arrays have one shape ``(T, B)`` with at least one step.

    Raises:
        InputError: an array is not a NumPy array, not 2-dimensional, empty, or of another shape.
    """
    expected: tuple[int, ...] | None = None
    first = ""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise InputError(
                f"{name} is a {type(array).__name__}; correctors take NumPy arrays: pass "
                f"{name}.detach().cpu().numpy() or numpy.asarray({name})."
            )
        if expected is None:
            expected, first = array.shape, name
            if array.ndim != 2 or 0 in array.shape:
                raise InputError(
                    f"{name} has shape {array.shape}; expected (T, B) with at least one step and "
                    "one trajectory. Time comes first: transpose a (B, T) array, and add an axis "
                    "to a single trajectory."
                )
        elif array.shape != expected:
            raise InputError(
                f"{name} has shape {array.shape}, but {first} has {expected}; all arrays of a "
                "batch are (T, B) of one shape. Pass the values of the steps and of their "
                "successors as two arrays of T rows, not one of T + 1."
            )


def check_finite(name: str, array: Floats, hint: str) -> None:
    """Check that an array has no NaN and no infinity; ``hint`` says what to do.

    Raises:
        InputError: it has; the message names the first such element as ``[t, b]``.
    """
    finite = np.isfinite(array)
    if not finite.all():
        where = tuple(int(index) for index in np.argwhere(~finite)[0])
        count = int(array.size - np.count_nonzero(finite))
        raise InputError(
            f"{name} has {count} of {array.size} values that are not finite, the first is "
            f"{array[where]} at [t, b] = {list(where)}; expected finite numbers. {hint}"
        )
