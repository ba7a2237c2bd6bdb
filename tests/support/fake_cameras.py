"""A camera that does what cameras do wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from vinoreward_training.watch.cameras import Camera, Images


def fake_camera(
    images: Iterable[Any],
    *,
    hz: float = 100.0,
    live: bool = True,
    waits: Mapping[int, float] | None = None,
    closed: Callable[[], object] = str,
) -> Camera:
    """Return a camera of ``images``, every 1 / ``hz`` seconds.

    Where ``waits`` says so it waits for more seconds before an image; ``closed`` is called at the
    end.
    """

    def made() -> Images:
        due = time.perf_counter()
        try:
            for index, image in enumerate(images):
                due += 1 / hz + (waits or {}).get(index, 0.0)
                if live:
                    time.sleep(max(0.0, due - time.perf_counter()))
                yield image
        finally:
            closed()

    return Camera(made(), hz, live)


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
