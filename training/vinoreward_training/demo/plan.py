"""What a demo will do: its settings made definite, checked before any work is done."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, ModelNotFoundError, RunFolderError
from vinoreward.rewards.calibration import negatives_needed
from vinoreward_training.data.dataset import HELD_OUT_SHARES

if TYPE_CHECKING:
    from vinoreward_training.configs.demo import DemoConfig

SHIPPED = "panda-hover-classifier"
"""Name of the bundle that comes with the package."""
CAPTURE_SEED = 710_000
"""Added to the seed of the capture: the shipped bundle was trained on captures of small seeds,
and what it was trained on could not tell whether it is good."""
FAILURE_SHARE = 2 / 3
"""Share of failures in a capture."""
QUANTIZE_NEEDS = 200
"""Held-out frames below which ``vinoreward quantize`` refuses to compare decisions."""
SPARE = 1.2
"""So many more than are needed on average: the split goes by a hash, and parts differ in size."""


@dataclass(frozen=True)
class Plan:
    """A demo with nothing left open.

    Attributes:
        config: as it was asked for.
        frames: to capture.
        epochs: of the classifier.
        learning_rate: of the classifier, the highest.
        weights: file it starts from, None for random weights.
        architecture: of the classifier.
        start: what it starts from, in words.
        settings: what must be the same when the demo is continued.
    """

    config: DemoConfig
    frames: int
    epochs: int
    learning_rate: float
    weights: Path | None
    architecture: str
    start: str
    settings: dict[str, Any]


def make_plan(config: DemoConfig) -> Plan:
    """Settle and check a demo's settings.

    Raises:
        ConfigError: settings that cannot work, too few frames for the target among them.
        ModelNotFoundError: the weights are not there.
    """
    if config.from_scratch and config.weights is not None:
        raise ConfigError(
            f"found --from-scratch and --weights {config.weights}. Expected one of them; leave out "
            "the other."
        )
    weights, architecture, start = _start(config)
    frames = config.frames or (24_000 if config.from_scratch else 5000)
    epochs = config.epochs or (8 if config.from_scratch else 2)
    _check(config, frames, epochs)
    sha256 = None if weights is None else hashlib.sha256(weights.read_bytes()).hexdigest()
    return Plan(
        config=config,
        frames=frames,
        epochs=epochs,
        # What is nearly right already is only nudged: a high rate would first undo it.
        learning_rate=1.5e-3 if config.from_scratch else 1e-4,
        weights=weights,
        architecture=architecture,
        start=start,
        settings={
            "seed": config.seed,
            "frames": frames,
            "epochs": epochs,
            "weights_sha256": sha256,
            "target_fpr": config.target_fpr,
            "scenes": config.scenes,
            "env": config.env,
            "timesteps": config.timesteps,
            "episodes": config.episodes,
        },
    )


def _start(config: DemoConfig) -> tuple[Path | None, str, str]:
    """Return (weights, architecture, what that is in words)."""

    if config.from_scratch:
        return None, "squeezenet1_1", "random weights (--from-scratch)"
    if config.weights is not None:
        if not config.weights.is_file():
            raise ModelNotFoundError(
                f"there are no weights at {config.weights}. Expected a .safetensors file; correct "
                "--weights or leave it out to start from the shipped bundle."
            )
        return config.weights, "squeezenet1_1", f"the weights in {config.weights}"
    shipped = Bundle.load(SHIPPED)
    path, architecture = shipped.path / "model.safetensors", shipped.spec.architecture
    if not path.is_file() or architecture is None:
        raise ModelNotFoundError(
            f"the shipped bundle {shipped.path} holds no weights to start from. Expected "
            "model.safetensors; install vinoreward again, or add --from-scratch."
        )
    return path, architecture, f"the weights of the shipped bundle {SHIPPED}"


def _check(config: DemoConfig, frames: int, epochs: int) -> None:

    small = {"epochs": epochs, "episodes": config.episodes, "scenes": config.scenes // 8}
    for name, value in small.items():
        if value < 1:
            raise ConfigError(
                f"found --{name} {getattr(config, name)}. Expected at least "
                f"{8 if name == 'scenes' else 1}; ask for more."
            )
    if config.seed < 0:
        raise ConfigError(f"found --seed {config.seed}. Expected 0 or more; choose another.")
    validation, test = HELD_OUT_SHARES
    failures = int(frames * validation * FAILURE_SHARE)
    # Twice as many: an episode may be a mistake, and the split is random.
    needed = 2 * negatives_needed(config.target_fpr)
    least = max(needed / validation / FAILURE_SHARE, SPARE * QUANTIZE_NEEDS / (validation + test))
    if frames < least:
        raise ConfigError(
            f"{frames} frames leave about {failures} failures to choose the threshold by. Expected "
            f"about {needed} for a false-positive rate of {config.target_fpr:g}: ask for --frames "
            f"{int(least) + 1} or more, or accept a higher --target-fpr."
        )


def check_same(folder: Path, plan: Plan) -> None:
    """Refuse to continue a demo with other settings than it was begun with.

    Raises:
        ConfigError: they differ; the folder is left as it is.
        RunFolderError: what was recorded cannot be read.
    """
    for stamp in sorted((folder / "stages").glob("*.json")):
        try:
            before = dict(json.loads(stamp.read_text(encoding="utf-8"))["settings"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError(
                f"{stamp} cannot be read ({error}). Expected what the demo writes; remove it "
                "to run that stage again."
            ) from error
        names = [
            name
            for name in {**before, **plan.settings}
            if before.get(name) != plan.settings.get(name)
        ]
        if names:
            there = ", ".join(f"{name} {before.get(name)}" for name in names)
            asked = ", ".join(f"{name} {plan.settings.get(name)}" for name in names)
            raise ConfigError(
                f"{folder} holds a demo with {there}; now asked for {asked}. Expected the same "
                "when continuing; choose another folder with --out."
            )
