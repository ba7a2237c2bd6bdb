"""``vinoreward train-vae``: from images without labels to an encoder that a policy can act on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, needed_for
from vinoreward_training.configs import TrainVaeConfig
from vinoreward_training.data.dataset import Frames, load_frames, split_frames
from vinoreward_training.data.dataset_files import Indices, say_parts
from vinoreward_training.quantize.int8 import encoder_int8
from vinoreward_training.runs.next_command import resume_command, to_train
from vinoreward_training.runs.run_folder import RunFolder
from vinoreward_training.runs.settings import Settings

SETTINGS = Settings(TrainVaeConfig)


def run(config: TrainVaeConfig) -> int:
    """Train, measure, export and save the bundle; return 0."""
    if config.image_size is not None:
        _check_size(config.image_size)
    line = resume_command("train-vae", config.out)
    with RunFolder(config.out, config, resume=config.resume, again=line) as folder:
        frames = load_frames(config.data, size=config.image_size)
        _check_size(frames.images.shape[1:3])
        parts = split_frames(frames, seed=config.seed)
        known = ", ".join(frames.places) or "nothing"
        say_parts(frames.images, parts, f"; places known of: {known}")
        _train(config, frames, parts, folder)
        bundle = Bundle.load(folder / "bundle", verify=False)
        print(f"INT8: {encoder_int8(bundle, frames, parts, config.int8)}")
        print(f"next: {to_train(bundle.path, bundle.spec)}")
    return 0


def _check_size(size: tuple[int, ...]) -> None:
    if not all(32 <= side <= 1024 for side in size):
        raise ConfigError(field="image_size", value=size, expected="sides of 32 to 1024 pixels")


def _train(config: TrainVaeConfig, frames: Frames, parts: Sequence[Indices], folder: Path) -> None:
    """Train, measure, export and save the bundle."""
    with needed_for("training an encoder", "train"):
        from vinoreward_training.encoder.bundle import make_bundle
        from vinoreward_training.encoder.networks import build_vae
        from vinoreward_training.encoder.training import VaeFit
        from vinoreward_training.runs.fit import prepare_torch

    prepare_torch(config.seed)
    height, width = frames.images.shape[1:3]
    vae = build_vae(height, width, config.latent, places=2 * len(frames.places))
    fit = VaeFit(vae, frames, parts[0], parts[1], config, folder)
    fit.run("train-vae")
    make_bundle(config, frames, parts, folder, vae, fit.history)
