"""Labels in the order of ``vinoreward label`` against random ones.

The shipped classifier meets a camera that mistakes red for blue, in play where successes are rare.
It is mended with labels of such images; recall is measured on fresh ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness import TRAININGS, Benchmark, Row, Value
from scenes import BUNDLE, Images
from trainings import fresh
from vinoreward.bundles.bundle import Bundle
from vinoreward.rewards.classifier import Classifier
from vinoreward_envs import constants as c
from vinoreward_envs.scene import HoverScene
from vinoreward_training.capture.command import run as capture
from vinoreward_training.capture.hover import fresh_scenes
from vinoreward_training.configs import CaptureConfig, MendConfig
from vinoreward_training.data.dataset import Dataset, load_labelled
from vinoreward_training.labelling.order import Opinion, most_useful_first
from vinoreward_training.labelling.sources import Source
from vinoreward_training.mending.labelled import Labelled
from vinoreward_training.mending.refit import Recipe, refit

POOL = 3000
"""Images that nobody has labelled."""
NEAR = 0.15
"""Metres between gripper and object in them, at most: random play near its goal."""
ROUND = 60
"""Labels between two trainings."""
ROUNDS = 2
RANDOM = (120, 240, 480)
"""Random labels in one training each."""
OLD = 3000
"""Images of the old camera, which are replayed."""
FRESH = 4000
EPOCHS = 4
"""Of each training. Another camera asks for more than what ``vinoreward mend`` does by default."""
LEARNING_RATE = 5e-4
SHARE = 0.4
"""Of the labels, in each order the same."""
FALSE_RATE = 0.01
ROWS = {
    "label order": Row("red for blue, successes rare: recall, labels in the page's order"),
    "label order random": Row("… recall, random labels"),
    "label order share": Row("… labels for the same recall, of the random ones", "≤0.5×"),
}

Labels = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Task:
    """Images of the new camera, and the old data."""

    pool: Images
    truth: Labels
    test: Images
    test_truth: Labels
    old: Dataset
    folder: Path
    seed: int


def measure(options: Any) -> Iterator[tuple[str, Value]]:
    """Count the random labels that reach the recall of fewer labels in the page's order."""
    useful, drawn, shares = [], [], []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        task = _task(fresh(f"label-order-{seed}"), seed)
        start = Bundle.load(BUNDLE)
        bundle, known = start, np.zeros(0, np.int64)
        for _ in range(ROUNDS):
            known = np.concatenate([known, _next(bundle, task, known)])
            bundle = _refitted(start, task, known, "useful")
        useful.append(_recall(bundle, task))
        order = np.random.default_rng([seed, 0xD3A3]).permutation(len(task.pool))
        recalls = {
            count: _recall(_refitted(start, task, order[:count], "random"), task)
            for count in RANDOM
        }
        drawn.append(recalls[RANDOM[-1]])
        enough = [count for count, recall in recalls.items() if recall >= useful[-1]]
        shares.append(len(known) / (enough[0] if enough else RANDOM[-1]))
        before = _recall(start, task)
        print(f"  seed {seed}: {before:.1%} before, {useful[-1]:.1%}, at random {recalls}")
        shutil.rmtree(task.folder)
    labels = ROUNDS * ROUND
    shown = ", ".join(f"{100 * recall:.0f}" for recall in useful)
    yield "label order", Value(f"{shown} % after {labels} labels", min(useful))
    shown = ", ".join(f"{100 * recall:.0f}" for recall in drawn)
    yield "label order random", Value(f"{shown} % after {RANDOM[-1]} labels", min(drawn))
    yield "label order share", Value(f"≤{max(shares):.2g}×", max(shares))


def _task(folder: Path, seed: int) -> Task:
    capture(CaptureConfig(frames=OLD, seed=seed, out=folder / "old"))
    image = Bundle.load("panda-hover-classifier").spec.image
    pool, truth = _play(POOL, seed)
    test, test_truth, _ = fresh_scenes(FRESH, seed)
    return Task(
        _swapped(pool), truth, _swapped(test), test_truth,
        load_labelled(folder / "old", image, "success"), folder, seed,
    )  # fmt: skip


def _swapped(images: Images) -> Images:
    return np.ascontiguousarray(images[..., ::-1])


def _play(count: int, seed: int) -> tuple[Images, Labels]:
    """Draw hands around objects, as a policy meets them that does not know its goal yet."""
    random = np.random.default_rng([seed, 0x9001])
    images: list[Images] = []
    truth: list[int] = []
    with contextlib.closing(HoverScene()) as scene:
        while len(images) < count:
            gripper = random.uniform(c.WORKSPACE_LOW, c.WORKSPACE_HIGH)
            place = gripper + random.uniform(-NEAR, NEAR, 2)
            if (place < c.WORKSPACE_LOW).any() or (place > c.WORKSPACE_HIGH).any():
                continue
            scene.place_object((float(place[0]), float(place[1])))
            scene.home()
            scene.move_gripper((float(gripper[0]), float(gripper[1])))
            images.append(scene.render().copy())
            truth.append(int(scene.distance() <= c.SUCCESS_DISTANCE))
    return np.stack(images), np.array(truth)


def _log_odds(bundle: Bundle, images: Images) -> npt.NDArray[np.float64]:
    with contextlib.closing(Classifier(bundle, precision="fp32", guarded=False)) as classifier:
        parts = [
            classifier.predict(images[at : at + 64]).log_odds for at in range(0, len(images), 64)
        ]
    return np.concatenate(parts).astype(np.float64)


def _next(bundle: Bundle, task: Task, known: Labels) -> Labels:
    """Return the next images that the page would show, as indices of the pool."""
    left = np.setdiff1d(np.arange(len(task.pool)), known)
    nothing = np.full(len(left), np.nan)
    with contextlib.closing(Classifier(bundle, precision="fp32")) as classifier:
        boundary = float(np.log(classifier.threshold) - np.log1p(-classifier.threshold))
    opinion = Opinion(_log_odds(bundle, task.pool[left]), nothing, nothing, boundary)
    source = Source(folder=task.folder, names=[f"{index}.png" for index in left])
    return left[most_useful_first(source, opinion, [], "truth", task.seed)[:ROUND]]


def _refitted(start: Bundle, task: Task, known: Sequence[int] | Labels, name: str) -> Bundle:
    """Mend the first bundle with the labels of some images."""
    chosen = np.asarray(known, np.int64)
    labelled = Labelled(
        task.pool[chosen], task.truth[chosen], np.ones(len(chosen), np.bool_), "by the truth"
    )
    out = task.folder / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    config = MendConfig(
        bundle=str(start.path),
        data=task.folder / "old",
        out=out,
        seed=task.seed,
    )
    recipe = Recipe(share=SHARE, epochs=EPOCHS, learning_rate=LEARNING_RATE)
    return refit(config, start, task.old, labelled, out, recipe=recipe)


def _recall(bundle: Bundle, task: Task) -> float:
    """Return the recall on fresh images at the false-positive rate ``FALSE_RATE``."""
    scores = _log_odds(bundle, task.test)
    failures = np.sort(scores[task.test_truth == 0])[::-1]
    limit = failures[int(FALSE_RATE * len(failures))]
    return float((scores[task.test_truth == 1] > limit).mean())


BENCH = Benchmark("Audits and labels", ROWS, measure, seeds=3, first_seed=TRAININGS)

if __name__ == "__main__":
    sys.exit(BENCH.main())
