"""``vinoreward train-vae``: from pictures without labels to an encoder that a policy can act on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from vinoreward.errors import ConfigError
from vinoreward_training.environments import naming
from vinoreward_training.frames import (
    Frames,
    Indices,
    check_size,
    load_frames,
    split_frames,
)
from vinoreward_training.machine import cores
from vinoreward_training.next_command import after_bundle, again, bundle_name, to_train
from vinoreward_training.run_folder import RunFolder
from vinoreward_training.train_settings import resumed

if TYPE_CHECKING:
    from vinoreward.encoders.vae import Vae
    from vinoreward_training.vae_training import VaeFit

ROLLOUT_FRAMES = 4000


@dataclass(frozen=True)
class TrainVaeConfig:
    """Train a state encoder (a variational autoencoder) and save it as a bundle.

    Pictures come from a capture, any folder of pictures, or a random policy in any environment that
    renders. Where the capture recorded places, the model card says how well they can be read from
    the latent.

    Examples:
        vinoreward train-vae --data data/hover --size 64 64 --out runs/encoder
        vinoreward train-vae --resume --out runs/encoder
        vinoreward train-vae --data data/hover --beta 300 --places 300 --out runs/encoder
        vinoreward train-vae --env CartPole-v1 --frames 5000 --size 64 64 --out runs/cartpole
    """

    data: Path | None = None
    """A capture, or any folder of pictures; no labels are needed."""
    env: str | None = None
    """Instead of --data: act at random in this environment."""
    frames: int = 0
    """Frames of the rollout (0: 4000); with --data read at most so many (0: all)."""
    out: Path = Path("runs/encoder")
    """Run folder; the bundle is written to OUT/bundle."""
    name: str = ""
    """Name of the bundle; default: of the data's folder, as hover-encoder of data/hover, or of the
    environment."""
    size: tuple[int, int] | None = None
    """Resize pictures to HEIGHT WIDTH; default: the pictures' own size."""
    latent: int = 32
    """Numbers of the latent vector."""
    architecture: Literal["spatial_vae", "conv_vae"] = "spatial_vae"
    """Network: spatial_vae finds keypoints, conv_vae is the usual stack of convolutions."""
    steps: int = 20_000
    """Training steps."""
    batch_size: int = 64
    """Frames of a step."""
    learning_rate: float = 1e-3
    """Highest learning rate; it warms up and falls to 0 along a cosine."""
    beta: float = 1.0
    """Weight of the KL divergence: higher for fewer, broader numbers."""
    warmup: float = 0.2
    """Share of the steps over which beta rises from 0."""
    sigma: float = 0.05
    """Standard deviation of a pixel, from 0 to 1, that counts as noise."""
    foreground: float = 0.0
    """Additional weight of pixels that differ from the mean picture."""
    rare: float = 10.0
    """Highest weight of pixels of a rare colour, 1 for none: small things are drawn too."""
    denoise: float = 0.0
    """Standard deviation of noise put on the input only, from 0 to 1; 0 for none."""
    places: float = 0.0
    """Weight of the squared error (mm) of recorded places, read from the latent; 0: no labels."""
    seed: int = 0
    """Decides the split, the initial weights, the order and the noise."""
    threads: int = 0
    """Threads of torch, 0 for one per core."""
    bf16: Literal["auto", "on", "off"] = "auto"
    """Train in bfloat16 for the first three quarters; auto: where the processor has it."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its recorded configuration."""
    trust_run: bool = False
    """Import the package of an environment that only the run names, as package:Id-v0 does: that
    runs its code. Without it you are asked."""
    explicit: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Names that win over a resumed run's even where their value is the default."""


def _check(config: TrainVaeConfig) -> None:
    if (config.data is None) == (config.env is None):
        raise ConfigError(
            f"--data is {config.data} and --env is {config.env}. Expected one of them: a folder of "
            "pictures or an environment to collect them in."
        )
    wrong = {
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
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise ConfigError(
                f"--{name.replace('_', '-')} {getattr(config, name)} cannot work. Expected a "
                "number in the usual range; see vinoreward train-vae --help."
            )
    check_size(config.size)


def _frames(config: TrainVaeConfig) -> Frames:
    if config.data is not None:
        return load_frames(config.data, size=config.size, limit=config.frames)
    from vinoreward_training.rollout import rollout_frames

    return rollout_frames(
        str(config.env), config.frames or ROLLOUT_FRAMES, size=config.size, seed=config.seed
    )


def _train(
    config: TrainVaeConfig, frames: Frames, parts: tuple[Indices, Indices, Indices], folder: Path
) -> tuple[Vae, VaeFit]:
    """Train with a progress bar and TensorBoard."""
    import torch
    from torch.utils.tensorboard import SummaryWriter
    from tqdm import tqdm

    from vinoreward.encoders.vae import build_vae
    from vinoreward_training.classifier_training import has_bf16
    from vinoreward_training.vae_training import Recipe, VaeFit

    torch.set_num_threads(config.threads or cores())
    torch.manual_seed(config.seed)
    recipe = Recipe(
        steps=config.steps,
        batch_size=min(config.batch_size, len(parts[0])),
        learning_rate=config.learning_rate,
        beta=config.beta,
        warmup=config.warmup,
        sigma=config.sigma,
        foreground=config.foreground,
        rare=config.rare,
        denoise=config.denoise,
        places=config.places,
        seed=config.seed,
        bf16=has_bf16() if config.bf16 == "auto" else config.bf16 == "on",
    )
    height, width = frames.images.shape[1:3]
    vae = build_vae(config.architecture, height, width, config.latent)
    fit = VaeFit(vae, frames, parts[0], parts[1], recipe, folder, resume=config.resume)
    writer = SummaryWriter(str(folder / "tensorboard"))
    try:
        with tqdm(
            total=recipe.steps * recipe.batch_size,
            initial=fit.step * recipe.batch_size,
            desc="train-vae",
            unit="frame",
            smoothing=0.05,
        ) as bar:

            def on_step(step: int, found: dict[str, float]) -> None:
                bar.update(recipe.batch_size)
                if step % 10 == 0:
                    for name, value in found.items():
                        writer.add_scalar(f"train/{name}", value, step)

            def on_record(record: dict[str, float]) -> None:
                bar.set_postfix(
                    rec=f"{record['val_reconstruction']:.0f}",
                    kl=f"{record['val_kl']:.1f}",
                    used=int(record["val_active"]),
                )
                for name, value in record.items():
                    if name.startswith("val_"):
                        writer.add_scalar(name.replace("_", "/", 1), value, int(record["step"]))

            fit.run(on_step, on_record)
    finally:
        writer.close()
    return vae, fit


def run(config: TrainVaeConfig) -> int:
    """Collect frames, train, measure, export and save the bundle; return 0."""
    from vinoreward.bundles.bundle import Bundle
    from vinoreward_training.vae_bundle import make_bundle

    config = resumed(config)
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
        print(
            f"{len(frames.images)} frames of {frames.images.shape[1]}x{frames.images.shape[2]}: "
            + ", ".join(
                f"{len(part)} {name}"
                for name, part in zip(("train", "validation", "test"), parts, strict=True)
            )
            + f"; places known of: {', '.join(frames.places) or 'nothing'}"
        )
        vae, fit = _train(config, frames, parts, folder)
        make_bundle(config, frames, parts, folder, vae, fit.history)
        bundle = Bundle.load(folder / "bundle", verify=False)
        following = (
            to_train(bundle.path, bundle.spec)
            if config.data is None
            else after_bundle(bundle.path, config.data)
        )
        print(f"next: {following}")
    return 0
