"""The scene: two ways to move, one truth, and what happens without PyBullet."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vinoreward.errors import ConfigError, InputError, MissingExtraError, install_command
from vinoreward_envs import constants as c
from vinoreward_envs.bullet import missing_pybullet, quaternion
from vinoreward_envs.scene import HoverScene


def test_the_arm_starts_at_home_at_hover_height_with_no_object() -> None:
    scene = HoverScene()
    assert scene.gripper[2] == pytest.approx(c.HOVER_HEIGHT, abs=1e-5)
    assert scene.object_xy is None
    assert scene.distance() == math.inf
    scene.close()


@pytest.mark.parametrize(
    "motion", ["kinematic", pytest.param("dynamics", marks=pytest.mark.pybullet)]
)
def test_the_gripper_goes_where_it_is_sent_and_the_truth_is_its_distance(motion: str) -> None:
    scene = HoverScene(motion=motion)  # type: ignore[arg-type]
    scene.place_object((0.6, 0.1))
    scene.home()
    assert scene.object_xy == pytest.approx((0.6, 0.1), abs=1e-3)
    at_home = scene.gripper
    scene.move_gripper((0.57, 0.14))
    np.testing.assert_allclose(scene.gripper, (0.57, 0.14, c.HOVER_HEIGHT), atol=1e-3)
    scene.home()
    np.testing.assert_allclose(scene.gripper, at_home, atol=1e-3)
    scene.move_gripper((0.57, 0.14))
    assert scene.distance() == pytest.approx(0.05, abs=1e-3)
    scene.place_object(None)
    assert scene.distance() == math.inf
    scene.close()
    scene.close()


def test_a_kinematic_pose_does_not_depend_on_the_path() -> None:
    one, two = HoverScene(), HoverScene()
    for xy in ((0.4, -0.4), (0.7, 0.4), (0.5, 0.1)):
        one.move_gripper(xy)
    two.move_gripper((0.5, 0.1))
    np.testing.assert_array_equal(one.pose()[0], two.pose()[0])
    np.testing.assert_array_equal(one.render(), two.render())


def test_what_a_scene_hands_out_is_a_copy() -> None:
    scene = HoverScene()
    scene.place_object((0.5, 0.0))
    gripper = scene.gripper.copy()
    scene.gripper[:] = 0.0
    np.testing.assert_array_equal(scene.gripper, gripper)
    assert scene.object_xy == (0.5, 0.0)


@pytest.mark.pybullet
@pytest.mark.slow
def test_dynamics_and_kinematics_agree_to_the_millimetre_over_the_workspace() -> None:
    dynamic, kinematic = HoverScene(motion="dynamics"), HoverScene()
    for x in np.linspace(c.WORKSPACE_LOW[0], c.WORKSPACE_HIGH[0], 3):
        for y in np.linspace(c.WORKSPACE_LOW[1], c.WORKSPACE_HIGH[1], 5):
            for scene in (dynamic, kinematic):
                scene.move_gripper((x, y))
            assert np.abs(dynamic.gripper - kinematic.gripper).max() < 1e-3, (x, y)
            # The same joints, so the same image.
            np.testing.assert_allclose(dynamic.pose()[0], kinematic.pose()[0], atol=5e-3)
    dynamic.close()


@pytest.mark.pybullet
def test_the_articles_inverse_kinematics_does_not_converge() -> None:
    scene = HoverScene(motion="dynamics", converged=False)
    scene.home()
    assert scene.gripper[2] == pytest.approx(0.1149, abs=1e-3)
    scene.close()


@pytest.mark.pybullet
def test_two_dynamic_scenes_in_one_process_do_not_disturb_each_other() -> None:
    alone = HoverScene(motion="dynamics")
    path = [(0.5, 0.1), (0.55, 0.05), (0.6, -0.05)]
    for xy in path:
        alone.move_gripper(xy)
    expected = alone.pose()[0]
    alone.close()
    one, other = (HoverScene(motion="dynamics") for _ in range(2))
    other.place_object((0.5, 0.2))
    for xy in path:
        one.move_gripper(xy)
        other.move_gripper((0.4, -0.2))
    np.testing.assert_array_equal(one.pose()[0], expected)
    other.close()
    one.home()
    for xy in path:
        one.move_gripper(xy)
    np.testing.assert_array_equal(one.pose()[0], expected)
    one.close()


@pytest.mark.parametrize("renderer", ["fast", pytest.param("tiny", marks=pytest.mark.pybullet)])
def test_the_image_shows_the_object_and_belongs_to_the_caller(renderer: str) -> None:
    from vinoreward_envs.camera.spec import CameraSpec

    scene = HoverScene(camera=CameraSpec(height=48, width=64, renderer=renderer))  # type: ignore[arg-type]
    scene.place_object((0.6, -0.2))
    with_object = scene.render()
    assert with_object.shape == (48, 64, 3)
    assert with_object.dtype == np.uint8
    kept = with_object.copy()
    scene.place_object(None)
    without = scene.render()
    np.testing.assert_array_equal(with_object, kept)
    assert (without != with_object).any()
    scene.close()
    with pytest.raises(ConfigError, match="closed"):
        scene.render()


@pytest.mark.parametrize("xy", [(math.nan, 0.0), (0.5,), (0.5, 0.0, 0.1)])
def test_a_place_that_is_none_is_refused(xy: tuple[float, float]) -> None:
    scene = HoverScene()
    with pytest.raises(InputError, match="two finite numbers"):
        scene.place_object(xy)
    with pytest.raises(InputError, match="two finite numbers"):
        scene.move_gripper(xy)


def test_arguments_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="motion='magic'"):
        HoverScene(motion="magic")  # type: ignore[arg-type]


def test_a_missing_pybullet_says_what_to_install_and_what_works_without() -> None:
    message = str(missing_pybullet('motion="dynamics"'))
    assert install_command("panda") in message and "3.10 and 3.11 only" in message
    assert 'motion="kinematic"' in message and 'camera="fast"' in message


def test_kinematic_motion_neither_needs_nor_imports_pybullet() -> None:
    # A None entry makes Python refuse the import, as if the package were not installed.
    code = """
import sys
sys.modules["pybullet"] = None
from vinoreward.errors import MissingExtraError
from vinoreward_envs.scene import HoverScene
scene = HoverScene()
scene.place_object((0.5, 0.0))
scene.move_gripper((0.5, 0.0))
assert scene.distance() < 1e-5
assert scene.render().shape == (96, 128, 3)
try:
    HoverScene(motion="dynamics")
except MissingExtraError as error:
    assert "[panda]" in str(error)
else:
    raise SystemExit("no error")
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    assert issubclass(MissingExtraError, ImportError)


@pytest.mark.pybullet
def test_quaternions_give_their_rotation_back() -> None:
    import pybullet

    rng = np.random.default_rng(0)
    for turn in rng.normal(size=(50, 4)):
        rotation = np.reshape(
            pybullet.getMatrixFromQuaternion((turn / np.linalg.norm(turn)).tolist()), (3, 3)
        )
        back = np.reshape(pybullet.getMatrixFromQuaternion(quaternion(rotation)), (3, 3))
        np.testing.assert_allclose(back, rotation, atol=1e-6)


@pytest.mark.pybullet
@pytest.mark.parametrize(
    "first", ['HoverScene(motion="dynamics")', 'make_camera(CameraSpec(renderer="tiny"))']
)
def test_pybullet_prints_nothing_into_the_terminal(first: str) -> None:
    code = f"""
import os
from vinoreward_envs.scene import make_camera
from vinoreward_envs.camera.spec import (CameraSpec)
from vinoreward_envs.scene import HoverScene
{first}.close()
os.write(2, b"afterwards")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=300, capture_output=True
    )
    assert done.stdout == b""
    assert done.stderr == b"afterwards"


def test_what_is_printed_during_the_import_of_pybullet_is_kept(tmp_path: Path) -> None:
    # A PyBullet that prints its banner as the real one does, and a warning beside it.
    (tmp_path / "pybullet.py").write_text(
        "import os\nos.write(2, b'one\\npybullet build time: Jan 29\\ntwo\\n')\n", encoding="utf-8"
    )
    code = "from vinoreward_envs.bullet import import_pybullet as get; get('this')"
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        timeout=300,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stderr == b"one\ntwo\n"
