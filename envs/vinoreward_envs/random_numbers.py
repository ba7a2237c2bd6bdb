"""The random numbers of many environments at once, each the very numbers of its own seed.

A Gymnasium environment draws from ``numpy.random.Generator(PCG64(SeedSequence(seed)))``. Here are
the states of N such generators as whole numbers in arrays, which advance together on any device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vinoreward.arrays import Array, Arrays, to_numpy
from vinoreward_envs.arrays import placed

_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
"""PCG64's, of 128 bits (O'Neill, PCG: A Family of Simple Fast Space-Efficient Statistically Good
Algorithms for Random Number Generation, 2014)."""
_HALF = 0xFFFFFFFF
_ALL = (1 << 128) - 1
_LEAST = -(1 << 63)


class BatchedPCG64:
    """N generators of type PCG64 with the output function XSL-RR, as NumPy's.

    Numbers of 128 bits are pairs of int64, high and low, whose bits are read as unsigned: PyTorch
    has no arithmetic of unsigned ones.
    """

    def __init__(self, arrays: Arrays, count: int) -> None:
        self._arrays = arrays
        # At first from entropy; PCG64 adds an odd number.
        words = np.random.default_rng().integers(_LEAST, -_LEAST, (4, count), np.int64)
        *self._state, high, low = (placed(word, arrays) for word in words)
        self._add = [high, low | 1]
        self._jumps: dict[int, list[Array]] = {}

    def set(self, rows: Sequence[int], generators: Iterable[np.random.BitGenerator]) -> None:
        """Let the generators of these rows go on as NumPy's would, each a PCG64."""
        words = np.empty((4, len(rows)), np.uint64)
        for i, each in enumerate(generators):
            inside: Any = each.state["state"]
            words[:, i] = (*divmod(inside["state"], 1 << 64), *divmod(inside["inc"], 1 << 64))
        where = placed(np.asarray(rows, np.int64), self._arrays)
        numbers = [placed(word, self._arrays) for word in words.view(np.int64)]
        for target, values in zip((*self._state, *self._add), numbers, strict=True):
            target[where] = values

    def generators(self) -> list[np.random.Generator]:
        """Return a NumPy generator for each, which goes on as it would."""
        words = [to_numpy(each).view(np.uint64) for each in (*self._state, *self._add)]
        found = []
        for high, low, add_high, add_low in zip(*(each.tolist() for each in words), strict=True):
            inside = np.random.PCG64(0)
            numbers = {"state": (high << 64) | low, "inc": (add_high << 64) | add_low}
            inside.state = {**inside.state, "state": numbers}  # type: ignore[typeddict-item]
            found.append(np.random.Generator(inside))
        return found

    def uniforms(self, count: int, mask: Array) -> Array:
        """Return the next ``count`` numbers of each generator, ``(N, count)`` float64 in [0, 1).

        Only generators where ``mask``, ``(N,)`` bool, is True advance; other rows are
        undefined.
        """
        if self._arrays.on_host:  # a processor computes what is wanted alone
            rows = np.flatnonzero(mask)
            state, add = ([words[rows] for words in pair] for pair in (self._state, self._add))
            states, some = self._ahead(state, add, count)
            for words, new in zip(self._state, states, strict=True):
                words[rows] = new[:, -1]
            numbers = np.zeros((len(mask), count))
            numbers[rows] = some
            return numbers
        where = self._arrays.xp.where
        states, every = self._ahead(self._state, self._add, count)
        self._state = [
            where(mask, new[:, -1], old) for new, old in zip(states, self._state, strict=True)
        ]
        return every

    def _ahead(
        self, state: Sequence[Array], add: Sequence[Array], count: int
    ) -> tuple[tuple[Array, Array], Array]:
        """Return the next ``count`` states, halves ``(K, count)``, and the numbers they give.

        With multiplier m and increment c, the state after j steps from s is
        m^j s + (1 + m + ... + m^(j-1)) c, so all are computed at once (F. Brown, Random Number
        Generation with Arbitrary Strides, 1994).
        """
        if count not in self._jumps:
            powers, sums = [1], [0]
            for _ in range(count):
                sums.append((sums[-1] + powers[-1]) & _ALL)
                powers.append((powers[-1] * _MULTIPLIER) & _ALL)
            self._jumps[count] = [
                placed(np.array(half, np.uint64).view(np.int64), self._arrays)
                for numbers in (powers[1:], sums[1:])
                for half in zip(*(divmod(number, 1 << 64) for number in numbers), strict=True)
            ]
        by, times = self._jumps[count][:2], self._jumps[count][2:]
        high, low = _multiplied([half[:, None] for half in state], by)
        add_high, add_low = _multiplied([half[:, None] for half in add], times)
        low = low + add_low
        carry = (low ^ _LEAST) < (add_low ^ _LEAST)
        xp = self._arrays.xp
        high = high + add_high + xp.where(carry, 1, 0)
        mixed, turn = high ^ low, _shifted(high, 58)
        # A shift by 64 has no meaning, so a turn by 0 shifts by 0 twice.
        turned = _shifted(mixed, turn) | (mixed << ((64 - turn) & 63))
        return (high, low), xp.asarray(_shifted(turned, 11), dtype=xp.float64) * 2.0**-53


def _shifted(x: Array, by: Array | int) -> Array:
    """Return ``x >> by`` of numbers read as unsigned; ``by`` from 0 to 63."""
    # The sign's copies, which come in from the left, are masked; of a shift by 0 nothing is.
    return (x >> by) & ~((_LEAST >> by) << 1)


def _multiplied(one: Sequence[Array], other: Sequence[Array]) -> tuple[Array, Array]:
    """Return the product, modulo 2**128, of numbers in two halves, high and low."""
    high, low = one
    by_high, by_low = other
    right, left = low & _HALF, _shifted(low, 32)
    by_right, by_left = by_low & _HALF, _shifted(by_low, 32)
    least = right * by_right
    middle = left * by_right + _shifted(least, 32)
    crossed = right * by_left + (middle & _HALF)
    carried = left * by_left + _shifted(middle, 32) + _shifted(crossed, 32)
    return carried + high * by_low + low * by_high, (crossed << 32) | (least & _HALF)
