"""Bench rows about the pictures: the fast camera, and the classifier on fresh scenes."""

from __future__ import annotations

import numpy as np

from vinoreward_training.bench_network import scene_camera
from vinoreward_training.bench_settings import BenchConfig
from vinoreward_training.bench_statistics import Row, interleaved, speed_row


def camera_rows(config: BenchConfig) -> list[Row]:
    """Compare the fast camera with TinyRenderer on random scenes: time, grey levels, decisions."""
    from tqdm import tqdm

    from vinoreward.bundles.bundle import Bundle
    from vinoreward.rewards.classifier import Classifier
    from vinoreward_envs.camera import make_camera
    from vinoreward_envs.scene import HoverScene
    from vinoreward_training.capture_hover import category_of, draw, take

    bundle = Bundle.load(config.bundle)
    spec = scene_camera(bundle)
    fast, tiny = make_camera(spec), make_camera(scene_camera(bundle, "tiny"))
    scene = HoverScene(camera=spec)
    differences, ours, theirs = [], [], []
    try:
        for index in tqdm(range(config.scenes), desc="camera", unit="scene"):
            random = np.random.default_rng([config.seed, 2, index])
            category = category_of(index)
            take(scene, draw(category, random), category)
            joints, pose = scene.joints, scene.object_pose
            first, second = fast.render(joints, pose), tiny.render(joints, pose)
            differences.append(float(np.abs(first.astype(np.int16) - second).mean()))
            ours.append(first)
            theirs.append(second)
        with Classifier(bundle) as classifier:
            limit = np.float32(classifier.threshold)
            equal = (classifier.probability(np.stack(ours)) >= limit) == (
                classifier.probability(np.stack(theirs)) >= limit
            )
        joints, pose = scene.joints, scene.object_pose
        times = interleaved(
            {
                "fast": lambda: fast.render(joints, pose),
                "tiny": lambda: tiny.render(joints, pose),
            },
            rounds=config.rounds,
            calls={"fast": 30, "tiny": 2},
        )
    finally:
        scene.close()
        fast.close()
        tiny.close()
    size = f"{spec.width}x{spec.height}"
    mean = float(np.mean(differences))
    return [
        speed_row(
            "camera",
            f'camera="fast" (mesh {spec.mesh}) against "tiny" at {size}',
            times["tiny"],
            times["fast"],
            at_least=20.0,
        ),
        Row(
            "camera",
            f"mean absolute difference, {config.scenes} random scenes",
            mean,
            "grey levels",
            low=min(differences),
            high=max(differences),
            spread="least and greatest of a scene",
            target="<= 1.0",
            met=mean <= 1.0,
        ),
        Row(
            "camera",
            f"equal decisions, {config.scenes} random scenes",
            100.0 * float(equal.mean()),
            "%",
            target=">= 99.5 %",
            met=float(equal.mean()) >= 0.995,
            details={"different": int((~equal).sum()), "scenes": len(equal)},
        ),
    ]
