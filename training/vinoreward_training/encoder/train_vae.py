"""``vinoreward train-vae``: from pictures without labels to an encoder that a policy can act on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError
from vinoreward_training.configs import TrainVaeConfig
from vinoreward_training.data.dataset_files import Indices, say_parts
from vinoreward_training.data.frames import (
    Frames,
    check_size,
    load_frames,
    rollout_frames,
    split_frames,
)
from vinoreward_training.encoder.bundle import make_bundle
from vinoreward_training.runs.next_command import after_bundle, again, bundle_name, to_train
from vinoreward_training.runs.run_folder import RunFolder
from vinoreward_training.runs.settings import Settings, refuse
from vinoreward_training.tasks.environments import naming

if TYPE_CHECKING:
    from vinoreward.encoders.vae import Vae

ROLLOUT_FRAMES = 4000


SETTINGS = Settings(TrainVaeConfig)


def _check(config: TrainVaeConfig) -> None:
    if (config.data is None) == (config.env is None):
        raise ConfigError(
            f"--data is {config.data} and --env is {config.env}. Expected one of them: a folder of "
            "pictures or an environment to collect them in."
        )
    refuse(
        "train-vae",
        config,
        {
            "frames": config.frames < 0,
            "latent": not 1 <= config.latent <= 4096,
            "steps": config.steps < 1,
            "batch_size": config.batch_size < 2,
            "learning_rate": not 0 < config.learning_rate < 1,
            "beta": not 0 <= config.beta < 1e6,
            "warmup": not 0 <= config.warmup <= 1,
            "sigma": not 0 < config.sigma <= 1,
            "foreground": not 0 <= config.foreground <= 1000,
            "rare": not 1 <= config.rare <= 1000,
            "denoise": not 0 <= config.denoise <= 1,
            "places": not 0 <= config.places < 1e6,
            "threads": config.threads < 0,
            "seed": config.seed < 0,
        },
    )
    check_size(config.size)


def _frames(config: TrainVaeConfig) -> Frames:
    if config.data is not None:
        return load_frames(config.data, size=config.size, limit=config.frames)

    return rollout_frames(
        str(config.env), config.frames or ROLLOUT_FRAMES, size=config.size, seed=config.seed
    )


def _train(
    config: TrainVaeConfig, frames: Frames, parts: Sequence[Indices], folder: Path
) -> tuple[Vae, list[dict[str, float]]]:
    """Return the trained network and one record per evaluation."""
    from vinoreward.encoders.vae import build_vae
    from vinoreward_training.encoder.training import VaeFit, VaeRecipe

    recipe = VaeRecipe.of(config, len(parts[0]))
    height, width = frames.images.shape[1:3]
    vae = build_vae(config.architecture, height, width, config.latent)
    fit = VaeFit(vae, frames, parts[0], parts[1], recipe, folder, resume=config.resume)
    fit.show("train-vae")
    return vae, fit.history


def run(config: TrainVaeConfig) -> int:
    """Collect frames, train, measure, export and save the bundle; return 0."""
    _check(config)
    env = str(config.env or "")
    config = replace(config, name=config.name or bundle_name(config.data or env, "encoder"))
    line = again("train-vae", config.out, *naming(env))
    with RunFolder(config.out, config, resume=config.resume, again=line) as folder:
        frames = _frames(config)
        check_size((frames.images.shape[1], frames.images.shape[2]))
        if config.places > 0 and not frames.places:
            raise ConfigError(
                f"--places {config.places:g} was given, but {frames.source} records no places. "
                "Expected a capture whose metadata.csv has columns NAME_x and NAME_y; leave "
                "--places out to train on pictures alone."
            )
        parts = split_frames(frames, seed=config.seed)
        known = ", ".join(frames.places) or "nothing"
        say_parts(frames.images, parts, f"; places known of: {known}")
        vae, history = _train(config, frames, parts, folder)
        make_bundle(config, frames, parts, folder, vae, history)
        bundle = Bundle.load(folder / "bundle", verify=False)
        following = (
            to_train(bundle.path, bundle.spec)
            if config.data is None
            else after_bundle(bundle.path, config.data)
        )
        print(f"next: {following}")
    return 0
