"""Where the pictures that are scored or encoded come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.locate import known_names
from vinoreward.errors import ConfigError, InputError, PictureMismatchError
from vinoreward.rewards.pictures import Layout, layout_of
from vinoreward.wrappers.stacks import stack_of, unstacked

AnyBundle = Bundle | str | Path | Mapping[str, Any]
"""A loaded bundle, its folder or registered name, or what :func:`recorded` returned."""

ImageSource = str | Callable[[Any, Any], NDArray[np.uint8]]


class PictureSource:
    """Takes the ``(H, W, 3)`` uint8 picture out of an observation, a rendered frame or a callable.

    With ``stacked`` the observation may hold several, see :mod:`vinoreward.wrappers.stacks`.

    Args:
        source: ``"render"``, ``"obs"``, ``"obs:<key>"`` or ``callable(env, observation)``.
        space: observation space of one environment.
        render_mode: of the environment.
        bundle: what will take the pictures; their size is checked against it where it is known.
        stacked: whether an observation of several pictures is allowed.

    Raises:
        ConfigError: the environment cannot give such a picture.
        PictureMismatchError: its size is not one that the bundle takes.
    """

    def __init__(
        self,
        source: ImageSource,
        space: gym.Space[Any],
        render_mode: str | None,
        bundle: Bundle,
        *,
        stacked: bool = False,
    ) -> None:
        self.renders = source == "render"
        self.count = 1
        """Pictures in an observation."""
        self._call = source if callable(source) else None
        self._key: str | None = None
        self._layout: Layout = "HWC"
        if self._call is not None:
            return
        if self.renders:
            if render_mode != "rgb_array":
                raise ConfigError(
                    f"image_source is 'render' and the environment's render_mode is "
                    f"{render_mode!r}. Expected 'rgb_array'; make the environment with "
                    "render_mode='rgb_array', or score picture observations with "
                    "image_source='obs'."
                )
            return
        if not isinstance(source, str) or (source != "obs" and not source.startswith("obs:")):
            raise ConfigError(
                f"image_source is {source!r}. Expected 'render', 'obs', 'obs:<key>' or a function "
                "(env, observation) -> picture."
            )
        picture = space
        if source != "obs":
            self._key = source[len("obs:") :]
            picture = _part(space, self._key)
        shape = _checked(picture, source, space)
        where = f"the observation that image_source {source!r} names"
        if stacked:
            self.count, self._layout, size = stack_of(shape, where, bundle)
        else:
            self._layout = layout_of(shape, where)
            size = (shape[0], shape[1]) if self._layout == "HWC" else (shape[1], shape[2])
        bundle.prepare(np.zeros((1, *size, 3), np.uint8))

    @property
    def key(self) -> str | None:
        """The key of the observation that holds the pictures, where it is a Dict."""
        return self._key

    @property
    def calls(self) -> bool:
        """Whether a user's function makes the picture."""
        return self._call is not None

    def picture(self, env: Any, observation: Any, frame: Any = None) -> NDArray[np.uint8]:
        """Return one environment's picture ``(H, W, 3)`` uint8; it may be a view.

        Args:
            env: given to a callable.
            observation: one environment's observation.
            frame: what rendering gave, for ``"render"``.

        Raises:
            InputError: the frame or what the callable returned is no such picture.
        """
        return self.pictures(env, observation, frame)[-1]

    def pictures(self, env: Any, observation: Any, frame: Any = None) -> list[NDArray[np.uint8]]:
        """Return :attr:`count` pictures ``(H, W, 3)`` uint8, oldest first; as :meth:`picture`."""
        if self.renders or self._call is not None:
            return [self._made(env, observation, frame)]
        found = np.asarray(observation if self._key is None else observation[self._key])
        return unstacked(found, self.count, self._layout)

    def stored(self, observation: Any) -> NDArray[Any] | None:
        """Return the array of an observation that holds the pictures, where it is known."""
        found = observation if self._key is None else observation[self._key]
        return found if isinstance(found, np.ndarray) else None

    def _made(self, env: Any, observation: Any, frame: Any) -> NDArray[np.uint8]:
        if self.renders:
            return _picture(frame, "render()")
        call = cast("Callable[[Any, Any], Any]", self._call)
        return _picture(call(env, observation), "the image_source function")


def located(bundle: AnyBundle) -> Bundle:
    """Return the bundle that is meant.

    Raises:
        ModelNotFoundError: there is none.
        BundleError: it is not valid.
    """
    if isinstance(bundle, Bundle):
        return bundle
    return Bundle.from_recipe(bundle) if isinstance(bundle, Mapping) else Bundle.load(bundle)


def recorded(given: AnyBundle, found: Bundle) -> str | dict[str, Any]:
    """Return what ``env.spec`` says of a bundle: JSON from which it is found again anywhere.

    Args:
        given: as the user named it; a registered name stays, since other machines have it too.
        found: the bundle.
    """
    if isinstance(given, str) and given in known_names():
        return given
    return found.recipe()


def default_source(space: gym.Space[Any], render_mode: str | None) -> str:
    """Return where pictures are: the observation, its only picture key, else ``"render"``.

    Raises:
        ConfigError: there is no picture, or more than one.
    """
    if isinstance(space, gym.spaces.Dict):
        keys = [key for key, part in space.spaces.items() if _looks_like_picture(part)]
        if len(keys) == 1:
            return f"obs:{keys[0]}"
        if keys:
            raise ConfigError(
                f"the observation has the pictures {', '.join(keys)}. Expected to know which one; "
                f"give image_source, e.g. 'obs:{keys[0]}'."
            )
    elif _looks_like_picture(space):
        return "obs"
    if render_mode == "rgb_array":
        return "render"
    raise ConfigError(
        f"the environment's observation is {space} and its render_mode is {render_mode!r}: there "
        "is no picture. Expected a uint8 picture in the observation or an environment that "
        "renders; make it with render_mode='rgb_array', or give image_source a function that makes "
        "the picture."
    )


def check_scene(scene: object, bundle: Bundle) -> None:
    """Compare an environment's ``picture_scene``, where it has one, with the bundle's.

    Raises:
        PictureMismatchError: they differ; the message says in what.
    """
    expected = bundle.spec.picture.scene
    if not isinstance(scene, Mapping) or not expected:
        return
    differing = sorted(
        str(key) for key in {*scene, *expected} if scene.get(key) != expected.get(key)
    )
    if differing:
        found = ", ".join(f"{key}={scene.get(key)!r}" for key in differing)
        wanted = ", ".join(f"{key}={expected.get(key)!r}" for key in differing)
        raise PictureMismatchError(
            f"the environment's picture has {found}. Expected {wanted}, on which the bundle "
            f"{bundle.spec.name!r} was trained; set the environment's camera so, or capture and "
            "fine-tune at this picture."
        )


def _part(space: gym.Space[Any], key: str) -> gym.Space[Any]:
    if not isinstance(space, gym.spaces.Dict) or key not in space.spaces:
        keys = sorted(space.spaces) if isinstance(space, gym.spaces.Dict) else None
        raise ConfigError(
            f"image_source is 'obs:{key}' and the observation space is "
            f"{'a Dict with ' + ', '.join(keys) if keys is not None else space}. Expected a Dict "
            f"with the key {key!r}; name one of its pictures, or use image_source='obs' or "
            "'render'."
        )
    return space.spaces[key]


def _looks_like_picture(space: gym.Space[Any]) -> bool:
    return isinstance(space, gym.spaces.Box) and len(space.shape) in (3, 4)


def _checked(picture: gym.Space[Any], source: str, space: gym.Space[Any]) -> tuple[int, ...]:
    if isinstance(space, gym.spaces.Dict) and source == "obs":
        raise ConfigError(
            f"image_source is 'obs' and the observation is a Dict with "
            f"{', '.join(sorted(space.spaces))}. Expected one picture; use image_source="
            "'obs:<key>'."
        )
    if not isinstance(picture, gym.spaces.Box) or picture.dtype != np.uint8:
        raise ConfigError(
            f"image_source is {source!r}, which is {picture}. Expected a Box of uint8 pictures; "
            "use image_source='render' if the environment renders, or a function that makes the "
            "picture."
        )
    if picture.high.max(initial=0) <= 1:
        raise ConfigError(
            f"image_source is {source!r}, which is {picture}. Expected uint8 pictures from 0 to "
            "255; scale them, or correct the bounds of the observation space."
        )
    return picture.shape


def _picture(found: Any, where: str) -> NDArray[np.uint8]:
    if not isinstance(found, np.ndarray) or found.dtype != np.uint8 or found.ndim != 3:
        what = (
            f"{found.dtype} of shape {found.shape}"
            if isinstance(found, np.ndarray)
            else type(found).__name__
        )
        raise InputError(
            f"{where} gave {what}. Expected one picture, (height, width, 3) uint8 RGB; look at the "
            "environment's render_mode or at the function."
        )
    return found
