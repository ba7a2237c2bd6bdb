"""Bench rows about the pictures: the fast camera against TinyRenderer."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.rewards.calibration import clopper_pearson
from vinoreward.rewards.classifier import Classifier
from vinoreward_envs.camera.renderers import make_camera
from vinoreward_envs.scene.hover import HoverScene
from vinoreward_training.bench.network import scene_camera
from vinoreward_training.bench.statistics import Row, interleaved, speed_row
from vinoreward_training.classifier.fresh_scenes import category_of
from vinoreward_training.configs.bench import BenchConfig
from vinoreward_training.data.capture_hover import draw, take

SCENES = (
    "a quarter each success, near miss within 10 cm, far, and object removed or moved after arrival"
)
"""The scenes of :func:`vinoreward_training.classifier.fresh_scenes.category_of`, in words."""


def camera_rows(config: BenchConfig) -> list[Row]:
    """Compare the fast camera with TinyRenderer on random scenes: time, grey levels, decisions.

    TinyRenderer always draws the full meshes. The fast camera draws them at the bundle's level,
    which is what users compare, and once more in full, which is what says whether the two
    renderers agree: the rest of the difference is the simplified arm.
    """
    from tqdm import tqdm

    bundle = Bundle.load(config.bundle)
    spec = scene_camera(bundle)
    with contextlib.ExitStack() as stack:
        scene = HoverScene(camera=spec)
        stack.callback(scene.close)
        cameras = {
            name: stack.enter_context(contextlib.closing(make_camera(which)))
            for name, which in {
                "fast": spec,
                "full": dataclasses.replace(spec, mesh="full"),
                "tiny": dataclasses.replace(spec, renderer="tiny"),
            }.items()
        }
        classifier = stack.enter_context(Classifier(bundle))
        limit = np.float32(classifier.threshold)
        greys: dict[str, list[float]] = {"fast": [], "full": []}
        probabilities: dict[str, list[float]] = {name: [] for name in cameras}
        for index in tqdm(range(config.scenes), desc="camera", unit="scene"):
            category = category_of(index)
            random = np.random.default_rng([config.seed, 2, index])
            take(scene, draw(category, random), category)
            joints, pose = scene.joints, scene.object_pose
            pictures = {name: camera.render(joints, pose) for name, camera in cameras.items()}
            for name, found in greys.items():
                difference = pictures[name].astype(np.int16) - pictures["tiny"]
                found.append(float(np.abs(difference).mean()))
            for name, picture in pictures.items():
                # One by one: the way an environment asks.
                probabilities[name].append(float(classifier.probability(picture[None])[0]))
        joints, pose = scene.joints, scene.object_pose
        times = interleaved(
            {
                "fast": lambda: cameras["fast"].render(joints, pose),
                "full": lambda: cameras["full"].render(joints, pose),
                "tiny": lambda: cameras["tiny"].render(joints, pose),
            },
            rounds=config.rounds,
            calls={"fast": 30, "full": 15, "tiny": 2},
        )
    size = f"{spec.width}x{spec.height}"
    decided = {name: np.array(found, np.float32) >= limit for name, found in probabilities.items()}
    rows = []
    for name in ("fast", "full") if spec.mesh != "full" else ("fast",):
        mesh = spec.mesh if name == "fast" else "full"
        drawn = "full meshes" if mesh == "full" else f"meshes at {mesh} % of the triangles"
        what = f'camera="fast" ({drawn}) against "tiny" at {size}'
        # The targets are those of the setting that users have; the other one explains it.
        goals = name == "fast"
        rows += [
            speed_row(
                "camera",
                f"{what}: time of a picture, tiny over fast",
                times["tiny"],
                times[name],
                at_least=20.0 if goals else None,
            ),
            grey_row(f"{what}: mean absolute difference", greys[name], goals),
            decision_row(f"{what}: equal decisions", decided[name], decided["tiny"], goals),
        ]
    return rows


def grey_row(what: str, differences: list[float], goals: bool) -> Row:
    """Return the row of the mean absolute differences of each scene."""
    mean = float(np.mean(differences))
    return Row(
        "camera",
        what,
        mean,
        "grey levels",
        low=min(differences),
        high=max(differences),
        spread=f"least and greatest of {len(differences)} scenes",
        target="<= 1.0 grey levels" if goals else "",
        met=mean <= 1.0 if goals else None,
    )


def decision_row(
    what: str, first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_], goals: bool
) -> Row:
    """Return the row of the share of equal decisions, with its two-sided interval."""

    equal = first == second
    same, count = int(equal.sum()), len(equal)
    low, high = clopper_pearson(same, count, 0.95)
    return Row(
        "camera",
        what,
        100.0 * same / count,
        "%",
        low=100.0 * low,
        high=100.0 * high,
        spread=f"95 % interval; {same} of {count} scenes",
        target=">= 99.5 %" if goals else "",
        met=same / count >= 0.995 if goals else None,
        note=f"random scenes, {SCENES}" if goals else "",
        details={"different": count - same, "scenes": count},
    )
