"""A row of ``vinoreward bench``: labels in the order of ``vinoreward label`` against random ones.

The shipped classifier meets a camera that mistakes red for blue, in play where successes are rare.
It is mended with labels of such images; recall is measured on fresh ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.rewards.classifier import Classifier
from vinoreward_envs import constants as c
from vinoreward_envs.scene import HoverScene
from vinoreward_training.bench.rows import Row
from vinoreward_training.capture.command import run as capture
from vinoreward_training.capture.hover import fresh_scenes
from vinoreward_training.configs import BenchConfig, CaptureConfig, MendConfig
from vinoreward_training.data.dataset import Dataset, load_labelled
from vinoreward_training.labelling.order import Opinion, most_useful_first
from vinoreward_training.labelling.sources import Source
from vinoreward_training.mending.labelled import Labelled
from vinoreward_training.mending.refit import refit

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

Images = npt.NDArray[np.uint8]
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


def label_order_rows(config: BenchConfig) -> list[Row]:
    """Count the random labels that reach the recall of fewer labels in the page's order."""
    rows = []
    for seed in range(config.first_seed, config.first_seed + config.seeds):
        task = _task(config.out / "label-order" / str(seed), seed)
        start = Bundle.load(config.bundle)
        useful, known = start, np.zeros(0, np.int64)
        for _ in range(ROUNDS):
            known = np.concatenate([known, _next(useful, task, known)])
            useful = _refitted(start, task, known, "useful")
        best = _recall(useful, task)
        said = [f"{len(known)} in the page's order: {best:.1%}"]
        drawn = np.random.default_rng([seed, 0xD3A3]).permutation(len(task.pool))
        needed = None
        for count in RANDOM:
            recall = _recall(_refitted(start, task, drawn[:count], "random"), task)
            said.append(f"{count} at random: {recall:.1%}")
            if needed is None and recall >= best:
                needed = count
        print(f"  seed {seed}: {_recall(start, task):.1%} before; {'; '.join(said)}", flush=True)
        share = len(known) / (needed or RANDOM[-1])
        rows.append((share, needed, "; ".join(said)))
        shutil.rmtree(task.folder)
    worst = max(share for share, _, _ in rows)
    return [
        Row(
            "label-order",
            "labels in the page's order, of the random ones that give the same recall at 1 % false "
            f"positives, worst of {config.seeds} seeds",
            worst,
            "x",
            target="<= 0.5 x",
            note=" | ".join(note for _, _, note in rows),
            details={"random labels needed": [needed for _, needed, _ in rows]},
        )
    ]


def _task(folder: Path, seed: int) -> Task:
    shutil.rmtree(folder, ignore_errors=True)
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
        parts = [classifier.log_odds(images[at : at + 64]) for at in range(0, len(images), 64)]
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
        labels=(),
        share=SHARE,
        epochs=EPOCHS,
        learning_rate=LEARNING_RATE,
        out=out,
        seed=task.seed,
    )
    return refit(config, start, task.old, labelled, out)


def _recall(bundle: Bundle, task: Task) -> float:
    """Return the recall on fresh images at the false-positive rate ``FALSE_RATE``."""
    scores = _log_odds(bundle, task.test)
    failures = np.sort(scores[task.test_truth == 0])[::-1]
    limit = failures[int(FALSE_RATE * len(failures))]
    return float((scores[task.test_truth == 1] > limit).mean())
