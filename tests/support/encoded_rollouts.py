"""What each form of EncodedObservation tells of the same episodes, and the oracle for it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from played_once import played_once
from toy_environments import Camera

from vinoreward import EncodedObservation, VecEncodedObservation, VectorEncodedObservation
from vinoreward.bundles.bundle import Bundle

ENVS = 3
TRANSITIONS = 25
SEED = 5
MODES = list(AutoresetMode)

OPTIONS: dict[str, dict[str, Any]] = {
    "latent": {},
    "stack": {"frame_stack": 3},
    "keep": {"keep": ("joints", "gear"), "image_source": "obs:camera"},
    "all": {"keep": ["gear"], "frame_stack": 2},
}


@played_once
def one_after_another(bundle: Bundle, env: dict[str, Any], **options: Any) -> list[list[Any]]:
    """The oracle: N single environments in a plain loop; starts and steps in order."""
    everything = []
    for index in range(ENVS):
        single = EncodedObservation(Camera(**env), bundle, **options)
        seen = [single.reset(seed=SEED + index)[0]]
        for _ in range(TRANSITIONS):
            observation, _, terminated, truncated, _ = single.step(0)
            seen.append(observation)
            if terminated or truncated:
                seen.append(single.reset()[0])
        single.close()
        everything.append(seen)
    return everything


def vector_rollout(env: VectorEncodedObservation) -> list[list[Any]]:
    mode = env.metadata["autoreset_mode"]
    observations, _ = env.reset(seed=SEED)
    assert env.observation_space.contains(observations)
    found = [[observations[i].copy()] for i in range(ENVS)]
    for _ in range(2 * TRANSITIONS):
        observations, _, terminated, truncated, infos = env.step(np.zeros(ENVS, int))
        assert env.observation_space.contains(observations)
        over = terminated | truncated
        for i in range(ENVS):
            if mode is AutoresetMode.SAME_STEP and over[i]:
                final = infos["final_obs"][i]
                assert env.single_observation_space.contains(final)
                found[i].append(final)
            found[i].append(observations[i].copy())
        if mode is AutoresetMode.DISABLED and over.any():
            before = observations.copy()
            observations, _ = env.reset(options={"reset_mask": over})
            np.testing.assert_array_equal(observations[~over], before[~over])
            for i in np.flatnonzero(over):
                found[i].append(observations[i].copy())
    env.close()
    return found


def sb3_rollout(env: VecEncodedObservation) -> list[list[Any]]:
    env.seed(SEED)
    observations = env.reset()
    found = [[observations[i].copy()] for i in range(ENVS)]
    for _ in range(TRANSITIONS):
        observations, _, dones, infos = env.step(np.zeros(ENVS, int))
        for i, info in enumerate(infos):
            if dones[i]:
                assert env.observation_space.contains(info["terminal_observation"])
                found[i].append(info["terminal_observation"])
            found[i].append(observations[i].copy())
    env.close()
    return found


def assert_same(found: list[list[Any]], expected: list[list[Any]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        shared = min(len(ours), len(theirs))
        assert shared > TRANSITIONS
        for number in range(shared):
            # Batches of another size are summed in another order.
            np.testing.assert_allclose(
                ours[number], theirs[number], atol=1e-5, err_msg=f"item {number}"
            )


def sync(mode: AutoresetMode, **env: Any) -> SyncVectorEnv:
    return SyncVectorEnv([functools.partial(Camera, **env)] * ENVS, autoreset_mode=mode)
