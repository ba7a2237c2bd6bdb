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
    nominal,
)


class SceneLooks(Protocol):
    """How scenes look, in the host's memory or on a device."""

    def follow(self, steps: Array) -> None:
        """Take the ``(N,)`` numbers of the pictures in their episodes from here."""

    def set(self, which: Any, drawn: Any) -> None:
        """Let scenes look as their episodes drew."""


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
        self._always = arrays.of(_numbers(nominal(1)))
        self._ranges = DomainRandomization()
        self._least = self._span = self._always
        self.values: Array = arrays.of(_numbers(nominal(count)))
        """``(N, DRAWS)`` float64."""

    def __getitem__(self, name: str) -> Array:
        return self.values[:, COLUMNS[name]]

    def drawn(self) -> Drawn:
        """Return a copy, ``(N,)``, in the host's memory."""
        return as_drawn(self._arrays.host(self.values).copy())

    def begin(self, mask: Array, ranges: DomainRandomization, random: BatchedPCG64) -> None:
        """Draw for the episodes that begin where ``mask``, ``(N,)`` bool, is True."""
        if self._arrays.kind == "numpy":
            rows = np.flatnonzero(mask)
            drawn = nominal(len(rows))
            if ranges.varies:
                drawn = ranges.draw(random.uniforms_of(rows, DRAWS))
            self.values[rows] = _numbers(drawn)
            if self.looks is not None:
                self.looks.set(rows, drawn)
            return
        where = self._arrays.xp.where
        numbers = self._on_device(mask, ranges, random) if ranges.varies else self._always
        self.values = where(mask[:, None], numbers, self.values)
        if self.looks is not None:
            self.looks.set(mask, self.values)

    def moves(self, asked: Array) -> tuple[Array, Array | None]:
        """Return the ``(N, 2)`` moves to make, and by how much each misses its end; None: by none.

        ``asked`` are the moves that are asked for now.
        """
        late = self._actuation.late(asked, self._steps, self)
        return late, self._actuation.error(self._steps, self)

    def _on_device(self, mask: Array, ranges: DomainRandomization, random: BatchedPCG64) -> Array:
        """Return ``(N, DRAWS)`` values as ``DomainRandomization.draw`` makes them."""
        if ranges != self._ranges:  # a copy to the device makes the host wait
            self._ranges = ranges
            self._least, self._span = (self._arrays.of(ends[None]) for ends in ranges.spans())
        numbers = self._least + self._span * random.uniforms(DRAWS, mask)
        delay = COLUMNS["action_delay"]
        numbers[:, delay] = self._arrays.xp.floor(numbers[:, delay])
        return numbers


def looks_of(spec: CameraSpec, numbers: NDArray[np.float64], steps: NDArray[np.int64]) -> Looks:
    """Return the looks of scenes that drew ``(K, DRAWS)`` numbers, at ``(K,)`` steps."""
    looks = Looks(spec, len(numbers))
    looks.set(np.arange(len(numbers)), as_drawn(numbers))
    looks.follow(steps)
    return looks


def _numbers(drawn: Drawn) -> NDArray[np.float64]:
    """Return ``(K,)`` values as ``(K, DRAWS)`` numbers."""
    return drawn.view(np.float64).reshape(len(drawn), DRAWS)
