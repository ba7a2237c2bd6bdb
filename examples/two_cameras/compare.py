"""Is a classifier of two cameras better than either camera's, where one of them is often hidden?

Run it with ``python examples/two_cameras/compare.py``, or ``--help`` for its options. It captures,
fine-tunes and scores fresh episodes for each choice of cameras, and prints recall at the same
false-positive rate.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
CAMERAS = {"front": ("obs:front",), "top": ("obs:top",), "both": ("obs:front", "obs:top")}
FPR = 0.01
"""False-positive rate, on the fresh images, at which recalls are compared."""


def log_odds(folder: Path, name: str, seed: int, frames: int, epochs: int) -> list[np.ndarray]:
    """Train on one choice of cameras; return log-odds and labels of fresh images."""
    from vinoreward.rewards.classifier import Classifier
    from vinoreward_training.capture import command as capture
    from vinoreward_training.classifier import finetune
    from vinoreward_training.configs import CaptureConfig, FinetuneConfig
    from vinoreward_training.data.dataset import load_dataset

    made = {}
    for part, number in (("train", seed), ("fresh", seed + 10_000)):
        made[part] = CaptureConfig(
            out=folder / f"{name}-{part}",
            env="two_cameras:TwoCameras-v0",
            frames=frames,
            seed=number,
            image_source=CAMERAS[name],
            per_episode=1,
            resume=(folder / f"{name}-{part}").exists(),
        )
        capture.run(made[part])
    config = FinetuneConfig(
        data=made["train"].out,
        out=folder / name,
        epochs=epochs,
        target_fpr=0.05,
        seed=seed,
    )
    finetune.run(config)
    fresh = load_dataset(made["fresh"].out)
    with Classifier(config.out / "bundle", precision="fp32") as classifier:
        batches = np.array_split(fresh.images, max(1, len(fresh.images) // 64))
        return [
            np.concatenate([classifier.predict(batch).log_odds for batch in batches]),
            fresh.labels,
        ]


def recall_at(rate: float, odds: np.ndarray, labels: np.ndarray) -> tuple[int, int, int, int]:
    """Return claimed and all successes, and claimed and all failures, at a false-positive rate."""
    failures, successes = np.sort(odds[labels == 0]), odds[labels == 1]
    allowed = int(rate * len(failures))
    claimed = int((successes > failures[-1 - allowed]).sum())
    return claimed, len(successes), allowed, len(failures)


def main() -> None:
    """Print one line for each choice of cameras."""
    from vinoreward.rewards.calibration import clopper_pearson

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/two-cameras"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--frames", type=int, default=2400, help="images to train on, and fresh")
    parser.add_argument("--epochs", type=int, default=14)
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    for name in CAMERAS:
        counts = np.zeros(4, int)
        for seed in options.seeds:
            with contextlib.redirect_stdout(sys.stderr):
                scored = log_odds(
                    options.out / str(seed), name, seed, options.frames, options.epochs
                )
            counts += recall_at(FPR, *scored)
        low, high = clopper_pearson(int(counts[0]), int(counts[1]))
        print(
            f"{name:6} recall {counts[0] / counts[1]:.1%} ({low:.1%} to {high:.1%}), "
            f"{counts[0]} of {counts[1]}; false positives {counts[2]} of {counts[3]}",
            flush=True,
        )


if __name__ == "__main__":
    main()
