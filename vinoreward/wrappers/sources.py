"""Where wrappers read an environment's images: observations, rendered frames or functions."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from vinoreward.arrays import is_tensor, to_numpy
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, ImageMismatchError, InputError, MissingDisplayError
from vinoreward.images import (
    Layout,
    as_image,
    check_scene,
    in_color,
    layout_of,
    prepare,
    tiled,
)

OneSource = str | Callable[[Any, Any], NDArray[np.uint8]]
"""``"render"``, ``"obs"``, ``"obs:<key>"`` or ``callable(env, observation)``."""

ImageSource = OneSource | Sequence[OneSource] | Mapping[str, OneSource]
"""One, or one for each camera of a bundle of several views: in its order, or by name."""


@dataclasses.dataclass(frozen=True)
class EnvInfo:
    """What a wrapper needs to know of its environment; ``space`` is of one observation."""

    space: gym.Space[Any]
    render_mode: str | None
    scene: object
    """What its images depend on (``image_scene``); None where it does not say."""
    num_envs: int = 1

    @functools.cached_property
    def _batched(self) -> gym.Space[Any]:
        return batch_space(self.space, self.num_envs)

    def rows(self, observations: Any) -> list[Any]:
        """Return a batch of observations one by one, as views."""
        return list(iterate(self._batched, observations))


class ImageReader:
    """Reads ``(H, W, 3)`` images from one source; grey ones become RGB.

    Size and scene must be those ``bundle`` was trained on, where they are known; dtype and shape
    are checked where images are prepared for the network. ``bundle`` is None where a judge scores.
    """

    remembers = False
    """Whether images depend on those before: it must then be shown the first of each episode."""

    def __init__(self, source: OneSource, info: EnvInfo, bundle: Bundle | None) -> None:
        self.key: str | None = None
        """The key of the observation that holds the images, where it is a Dict."""
        self._renders = source == "render"
        self._call = source if callable(source) else None
        self._layout: Layout = "HWC"
        self._info = info
        if callable(source):
            return
        if source != "render":
            self._read_space(source, bundle)
        elif info.render_mode != "rgb_array":
            raise ConfigError(
                f"image_source is 'render' and the environment's render_mode is "
                f"{info.render_mode!r}. Expected 'rgb_array'; make the environment with "
                "render_mode='rgb_array', or score image observations with image_source='obs'."
            )
        if bundle is not None and bundle.spec.image.scene and isinstance(info.scene, Mapping):
            expected, name = bundle.spec.image.scene, bundle.spec.name
            check_scene(info.scene, expected, name, "set the environment's camera so")

    def single(self, env: Any, observation: Any, *, first: bool = False) -> NDArray[np.uint8]:
        """Return one environment's image, ``(1, H, W, 3)``, which may be a view.

        ``env`` is rendered or given to the function; ``first`` says that an episode begins.
        """
        if self._renders:
            return as_image(render(env), "render()")[None]
        if self._call is None:
            return self._as_images(np.asarray(self._part(observation))[None])
        try:
            return as_image(self._call(env, observation), "the image_source function")[None]
        except (AttributeError, TypeError) as error:
            if env is not None or "NoneType" not in str(error):
                raise
            raise ConfigError(
                f"the image_source function failed with env=None: {error}. Expected one that "
                "needs the observation alone, as a vector environment may have been reset; or put "
                "vinoreward.LearnedReward around each environment before it is vectorised."
            ) from error

    def batch(
        self,
        observations: Any,
        rows: Sequence[int],
        env: Any = None,
        last: Mapping[int, Any] = MappingProxyType({}),
        *,
        first: bool = False,
    ) -> NDArray[np.uint8]:
        """Return images ``(len(rows), H, W, 3)`` of these environments, which may be a view.

        ``last`` has an environment's final observation where ``observations``, a batch of all
        environments, has the next episode's first. ``env`` is rendered; ``first`` says that
        episodes begin.
        """
        if self._renders:
            images = render(env) if rows else ()
            return _concatenate([as_image(images[i], "render()")[None] for i in rows])
        if self._call is not None:
            each = self._info.rows(observations)
            return _concatenate([self.single(None, last.get(i, each[i])) for i in rows])
        images = self._as_images(np.asarray(self._part(observations)))
        if last:
            row_of = {i: len(images) + k for k, i in enumerate(last)}
            rows = [row_of.get(i, i) for i in rows]
            images = _concatenate([images, *(self.single(None, one) for one in last.values())])
        return images if rows == list(range(len(images))) else images[rows]

    def tensors(self, observations: Any, env: Any) -> Any:
        """Return the images of a batch where they are torch tensors, ``(N, ...)``; else None."""
        if self._call is not None:
            return None
        if self._renders:
            images = render(env)
        else:
            images = observations if self.key is None else part_at(observations, self.key)
        return images if is_tensor(images) else None

    def stored(self, observation: Any) -> list[NDArray[Any]]:
        """Return the arrays that hold the images of one or more observations, if there are."""
        part = None if self._renders else self._part(observation)
        return [part] if isinstance(part, np.ndarray) else []

    def _part(self, observation: Any) -> Any:
        part = observation if self.key is None else part_at(observation, self.key)
        return to_numpy(part) if is_tensor(part) else part

    def _read_space(self, source: object, bundle: Bundle | None) -> None:
        space, image = self._info.space, None
        if source == "obs":
            image = space
        elif isinstance(source, str) and source.startswith("obs:"):
            self.key = source[len("obs:") :]
            image = part_at(space, self.key)
        if not isinstance(image, gym.spaces.Box) or (
            image.dtype != np.uint8 or image.high.max(initial=0) <= 1
        ):
            a_dict = isinstance(space, gym.spaces.Dict)
            what = f"a Dict with {', '.join(parts_below(space))}" if a_dict else space
            raise ConfigError(
                f"image_source is {source!r} and the observation space is {what}. Expected "
                "'render', a function (env, observation) -> image, or 'obs' or (in a Dict) "
                "'obs:<key>' that names a Box of uint8 images from 0 to 255."
            )
        where = f"the observation that image_source {source!r} names"
        self._layout = layout_of(image.shape, where)
        images = self._as_images(np.zeros((1, *image.shape), np.uint8))
        if bundle is not None:
            bundle.prepare(images)

    def _as_images(self, batch: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return ``(N, H, W, 3)`` of a batch of observations, a view unless they are grey."""
        return in_color(batch[:, 0] if batch.ndim == 5 else batch, self._layout)


class ViewReader:
    """Puts a bundle's views together from one source for each camera, as :class:`ImageReader`.

    Images of steps before are kept for each environment. In an episode's first steps its first
    image stands for those that there are not yet, never one of the episode before. ``sources`` are
    by the cameras' names, all that the bundle's views have.
    """

    def __init__(self, sources: Mapping[str, OneSource], info: EnvInfo, bundle: Bundle) -> None:
        self._image = bundle.spec.image
        self._cameras: dict[str, ImageReader] = {}
        self._memory: dict[str, NDArray[np.uint8]] = {}
        for name, camera in self._image.cameras.items():
            one = dataclasses.replace(bundle.spec, image=self._image.of_view(camera))
            with _name_in_errors(name):
                part = ImageReader(sources[name], info, dataclasses.replace(bundle, spec=one))
            self._cameras[name] = part
            depth = 1 + max(view.age for view in self._image.views if view.name == name)
            shape = (info.num_envs, depth, camera.height, self._image.width, 3)
            self._memory[name] = np.zeros(shape, np.uint8)
        self.remembers = any(view.age for view in self._image.views)

    def single(self, env: Any, observation: Any, *, first: bool = False) -> NDArray[np.uint8]:
        """Return one environment's image, ``(1, H, W, 3)``; ``first`` of its episode."""
        parts = {name: one.single(env, observation) for name, one in self._cameras.items()}
        return self._combine_views([0], parts, first)

    def batch(
        self,
        observations: Any,
        rows: Sequence[int],
        env: Any = None,
        last: Mapping[int, Any] = MappingProxyType({}),
        *,
        first: bool = False,
    ) -> NDArray[np.uint8]:
        """Return ``(len(rows), H, W, 3)``; see :meth:`ImageReader.batch`."""
        if not rows:
            return np.zeros((0, self._image.height, self._image.width, 3), np.uint8)
        parts = {
            name: one.batch(observations, rows, env, last) for name, one in self._cameras.items()
        }
        return self._combine_views(rows, parts, first)

    def tensors(self, observations: Any, env: Any) -> None:
        """Return None: several views are put together on the host."""

    def stored(self, observation: Any) -> list[NDArray[Any]]:
        """Return the arrays that hold the images of one or more observations, if there are."""
        return [part for one in self._cameras.values() for part in one.stored(observation)]

    def _combine_views(
        self, rows: Sequence[int], parts: Mapping[str, NDArray[np.uint8]], first: bool
    ) -> NDArray[np.uint8]:
        """Remember the newest images of environments by camera; return what is seen."""
        for name, memory in self._memory.items():
            with _name_in_errors(name):
                image = prepare(parts[name], self._image.of_view(self._image.cameras[name]))
            older = memory[rows, 1:]
            if first:
                older = np.repeat(image[:, None], older.shape[1], axis=1)
            memory[rows] = np.concatenate([older, image[:, None]], axis=1)
        views = self._image.views
        seen = [self._memory[view.name][rows, -1 - view.age] for view in views]
        return tiled(seen, [view.name for view in views])


def sources_of(
    given: ImageSource | None, bundle: Bundle | None, default: str
) -> OneSource | dict[str, OneSource]:
    """Return the source of a bundle's images, or by name that of each of its cameras.

    ``given`` is what the user gave as ``image_source``; None: the bundle's own, else ``default``.
    ConfigError if it is not one for each camera, or the bundle's own in another order.
    """
    scorer = "judge" if bundle is None else f"bundle {bundle.spec.name!r}"
    cameras = {} if bundle is None else bundle.spec.image.cameras
    listed = isinstance(given, Sequence) and not isinstance(given, str)
    if not cameras and (listed or isinstance(given, Mapping)):
        raise ConfigError(
            f"image_source is {given!r} and the {scorer} looks at one image. "
            "Expected one source, such as 'render' or 'obs:<key>'; for several cameras capture "
            "images of all of them and train a classifier on those."
        )
    if not cameras:
        return default if given is None else given  # type: ignore[return-value]
    recorded = {name: camera.source for name, camera in cameras.items()}
    if given is None:
        return dict(recorded)
    swapped = False
    if isinstance(given, Mapping):
        chosen = dict(given)
    else:
        in_order: list[Any] = list(given) if listed else [given]  # type: ignore[arg-type]
        own = list(recorded.values())
        swapped = in_order != own and sorted(map(str, in_order)) == sorted(own)
        chosen = dict(zip(cameras, in_order, strict=False)) if len(in_order) == len(own) else {}
    if swapped or chosen.keys() != cameras.keys():
        named = ", ".join(f"{name} ({source})" for name, source in recorded.items())
        raise ConfigError(
            f"image_source is {given!r} and the {scorer} looks at the cameras {named}. "
            f"Expected {len(cameras)} sources, one for each: a sequence in the same "
            "order, or a mapping from these names (which may also exchange cameras)."
        )
    return {name: chosen[name] for name in cameras}


def render(env: Any) -> Any:
    """Return what an environment renders.

    ConfigError if it does not draw, MissingDisplayError if it finds no OpenGL to draw with.
    """
    try:
        return env.render()
    except (NotImplementedError, AssertionError) as error:  # the latter is Gymnasium's checker's
        raise ConfigError(
            "the environment shows no images: render() raises "
            f"{': '.join(filter(None, (type(error).__name__, str(error))))}. Expected one that "
            "draws itself with render_mode='rgb_array'; write its render(), or name an image in "
            "its observation as image source, obs or obs:KEY."
        ) from error
    except Exception as error:  # each simulator has classes of its own, mujoco.FatalError is one
        if "OpenGL" not in str(error):
            raise
        raise MissingDisplayError(
            f"the environment cannot draw ({error}). Expected OpenGL: without a display set "
            "MUJOCO_GL=egl where there is a GPU, else install OSMesa (Debian: apt-get install "
            "libosmesa6) and set MUJOCO_GL=osmesa."
        ) from error


def takes_render(source: ImageSource) -> bool:
    """Return whether an image, or one of several views, is rendered."""
    return source == "render" or (isinstance(source, Mapping) and "render" in source.values())


def default_source(space: gym.Space[Any], render_mode: str | None) -> str:
    """Return where images are: the observation, its only image key, else ``"render"``."""
    keys = [
        key
        for key, part in parts_below(space).items()
        if isinstance(part, gym.spaces.Box) and len(part.shape) in (3, 4)
    ]
    if len(keys) == 1:
        return f"obs:{keys[0]}" if isinstance(space, gym.spaces.Dict) else "obs"
    if keys:
        raise ConfigError(
            f"the observation has the images {', '.join(keys)}. Expected to know which one; give "
            f"image_source, e.g. 'obs:{keys[0]}'."
        )
    if render_mode == "rgb_array":
        return "render"
    raise ConfigError(
        f"the environment's observation is {space} and its render_mode is {render_mode!r}: there "
        "is no image. Expected a uint8 image in the observation or an environment that renders; "
        "make it with render_mode='rgb_array', or give image_source a function that makes the "
        "image."
    )


def has_state(space: gym.Space[Any]) -> bool:
    """Return whether observations hold numbers that :func:`state_of` finds."""
    parts = parts_below(space).values()
    return any(part.shape is not None and _is_state(len(part.shape), part.dtype) for part in parts)


def state_of(observation: Any) -> NDArray[np.float64]:
    """Return the numbers of one observation, ``(D,)``, without images and text."""
    if isinstance(observation, Mapping):
        return np.concatenate([np.zeros(0), *map(state_of, observation.values())])
    value = to_numpy(observation)
    if not _is_state(value.ndim, value.dtype):
        return np.zeros(0)
    return np.nan_to_num(value.ravel().astype(np.float64), posinf=0.0, neginf=0.0)


def _is_state(dimensions: int, dtype: Any) -> bool:
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


def _concatenate(images: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Return several results of :meth:`ImageReader.single` as one batch."""
    shapes = sorted({image.shape[1:] for image in images})
    if len(shapes) > 1:
        raise InputError(
            f"the environments gave images of the shapes {shapes}. Expected one shape, also of "
            "final observations; give all environments the same image size."
        )
    return np.concatenate(images) if images else np.zeros((0, 1, 1, 3), np.uint8)


@contextlib.contextmanager
def _name_in_errors(camera: str) -> Iterator[None]:
    """Name the camera in errors about its images."""
    try:
        yield
    except (ConfigError, InputError, ImageMismatchError) as error:
        raise type(error)(f"camera {camera!r}: {error}") from error
