"""Several cameras, or the last images of one, as the one image that a network scores."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, ImageMismatchError, InputError
from vinoreward.images import prepare, tiled
from vinoreward.wrappers.sources import EnvInfo, ImageReader, ImageSource, OneSource


class ViewReader:
    """Puts a bundle's views together from one source for each camera, as :class:`ImageReader`.

    Images of steps before are kept for each environment. In an episode's first steps its first
    image stands for those that there are not yet, never one of the episode before.

    Args:
        sources: by the cameras' names, all that the bundle's views have.
        info: the environment.
        bundle: of several views.
    """

    def __init__(self, sources: Mapping[str, OneSource], info: EnvInfo, bundle: Bundle) -> None:
        self._image = bundle.spec.image
        self._cameras: dict[str, ImageReader] = {}
        self._memory: dict[str, NDArray[np.uint8]] = {}
        for name, camera in self._image.cameras.items():
            one = dataclasses.replace(bundle.spec, image=self._image.of_view(camera))
            with _naming(name):
                part = ImageReader(sources[name], info, dataclasses.replace(bundle, spec=one))
            self._cameras[name] = part
            depth = 1 + max(view.age for view in self._image.views if view.name == name)
            shape = (info.num_envs, depth, camera.height, self._image.width, 3)
            self._memory[name] = np.zeros(shape, np.uint8)
        self._any = next(iter(self._cameras.values()))
        self.remembers = any(memory.shape[1] > 1 for memory in self._memory.values())
        """Whether the first image of each episode must be shown."""

    def single(self, env: Any, observation: Any, *, first: bool = False) -> NDArray[np.uint8]:
        """Return one environment's image, ``(1, 1, H, W, 3)``; ``first`` of its episode."""
        parts = {
            name: source.single(env, observation)[:, -1] for name, source in self._cameras.items()
        }
        return self._together([] if first else [0], [0] if first else [], parts)

    def batch(
        self,
        observations: Any,
        ends: Sequence[int],
        begins: Sequence[int] = (),
        last: Mapping[int, Any] = MappingProxyType({}),
        env: Any = None,
    ) -> NDArray[np.uint8]:
        """Return ``(len(ends) + len(begins), 1, H, W, 3)``; see :meth:`ImageReader.batch`."""
        parts = {
            name: source.batch(observations, ends, begins, last, env)[:, -1]
            for name, source in self._cameras.items()
        }
        return self._together(ends, begins, parts)

    def tensors(self, observations: Any, env: Any) -> None:
        """Return None: several views are put together on the host."""

    def rows(self, observations: Any) -> list[Any]:
        """Return a batch of observations one by one, as views."""
        return self._any.rows(observations)

    def with_rows(self, observations: Any, fresh: Mapping[int, Any]) -> Any:
        """Return a batch of observations in new memory, with these of some environments."""
        return self._any.with_rows(observations, fresh)

    def stored(self, observation: Any) -> list[NDArray[Any]]:
        """Return the arrays that hold the images of one or more observations, if there are."""
        return [part for source in self._cameras.values() for part in source.stored(observation)]

    def _together(
        self, ends: Sequence[int], begins: Sequence[int], parts: Mapping[str, NDArray[np.uint8]]
    ) -> NDArray[np.uint8]:
        """Remember the newest images of ``[*ends, *begins]`` by camera; return what is seen."""
        image, old, new = self._image, list(ends), list(begins)
        if not old and not new:
            return np.zeros((0, 1, image.height, image.width, 3), np.uint8)
        newest = {}
        for name, part in parts.items():
            with _naming(name):
                newest[name] = prepare(part, image.of_view(image.cameras[name]))
        names = [view.name for view in image.views]
        if not self.remembers:
            return tiled([newest[name] for name in names], names)[:, None]
        for name, memory in self._memory.items():
            memory[old, :-1] = memory[old, 1:]
            memory[old, -1] = newest[name][: len(old)]
        seen = [[self._memory[view.name][old, -1 - view.age] for view in image.views]]
        # Afterwards, as an environment may end an episode and begin the next in one step.
        for name, memory in self._memory.items():
            memory[new] = newest[name][len(old) :, None]
        seen.append([self._memory[view.name][new, -1 - view.age] for view in image.views])
        return tiled([np.concatenate(pair) for pair in zip(*seen, strict=True)], names)[:, None]


@contextlib.contextmanager
def _naming(camera: str) -> Iterator[None]:
    """Name the camera in errors about its images."""
    try:
        yield
    except (ConfigError, InputError, ImageMismatchError) as error:
        raise type(error)(f"camera {camera!r}: {error}") from error


def sources_of(
    given: ImageSource | None, bundle: Bundle, default: str
) -> OneSource | dict[str, OneSource]:
    """Return the source of a bundle's images, or by name that of each of its cameras.

    ``given`` is what the user gave as ``image_source``. ConfigError if it is not one for each
    camera, or the bundle's own in another order.
    """
    cameras = bundle.spec.image.cameras
    several = isinstance(given, Mapping) or (
        isinstance(given, Sequence) and not isinstance(given, str)
    )
    if not cameras:
        if several:
            raise ConfigError(
                f"image_source is {given!r} and the bundle {bundle.spec.name!r} looks at one "
                "image. Expected one source, such as 'render' or 'obs:<key>'; for several "
                "cameras capture images of all of them and train a classifier on those."
            )
        return default if given is None else given  # type: ignore[return-value]
    recorded = {name: camera.source for name, camera in cameras.items()}
    if given is None:
        return dict(recorded)
    chosen: dict[str, OneSource] = {}
    if isinstance(given, Mapping):
        chosen = dict(given)
    else:
        in_order: list[OneSource] = list(given) if several else [given]  # type: ignore[arg-type,list-item]
        if len(in_order) == len(cameras):
            chosen = dict(zip(cameras, in_order, strict=True))
        own = list(recorded.values())
        if in_order != own and sorted(map(str, in_order)) == sorted(own):
            raise ConfigError(
                f"image_source is {given!r}, and {_looks(bundle)}. Expected the same order; put "
                "them in it, or leave image_source out. A mapping from the names exchanges cameras."
            )
    missing = [name for name in cameras if name not in chosen]
    unknown = [name for name in chosen if name not in cameras]
    if missing or unknown:
        found = f"without {', '.join(missing)}" if missing else f"with {', '.join(unknown)}"
        raise ConfigError(
            f"image_source is {given!r}, {found}, and {_looks(bundle)}. Expected {len(cameras)} "
            "sources, one for each: a sequence in this order, or a mapping from these names."
        )
    return {name: chosen[name] for name in cameras}


def image_reader(
    source: OneSource | Mapping[str, OneSource], info: EnvInfo, bundle: Bundle
) -> ImageReader | ViewReader:
    """Return what takes a bundle's images from an environment; see :func:`sources_of`."""
    if isinstance(source, Mapping):
        return ViewReader(source, info, bundle)
    return ImageReader(source, info, bundle)


def _looks(bundle: Bundle) -> str:
    named = ", ".join(
        f"{name} ({camera.source})" for name, camera in bundle.spec.image.cameras.items()
    )
    return f"the bundle {bundle.spec.name!r} looks at the cameras {named}"
