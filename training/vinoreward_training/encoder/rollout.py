"""Pictures of what a random policy sees, in any environment that renders."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import InputError
from vinoreward_training.data.frames import Frames, finished
from vinoreward_training.tasks.environments import make_env


def rollout_frames(
    env_id: str,
    count: int,
    *,
    size: tuple[int, int] | None = None,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
) -> Frames:
    """Act at random in an environment and keep what it renders; the same for the same seed.

    Places are taken from ``info``: any ``NAME_xy`` of two numbers, and our scenes' gripper and
    object.

    Args:
        env_id: a Gymnasium id; it must render ``rgb_array``.
        count: frames.
        size: (height, width) to resize to with PIL's bilinear filter.
        seed: of environment and policy.
        env_kwargs: further arguments of the environment.

    Raises:
        ConfigError: no such environment, or it does not render.
        DatasetError: too few frames were asked for.
    """
    from PIL import Image
    from tqdm import tqdm

    arguments: dict[str, Any] = {"render_mode": "rgb_array", **(env_kwargs or {})}
    env = make_env(env_id, arguments, backend="oracle")
    images: npt.NDArray[np.uint8] | None = None
    resized = False
    episodes: list[int] = []
    places: list[dict[str, tuple[float, float]]] = []
    try:
        env.action_space.seed(seed)
        info = env.reset(seed=seed)[1]
        episode = 0
        for index in tqdm(range(count), desc=f"rollout of {env_id}", unit="frame"):
            picture = _rendered(env.render(), env_id)
            if size is not None and picture.shape[:2] != size:
                resized = True
                picture = np.asarray(
                    Image.fromarray(picture).resize(size[::-1], Image.Resampling.BILINEAR)
                )
            if images is None:
                images = np.empty((count, *picture.shape), dtype=np.uint8)
            images[index] = picture
            episodes.append(episode)
            places.append(_places(env, info))
            _, _, terminated, truncated, info = env.step(env.action_space.sample())
            if terminated or truncated:
                info = env.reset()[1]
                episode += 1
        scene = getattr(env.unwrapped, "picture_scene", None)
    finally:
        env.close()
    names = sorted({name for found in places for name in found})
    nowhere = (math.nan, math.nan)
    return finished(
        np.empty((0, 1, 1, 3), np.uint8) if images is None else images,
        np.array(episodes, dtype=np.int64),
        {name: np.array([found.get(name, nowhere) for found in places]) for name in names},
        scene=dict(scene) if isinstance(scene, Mapping) else {},
        source=env_id,
        resized=resized,
        seed=seed,
    )


def _rendered(frame: Any, env_id: str) -> npt.NDArray[np.uint8]:
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.shape[2:] != (3,):
        found = (
            f"{frame.dtype} of shape {frame.shape}"
            if isinstance(frame, np.ndarray)
            else type(frame).__name__
        )
        raise InputError(
            f"{env_id} renders {found}. Expected one picture, (height, width, 3) uint8 RGB; give "
            "an environment with render_mode='rgb_array', or a folder of pictures with --data."
        )
    return frame


def _places(env: Any, info: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    found = {
        name[: -len("_xy")]: np.asarray(value, dtype=np.float64)
        for name, value in info.items()
        if name.endswith("_xy") and np.shape(value) == (2,)
    }
    scene: Any = getattr(env.unwrapped, "scene", None)
    if scene is not None and hasattr(scene, "gripper") and hasattr(scene, "object_xy"):
        found["gripper"] = np.asarray(scene.gripper[:2], dtype=np.float64)
        if scene.object_xy is not None:
            found["object"] = np.asarray(scene.object_xy, dtype=np.float64)
    return {name: (float(place[0]), float(place[1])) for name, place in found.items()}
