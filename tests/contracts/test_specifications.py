"""``env.spec`` makes the same wrapped environment again, or one sentence says why not."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from toy_environments import (
    HEIGHT,
    WIDTH,
    save_toy_bundle,
    save_toy_encoder_network,
    save_toy_network,
)

from vinoreward import EncodedObservation, LearnedReward
from vinoreward.bundles.bundle import Bundle, resolve_bundle
from vinoreward.errors import BundleError, ModelNotFoundError

EVERY_ARGUMENT: dict[str, Any] = {
    "backend": "onnxruntime",
    "device": "CPU",
    "precision": "fp32",
    "threads": 2,
    "image_source": "obs",
    "success_reward": 2.0,
    "step_reward": -0.5,
    "env_reward_weight": np.float32(0.25),
    "success_replaces_env_reward": True,
    "reward_mode": "potential",
    "success_threshold": np.float64(0.99),
    "success_exit_threshold": np.float64(0.5),
    "frozen_check": False,
    "on_ood": "warn",
    "success_hold_steps": 3,
    "success_filter": None,
    "terminate_on_success": False,
    "gamma": 0.9,
    "hold_in_observation": False,
    "accept_foreign_images": True,
}


def from_model(path: Path) -> Bundle:
    return Bundle.from_model(
        save_toy_network(path),
        labels=("failure", "success"),
        success_label="success",
        output="logits",
        threshold=0.8,
    )


def foreign_encoder(path: Path) -> Bundle:
    return Bundle.from_encoder(
        save_toy_encoder_network(path), posterior=True, height=HEIGHT, width=WIDTH, low=-9, high=9
    )


def made_again(env: gym.Env[Any, Any], way: str) -> gym.Env[Any, Any]:
    assert env.spec is not None
    if way == "spec":
        return gym.make(env.spec)
    text = env.spec.to_json()
    json.loads(text)
    return gym.make(EnvSpec.from_json(text))


def rollout(env: gym.Env[Any, Any]) -> list[tuple[float, bool, float]]:
    env.reset(seed=3)
    found = []
    for action in (1, 1, 0, 1):
        _, reward, terminated, truncated, info = env.step(action)
        found.append((float(reward), terminated, info["reward_prob"]))
        if terminated or truncated:
            env.reset()
    env.close()
    return found


def test_every_argument_is_made_again(bundle: Bundle) -> None:
    # A judge is a function, which takes a bundle's place and goes into no JSON.
    others = {"env", "bundle", "judge"}
    assert set(EVERY_ARGUMENT) == set(inspect.signature(LearnedReward).parameters) - others
    inner = gym.make("ToyCorridor-v0", observation="image")
    env = LearnedReward(inner, bundle, **EVERY_ARGUMENT)
    again = made_again(env, "json")
    assert isinstance(again, LearnedReward)
    assert again.spec == env.spec
    assert again.classifier.threshold == 0.99
    assert again.classifier.bundle == bundle
    for name in ("backend_name", "device", "precision", "threads"):
        assert getattr(again.classifier, name) == getattr(env.classifier, name)
    assert rollout(again) == rollout(env)


@pytest.mark.parametrize(
    ("kind", "way"), [("folder", "spec"), ("relative", "json"), ("model", "json")]
)
def test_a_bundle_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle: Any = save_toy_bundle(tmp_path / "toy")
    if kind == "relative":
        bundle = "toy"
    elif kind == "model":
        bundle = from_model(tmp_path / "foreign.onnx")
    env = LearnedReward(
        gym.make("ToyCorridor-v0", render_mode="rgb_array"), bundle, reward_mode="probability"
    )
    expected = env.classifier.bundle
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = made_again(env, way)
    assert isinstance(again, LearnedReward) and again.classifier.bundle == expected
    assert again.classifier.threshold == env.classifier.threshold
    assert rollout(again) == rollout(env)


def test_an_encoder_is_made_again(tmp_path: Path) -> None:
    bundle = foreign_encoder(tmp_path / "foreign.onnx")
    env = EncodedObservation(
        gym.make("ToyCamera-v0", observation="dict"),
        bundle,
        keep=("joints",),
        frame_stack=2,
    )
    again = made_again(env, "json")
    assert isinstance(again, EncodedObservation) and again.encoder.bundle == bundle
    assert again.observation_space == env.observation_space
    for one, other in zip(env.reset(seed=5), again.reset(seed=5), strict=True):
        np.testing.assert_equal(other, one)
    env.close()
    again.close()


def test_what_is_gone_is_said_in_one_sentence(tmp_path: Path) -> None:
    bundle = from_model(tmp_path / "foreign.onnx")
    env = LearnedReward(gym.make("ToyCorridor-v0", observation="image"), bundle, image_source="obs")
    env.close()
    bundle.path.unlink()
    with pytest.raises(ModelNotFoundError, match=r"bundle\.save"):
        made_again(env, "json")


def test_a_recipe_claims_no_files(bundle: Bundle) -> None:
    recipe = {"model": str(bundle.path / "model.onnx"), "spec": bundle.spec.to_dict()}
    with pytest.raises(ModelNotFoundError, match="folder"):
        resolve_bundle(recipe)
    with pytest.raises(BundleError, match="name is missing"):
        resolve_bundle({"model": "x.onnx", "spec": {}, "more": 1})
