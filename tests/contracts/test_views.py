"""Several cameras and images of steps before: the same views in every form of LearnedReward."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from reward_rollouts import ENVS, SEED, actions_of, assert_same, singles, sync
from toy_environments import (
    Corridor,
    save_views_bundle,
    views_log_odds,
)

from vinoreward import LearnedReward, VectorLearnedReward
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, ImageMismatchError

OPTIONS: dict[str, Any] = {"reward_mode": "potential", "gamma": 0.9}
CAMERAS = {"observation": "cameras"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return save_views_bundle(tmp_path_factory.mktemp("bundle") / "views")


def test_the_views_are_of_their_cameras_steps_and_episode(bundle: Bundle) -> None:
    """The oracle of the others, against the environment's own record of its cells."""
    ends: dict[bool, int] = defaultdict(int)
    env = LearnedReward(Corridor(**CAMERAS), bundle, **OPTIONS)
    for index in range(ENVS):
        env.reset(seed=SEED + index)
        cells = [env.unwrapped.cell]
        for action in actions_of(index):
            _, _, terminated, truncated, info = env.step(action)
            cells.append(env.unwrapped.cell)
            expected = views_log_odds(cells[max(0, len(cells) - 3)], len(cells) - 1, cells[-1])
            assert info["reward_prob"] == pytest.approx(1 / (1 + np.exp(-expected)), abs=1e-5)
            if terminated or truncated:
                ends[bool(info["is_success"])] += 1
                env.reset()
                cells = [env.unwrapped.cell]
    assert len(ends) == 2 and min(ends.values()) > 2
    env.close()


def draw_front(env: Any, observation: Any) -> Any:
    return observation["front"]


@pytest.mark.parametrize(
    "given",
    [
        ("obs:front", "obs:wrist"),
        {"wrist": "obs:wrist", "front": "obs:front"},
        [draw_front, "obs:wrist"],
    ],
    ids=["tuple", "mapping", "function"],
)
def test_sources_are_given_in_order_or_by_name(bundle: Bundle, given: Any) -> None:
    envs = sync(AutoresetMode.SAME_STEP, **CAMERAS)
    form = VectorLearnedReward(envs, bundle, image_source=given, **OPTIONS)
    assert_same(form, singles(AutoresetMode.SAME_STEP, bundle, CAMERAS, **OPTIONS))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("obs:front", "looks at the cameras front .*obs:front.*, wrist .*for each"),
        (("obs:wrist", "obs:front"), "the same order"),
        ({"front": "obs:front"}, "cameras front .*, wrist .*these names"),
        (("obs:front", "obs:hand"), "camera 'wrist'.*obs:hand.*front, wrist"),
    ],
)
def test_sources_that_do_not_fit_the_views_are_refused_at_once(
    bundle: Bundle, given: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        LearnedReward(Corridor(**CAMERAS), bundle, image_source=given)


def test_a_view_of_another_size_is_refused_and_names_its_camera(bundle: Bundle) -> None:
    def narrow(env: Any, observation: Any) -> Any:
        return observation["front"][:, :-1]

    env = LearnedReward(Corridor(**CAMERAS), bundle, image_source=(narrow, "obs:wrist"))
    with pytest.raises(ImageMismatchError, match=r"camera 'front'.*6 x 7.*Expected 6 x 8"):
        env.reset(seed=0)


def test_each_view_is_resized_by_itself(tmp_path: Path, bundle: Bundle) -> None:
    resizes = save_views_bundle(tmp_path / "views", resize="pil_bilinear")

    def large(env: Any, observation: Any) -> Any:
        return observation["front"].repeat(3, axis=0).repeat(2, axis=1)

    envs = sync(AutoresetMode.DISABLED, **CAMERAS)
    given = (large, "obs:wrist")
    form = VectorLearnedReward(envs, resizes, image_source=given, **OPTIONS)
    assert_same(form, singles(AutoresetMode.DISABLED, bundle, CAMERAS, **OPTIONS))
