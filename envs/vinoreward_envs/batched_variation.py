"""What differs between the episodes of a batch, and what its arms make of their moves."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vinoreward_envs.actuation import Actuation
from vinoreward_envs.arrays import Array, Arrays
from vinoreward_envs.batched_random import BatchedPCG64
from vinoreward_envs.camera.looks import Looks
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.randomization import (
    COLUMNS,
    DRAWS,
    DomainRandomization,
    Drawn,
    as_drawn,
    as_numbers,
    nominal,
    spread,
)


class SceneLooks(Protocol):
    """How scenes look, in the host's memory or on a device."""

    def follow(self, steps: Array) -> None:
        """Take the ``(N,)`` numbers of the pictures in their episodes from here."""

    def set(self, mask: Array, numbers: Array) -> None:
        """Let scenes look as the ``(N, DRAWS)`` numbers of their episodes say where ``mask``,
        ``(N,)`` bool, is True."""


class Variation:
    """What the episodes of N environments drew; at first nothing differs.

    ``variation[name]`` are the ``(N, ...)`` values of one field of
    :class:`~vinoreward_envs.randomization.DomainRandomization`.

    Args:
        arrays: of which kind they are, and where.
        count: N.
        steps: ``(N,)`` int64 steps that were made in each episode; read, never written.
        looks: shows it; None where nothing is drawn.
    """

    def __init__(
        self, arrays: Arrays, count: int, steps: Array, looks: SceneLooks | None = None
    ) -> None:
        self._arrays, self._steps = arrays, steps
        self.looks: Any = looks
        """As it was given."""
        if looks is not None:
            looks.follow(steps)
        self._actuation = Actuation(arrays, count)
        self._disturbs = False  # to look at a device's numbers, the host would have to wait
        self._ranges: DomainRandomization | None = None
        self.values: Array = arrays.of(as_numbers(nominal(count)))
        """``(N, DRAWS)`` float64."""

    def __getitem__(self, name: str) -> Array:
        return self.values[:, COLUMNS[name]]

    def drawn(self) -> Drawn:
        """Return a copy, ``(N,)``, in the host's memory."""
        return as_drawn(self._arrays.host(self.values).copy())

    def begin(self, mask: Array, ranges: DomainRandomization, random: BatchedPCG64) -> None:
        """Draw for the episodes that begin where ``mask``, ``(N,)`` bool, is True."""
        if ranges != self._ranges:  # a copy to the device makes the host wait
            self._ranges = ranges
            self._least, self._span = (self._arrays.of(ends[None]) for ends in ranges.spans())
            # Episodes under way may have drawn from earlier ranges.
            self._disturbs |= ranges.action_delay[1] > 0 or ranges.action_noise[1] > 0
        numbers = self._least
        if ranges.varies:
            numbers = spread(random.uniforms(DRAWS, mask), self._least, self._span)
        self.values = self._arrays.xp.where(mask[:, None], numbers, self.values)
        if self.looks is not None:
            self.looks.set(mask, self.values)

    def moves(self, asked: Array) -> tuple[Array, Array | None]:
        """Return the ``(N, 2)`` moves to make, and by how much each misses its end; None: by none.

        ``asked`` are the moves that are asked for now.
        """
        if not self._disturbs:
            return asked, None
        late = self._actuation.late(asked, self._steps, self)
        return late, self._actuation.error(self._steps, self)


def looks_of(spec: CameraSpec, numbers: NDArray[np.float64], steps: NDArray[np.int64]) -> Looks:
    """Return the looks of scenes that drew ``(K, DRAWS)`` numbers, at ``(K,)`` steps."""
    looks = Looks(spec, len(numbers))
    looks.set(np.ones(len(numbers), np.bool_), numbers)
    looks.follow(steps)
    return looks
