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
    "all": {"keep": ["gear"], "frame_stack": 2, "sample": True, "seed": 11},
    "sample": {"sample": True},
    "image": {"image_in_info": True, "frame_stack": 2},
}


Seen = tuple[Any, Any]


@played_once
def one_after_another(bundle: Bundle, env: dict[str, Any], **options: Any) -> list[list[Seen]]:
    """The oracle: N single environments in a plain loop; starts and steps in order."""
    everything = []
    for index in range(ENVS):
        single = EncodedObservation(Camera(**env), bundle, **options)
        observation, info = single.reset(seed=SEED + index)
        seen = [(observation, info.get("image"))]
        for _ in range(TRANSITIONS):
            observation, _, terminated, truncated, info = single.step(0)
            seen.append((observation, info.get("image")))
            if terminated or truncated:
                observation, info = single.reset()
                seen.append((observation, info.get("image")))
        single.close()
        everything.append(seen)
    return everything


def image_at(infos: dict[str, Any], i: int) -> Any:
    return infos["image"][i].copy() if "image" in infos and infos["_image"][i] else None


def vector_rollout(env: VectorEncodedObservation) -> list[list[Seen]]:
    mode = env.metadata["autoreset_mode"]
    observations, infos = env.reset(seed=SEED)
    assert env.observation_space.contains(observations)
    found = [[(observations[i].copy(), image_at(infos, i))] for i in range(ENVS)]
    for _ in range(2 * TRANSITIONS):
        observations, _, terminated, truncated, infos = env.step(np.zeros(ENVS, int))
        assert env.observation_space.contains(observations)
        over = terminated | truncated
        for i in range(ENVS):
            if mode is AutoresetMode.SAME_STEP and over[i]:
                final = infos["final_obs"][i]
                assert env.single_observation_space.contains(final)
                found[i].append((final, image_at(infos["final_info"], i)))
            found[i].append((observations[i].copy(), image_at(infos, i)))
        if mode is AutoresetMode.DISABLED and over.any():
            before = observations.copy()
            observations, infos = env.reset(options={"reset_mask": over})
            np.testing.assert_array_equal(observations[~over], before[~over])
            for i in np.flatnonzero(over):
                found[i].append((observations[i].copy(), image_at(infos, i)))
    env.close()
    return found


def sb3_rollout(env: VecEncodedObservation) -> list[list[Seen]]:
    env.seed(SEED)
    observations = env.reset()
    found = [[(observations[i].copy(), env.reset_infos[i].get("image"))] for i in range(ENVS)]
    for _ in range(TRANSITIONS):
        observations, _, dones, infos = env.step(np.zeros(ENVS, int))
        for i, info in enumerate(infos):
            if dones[i]:
                assert env.observation_space.contains(info["terminal_observation"])
                found[i].append((info["terminal_observation"], info.get("image")))
                info = env.reset_infos[i]
            found[i].append((observations[i].copy(), info.get("image")))
    env.close()
    return found


def assert_same(found: list[list[Seen]], expected: list[list[Seen]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        shared = min(len(ours), len(theirs))
        assert shared > TRANSITIONS
        for number in range(shared):
            where = f"item {number}"
            # Batches of another size are summed in another order.
            np.testing.assert_allclose(ours[number][0], theirs[number][0], atol=1e-5, err_msg=where)
            np.testing.assert_equal(ours[number][1], theirs[number][1], err_msg=where)


def sync(mode: AutoresetMode, **env: Any) -> SyncVectorEnv:
    return SyncVectorEnv([functools.partial(Camera, **env)] * ENVS, autoreset_mode=mode)
