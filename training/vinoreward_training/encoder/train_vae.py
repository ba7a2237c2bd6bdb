"""``vinoreward train-vae``: from images without labels to an encoder that a policy can act on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError
from vinoreward_envs.camera.spec import resized
from vinoreward_training.configs import TrainVaeConfig
from vinoreward_training.configs.task import RewardedTask
from vinoreward_training.data.dataset import Frames, load_frames, split_frames
from vinoreward_training.data.dataset_files import Indices, rendered, say_parts
from vinoreward_training.quantize.int8 import encoder_int8
from vinoreward_training.runs.next_command import bundle_name, resume_command, to_train
from vinoreward_training.runs.run_folder import RunFolder
from vinoreward_training.runs.settings import Settings
from vinoreward_training.tasks.environments import make_env
from vinoreward_training.tasks.trust import trust_args

ROLLOUT_FRAMES = 4000
SETTINGS = Settings(TrainVaeConfig)


def _check(config: TrainVaeConfig) -> None:
    if (config.data is None) == (config.env is None):
        raise ConfigError(
            f"`data` is {config.data} and `env` is {config.env}. Expected one of them: a folder of "
            "images or an environment to collect them in.",
            field="data",
        )
    if config.image_size is not None:
        _check_size(config.image_size)


def _check_size(size: tuple[int, ...]) -> None:
    if not all(32 <= side <= 1024 for side in size):
        raise ConfigError(field="image_size", value=size, expected="sides of 32 to 1024 pixels")


def _rollout(config: TrainVaeConfig) -> Frames:
    """Act at random in an environment and return what it renders; the seed decides all."""
    from tqdm import tqdm

    env_id, count = str(config.env), config.frames or ROLLOUT_FRAMES
    env = make_env(RewardedTask(env=env_id, backend="oracle"), render_mode="rgb_array")
    images = np.empty((0, 1, 1, 3), np.uint8)
    changed = False
    episodes: list[int] = []
    places: list[dict[str, tuple[float, float]]] = []
    try:
        env.action_space.seed(config.seed)
        info = env.reset(seed=config.seed)[1]
        episode = 0
        for index in tqdm(range(count), desc=f"rollout of {env_id}", unit="frame"):
            original = rendered(env, env_id)
            image = original if config.image_size is None else resized(original, *config.image_size)
            changed |= image is not original
            if index == 0:
                images = np.empty((count, *image.shape), dtype=np.uint8)
            images[index] = image
            episodes.append(episode)
            places.append(_places(env, info))
            _, _, terminated, truncated, info = env.step(env.action_space.sample())
            if terminated or truncated:
                info = env.reset()[1]
                episode += 1
        scene = getattr(env.unwrapped, "image_scene", None)
    finally:
        env.close()
    absent = (math.nan, math.nan)
    names = sorted({name for frame in places for name in frame})
    return Frames.hashed(
        images,
        episodes,
        {name: np.array([frame.get(name, absent) for frame in places]) for name in names},
        scene=dict(scene) if isinstance(scene, Mapping) else {},
        source=env_id,
        resized=changed,
        seed=config.seed,
    )


def _places(env: Any, info: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return every ``NAME_xy`` of two numbers in ``info``, and our scenes' gripper and object."""
    places = {
        name.removesuffix("_xy"): value
        for name, value in info.items()
        if name.endswith("_xy") and np.shape(value) == (2,)
    }
    scene: Any = getattr(env.unwrapped, "scene", None)
    if scene is not None and hasattr(scene, "gripper") and hasattr(scene, "object_xy"):
        places["gripper"] = scene.gripper[:2]
        if scene.object_xy is not None:
            places["object"] = scene.object_xy
    return {name: (float(place[0]), float(place[1])) for name, place in places.items()}


def _train(config: TrainVaeConfig, frames: Frames, parts: Sequence[Indices], folder: Path) -> None:
    """Train, measure, export and save the bundle."""
    from vinoreward_training.encoder.bundle import make_bundle
    from vinoreward_training.encoder.networks import build_vae
    from vinoreward_training.encoder.training import VaeFit
    from vinoreward_training.runs.fit import prepare_torch

    prepare_torch(config.seed)
    height, width = frames.images.shape[1:3]
    vae = build_vae(height, width, config.latent)
    fit = VaeFit(vae, frames, parts[0], parts[1], config, folder)
    fit.show("train-vae")
    make_bundle(config, frames, parts, folder, vae, fit.history)


def run(config: TrainVaeConfig) -> int:
    """Collect frames, train, measure, export and save the bundle; return 0."""
    _check(config)
    env = str(config.env or "")
    config = replace(config, name=config.name or bundle_name(config.data or env, "encoder"))
    line = resume_command("train-vae", config.out, *trust_args(env))
    with RunFolder(config.out, config, resume=config.resume, again=line) as folder:
        if config.data is None:
            frames = _rollout(config)
        else:
            frames = load_frames(config.data, size=config.image_size, limit=config.frames)
        _check_size(frames.images.shape[1:3])
        if config.places > 0 and not frames.places:
            raise ConfigError(
                f"found `places={config.places:g}`, but {frames.source} records no places. "
                "Expected a capture whose metadata.csv has columns NAME_x and NAME_y; leave "
                "`places` out to train on images alone.",
                field="places",
            )
        parts = split_frames(frames, seed=config.seed)
        known = ", ".join(frames.places) or "nothing"
        say_parts(frames.images, parts, f"; places known of: {known}")
        _train(config, frames, parts, folder)
        bundle = Bundle.load(folder / "bundle", verify=False)
        print(f"INT8: {encoder_int8(bundle, frames, parts, config.int8)}")
        print(f"next: {to_train(bundle.path, bundle.spec)}")
    return 0
