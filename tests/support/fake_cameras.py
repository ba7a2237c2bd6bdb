"""A camera that does what cameras do wrong."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class FakeCamera:
    """Gives ``images`` every 1 / ``hz`` seconds; ``waits`` has more seconds before some of them."""

    def __init__(
        self,
        images: Sequence[Any],
        *,
        hz: float = 100.0,
        live: bool = True,
        waits: Mapping[int, float] | None = None,
    ) -> None:
        self.hz, self.live = hz, live
        self.closed = False
        self._images, self._waits = images, waits or {}
        self._index = 0
        self._due = 0.0

    def read(self) -> Any:
        index = self._index
        if index == len(self._images):
            return None
        self._index += 1
        if self.live:
            self._due = self._due or time.perf_counter()
            self._due += 1 / self.hz + self._waits.get(index, 0.0)
            time.sleep(max(0.0, self._due - time.perf_counter()))
        return self._images[index]

    def close(self) -> None:
        self.closed = True


def grey_levels(*levels: int, size: tuple[int, int] = (6, 8)) -> list[Any]:
    """Return images of these brightnesses, each with a red line."""
    images = []
    for level in levels:
        image = np.full((*size, 3), level, np.uint8)
        image[0, :, 0] = (level + 64) % 256
        images.append(image)
    return images


def noisy(count: int, level: int = 100) -> list[Any]:
    """Return images of one brightness, each with noise of its own."""
    generator = np.random.default_rng(0)
    return list(generator.integers(level - 20, level + 20, (count, 6, 8, 3)).astype(np.uint8))
