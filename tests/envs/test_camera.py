"""The cameras: what an image is, and that the fast one draws the reference's image."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from task_runs import run_python

from vinoreward.errors import ConfigError, InputError, UnknownDeviceError
from vinoreward_envs import constants as c
from vinoreward_envs.arm import inverse_kinematics
from vinoreward_envs.bullet import quaternion
from vinoreward_envs.camera.fast import FastCamera
from vinoreward_envs.camera.spec import (
    Camera,
    CameraSpec,
    camera_eye,
    projection_matrix,
    view_matrix,
)
from vinoreward_envs.objects import object_rest_pose
from vinoreward_envs.scene import make_camera
from vinoreward_envs.warp_device import warp_module

HOME = np.array(c.HOME_JOINTS)


def scenes(count: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Home and hovering arms, objects anywhere in the workspace, every third one absent."""
    draw = np.random.default_rng(seed)
    grippers = draw.uniform(c.WORKSPACE_LOW, c.WORKSPACE_HIGH, (count, 2))
    objects = draw.uniform(c.WORKSPACE_LOW, c.WORKSPACE_HIGH, (count, 2))
    objects[1] = grippers[1]
    joints = [inverse_kinematics([x, y, c.HOVER_HEIGHT], HOME) for x, y in grippers]
    joints[0] = HOME
    poses = [object_rest_pose((x, y)) for x, y in objects]
    return np.array(joints), np.array(poses), np.arange(count) % 3 != 2


@pytest.fixture(scope="module")
def fast() -> Any:
    with FastCamera(CameraSpec(), capacity=64) as camera:
        yield camera


def tiny(height: int, width: int) -> Camera:
    return make_camera(CameraSpec(height=height, width=width, renderer="tiny"))


@pytest.mark.pybullet
@pytest.mark.parametrize(
    ("mesh", "mean_limit", "share_limit", "height", "width"),
    [("20", 0.45, 0.006, 96, 128), ("full", 0.05, 0.002, 75, 101)],
)
def test_fast_draws_what_tiny_draws(
    mesh: Any, mean_limit: float, share_limit: float, height: int, width: int
) -> None:
    joints, poses, present = scenes(12)
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


@pytest.mark.parametrize("size", [{}, {"mesh": "full"}, {"height": 75, "width": 101}])
def test_scene_after_scene_is_drawn_as_pixel_by_pixel(size: dict[str, Any]) -> None:
    """As on a processor, and as on CUDA; arms in any pose, arms and objects at the camera too."""
    draw = np.random.default_rng(4)
    joints, poses, present = scenes(40)
    joints[10:, :7] = draw.uniform(c.JOINT_LOW, c.JOINT_HIGH, (30, 7))
    poses[20:, :3, 3] = camera_eye() + draw.uniform(-0.15, 0.05, (20, 3))
    present[20:] = True
    spec = CameraSpec(**size)
    one, other = (FastCamera(spec, in_turn=in_turn, capacity=16) for in_turn in (True, False))
    with one, other:
        for part in (slice(0, 40), slice(0, 1), slice(7, 8)):
            arguments = joints[part], poses[part], present[part]
            np.testing.assert_array_equal(
                one.render_batch(*arguments), other.render_batch(*arguments)
            )


@pytest.mark.pybullet
def test_fast_follows_an_object_lifted_and_turned_as_tiny_does() -> None:
    pose = np.eye(4)
    pose[:3, :3] = [[0.0, -0.6, 0.8], [1.0, 0.0, 0.0], [0.0, 0.8, 0.6]]
    pose[:3, 3] = (0.55, 0.1, 0.12)
    with tiny(96, 128) as reference, make_camera(CameraSpec(mesh="full")) as camera:
        expected = reference.render(HOME, pose).astype(int)
        found = camera.render(HOME, pose).astype(int)
        absent = camera.render(HOME, None).astype(int)
    assert (found != absent).any(axis=-1).sum() > 20
    assert np.abs(found - expected).mean() < 0.05


@pytest.mark.pybullet
@pytest.mark.parametrize(("height", "width"), [(96, 128), (224, 298)])
def test_background_is_tinys_own(height: int, width: int) -> None:
    # From here up the arm stands behind the camera, outside the image.
    up = np.zeros(c.JOINTS)
    with tiny(height, width) as reference, make_camera(CameraSpec(height, width)) as camera:
        expected = reference.render(up, None).astype(int)
        found = camera.render(up, None).astype(int)
    # The arm's foot stays in view; most of the image is table and floor.
    assert np.abs(found - expected).mean() < 0.2


def test_same_scene_gives_the_same_bytes(fast: Camera) -> None:
    joints, poses, present = scenes(6)
    first = fast.render_batch(joints, poses, present)
    with make_camera() as other:
        assert np.array_equal(first, other.render_batch(joints, poses, present))
    assert np.array_equal(first, fast.render_batch(joints, poses, present))


@pytest.mark.parametrize("count", [2, 64, 65])
def test_a_batch_is_its_scenes_one_by_one(fast: Camera, count: int) -> None:
    joints, poses, present = scenes(count, seed=3)
    batch = fast.render_batch(joints, poses, present)
    single = [
        fast.render(q, pose if shown else None)
        for q, pose, shown in zip(joints, poses, present, strict=True)
    ]
    assert batch.shape == (count, c.IMAGE_HEIGHT, c.IMAGE_WIDTH, 3)
    assert batch.dtype == np.uint8
    assert np.array_equal(batch, single)


def test_an_empty_batch_gives_no_images(fast: Camera) -> None:
    images = fast.render_batch(np.zeros((0, 9)), np.zeros((0, 4, 4)), np.zeros(0, bool))
    assert images.shape == (0, c.IMAGE_HEIGHT, c.IMAGE_WIDTH, 3)


@pytest.mark.parametrize("renderer", ["fast", pytest.param("tiny", marks=pytest.mark.pybullet)])
def test_images_belong_to_the_caller(renderer: Any) -> None:
    with make_camera(CameraSpec(renderer=renderer)) as camera:
        first = camera.render(HOME, object_rest_pose((0.5, 0.1)))
        kept = first.copy()
        camera.render(HOME, None)
        assert np.array_equal(first, kept)
        first[:] = 0
        assert camera.render(HOME, None).any()


@pytest.mark.parametrize("renderer", ["fast", pytest.param("tiny", marks=pytest.mark.pybullet)])
def test_an_absent_object_leaves_no_trace(renderer: Any) -> None:
    pose = object_rest_pose((0.5, 0.2))
    with make_camera(CameraSpec(renderer=renderer)) as camera:
        before = camera.render(HOME, None)
        shown = camera.render(HOME, pose)
        after = camera.render(HOME, None)
    assert np.array_equal(before, after)
    changed = (before != shown).any(axis=-1)
    assert 20 < changed.sum() < 400
    # The object is blue.
    red, green, blue = shown[changed].mean(axis=0)
    assert blue > red + 50
    assert blue > green + 50


def test_an_absent_objects_pose_does_not_matter(fast: Camera) -> None:
    joints, poses, _ = scenes(2)
    absent = np.zeros(2, bool)
    expected = fast.render_batch(joints, poses, absent)
    poses[:] = np.nan
    assert np.array_equal(fast.render_batch(joints, poses, absent), expected)


@pytest.mark.pybullet
def test_an_arm_far_out_of_the_task_is_still_tinys() -> None:
    draw = np.random.default_rng(7)
    low, high = np.array(c.JOINT_LOW), np.array(c.JOINT_HIGH)
    joints = np.zeros((8, c.JOINTS))
    joints[:, : c.ARM_JOINTS] = draw.uniform(low, high, (8, c.ARM_JOINTS))
    poses, absent = np.tile(np.eye(4), (8, 1, 1)), np.zeros(8, bool)
    with tiny(96, 128) as reference, make_camera(CameraSpec(mesh="full")) as camera:
        expected = reference.render_batch(joints, poses, absent).astype(int)
        found = camera.render_batch(joints, poses, absent).astype(int)
    assert np.abs(found - expected).mean() < 0.3


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"height": 0}, "height 0"),
        ({"width": 5000}, "width 5000"),
        ({"width": 12.5}, "width 12.5"),
        ({"height": True}, "height True"),
        ({"renderer": "gpu"}, "camera='gpu'"),
        ({"mesh": "5"}, "mesh='5'"),
    ],
)
def test_an_image_that_cannot_be_is_refused(fields: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        CameraSpec(**fields)


def test_the_specification_that_travels_leaves_the_renderer_out() -> None:
    assert CameraSpec(renderer="tiny").as_dict() == CameraSpec(renderer="fast").as_dict()
    assert CameraSpec(mesh="full").as_dict() != CameraSpec(mesh="20").as_dict()
    assert CameraSpec(height=64).as_dict() != CameraSpec().as_dict()


def test_wrong_arrays_are_refused(fast: Camera) -> None:
    with pytest.raises(InputError, match=r"\(1, 7\)"):
        fast.render(np.zeros(7), None)
    with pytest.raises(InputError, match="object poses"):
        fast.render_batch(np.zeros((2, 9)), np.zeros((1, 4, 4)), [True, True])
    with pytest.raises(InputError, match="NaN"):
        fast.render(np.full(9, np.nan), None)


def test_a_closed_camera_says_so() -> None:
    camera = make_camera()
    camera.close()
    camera.close()
    with pytest.raises(ConfigError, match="closed"):
        camera.render(HOME, None)


def test_an_unknown_device_is_refused() -> None:
    from vinoreward_envs.camera.fast import FastCamera

    with pytest.raises(UnknownDeviceError, match="cuda:99"):
        FastCamera(CameraSpec(), device="cuda:99")


@pytest.mark.pybullet
def test_the_camera_is_pybullets() -> None:
    import pybullet as bullet

    view = bullet.computeViewMatrixFromYawPitchRoll(
        c.CAMERA_TARGET, c.CAMERA_DISTANCE, c.CAMERA_YAW, c.CAMERA_PITCH, 0.0, 2
    )
    projection = bullet.computeProjectionMatrixFOV(
        c.CAMERA_FOV, 128 / 96, c.CAMERA_NEAR, c.CAMERA_FAR
    )
    theirs = np.reshape(view, (4, 4)).T
    assert np.allclose(view_matrix(), theirs, atol=1e-6)
    assert np.allclose(projection_matrix(96, 128), np.reshape(projection, (4, 4)).T, atol=1e-5)


def test_kernels_that_no_disk_can_keep_are_refused_before_they_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: Camera
) -> None:
    """The compiler would end the process. Kernels that are there already need no room."""
    import warp

    full = shutil.disk_usage(tmp_path)._replace(free=50_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    warp_module()
    monkeypatch.setattr(warp.config, "kernel_cache_dir", str(tmp_path))
    with pytest.raises(ConfigError, match=r"48 kB are free. Expected 4 MB.*WARP_CACHE_PATH"):
        warp_module()
    monkeypatch.undo()
    assert fast.render(HOME, None).any()


def test_where_the_camera_stands_cannot_be_overwritten() -> None:
    for shared in (view_matrix(), camera_eye()):
        with pytest.raises(ValueError, match="read-only"):
            shared[0] = 0.0


@pytest.mark.pybullet
def test_the_object_rests_where_pybullet_lets_it_fall() -> None:
    import pybullet as bullet
    import pybullet_data

    data = pybullet_data.getDataPath()
    client = bullet.connect(bullet.DIRECT)
    try:
        bullet.setGravity(0, 0, c.GRAVITY, physicsClientId=client)
        bullet.loadURDF(f"{data}/{c.TABLE_URDF}", c.TABLE_POSITION, physicsClientId=client)
        start = (*c.FIXED_OBJECT, 0.10)
        body = bullet.loadURDF(f"{data}/{c.OBJECT_URDF}", start, physicsClientId=client)
        for _ in range(1500):
            bullet.stepSimulation(physicsClientId=client)
        place, turn = bullet.getBasePositionAndOrientation(body, physicsClientId=client)
        rotation = np.reshape(bullet.getMatrixFromQuaternion(turn), (3, 3))
    finally:
        bullet.disconnect(client)
    pose = object_rest_pose((place[0], place[1]))
    assert np.allclose(pose[:3, 3], place, atol=1e-5)
    # It goes on turning by a thousandth of a degree per second.
    assert np.allclose(pose[:3, :3], rotation, atol=5e-3)
    assert np.abs(np.subtract(place[:2], c.FIXED_OBJECT)).max() < 0.005


def test_quaternions_survive_every_kind_of_rotation() -> None:
    for x, y, z, w in [
        (1, 0, 0, 0),
        (0, 1, 0, 0),
        (0, 0, 1, 0),
        (0, 0, 0, 1),
        (0.5, 0.5, -0.5, 0.5),
    ]:
        rotation = np.array(
            [
                [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
                [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
                [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
            ]
        )
        found = np.array(quaternion(rotation))
        assert abs(abs(found @ np.array([x, y, z, w])) - 1.0) < 1e-9


def test_the_fast_camera_is_silent_and_needs_no_pybullet() -> None:
    code = (
        "import sys; sys.modules['pybullet'] = sys.modules['pybullet_data'] = None\n"
        "import vinoreward_envs.scene as camera, numpy as np\n"
        "assert 'warp' not in sys.modules\n"
        "image = camera.make_camera().render(np.zeros(9), None)\n"
        "assert image.shape == (96, 128, 3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr == ""


def test_a_camera_needs_no_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_there(*arguments: Any, **options: Any) -> Any:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "TemporaryFile", none_there)
    with contextlib.closing(make_camera(CameraSpec(width=32, height=24))) as camera:
        assert camera is not None


THREADS = """
import threading
import numpy as np
from vinoreward_envs import constants as c
from vinoreward_envs.camera.fast import FastCamera
from vinoreward_envs.camera.fast import Appearance
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.randomization import DRAWS, LAB

spec = CameraSpec(24, 32)
appearance = Appearance(spec, 8)
drawn = LAB.draw(np.random.default_rng(0).random((8, DRAWS)))
appearance.set(np.ones(8, np.bool_), drawn)
scenes = np.zeros((8, c.JOINTS)), np.tile(np.eye(4), (8, 1, 1)), np.zeros(8, np.bool_)
together = threading.Barrier(8)
images = {}

def draw(i):
    together.wait()
    camera = FastCamera(spec, appearance=appearance)
    images[i] = camera.render_batch(*(values[[i]] for values in scenes), [i])[0]

threads = [threading.Thread(target=draw, args=(i,)) for i in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
again = FastCamera(spec, appearance=appearance).render_batch(*scenes)
print(sum((images[i] == again[i]).all() for i in range(8)))
"""


def test_threads_that_need_a_kernel_at_once_load_it_one_by_one() -> None:
    """Warp lets them load it together, and the process dies."""
    assert run_python(THREADS).strip() == "8"


FORK = """
import os, signal, threading
from vinoreward_envs import warp_device as fast

held, go_on = threading.Event(), threading.Event()

def load():
    with fast._LOADING:
        held.set()
        go_on.wait()

thread = threading.Thread(target=load)
thread.start()
held.wait()
threading.Timer(0.5, go_on.set).start()
child = os.fork()
if child == 0:
    signal.alarm(60)
    with fast._LOADING:
        os._exit(3)
thread.join()
with fast._LOADING:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_waits_for_a_thread_that_loads_a_kernel() -> None:
    assert run_python(FORK).strip() == "3"
