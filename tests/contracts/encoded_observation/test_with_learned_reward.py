"""EncodedObservation composes with LearnedReward in both orders, on one frame."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from encoded_rollouts import ENVS, SEED
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from toy_environments import LATENT, Camera, Corridor, toy_latents

from vinoreward import (
    EncodedObservation,
    LearnedReward,
    VectorEncodedObservation,
    VectorLearnedReward,
)
from vinoreward.bundles.bundle import Bundle
from vinoreward.wrappers.env_adapter import RenderOnce


class CountedCorridor(Corridor):
    """A corridor that counts how often others render it."""

    drawn = 0

    def render(self) -> Any:
        self.drawn += 1
        return super().render()

    def _observe(self) -> Any:
        return np.array([self.cell, self.steps], np.float32)


@pytest.mark.parametrize("inside", ["reward", "encoder"])
def test_one_frame_is_rendered_once(bundle: Bundle, classifier: Bundle, inside: str) -> None:
    raw = CountedCorridor(render_mode="rgb_array", first_cells=(1,))
    env: gym.Env[Any, Any] = raw
    for kind in ("reward", "encoder") if inside == "reward" else ("encoder", "reward"):
        if kind == "reward":
            env = LearnedReward(env, classifier, reward_mode="potential")
        else:
            env = EncodedObservation(env, bundle)
    layers, layer = 0, env
    while isinstance(layer, gym.Wrapper):
        layers += isinstance(layer, RenderOnce)
        layer = layer.env
    assert layers == 1
    observation, _ = env.reset(seed=0)
    assert raw.drawn == 1
    for step in range(4):
        observation, _, terminated, truncated, info = env.step(1)
        assert raw.drawn == step + 2
        frame = env.render()
        assert raw.drawn == step + 2
        wanted = toy_latents(np.asarray(frame)[None])[0, :LATENT]
        np.testing.assert_allclose(observation, wanted, atol=1e-4)
        assert info["is_success"] is (raw.cell >= 5)
    assert terminated and not truncated
    env.close()


def test_who_draws_on_a_frame_draws_on_a_copy() -> None:
    env = RenderOnce(Camera(render_mode="rgb_array"))
    env.reset(seed=0)
    first = env.render()
    kept = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(env.render(), kept)
    assert env.unwrapped.renders == 1
    env.step(0)
    assert not np.array_equal(env.render(), kept)
    env.reset(seed=0)
    np.testing.assert_array_equal(env.render(), kept)
    assert env.unwrapped.renders == 3


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("inside", ["reward", "encoder"])
def test_the_vector_forms_compose_in_both_orders(
    bundle: Bundle, classifier: Bundle, mode: AutoresetMode, inside: str
) -> None:
    """Claimed successes end episodes of which the environments below know nothing."""
    make = functools.partial(CountedCorridor, render_mode="rgb_array")
    env: Any = SyncVectorEnv([make] * ENVS, autoreset_mode=mode)
    raws = [item.unwrapped for item in env.envs]
    singles = [
        EncodedObservation(LearnedReward(make(), classifier), bundle, frame_stack=2)
        for _ in range(ENVS)
    ]
    for kind in ("reward", "encoder") if inside == "reward" else ("encoder", "reward"):
        if kind == "reward":
            env = VectorLearnedReward(env, classifier)
        else:
            env = VectorEncodedObservation(env, bundle, frame_stack=2)
    observations, _ = env.reset(seed=SEED)
    wanted = np.array([one.reset(seed=SEED + i)[0] for i, one in enumerate(singles)])
    np.testing.assert_allclose(observations, wanted, atol=1e-4)
    waiting = np.zeros(ENVS, np.bool_)
    random = np.random.default_rng(0)
    claims = 0
    for _ in range(30):
        actions = (random.random(ENVS) < 0.7).astype(int)
        for raw in raws:
            raw.drawn = 0
        observations, rewards, terminated, truncated, _ = env.step(actions)
        # A masked reset of what below does not know to be over shows a frame of its own.
        assert max(raw.drawn for raw in raws) <= (2 if waiting.any() else 1)
        over = terminated | truncated
        for i, one in enumerate(singles):
            if waiting[i]:
                seen, _ = one.reset()
                assert rewards[i] == 0
            else:
                seen, reward, ended, cut, info = one.step(int(actions[i]))
                claims += bool(info["is_success"])
                assert (rewards[i], terminated[i], truncated[i]) == (reward, ended, cut)
            np.testing.assert_allclose(observations[i], seen, atol=1e-4)
        waiting = over if mode is AutoresetMode.NEXT_STEP else waiting
        if mode is AutoresetMode.DISABLED and over.any():
            observations, _ = env.reset(options={"reset_mask": over})
            for i in np.flatnonzero(over):
                np.testing.assert_allclose(observations[i], singles[i].reset()[0], atol=1e-4)
    assert claims > 3
    env.close()


def test_same_step_composes_with_claims(bundle: Bundle, classifier: Bundle) -> None:
    inner = SyncVectorEnv(
        [functools.partial(Corridor, "image", first_cells=(4,))] * ENVS,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    rewarded = VectorLearnedReward(inner, classifier, image_source="obs")
    env = VectorEncodedObservation(rewarded, bundle, frame_stack=2)
    first, _ = env.reset(seed=0)
    observations, _, terminated, _, infos = env.step(np.ones(ENVS, int))
    assert terminated.all()
    for i in range(ENVS):
        final = infos["final_obs"][i]
        np.testing.assert_array_equal(final[:LATENT], first[i][LATENT:])
        assert not np.allclose(final[LATENT:], final[:LATENT])
        np.testing.assert_array_equal(observations[i][:LATENT], observations[i][LATENT:])
    env.close()
