"""Batches of hover environments, and the scalar ones that they are compared with."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from vinoreward import LearnedReward  # also registers the environments
from vinoreward_envs.making import HoverBatch

STATES = "PandaHoverRandom-v0"
IDS = ("PandaHover-v0", STATES, "PandaHoverPixels-v0")
VARIED: Any = {
    "light": (0.6, 1.4), "light_direction": (-30, 30), "colour_cast": (-0.2, 0.2),
    "camera_position": (-0.03, 0.03), "camera_rotation": (-3, 3), "field_of_view": (57, 63),
    "object_size": (0.7, 1.4), "object_colour": (0, 1), "object_yaw": (-180, 180),
    "table_tint": (-0.2, 0.2), "table_shift": (-0.3, 0.3), "sensor_noise": (0, 6),
    "action_noise": (0, 0.01), "action_delay": (0, 2),
}  # fmt: skip


def make(num_envs: int, id_: str = STATES, **kwargs: Any) -> HoverBatch:
    kwargs = {"backend": "oracle", **kwargs}
    made: Any = gym.make_vec(id_, num_envs, vectorization_mode="vector_entry_point", **kwargs)
    assert isinstance(made, HoverBatch)
    return made


def make_scalars(num_envs: int, id_: str = STATES, **kwargs: Any) -> SyncVectorEnv:
    """Return as many scalar environments, which reset in the same step."""
    kwargs = {"backend": "oracle", **kwargs}
    scalars = SyncVectorEnv(
        [lambda: gym.make(id_, **kwargs) for _ in range(num_envs)],
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    if kwargs["backend"] not in ("oracle", "none"):
        learned: list[Any] = [reward_of(each) for each in scalars.envs]
        for each in learned:  # a network takes half a second to load
            each._model.classifier = learned[0].classifier
    return scalars


def reward_of(env: Any) -> Any:
    """Return the learned reward among an environment's wrappers."""
    while not isinstance(env, LearnedReward):
        env = env.env
    return env


def gaps(env: Any) -> np.ndarray:
    """Return the ``(N, 2)`` moves that lead from grippers to objects."""
    scenes = env.unwrapped.scenes
    return np.asarray(scenes.objects - scenes.gripper, np.float32)


def moves(num_envs: int, steps: int, seed: int = 0) -> Any:
    """Yield actions: within the bounds, beyond them, and to the very edge."""
    draw = np.random.default_rng(seed)
    for step in range(steps):
        actions = draw.uniform(-0.13, 0.13, (num_envs, 2)).astype(np.float32)
        yield np.sign(actions) * np.float32(0.1) if step % 4 == 0 else actions


def assert_equal(found: Any, expected: Any, near: float, judged: float | None = None) -> None:
    """Compare observations, rewards, ends and infos of a step or a reset, masks included.

    ``judged`` is for what classifier and guard say, if that may differ more.
    """
    *arrays, infos = found
    *expected_arrays, expected_infos = expected
    for one, other in zip(arrays, expected_arrays, strict=True):
        assert np.asarray(one).shape == other.shape
        np.testing.assert_allclose(np.asarray(one), other, rtol=0, atol=near)
    assert_same_infos(infos, expected_infos, near, near if judged is None else judged)


def assert_same_infos(infos: Any, expected: Any, near: float, judged: float) -> None:
    # Where all episodes end at once Gymnasium leaves out what no environment has.
    for key in infos.keys() - expected.keys():
        assert not np.asarray(infos[f"_{key.removeprefix('_')}"]).any()
    assert expected.keys() <= infos.keys()
    for key, values in expected.items():
        if isinstance(values, dict):
            assert_same_infos(infos[key], values, near, judged)
        elif key == "final_obs":
            for i in np.flatnonzero(expected["_final_obs"]):
                last = np.asarray(infos[key][i])
                assert last.dtype == values[i].dtype
                np.testing.assert_allclose(last, values[i], rtol=0, atol=near)
        else:
            one = np.asarray(infos[key])
            assert one.shape == values.shape
            most = judged if key in ("reward_prob", "reward_ood") else near
            np.testing.assert_allclose(one.astype(float), values.astype(float), rtol=0, atol=most)


def assert_same_rollout(
    num_envs: int,
    steps: int,
    near: float,
    id_: str = STATES,
    array: Any = "numpy",
    judged: float | None = None,
    **kwargs: Any,
) -> tuple[int, int]:
    """Step both with the same seeds and actions; return how many episodes ended, and succeeded."""
    ended = succeeded = 0
    env, scalars = make(num_envs, id_, array=array, **kwargs), make_scalars(num_envs, id_, **kwargs)
    assert_equal(env.reset(seed=11), scalars.reset(seed=11), near)
    for actions in moves(num_envs, steps):
        found, expected = env.step(actions), scalars.step(actions)
        assert_equal(found, expected, near, judged)
        ended += int((expected[2] | expected[3]).sum())
        succeeded += int(expected[2].sum())
    assert_equal(env.reset(), scalars.reset(), near)
    env.close()
    scalars.close()
    return ended, succeeded
