"""The cameras: what an image is, and that the fast one draws the reference's image."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hover_images import scenes
from task_runs import run_python

from vinoreward.errors import ConfigError
from vinoreward_envs import constants as c
from vinoreward_envs.camera.fast import Appearance, FastCamera
from vinoreward_envs.camera.spec import (
    Camera,
    CameraSpec,
    camera_eye,
)
from vinoreward_envs.objects import object_rest_pose
from vinoreward_envs.scene import make_camera
from vinoreward_envs.warp_device import warp_module


def hovering(count: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """An arm at home and hovering ones, an object below the second, every third one absent."""
    joints, poses, present = scenes(count, seed=seed)
    joints[0] = c.HOME_JOINTS
    present[2::3] = False
    return joints, poses, present


def anywhere(count: int) -> np.ndarray:
    """Joints of arms far out of the task; the first points up, and only its foot is in view."""
    joints = np.zeros((count, c.JOINTS))
    joints[1:, :7] = np.random.default_rng(7).uniform(c.JOINT_LOW, c.JOINT_HIGH, (count - 1, 7))
    return joints


def tiny(height: int = 96, width: int = 128) -> Camera:
    return make_camera(CameraSpec(height=height, width=width, renderer="tiny"))


@pytest.mark.pybullet
@pytest.mark.parametrize(
    ("mesh", "mean_limit", "share_limit", "height", "width"),
    [("20", 0.45, 0.006, 96, 128), ("full", 0.05, 0.002, 75, 101)],
)
def test_fast_draws_what_tiny_draws(
    mesh: Any, mean_limit: float, share_limit: float, height: int, width: int
) -> None:
    joints, poses, present = hovering(12)
    # One object is lifted and turned.
    poses[3, :3, :3] = [[0.0, -0.6, 0.8], [1.0, 0.0, 0.0], [0.0, 0.8, 0.6]]
    poses[3, :3, 3] = (0.55, 0.1, 0.12)
    with tiny(height, width) as reference:
        expected = reference.render_batch(joints, poses, present).astype(int)
    with make_camera(CameraSpec(height=height, width=width, mesh=mesh)) as camera:
        found = camera.render_batch(joints, poses, present).astype(int)
    difference = np.abs(found - expected)
    assert found.std() > 20.0
    assert difference.mean() < mean_limit
    assert (difference > 16).any(axis=-1).mean() < share_limit
    # No single scene may hide behind the average.
    assert difference.mean(axis=(1, 2, 3)).max() < 1.0


@pytest.mark.pybullet
def test_an_arm_far_out_of_the_task_is_still_tinys() -> None:
    scene = anywhere(8), np.tile(np.eye(4), (8, 1, 1)), np.zeros(8, bool)
    with tiny() as reference, make_camera(CameraSpec(mesh="full")) as camera:
        expected = reference.render_batch(*scene).astype(int)
        difference = np.abs(camera.render_batch(*scene).astype(int) - expected)
    assert difference.mean() < 0.3 and difference[0].mean() < 0.2


@pytest.mark.parametrize("size", [{"mesh": "full"}, {"height": 75, "width": 101}])
def test_scene_after_scene_is_drawn_as_pixel_by_pixel(size: dict[str, Any]) -> None:
    """As on a processor, and as on CUDA; arms in any pose, arms and objects at the camera too."""
    pytest.importorskip("torch")
    joints, poses, present = hovering(40)
    joints[10:] = anywhere(30)
    poses[20:, :3, 3] = camera_eye() + np.random.default_rng(4).uniform(-0.15, 0.05, (20, 3))
    present[20:] = True
    spec = CameraSpec(**size)
    one, other = (
        FastCamera(spec, appearance=Appearance(spec, tensors=tensors), capacity=16)
        for tensors in (False, True)
    )
    with one, other:
        for part in (slice(0, 40), slice(0, 1), slice(7, 8)):
            arguments = joints[part], poses[part], present[part]
            np.testing.assert_array_equal(
                one.render_batch(*arguments), other.render_batch(*arguments)
            )


def test_a_batch_is_its_scenes_one_by_one_in_any_camera() -> None:
    """Also where the pose of an absent object is none, and for no scene at all."""
    joints, poses, present = hovering(65, seed=3)
    poses[~present] = np.nan
    with FastCamera(CameraSpec(), capacity=64) as many, make_camera() as one:
        batch = many.render_batch(joints, poses, present)
        single = [
            one.render(q, pose if shown else None)
            for q, pose, shown in zip(joints, poses, present, strict=True)
        ]
        none = many.render_batch(joints[:0], poses[:0], present[:0])
    assert batch.shape == (65, c.IMAGE_HEIGHT, c.IMAGE_WIDTH, 3) and none.shape[0] == 0
    assert batch.dtype == np.uint8
    assert np.array_equal(batch, single)


def test_the_specification_that_travels_leaves_the_renderer_out() -> None:
    assert CameraSpec(renderer="tiny").as_dict() == CameraSpec(renderer="fast").as_dict()
    assert CameraSpec(mesh="full").as_dict() != CameraSpec(mesh="20").as_dict()
    assert CameraSpec(height=64).as_dict() != CameraSpec().as_dict()


def test_kernels_that_no_disk_can_keep_are_refused_before_they_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler would end the process. Kernels that are there already need no room."""
    import warp

    make_camera().close()
    full = shutil.disk_usage(tmp_path)._replace(free=50_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    warp_module()
    monkeypatch.setattr(warp.config, "kernel_cache_dir", str(tmp_path))
    with pytest.raises(ConfigError, match=r"48 kB are free. Expected 4 MB.*WARP_CACHE_PATH"):
        warp_module()


def fallen_object() -> np.ndarray:
    """Return the ``(4, 4)`` pose in which an object lies that was dropped onto the table."""
    import pybullet as bullet
    import pybullet_data

    data = pybullet_data.getDataPath()
    client = bullet.connect(bullet.DIRECT)
    bullet.setGravity(0, 0, c.GRAVITY, physicsClientId=client)
    bullet.loadURDF(f"{data}/{c.TABLE_URDF}", c.TABLE_POSITION, physicsClientId=client)
    start = (*c.FIXED_OBJECT, 0.10)
    body = bullet.loadURDF(f"{data}/{c.OBJECT_URDF}", start, physicsClientId=client)
    for _ in range(1500):
        bullet.stepSimulation(physicsClientId=client)
    place, turn = bullet.getBasePositionAndOrientation(body, physicsClientId=client)
    pose = np.eye(4)
    pose[:3, :3] = np.reshape(bullet.getMatrixFromQuaternion(turn), (3, 3))
    pose[:3, 3] = place
    bullet.disconnect(client)
    return pose


@pytest.mark.pybullet
def test_the_object_rests_where_pybullet_lets_it_fall() -> None:
    fallen = fallen_object()
    pose = object_rest_pose((fallen[0, 3], fallen[1, 3]))
    assert np.allclose(pose[:3, 3], fallen[:3, 3], atol=1e-5)
    # It goes on turning by a thousandth of a degree per second.
    assert np.allclose(pose[:3, :3], fallen[:3, :3], atol=5e-3)
    assert np.abs(np.subtract(fallen[:2, 3], c.FIXED_OBJECT)).max() < 0.005


THREADS = """
import threading

import numpy as np

from vinoreward_envs import constants as c
from vinoreward_envs.camera.fast import Appearance, FastCamera
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.randomization import DRAWS, LAB

spec, appearance = CameraSpec(24, 32), Appearance(CameraSpec(24, 32), 8)
appearance.set(np.ones(8, np.bool_), LAB.draw(np.random.default_rng(0).random((8, DRAWS))))
scenes = np.zeros((8, c.JOINTS)), np.tile(np.eye(4), (8, 1, 1)), np.zeros(8, np.bool_)
together, images = threading.Barrier(8), {}

def draw(i):
    together.wait()
    camera, row = FastCamera(spec, appearance=appearance), np.array([i])
    images[i] = camera.render_batch(*(each[row] for each in scenes), row)[0]

threads = [threading.Thread(target=draw, args=(i,)) for i in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
again = FastCamera(spec, appearance=appearance).render_batch(*scenes)
print(sum((images[i] == again[i]).all() for i in range(8)))
"""
"""Kernels must not be loaded before, so it runs in a process of its own."""


def test_threads_that_need_a_kernel_at_once_load_it_one_by_one() -> None:
    """Warp lets them load it together, and the process dies."""
    assert run_python(THREADS).strip() == "8"
