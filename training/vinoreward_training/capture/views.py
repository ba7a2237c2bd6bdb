"""Images of several views: several cameras, the last images of a camera, or both."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, InputError
from vinoreward.images import View, tiled
from vinoreward_training.data.dataset_files import image_reader

Images = npt.NDArray[np.uint8]


class SeveralViews(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps the last ``stack`` images of each camera of an environment.

    With ``stack`` above 1 the images of every step are read, because later ones may need them. In
    the first steps of an episode, its first image replaces the missing earlier ones.

    Args:
        env: called ``name`` in messages. It is reset once, to see its images.
        name: its id.
        sources: ``"render"``, ``"obs"`` or ``"obs:KEY"``, each once.
        stack: number of images of each camera, one step apart.
        sizes: source to the (height, width) that its images are resized to.

    Raises:
        ConfigError: a source that is missing or named twice, or images of different widths.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        name: str,
        sources: Sequence[str],
        stack: int,
        sizes: Mapping[str, tuple[int, int]],
    ) -> None:
        super().__init__(env)
        if len(set(sources)) < len(sources):
            raise ConfigError(
                field="image_source",
                value=" ".join(sources),
                expected="each camera once",
                remedy="for the last images of one give `stack`",
            )
        self._readers = {one: image_reader(env, name, one, sizes.get(one)) for one in sources}
        self._last: dict[str, deque[Images]] = {source: deque(maxlen=stack) for source in sources}
        self._ages = range(stack - 1, -1, -1)
        try:
            self.image(self.reset(seed=0)[0])
        except InputError as error:
            raise ConfigError(
                f"{name}: {error} In a capture --image-size HEIGHT WIDTH makes all views alike."
            ) from error
        self.views = tuple(
            View(source.removeprefix("obs:"), self._last[source][0].shape[0], source, age)
            for source in sources
            for age in self._ages
        )
        """Views in the image, from top to bottom."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and forget the images of the last episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        for images in self._last.values():
            images.clear()
        self._record(observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and keep its images."""
        result = self.env.step(action)
        self._record(result[0])
        return result

    def image(self, observation: Any) -> Images:
        """Return one image with the views below each other, ``(sum of heights, W, 3)`` uint8."""
        if len(self._ages) == 1:
            self._draw(observation)
        sources = [source for source in self._readers for _ in self._ages]
        parts = [images[-1 - age] for images in self._last.values() for age in self._ages]
        return tiled(parts, sources)

    def _record(self, observation: Any) -> None:
        if len(self._ages) > 1:  # else image() reads them: only the images that are needed
            self._draw(observation)

    def _draw(self, observation: Any) -> None:
        for source, read in self._readers.items():
            images, one = self._last[source], read(observation)
            images.extend([one] * (1 if images else len(self._ages)))
