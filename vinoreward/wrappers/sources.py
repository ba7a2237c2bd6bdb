"""Where wrappers read an environment's images."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from vinoreward.arrays import is_tensor
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, ImageMismatchError, InputError
from vinoreward.images import Layout, as_image, check_scene, in_color, layout_of, on_host
from vinoreward.wrappers.render_once import render

OneSource = str | Callable[[Any, Any], NDArray[np.uint8]]
"""``"render"``, ``"obs"``, ``"obs:<key>"`` or ``callable(env, observation)``."""

ImageSource = OneSource | Sequence[OneSource] | Mapping[str, OneSource]
"""One, or one for each camera of a bundle of several views: in its order, or by name."""


class EnvInfo(NamedTuple):
    """What a wrapper needs to know of its environment."""

    space: gym.Space[Any]
    """Observation space of one environment."""
    render_mode: str | None
    scene: object
    """What its images depend on (``image_scene``); None where it does not say."""
    num_envs: int = 1


class ImageReader:
    """Reads ``(H, W, 3)`` images out of observations, rendered ones or a callable.

    Grey images become RGB. A batch of observations stays one array. Size and scene must be those
    ``bundle`` was trained on, where they are known; dtype and shape are checked where images are
    prepared for the network. With ``stacked`` an observation may hold several images, see
    :func:`stack_of`.
    """

    remembers = False
    """Whether images depend on those before: it must then be shown the first of each episode."""

    def __init__(
        self, source: OneSource, info: EnvInfo, bundle: Bundle, *, stacked: bool = False
    ) -> None:
        self.count = 1
        """Images in an observation."""
        self.key: str | None = None
        """The key of the observation that holds the images, where it is a Dict."""
        self._renders = source == "render"
        self._call = source if callable(source) else None
        self._layout: Layout = "HWC"
        self._info = info
        if self._call is not None:
            return
        if not self._renders:
            self._read_space(source, bundle, stacked)
        elif info.render_mode != "rgb_array":
            raise ConfigError(
                f"image_source is 'render' and the environment's render_mode is "
                f"{info.render_mode!r}. Expected 'rgb_array'; make the environment with "
                "render_mode='rgb_array', or score image observations with image_source='obs'."
            )
        expected = bundle.spec.image.scene
        if isinstance(info.scene, Mapping) and expected:
            name = bundle.spec.name
            check_scene(info.scene, expected, name, "set the environment's camera so")

    def single(self, env: Any, observation: Any, *, first: bool = False) -> NDArray[np.uint8]:
        """Return one environment's images ``(1, count, H, W, 3)``, oldest first.

        They may be a view of its memory. ``env`` is rendered or given to the callable. ``first``
        says that an episode begins.
        """
        if self._renders:
            return as_image(render(env), "render()")[None, None]
        if self._call is None:
            return self._apart(np.asarray(self._part(observation))[None])
        try:
            return as_image(self._call(env, observation), "the image_source function")[None, None]
        except (AttributeError, TypeError) as error:
            if env is not None or "NoneType" not in str(error):
                raise
            raise ConfigError(
                f"the image_source function failed with env=None: {error}. Expected one that "
                "makes the image of the observation alone: a vector environment may have "
                "reset the environment already; or put vinoreward.LearnedReward around each "
                "environment before it is vectorised, which gives the function that one."
            ) from error

    def batch(
        self,
        observations: Any,
        ends: Sequence[int],
        begins: Sequence[int] = (),
        last: Mapping[int, Any] = MappingProxyType({}),
        env: Any = None,
    ) -> NDArray[np.uint8]:
        """Return final images of steps (environments ``ends``), then first ones (``begins``).

        ``last`` has an environment's final observation where ``observations``, a batch of all
        environments, has the next episode's first; ``ends`` is all of them then. ``"render"``
        renders ``env``. The result, ``(len(ends) + len(begins), count, H, W, 3)``, may be a view.
        """
        chosen = [*ends, *begins]
        if self._renders:
            images = render(env) if chosen else ()
            return _joined([as_image(images[i], "render()")[None, None] for i in chosen])
        if self._call is not None:
            rows = self.rows(observations)
            given = [*(last.get(i, rows[i]) for i in ends), *(rows[i] for i in begins)]
            return _joined([self.single(None, one) for one in given])
        images = self._apart(np.asarray(self._part(observations)))
        if last:
            row_of = {i: len(images) + k for k, i in enumerate(last)}
            chosen = [*(row_of.get(i, i) for i in ends), *begins]
            images = _joined([images, *(self.single(None, one) for one in last.values())])
        return images if chosen == list(range(len(images))) else images[chosen]

    def tensors(self, observations: Any, env: Any) -> Any:
        """Return the images of a batch where they are torch tensors, ``(N, ...)``; else None."""
        if self._call is not None:
            return None
        if self._renders:
            images = render(env)
        else:
            images = observations if self.key is None else part_at(observations, self.key)
        return images if is_tensor(images) else None

    def rows(self, observations: Any) -> list[Any]:
        """Return a batch of observations one by one, as views."""
        return list(iterate(self._batched, observations))

    def with_rows(self, observations: Any, fresh: Mapping[int, Any]) -> Any:
        """Return a batch of observations in new memory, with these of some environments."""
        rows = self.rows(observations)
        for i, observation in fresh.items():
            rows[i] = observation
        empty: Any = create_empty_array(self._info.space, n=len(rows))
        return concatenate(self._info.space, rows, empty)

    def stored(self, observation: Any) -> list[NDArray[Any]]:
        """Return the arrays that hold the images of one or more observations, if there are."""
        part = None if self._renders else self._part(observation)
        return [part] if isinstance(part, np.ndarray) else []

    @functools.cached_property
    def _batched(self) -> gym.Space[Any]:
        return batch_space(self._info.space, self._info.num_envs)

    def _part(self, observation: Any) -> Any:
        if self.key is not None:
            observation = part_at(observation, self.key)
        return on_host(observation)

    def _read_space(self, source: object, bundle: Bundle, stacked: bool) -> None:
        if not isinstance(source, str) or (source != "obs" and not source.startswith("obs:")):
            raise ConfigError(
                f"image_source is {source!r}. Expected 'render', 'obs', 'obs:<key>' or a function "
                "(env, observation) -> image; several only for a classifier of several views."
            )
        space = self._info.space
        image: Any = space
        if source != "obs":
            self.key = source[len("obs:") :]
            image = part_at(space, self.key)
        if image is None or isinstance(image, gym.spaces.Dict):
            a_dict = isinstance(space, gym.spaces.Dict)
            what = f"a Dict with {', '.join(parts_below(space))}" if a_dict else space
            raise ConfigError(
                f"image_source is {source!r} and the observation space is {what}. Expected an "
                "image; name one of a Dict as image_source='obs:<key>', or use 'obs' or 'render'."
            )
        shape = _checked(image, source)
        where = f"the observation that image_source {source!r} names"
        if stacked:
            self.count, self._layout, size = stack_of(shape, where, bundle)
        else:
            self._layout = layout_of(shape, where)
            size = _size(shape[1:] if len(shape) == 4 else shape, self._layout)
        bundle.prepare(np.zeros((1, *size, 3), np.uint8))

    def _apart(self, batch: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return ``(N, count, H, W, 3)``, a view of a batch of observations."""
        if batch.ndim == 5 and self.count == 1:  # batches of one
            batch = batch[:, 0]
        if batch.ndim == 4 and self.count > 1:  # side by side in the channels
            if self._layout == "HWC":
                parts = batch.reshape(*batch.shape[:3], self.count, 3)
                return parts.transpose(0, 3, 1, 2, 4)
            batch = batch.reshape(len(batch), self.count, 3, *batch.shape[2:])
        elif batch.ndim < 5:
            return in_color(batch, self._layout)[:, None]
        return batch if self._layout == "HWC" else batch.transpose(0, 1, 3, 4, 2)


def stack_of(
    shape: tuple[int, ...], where: str, bundle: Bundle
) -> tuple[int, Layout, tuple[int, int]]:
    """Return how many colour images a shape holds, their layout and ``(height, width)``.

    The shapes are ``(H, W, 3)``, ``(3, H, W)``, ``(k, H, W, 3)``, ``(k, 3, H, W)``, ``(H, W, 3 k)``
    and ``(3 k, H, W)``. Of two possible readings the one whose size the bundle takes counts.
    """
    image = shape[1:] if len(shape) == 4 else shape
    if len(image) != 3:
        raise ConfigError(
            f"{where} has shape {shape}. Expected colour images: (height, width, 3), (3, height, "
            "width), or several of them, stacked in a first axis or in the channels; give a "
            "function as image_source that makes the image."
        )
    channels: dict[Layout, int] = {"HWC": image[2], "CHW": image[0]}
    sizes: dict[Layout, tuple[int, int]] = {each: _size(image, each) for each in channels}
    readings: list[Layout] = [each for each, count in channels.items() if count == 3]
    if not readings and len(shape) == 3:
        # Sides are divisible by three often enough: fewer channels than pixels, unless it fits.
        whole: list[Layout] = [each for each, count in channels.items() if count and count % 3 == 0]
        readings = [each for each in whole if channels[each] <= min(sizes[each])]
        if bundle.spec.image.resize == "none":
            readings = [each for each in whole if _takes(bundle, sizes[each])] or readings
    if len(readings) > 1:
        readings = [each for each in readings if _takes(bundle, sizes[each])] or readings
    if len(readings) > 1:
        readings = [each for each in readings if channels[each] < min(sizes[each])] or readings
    if not readings:
        raise ConfigError(
            f"{where} has shape {shape}. Expected colour images, with 3 channels each: "
            f"{channels['HWC']} in the last axis and {channels['CHW']} in the "
            f"{'second' if len(shape) == 4 else 'first'} do not divide into images of the "
            "bundle's size; stack whole colour images, or give a function as image_source."
        )
    if len(readings) > 1:
        raise ConfigError(
            f"{where} has shape {shape}, where the channels may be first or last. Expected an "
            "unambiguous shape; give a function as image_source that returns (height, width, 3)."
        )
    layout = readings[0]
    count = shape[0] if len(shape) == 4 else channels[layout] // 3
    return count, layout, sizes[layout]


def has_state(space: gym.Space[Any]) -> bool:
    """Return whether observations hold numbers that :func:`state_of` finds."""
    parts = parts_below(space).values()
    return any(part.shape is not None and _counts(len(part.shape), part.dtype) for part in parts)


def state_of(observation: Any) -> NDArray[np.float64]:
    """Return the numbers of one observation, ``(D,)``, without images and text."""
    if isinstance(observation, Mapping):
        return np.concatenate([np.zeros(0), *map(state_of, observation.values())])
    value = np.asarray(on_host(observation))
    if not _counts(value.ndim, value.dtype):
        return np.zeros(0)
    return np.nan_to_num(value.ravel().astype(np.float64), posinf=0.0, neginf=0.0)


def _counts(dimensions: int, dtype: Any) -> bool:
    return dimensions < 3 and dtype != np.uint8 and np.dtype(dtype).kind in "biuf"


def part_at(parts: Any, key: str) -> Any:
    """Return the part of a dictionary (or of a Dict space) that a key names; None if there is none.

    ``"pixels.front"`` is ``front`` in ``pixels``, unless a key has that very name.
    """
    while True:
        parts = getattr(parts, "spaces", parts)
        if not isinstance(parts, Mapping):
            return None
        if key in parts:
            return parts[key]
        first, _, key = key.partition(".")
        parts = parts.get(first)


def parts_below(space: gym.Space[Any], prefix: str = "") -> dict[str, gym.Space[Any]]:
    """Return the parts of a Dict space, also of Dicts in it, by what :func:`part_at` takes."""
    if not isinstance(space, gym.spaces.Dict):
        return {prefix: space}
    below: dict[str, gym.Space[Any]] = {}
    for key in sorted(space.spaces):
        below |= parts_below(space.spaces[key], f"{prefix}.{key}" if prefix else str(key))
    return below


def takes_render(source: ImageSource) -> bool:
    """Return whether an image, or one of several views, is rendered."""
    if isinstance(source, Mapping):
        return "render" in source.values()
    return source == "render"


def default_source(space: gym.Space[Any], render_mode: str | None) -> str:
    """Return where images are: the observation, its only image key, else ``"render"``."""
    if isinstance(space, gym.spaces.Dict):
        keys = [key for key, part in parts_below(space).items() if _looks_like_image(part)]
        if len(keys) == 1:
            return f"obs:{keys[0]}"
        if keys:
            raise ConfigError(
                f"the observation has the images {', '.join(keys)}. Expected to know which one; "
                f"give image_source, e.g. 'obs:{keys[0]}'."
            )
    elif _looks_like_image(space):
        return "obs"
    if render_mode == "rgb_array":
        return "render"
    raise ConfigError(
        f"the environment's observation is {space} and its render_mode is {render_mode!r}: there "
        "is no image. Expected a uint8 image in the observation or an environment that "
        "renders; make it with render_mode='rgb_array', or give image_source a function that makes "
        "the image."
    )


def _looks_like_image(space: gym.Space[Any]) -> bool:
    return isinstance(space, gym.spaces.Box) and len(space.shape) in (3, 4)


def _checked(image: gym.Space[Any], source: str) -> tuple[int, ...]:
    if not isinstance(image, gym.spaces.Box) or image.dtype != np.uint8:
        expected = (
            "a Box of uint8 images; use image_source='render' if the environment renders, or a "
            "function that makes the image."
        )
    elif image.high.max(initial=0) <= 1:
        expected = (
            "uint8 images from 0 to 255; scale them, or correct the bounds of the observation "
            "space."
        )
    else:
        return image.shape
    raise ConfigError(f"image_source is {source!r}, which is {image}. Expected {expected}")


def _joined(images: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Return several results of :meth:`ImageReader.single` as one batch."""
    if len({image.shape[1:] for image in images}) > 1:
        shapes = sorted({one.shape[2:] for one in images})
        raise InputError(
            f"the environments gave images of the shapes {shapes}. Expected one "
            "shape, also of final observations; give all environments the same image size."
        )
    return np.concatenate(images) if images else np.zeros((0, 1, 1, 1, 3), np.uint8)


def _size(image: tuple[int, ...], layout: Layout) -> tuple[int, int]:
    return (image[1], image[2]) if layout == "CHW" else (image[0], image[1])


def _takes(bundle: Bundle, size: tuple[int, int]) -> bool:
    try:
        bundle.prepare(np.zeros((1, *size, 3), np.uint8))
    except ImageMismatchError:
        return False
    return True
