"""Pictures without labels: a capture, any image folder, or what a random policy sees."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, DatasetError, InputError
from vinoreward_training.data.dataset_files import (
    METADATA,
    SUFFIXES,
    Indices,
    check_there,
    number,
    pictures_below,
    read_about,
    read_table,
    stack_pictures,
)
from vinoreward_training.tasks.environments import make_env

LOWEST_COUNT = 64
HELD_OUT_SHARES = (0.05, 0.1)
"""Shares of the episodes for validation and test, at least one each."""


@dataclass(frozen=True)
class Frames:
    """Pictures and, where they were recorded, the places of things.

    Attributes:
        images: ``(N, H, W, 3)`` uint8 RGB.
        episodes: ``(N,)`` int64; frames of one episode share a number.
        places: name to ``(N, 2)`` float64 metres, NaN where the thing is absent; empty where
            nothing was recorded.
        scene: what drew the pictures (empty when unknown).
        sha256: hash of pixels, episodes and places.
        source: the folder or environment they came from.
        resized: whether they were resized (PIL bilinear) to get here.
        seed: of the capture or rollout, if known.
    """

    images: npt.NDArray[np.uint8]
    episodes: npt.NDArray[np.int64]
    places: dict[str, npt.NDArray[np.float64]]
    scene: dict[str, Any]
    sha256: str
    source: str
    resized: bool = False
    seed: int | None = None


def finished(
    images: npt.NDArray[np.uint8],
    episodes: npt.NDArray[np.int64],
    places: dict[str, npt.NDArray[np.float64]],
    **facts: Any,
) -> Frames:
    """Return frames with their hash; ``facts`` are the other attributes.

    Raises:
        DatasetError: too few pictures.
    """
    if len(images) < LOWEST_COUNT:
        raise DatasetError(
            f"{facts['source']} gives {len(images)} pictures. Expected at least {LOWEST_COUNT} to "
            "train an encoder on, better thousands; capture more, or raise --frames."
        )
    digest = hashlib.sha256(str(images.shape).encode())
    digest.update(np.ascontiguousarray(images).data)
    digest.update(episodes.tobytes())
    for name in sorted(places):
        digest.update(name.encode() + places[name].tobytes())
    return Frames(images, episodes, places, sha256=digest.hexdigest(), **facts)


def _table(folder: Path) -> tuple[list[str], list[int], dict[str, list[tuple[float, float]]]]:
    """Return files, episodes and places of a capture; NAME_x and NAME_y are the place of NAME."""
    files: list[str] = []
    episodes: list[int] = []
    places: dict[str, list[tuple[float, float]]] = {}

    def place(line: int, text: str) -> float:
        value = number(folder, line, text)
        return value if math.isfinite(value) else math.nan

    for line, row in read_table(folder):
        if not files:
            names = (name[:-2] for name in row if name.endswith("_x") and f"{name[:-2]}_y" in row)
            places = {name: [] for name in sorted(names)}
        files.append(row["file"])
        episodes.append(int(row["episode"]))
        for name, found in places.items():
            found.append((place(line, row[f"{name}_x"]), place(line, row[f"{name}_y"])))
    return files, episodes, places


def load_frames(folder: Path, *, size: tuple[int, int] | None = None, limit: int = 0) -> Frames:
    """Read every picture below a folder into memory; labels are not needed and not used.

    A capture's ``metadata.csv`` gives episodes and places. Without it every picture counts as its
    own episode and nothing is known of places.

    Args:
        folder: a capture or any folder with pictures, at any depth.
        size: (height, width) to resize to with PIL's bilinear filter; by default all pictures must
            have one size already.
        limit: read at most so many, 0 for all: the first ones of a capture, else evenly chosen.

    Raises:
        DatasetError: no folder, too few pictures, a broken one, several sizes, a table that cannot
            be right, a link out of the folder, more than fits into memory.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DatasetError(
            f"{folder} is not a folder. Expected a capture or a folder of pictures; make one with: "
            f"vinoreward capture --out {folder}"
        )
    places: dict[str, list[tuple[float, float]]] = {}
    if (folder / METADATA).is_file():
        files, episodes, places = _table(folder)
        count = min(limit, len(files)) if limit else len(files)
        files, episodes = files[:count], episodes[:count]
        check_there(folder, files)
    else:
        files = pictures_below(folder)
        if limit and limit < len(files):
            files = [files[index * len(files) // limit] for index in range(limit)]
        episodes = list(range(len(files)))
    if not files:
        raise DatasetError(
            f"{folder} holds no pictures. Expected {', '.join(sorted(SUFFIXES))} files; capture "
            "some, or give another folder with --data."
        )
    about = read_about(folder)
    images, resized = stack_pictures(folder, files, size)
    return finished(
        images,
        np.array(episodes, dtype=np.int64),
        {
            name: np.array(found[: len(files)], dtype=np.float64)
            for name, found in places.items()
            if np.isfinite(found[: len(files)]).all(1).any()
        },
        scene=about.get("scene", {}),
        source=str(folder),
        resized=resized,
        seed=about.get("seed"),
    )


def split_frames(frames: Frames, *, seed: int) -> tuple[Indices, Indices, Indices]:
    """Return the indices of (train, validation, test); no episode is in two of them.

    Args:
        frames: what to split.
        seed: decides which episode goes where.

    Raises:
        DatasetError: fewer than three episodes.
    """
    numbers, inverse = np.unique(frames.episodes, return_inverse=True)
    if len(numbers) < 3:
        raise DatasetError(
            f"{frames.source} has {len(numbers)} episodes. Expected at least 3, for training, "
            "validation and test; capture more, or raise --frames."
        )
    order = np.random.default_rng([seed, 0xE2C0]).permutation(len(numbers))
    first = max(1, round(len(numbers) * HELD_OUT_SHARES[0]))
    second = first + max(1, round(len(numbers) * HELD_OUT_SHARES[1]))
    part = np.zeros(len(numbers), dtype=np.int64)
    part[order[:first]] = 1
    part[order[first:second]] = 2
    of_frame = part[inverse]
    train, validation, test = (np.flatnonzero(of_frame == which) for which in range(3))
    return train, validation, test


def check_size(size: tuple[int, int] | None) -> None:
    """Refuse a size that no encoder can take before anything is read.

    Raises:
        ConfigError: a side shorter than 32 or longer than 1024 pixels.
    """
    if size is not None and not all(32 <= side <= 1024 for side in size):
        raise ConfigError(
            f"--size {size[0]} {size[1]} cannot work. Expected sides of 32 to 1024 pixels."
        )


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
