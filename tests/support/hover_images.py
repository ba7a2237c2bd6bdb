"""Scenes before the fast camera, whose episodes may look otherwise, and TinyRenderer beside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vinoreward_envs import constants as c
from vinoreward_envs.arm import inverse_kinematics
from vinoreward_envs.bullet import TinyCamera
from vinoreward_envs.camera.fast import Appearance, FastCamera
from vinoreward_envs.camera.spec import CameraSpec, projection_matrix, viewport_matrix
from vinoreward_envs.objects import object_rest_pose
from vinoreward_envs.randomization import DRAWS, DomainRandomization, by_name


def drawn_from(ranges: DomainRandomization, count: int, seed: int = 0) -> Any:
    """Return the ``(count, DRAWS)`` values of episodes."""
    return ranges.draw(np.random.default_rng(seed).random((count, DRAWS)))


def fixed(**values: float) -> DomainRandomization:
    """Return ranges of one value each."""
    return DomainRandomization(**{name: (value, value) for name, value in values.items()})  # type: ignore[arg-type]


def appearance_of(
    ranges: DomainRandomization, count: int, spec: CameraSpec, seed: int = 0, **kwargs: Any
) -> Appearance:
    """Return the appearance of ``count`` scenes that drew from ranges."""
    appearance = Appearance(spec, count, **kwargs)
    appearance.set(np.ones(count, np.bool_), drawn_from(ranges, count, seed))
    return appearance


def params_of(appearance: Appearance) -> Any:
    """Return what each scene drew, a field for each of the ranges'."""
    return by_name(appearance.scenes.params.numpy())


def camera_of(appearance: Appearance | None, spec: CameraSpec | None = None) -> FastCamera:
    """Return a camera that draws 16 scenes at once."""
    return FastCamera(spec or CameraSpec(), appearance=appearance, capacity=16)


def scenes(count: int, appearance: Appearance | None = None, seed: int = 2) -> tuple[Any, Any, Any]:
    """Return hovering arms, objects anywhere in the workspace, and that all of them are there."""
    draw = np.random.default_rng(seed)
    grippers, objects = draw.uniform(c.WORKSPACE_LOW, c.WORKSPACE_HIGH, (2, count, 2))
    joints = inverse_kinematics(np.column_stack([grippers, np.full(count, c.HOVER_HEIGHT)]))
    turned: Any = [(0.0, 1.0)] * count
    if appearance is not None:
        turned = params_of(appearance)[["object_yaw", "object_size"]].tolist()
    poses = [object_rest_pose(xy, *each) for xy, each in zip(objects.tolist(), turned, strict=True)]
    return joints, np.array(poses), np.ones(count, np.bool_)


def seen_by_tinyrenderer(appearance: Appearance, joints: Any, poses: Any) -> Any:
    """Draw with TinyRenderer, which has a camera, a light and an object of its own."""
    import pybullet_data

    camera = TinyCamera(CameraSpec())
    world, bullet, images = camera.world, camera.world.bullet, []
    viewport = np.linalg.inv(viewport_matrix(96, 128))
    for i, drawn in enumerate(params_of(appearance)):
        bullet.removeBody(world.object)
        world.object = bullet.loadURDF(
            f"{pybullet_data.getDataPath()}/{c.OBJECT_URDF}",
            globalScaling=float(drawn["object_size"]),
        )
        shading = appearance.scenes.shadings.numpy()[i]
        colour = [*(shading["colour"] / 255.0).tolist(), 1.0]
        bullet.changeVisualShape(world.object, -1, rgbaColor=colour)
        world.set_joints(joints[i])
        world.place_object(poses[i])
        projection = projection_matrix(96, 128)
        half = math.radians(drawn["field_of_view"] / 2)
        projection[[0, 1], [0, 1]] *= math.tan(math.radians(30)) / math.tan(half)
        view = np.linalg.inv(projection) @ viewport @ appearance.scenes.screens.numpy()[i]
        rgba = bullet.getCameraImage(
            128, 96, view.T.ravel().tolist(), projection.T.ravel().tolist(),
            lightDirection=shading["direction"].tolist(),
            renderer=bullet.ER_TINY_RENDERER,
        )[2]  # fmt: skip
        images.append(np.asarray(rgba, dtype=np.uint8).reshape(96, 128, 4)[..., :3])
    camera.close()
    return np.array(images)
