"""Environments whose networks a service runs are those whose networks run in their process."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from service_children import nothing_left, services
from toy_environments import Corridor, save_toy_bundle, save_toy_encoder

import vinoreward
from vinoreward import EncodedObservation, LearnedReward
from vinoreward.errors import VinorewardError

# Python warns of every fork of a process with threads, which this one may have by now.
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def rollout(env: Any, steps: int, reset: bool = False) -> list[Any]:
    """What a learner sees of an environment or a vector of them, with random actions."""
    env.action_space.seed(0)
    seen: list[Any] = [env.reset(seed=3)[0]]
    for _ in range(steps):
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        keep = {name: info[name] for name in sorted(info) if "reward_" in name or "succ" in name}
        seen.append((np.copy(observation), reward, terminated, truncated, keep))
        if reset and (terminated or truncated):
            seen.append(env.reset()[0])
    env.close()
    return seen


def learned(bundle: Path, service: str | None) -> gym.Env[Any, Any]:
    env = Corridor("picture")
    return LearnedReward(env, bundle, image_source="obs", service=service)


def encoded(bundle: Path, service: str | None) -> gym.Env[Any, Any]:
    return EncodedObservation(Corridor("picture"), bundle, image_source="obs", service=service)


@pytest.mark.parametrize("make", [learned, encoded])
def test_wrappers_are_equal_to_those_in_process(
    folder: Path, tmp_path: Path, make: Callable[[Path, str | None], gym.Env[Any, Any]]
) -> None:
    save = save_toy_bundle if make is learned else save_toy_encoder
    bundle = save(tmp_path / "toy").path
    np.testing.assert_equal(
        rollout(make(bundle, "shared"), 40, reset=True), rollout(make(bundle, None), 40, reset=True)
    )
    assert nothing_left(folder)


def test_the_spec_makes_the_same_environment(folder: Path, tmp_path: Path) -> None:
    bundle = save_toy_bundle(tmp_path / "toy").path
    env = gym.make("ToyCorridor-v0", observation="picture")
    env = LearnedReward(env, bundle, image_source="obs", service="shared:mine")
    assert env.spec is not None
    told = env.spec.to_json()
    assert "shared:mine" in json.dumps(told)
    with gym.make(gym.envs.registration.EnvSpec.from_json(told)) as again:
        assert isinstance(again, LearnedReward)
        assert again.classifier.service == "shared:mine"
    env.close()


@forks
@pytest.mark.slow
def test_workers_of_a_vector_are_equal_to_those_in_process(folder: Path) -> None:
    pytest.importorskip("warp")

    def made(service: str | None) -> gym.vector.VectorEnv[Any, Any, Any]:
        return gym.make_vec(
            "PandaHover-v0",
            num_envs=2,
            vectorization_mode="async",
            vector_kwargs={"context": "fork"},
            service=service,
        )

    env = made("shared")
    asked = rollout(env, 12)
    plain = rollout(made(None), 12)
    for one, other in zip(asked, plain, strict=True):
        np.testing.assert_equal(one[:1] + one[2:4], other[:1] + other[2:4])
        np.testing.assert_equal(one[1], other[1])  # the rewards are of decisions
        if isinstance(one, tuple):
            for name, value in one[4].items():
                # A picture may be in a batch of several: rounding, as of golden frames.
                np.testing.assert_allclose(value, other[4][name], atol=0.1)
    assert nothing_left(folder)


@forks
def test_workers_share_one_service(folder: Path, tmp_path: Path) -> None:
    bundle = save_toy_bundle(tmp_path / "toy").path
    makers = [partial(learned, bundle, "shared")] * 3
    env = gym.vector.AsyncVectorEnv(makers, context="fork")
    env.reset(seed=1)
    for _ in range(3):
        env.step(env.action_space.sample())
    assert len(services(folder)) == 1
    env.close()
    assert nothing_left(folder)


@pytest.mark.slow
def test_sb3_workers_share_one_service(folder: Path, tmp_path: Path) -> None:
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    bundle = save_toy_bundle(tmp_path / "toy").path
    seen = []
    for service in ("shared", None):
        makers = [partial(learned, bundle, service)] * 2
        if service is None:
            env = vec_env.DummyVecEnv(makers)
        else:
            env = vec_env.SubprocVecEnv(makers, start_method="spawn")
        env.seed(1)
        env.reset()
        seen.append([env.step(np.array([1, 0]))[1].tolist() for _ in range(8)])
        assert len(services(folder)) == (service is not None)
        env.close()
        assert nothing_left(folder)
    assert seen[0] == seen[1]


def test_one_vector_of_pictures_is_one_request(folder: Path, tmp_path: Path) -> None:
    bundle = save_toy_bundle(tmp_path / "toy").path

    def made(service: str | None) -> Any:
        envs = gym.vector.SyncVectorEnv([lambda: Corridor("picture")] * 5)
        return vinoreward.VectorLearnedReward(envs, bundle, image_source="obs", service=service)

    env = made("shared")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    before = env.classifier.backend.info()["service_answers"]
    env.step(env.action_space.sample())
    assert env.classifier.backend.info()["service_answers"] == before + 1
    np.testing.assert_equal(rollout(env, 12), rollout(made(None), 12))


def test_a_bundle_that_cannot_be_loaded_is_the_same_error(folder: Path, tmp_path: Path) -> None:
    bundle = save_toy_bundle(tmp_path / "toy")
    model = bundle.path / "model.onnx"
    said = []
    model.write_bytes(model.read_bytes()[:-9])
    for service in ("shared", None):
        with (
            vinoreward.Classifier(bundle, service=service) as classifier,
            pytest.raises(VinorewardError) as caught,
        ):
            classifier.log_odds(bundle.golden.images)
        said.append((type(caught.value), str(caught.value)))
    assert said[0] == said[1]
    assert nothing_left(folder)
