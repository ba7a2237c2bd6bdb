"""robosuite's adapter, on an environment with robosuite's interface: its truth and its flip.

robosuite itself brings NumPy 1.26 and is not installed with the tests.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vinoreward.errors import ConfigError, MissingExtraError
from vinoreward.rewards.truth import Truth
from vinoreward_training.tasks.environments import make_env


class Lift:
    """A cube that is lifted; rows of its images count from below, as robosuite's do."""

    action_spec = (-np.ones(2), np.ones(2))

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.rng = np.random.default_rng()
        self.sim = SimpleNamespace(render=self._drawn)
        self.height = 0.0

    def reset(self) -> dict[str, Any]:
        self.height = float(self.rng.uniform(0.0, 0.2))
        return self._observed()

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:
        self.height = float(np.clip(self.height + 0.1 * action[0], 0.0, 1.0))
        return self._observed(), float(self._check_success()), False, {}

    def _check_success(self) -> np.bool_:
        return np.bool_(self.height > 0.5)

    def _observed(self) -> dict[str, Any]:
        cube = np.array([self.height])
        return {"cube_pos": cube, "robot0_eef_pos": np.zeros(3), "object-state": cube}

    def _drawn(self, *, height: int, width: int, camera_name: str) -> Any:
        image = np.zeros((height, width, 3), np.uint8)
        image[: round(self.height * height)] = 255  # from the lowest row up
        return image

    def close(self) -> None:
        pass


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(ALL_ENVIRONMENTS=["Lift"], make=lambda task, **options: Lift(**options))
    monkeypatch.setitem(sys.modules, "robosuite", made)


def test_the_truth_is_robosuites_and_the_image_is_the_right_way_up(suite: None) -> None:
    env = make_env(
        "robosuite/Lift", {"horizon": 9, "height": 20, "width": 10}, render_mode="rgb_array"
    )
    first, info = env.reset(seed=3)
    assert Truth()(info) is False and first.shape == env.observation_space.shape == (4,)
    for step in range(9):
        *_, terminated, truncated, info = env.step(np.array([1.0, 0.0], np.float32))
        image: Any = env.render()
        lit = image.mean((1, 2)) > 0
        height = env.unwrapped.simulation.height  # type: ignore[attr-defined]
        # A cube that rises lights rows from the image's last one up.
        assert image.shape == (20, 10, 3) and lit[-1] and lit.sum() == round(20 * height)
        assert Truth()(info) is (height > 0.5)
        assert not terminated and truncated == (step == 8)
    assert info["success"] is True
    assert np.array_equal(first, env.reset(seed=3)[0])
    simulation = env.unwrapped.simulation  # type: ignore[attr-defined]
    assert not simulation.options["use_camera_obs"]  # else every step draws
    env.close()


def test_a_task_that_robosuite_does_not_have_lists_those_that_it_has(suite: None) -> None:
    with pytest.raises(ConfigError, match=r"no task Lfit.*Expected one of: Lift"):
        make_env("robosuite/Lfit")


def test_without_robosuite_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "robosuite", None)
    with pytest.raises(MissingExtraError, match="pip install robosuite"):
        make_env("robosuite/Lift")
