"""Which library a renderer needs, and the camera that it makes."""

from __future__ import annotations

import importlib.util
import sys

from vinoreward.errors import MissingExtraError
from vinoreward_envs.camera.fast import FastCamera
from vinoreward_envs.camera.spec import Camera, CameraSpec, missing_warp
from vinoreward_envs.camera.tiny import TinyCamera
from vinoreward_envs.pybullet_import import missing_pybullet


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
