"""The scene: two ways to move, one truth, and what happens without PyBullet."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from task_runs import run_python

from vinoreward.errors import ConfigError
from vinoreward_envs import constants as c
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.scene import HoverScene

PATH = [(0.5, 0.1), (0.55, 0.05), (0.6, -0.05)]


@pytest.mark.parametrize(
    "motion", ["kinematic", pytest.param("dynamics", marks=pytest.mark.pybullet)]
)
def test_the_gripper_goes_where_it_is_sent_and_the_truth_is_its_distance(motion: Any) -> None:
    scene = HoverScene(motion=motion)
    at_home = scene.gripper
    assert at_home[2] == pytest.approx(c.HOVER_HEIGHT, abs=1e-3)
    assert scene.object_xy is None and scene.distance() == math.inf
    scene.place_object((0.6, 0.1))
    scene.home()
    assert scene.object_xy == pytest.approx((0.6, 0.1), abs=1e-3)
    scene.move_gripper((0.57, 0.14))
    np.testing.assert_allclose(scene.gripper, (0.57, 0.14, c.HOVER_HEIGHT), atol=1e-3)
    assert scene.distance() == pytest.approx(0.05, abs=1e-3)
    scene.gripper[:] = 0.0  # a copy
    scene.home()
    np.testing.assert_allclose(scene.gripper, at_home, atol=1e-3)
    scene.place_object(None)
    assert scene.distance() == math.inf
    scene.close()
    scene.close()


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
    alone, one, other = (HoverScene(motion="dynamics") for _ in range(3))
    for xy in PATH:
        alone.move_gripper(xy)
    expected = alone.pose()[0]
    alone.close()
    other.place_object((0.5, 0.2))
    for xy in PATH:
        one.move_gripper(xy)
        other.move_gripper((0.4, -0.2))
    np.testing.assert_array_equal(one.pose()[0], expected)
    other.close()
    one.home()
    for xy in PATH:
        one.move_gripper(xy)
    np.testing.assert_array_equal(one.pose()[0], expected)
    one.close()


@pytest.mark.parametrize("renderer", ["fast", pytest.param("tiny", marks=pytest.mark.pybullet)])
def test_the_image_shows_the_object_and_belongs_to_the_caller(renderer: Any) -> None:
    scene = HoverScene(camera=CameraSpec(height=48, width=64, renderer=renderer))
    before = scene.render()
    scene.place_object((0.6, -0.2))
    shown = scene.render()
    assert (shown.shape, shown.dtype) == ((48, 64, 3), np.uint8)
    kept = shown.copy()
    scene.place_object(None)
    np.testing.assert_array_equal(scene.render(), before)
    np.testing.assert_array_equal(shown, kept)
    changed = (shown != before).any(axis=-1)
    assert 5 < changed.sum() < 100
    red, green, blue = shown[changed].mean(axis=0)
    assert blue > red + 50 and blue > green + 50
    before[:] = 0
    assert scene.render().any()
    scene.close()
    with pytest.raises(ConfigError, match="closed"):
        scene.render()


def test_kinematic_motion_is_silent_and_neither_needs_nor_imports_pybullet() -> None:
    # A None entry makes Python refuse the import, as if the package were not installed.
    said = run_python("""
import sys
sys.modules["pybullet"] = sys.modules["pybullet_data"] = None
from vinoreward.errors import MissingExtraError
from vinoreward_envs.scene import HoverScene
assert "warp" not in sys.modules
scene = HoverScene()
scene.place_object((0.5, 0.0))
scene.move_gripper((0.5, 0.0))
assert scene.distance() < 1e-5
assert scene.render().shape == (96, 128, 3)
try:
    HoverScene(motion="dynamics")
except MissingExtraError as error:
    message = str(error)
    assert "[panda]" in message and "3.10 and 3.11 only" in message
    assert 'motion="kinematic"' in message and 'camera="fast"' in message
else:
    raise SystemExit("no error")
assert "torch" not in sys.modules
""")
    assert said == ""
