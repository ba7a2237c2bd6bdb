"""``vinoreward train --later`` and the bench row of deferred rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_environments
from many_runs import toy_config
from train_runs import config

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError
from vinoreward_training.bench.learners import ARMS, is_installed, later_rows
from vinoreward_training.configs import BenchConfig
from vinoreward_training.policy.train import SETTINGS, train
from vinoreward_training.runs.report import EPISODE_COLUMNS, read_table
from vinoreward_training.runs.run_folder import read_tensors


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return toy_environments.save_toy_bundle(tmp_path_factory.mktemp("bundle") / "toy")


def weights(out: Path) -> list[Any]:
    return [value.numpy() for _, value in sorted(read_tensors(out / "policy.pt").items())]


def test_a_run_with_deferred_rewards_is_the_same_run(tmp_path: Path, bundle: Bundle) -> None:
    episodes = []
    for later in (False, True):
        out = tmp_path / str(later)
        train(toy_config(out, bundle, num_envs=3, later=later, timesteps=120))
        train(SETTINGS.of(out=out, resume=True, timesteps=180, progress=False))
        episodes.append(read_table(out / "episodes.csv", EPISODE_COLUMNS))
    assert episodes[0] == episodes[1] and len(episodes[0]) > 20
    for one, other in zip(weights(tmp_path / "False"), weights(tmp_path / "True"), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "PPO", "algorithm_kwargs": {}}, r"PPO.*SAC, TD3, DDPG, DQN; leave --later"),
        ({"backend": "oracle"}, r"--later with no classifier"),
        ({"encoder": "panda-hover-encoder"}, r"encoder"),
        ({"hold": 2}, r"hold_in_observation"),
    ],
)
def test_what_cannot_be_deferred_is_refused(
    tmp_path: Path, bundle: Bundle, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(toy_config(tmp_path / "run", bundle, later=True, **changes))


def test_a_reward_of_its_own_cannot_be_deferred(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--later with no classifier.*leave --later out"):
        train(config(tmp_path / "run", env="CartPole-v1", algorithm="DQN", later=True))


@pytest.mark.slow
def test_the_row_of_deferred_rewards() -> None:
    pytest.importorskip("warp")
    rows = later_rows(BenchConfig(seeds=1, overhead_steps=20))
    sbx = ["<= 1.15 x"] if is_installed("sbx") else []
    assert [row.target for row in rows] == ["<= 1.05 x", *sbx, "<= 1.05 x", "", ""]
    assert all(row.value and row.value > 0 for row in rows)
    arms = {*ARMS, "sbx-oracle"} if sbx else {*ARMS} - {"sbx"}
    assert set(rows[0].details["seconds"]) == {*arms, "oracle", "batched-oracle"}
