"""Which picture an environment makes, with which camera, and whether a bundle fits it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, MissingExtraError, PictureMismatchError
from vinoreward_envs import constants as c
from vinoreward_envs.camera.fast import FastCamera
from vinoreward_envs.camera.spec import Camera, CameraSpec, Mesh, Renderer, missing_warp
from vinoreward_envs.camera.tiny import TinyCamera
from vinoreward_envs.pybullet_import import missing_pybullet

if TYPE_CHECKING:
    from vinoreward.bundles.bundle import Bundle


def camera_spec(
    camera: Renderer,
    mesh: Mesh | None,
    image_size: tuple[int, int] | None,
    bundle: Bundle | None,
) -> CameraSpec:
    """Return the camera's specification; what is None comes from the bundle, else the default.

    Raises:
        ConfigError: a size or name that cannot work.
    """
    scene: Mapping[str, Any] = {} if bundle is None else bundle.spec.picture.scene
    if image_size is not None:
        height, width = _size(image_size)
    elif "height" in scene and "width" in scene:
        height, width = int(scene["height"]), int(scene["width"])
    elif bundle is not None:
        height, width = bundle.spec.picture.height, bundle.spec.picture.width
    else:
        height, width = c.PICTURE_HEIGHT, c.PICTURE_WIDTH
    if camera not in ("fast", "tiny"):
        raise ConfigError(f'Found camera={camera!r}; expected "fast" or "tiny". Pass one of them.')
    if mesh is None:
        mesh = cast(Mesh, str(scene.get("mesh", CameraSpec().mesh)))
    if mesh not in ("full", "20"):
        raise ConfigError(f'Found mesh={mesh!r}; expected "full" or "20". Pass one of them.')
    return CameraSpec(height=height, width=width, renderer=camera, mesh=mesh)


def check_origin(bundle: Bundle) -> None:
    """Refuse a bundle that does not say what drew the pictures it was trained on.

    Its claims would look like any others: a policy that learns from them can be claimed to succeed
    always and never does.

    Raises:
        PictureMismatchError: it does not say.
    """
    if not bundle.spec.picture.scene:
        raise PictureMismatchError(
            f"the bundle {bundle.spec.name!r} does not say what drew the pictures it was trained "
            "on. Expected one trained on this scene's (vinoreward capture, then finetune), as its "
            "probabilities hold for no other picture; for the environment of your own pictures "
            "name that, with --env and --wrap-bundle, or accept such a bundle here with "
            "accept_foreign_pictures=True (--accept-foreign-pictures)."
        )


def check_picture(spec: CameraSpec, bundle: Bundle) -> None:
    """Check that the camera makes the pictures the bundle was trained on.

    A bundle without a scene (it comes from elsewhere) is checked for its size only; see
    :func:`check_origin`.

    Raises:
        PictureMismatchError: names what differs, on both sides.
    """
    picture = bundle.spec.picture
    ours, theirs = dict(spec.as_dict()), dict(picture.scene)
    if not theirs:
        if picture.resize != "none" or picture.crop is not None:
            return  # It takes pictures of several sizes, and checks each one itself.
        theirs = {"height": picture.height, "width": picture.width}
        ours = {name: ours[name] for name in theirs}
    differing = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    if differing:
        found = ", ".join(f"{name}={ours.get(name)!r}" for name in differing)
        expected = ", ".join(f"{name}={theirs.get(name)!r}" for name in differing)
        raise PictureMismatchError(
            f"Found an environment whose picture has {found}; expected {expected}, on which the "
            f"bundle {bundle.spec.name!r} was trained: its probabilities hold for no other "
            "picture. Leave image_size and mesh out, or capture and fine-tune at this picture."
        )


def check_renderer(renderer: str) -> None:
    """Check, without importing it, that the library of a renderer is installed.

    Raises:
        MissingExtraError: it is not.
    """
    if renderer == "tiny" and importlib.util.find_spec("pybullet") is None:
        raise MissingExtraError(missing_pybullet('camera="tiny"', sys.version_info[:2]))
    if renderer == "fast" and importlib.util.find_spec("warp") is None:
        raise missing_warp()


def make_camera(spec: CameraSpec | None = None) -> Camera:
    """Return a camera for ``spec`` (the default specification if None).

    Raises:
        MissingExtraError: ``warp-lang`` (fast) or ``pybullet`` (tiny) is not installed.
    """
    spec = CameraSpec() if spec is None else spec
    if spec.renderer == "tiny":
        return TinyCamera(spec)
    return FastCamera(spec)


def resized(frame: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Return the ``(H, W, 3)`` frame resized by PIL (bilinear), as the article does."""
    if frame.shape[:2] == (height, width):
        return frame
    from PIL import Image

    image = Image.fromarray(frame).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image, dtype=np.uint8)


def size_before_crop(bundle: Bundle) -> tuple[int, int] | None:
    """Return the height and width of the frames a bundle expects; None if it resizes them."""
    picture = bundle.spec.picture
    scene: Mapping[str, Any] = picture.scene
    if "height" in scene and "width" in scene:
        return int(scene["height"]), int(scene["width"])
    if picture.resize != "none" or picture.crop is not None:
        return None
    return picture.height, picture.width


def _size(image_size: tuple[int, int]) -> tuple[int, int]:
    """Return the height and width as integers, or raise."""
    try:
        height, width = (int(value) for value in image_size)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"Found image_size={image_size!r}; expected two whole numbers, (height, width). "
            "Pass for example (96, 128)."
        ) from error
    if height < 1 or width < 1:
        raise ConfigError(
            f"Found image_size={image_size!r}; expected a positive height and width. Pass for "
            "example (96, 128)."
        )
    return height, width
