"""Trains a classifier of the hover scene further, on the pictures that it gets most wrong.

``python examples/panda_hover/hard_examples.py --weights model.safetensors --out new.safetensors``
goes on in rounds. Each draws scenes as ``vinoreward capture`` does and keeps the failures that the
network finds most successful (Shrivastava et al. 2016, "Training region-based object detectors with
online hard example mining"); later rounds draw places near the worst of the round before, too.
Frames about as far from the object as a success may be, and successes, are added.

``vinoreward finetune --weights new.safetensors`` makes a bundle of the weights. They carry no
record of what they were trained on: hold out a capture with another seed.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from torch import nn
from tqdm import tqdm

from vinoreward.backends.network import IMAGENET_MEAN, IMAGENET_STD
from vinoreward.backends.torch_classifiers import build
from vinoreward.backends.torch_networks import WithPreprocess
from vinoreward.errors import InputError
from vinoreward_envs.arm import gripper_position, hover_home_joints, inverse_kinematics
from vinoreward_envs.auditing import AROUND, HEIGHTS
from vinoreward_envs.camera.fast import FastCamera
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.constants import (
    HOVER_HEIGHT,
    SUCCESS_DISTANCE,
    WORKSPACE_HIGH,
    WORKSPACE_LOW,
)
from vinoreward_envs.scene import object_rest_pose
from vinoreward_training.capture.hover import CATEGORIES, HEIGHT_TOLERANCE, Placement, draw
from vinoreward_training.classifier.dead_camera import of_step
from vinoreward_training.classifier.shifts import in_rooms
from vinoreward_training.classifier.training import (
    ChannelsLast,
    augment,
    loss_of,
    margin_targets,
)

BATCH = 64
DEAD = 4
"""Frames of a failing camera beside them."""
STRENGTH = 0.3
"""Of colour jitter and noise; share of frames as in another room."""
MARGIN = 0.012
"""Metres beside the success distance."""
RIM = 0.01
"""Failures this close (metres) beyond the success distance are not called wrong."""
NEAR = 0.012
"""Standard deviation (metres) of a place near one that was wrong; of the height a little less."""
UNSURE = -4.0
"""Failures with higher log-odds of success are worth a training step."""
FRAMES = 9000
"""Of a round, about; the numbers below are of that many."""
DRAWN = {"height": 1800, "anywhere": 600, "other": 800, "near": 1800}
"""Scenes among which the hard ones are looked for."""
SHOWN = {"rim": 5500, "success": 1800, "near_miss": 700}
"""Scenes that are trained on, hard or not."""
FEWEST, MOST, WORST = 400, 2000, 400
REPLAYED, REMEMBERED = 800, 6000
"""Hard failures of earlier rounds: shown again, and kept."""
MEAN = 0.999
"""Of the weights, over about a thousand steps."""

Draw = Callable[[np.random.Generator], Placement]


@dataclass(frozen=True)
class Frames:
    """Pictures with their truth."""

    images: npt.NDArray[np.uint8]
    """(N, H, W, 3)."""
    labels: npt.NDArray[np.int64]
    """(N,) 1 for success."""
    distances: npt.NDArray[np.float64]
    """(N,) Metres; infinite without an object."""
    places: npt.NDArray[np.float64]
    """(N, 5) Gripper x, y, z and object x, y, in metres."""

    def take(self, chosen: npt.NDArray[np.int64] | slice) -> Frames:
        """Return some of them."""
        return Frames(*(getattr(self, each.name)[chosen] for each in fields(self)))

    @staticmethod
    def join(parts: Sequence[Frames]) -> Frames:
        """Return all of them."""
        names = [each.name for each in fields(Frames)]
        return Frames(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


class Scenes:
    """Draws pictures of the hover scene in batches."""

    def __init__(self) -> None:
        self._camera = FastCamera(CameraSpec())

    def frames(self, kind: Draw, count: int, *seed: int) -> Frames:
        """Return ``count`` frames or, of places that the arm does not reach, fewer."""
        starts = range(0, count, BATCH)
        return Frames.join([self._batch(kind, min(BATCH, count - n), (*seed, n)) for n in starts])

    def _batch(self, kind: Draw, count: int, seed: tuple[int, ...]) -> Frames:
        random = np.random.default_rng(seed)
        placed = [kind(random) for _ in range(count)]
        joints = np.tile(hover_home_joints(), (count, 1))
        reached = np.ones(count, np.bool_)
        for index, place in enumerate(placed):
            if place.gripper is not None:
                try:
                    target = np.array([*place.gripper, place.height])
                    joints[index] = inverse_kinematics(target, joints[index])
                except InputError:
                    reached[index] = False
        shown = np.array([place.object_last is not None for place in placed])
        objects = np.array([place.object_last or (0.0, 0.0) for place in placed])
        poses = np.tile(object_rest_pose((0.0, 0.0)), (count, 1, 1))
        poses[:, :2, 3] = objects
        gripper = gripper_position(joints)
        apart = np.hypot(*(gripper[:, :2] - objects).T)
        distances = np.where(shown, apart, np.inf)
        hovering = np.abs(gripper[:, 2] - HOVER_HEIGHT) <= HEIGHT_TOLERANCE
        labels = ((distances <= SUCCESS_DISTANCE) & hovering).astype(np.int64)
        images = self._camera.render_batch(joints, poses, shown)
        frames = Frames(images, labels, distances, np.hstack([gripper, objects]))
        return frames.take(np.flatnonzero(reached))


def at_the_rim(random: np.random.Generator) -> Placement:
    """Draw a gripper about as far from the object as a success may be."""
    while True:
        obj = draw("success", random).object_last or (0.0, 0.0)
        low, high = SUCCESS_DISTANCE - MARGIN, SUCCESS_DISTANCE + MARGIN
        away, angle = math.sqrt(random.uniform(low**2, high**2)), random.uniform(0, 2 * math.pi)
        place = (obj[0] + away * math.cos(angle), obj[1] + away * math.sin(angle))
        if place == within(place, 0.0):
            return Placement(place, obj, obj)


def raised_anywhere(random: np.random.Generator) -> Placement:
    """Draw a raised gripper and an object, each anywhere; the object outside the workspace too."""
    around = np.array([[0.0], [AROUND]])
    low, high = np.subtract(WORKSPACE_LOW, around), np.add(WORKSPACE_HIGH, around)
    (gx, gy), (ox, oy) = random.uniform(low, high).tolist()
    return Placement((gx, gy), (ox, oy), (ox, oy), random.uniform(*HEIGHTS))


def of_category(category: str) -> Draw:
    """Return what draws scenes of one of a capture's categories."""
    return lambda random: draw(category, random)


def any_other(random: np.random.Generator) -> Placement:
    """Draw a failure of a capture that is neither a near miss nor raised."""
    others = [one for one in CATEGORIES if one not in ("success", "near_miss", "height")]
    return draw(str(random.choice(others)), random)


def near(places: npt.NDArray[np.float64]) -> Draw:
    """Return what draws scenes near some ``places`` (N, 5)."""

    def placement(random: np.random.Generator) -> Placement:
        x, y, z, *obj = places[random.integers(len(places))].tolist()
        gripper = within(random.normal((x, y), NEAR), 0.0)
        shown = within(random.normal(obj, NEAR), AROUND)
        height = HOVER_HEIGHT
        if abs(z - HOVER_HEIGHT) > 2 * HEIGHT_TOLERANCE:
            height = float(np.clip(random.normal(z, HEIGHT_TOLERANCE), *HEIGHTS))
        return Placement(gripper, shown, shown, height)

    return placement


def within(place: npt.ArrayLike, around: float) -> tuple[float, float]:
    """Return the closest place that is at most ``around`` metres outside the workspace."""
    low, high = np.subtract(WORKSPACE_LOW, around), np.add(WORKSPACE_HIGH, around)
    x, y = np.clip(place, low, high).tolist()
    return x, y


@torch.inference_mode()
def log_odds(module: nn.Module, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return the log-odds of success (N,) before calibration."""
    module.eval()
    parts = [module(torch.from_numpy(images[n : n + BATCH])) for n in range(0, len(images), BATCH)]
    both = torch.cat(parts)
    return np.asarray((both[:, 1] - both[:, 0]).numpy())


def hardest(module: nn.Module, found: Frames, size: float) -> Frames:
    """Return the failures that a network finds most successful, the worst last."""
    score = log_odds(module, found.images)
    hovering = np.abs(found.places[:, 2] - HOVER_HEIGHT) <= HEIGHT_TOLERANCE
    close = hovering & (found.distances <= SUCCESS_DISTANCE + RIM)
    score = np.where((found.labels == 1) | close, -np.inf, score)
    count = int(np.clip((score > UNSURE).sum(), FEWEST * size, MOST * size))
    return found.take(np.argsort(score, kind="stable")[-count:])


def main() -> None:
    """Train in rounds; the file is written after each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--weights", type=Path, required=True, help="model.safetensors of a bundle")
    parser.add_argument("--out", type=Path, required=True, help="the new weights, .safetensors")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--frames", type=int, default=FRAMES, help="of a round, about")
    parser.add_argument("--learning-rate", type=float, default=6e-4, help="falls along a cosine")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0 for one per core")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    net = build("squeezenet1_1", 2)
    net.load_state_dict(safetensors.torch.load_file(options.weights))
    module = ChannelsLast(WithPreprocess(net, IMAGENET_MEAN, IMAGENET_STD))
    mean = copy.deepcopy(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=options.learning_rate, weight_decay=1e-4)
    jitter = torch.Generator().manual_seed(options.seed)
    size = options.frames / FRAMES
    scenes, before, step = Scenes(), None, 0
    kinds = {
        "height": of_category("height"),
        "anywhere": raised_anywhere,
        "other": any_other,
        "rim": at_the_rim,
        "success": of_category("success"),
        "near_miss": of_category("near_miss"),
    }
    for number in range(options.rounds):
        if before is not None:
            kinds["near"] = near(before.places[-round(WORST * size) :])

        def frames_of(numbers: Mapping[str, int], seed: tuple[int, int]) -> list[Frames]:
            return [
                scenes.frames(kinds[name], round(count * size), *seed, index)
                for index, (name, count) in enumerate(numbers.items())
                if name in kinds
            ]

        hard = hardest(mean, Frames.join(frames_of(DRAWN, (options.seed, 2 * number))), size)
        shown = frames_of(SHOWN, (options.seed, 2 * number + 1))
        random = np.random.default_rng([options.seed, number, 0x0DE])
        if before is not None:
            again = random.permutation(len(before.labels))[: round(REPLAYED * size)]
            shown.append(before.take(again))
        before = hard if before is None else Frames.join([before, hard])
        before = before.take(slice(-round(REMEMBERED * size), None))
        frames = Frames.join([*shown, hard])
        targets = margin_targets(frames.distances, frames.labels, SUCCESS_DISTANCE)
        failures = np.flatnonzero(frames.labels == 0)
        steps = len(frames.labels) // BATCH
        order = random.permutation(len(frames.labels))
        module.train()
        for part in tqdm(np.array_split(order, steps), desc=f"round {number + 1}", leave=False):
            step += 1
            rate = 0.5 * (1 + math.cos(math.pi * step / (options.rounds * steps)))
            for group in optimizer.param_groups:
                group["lr"] = options.learning_rate * min(1.0, step / 150) * max(rate, 0.003)
            seed = np.random.default_rng([options.seed, step])
            pictures = augment(
                torch.from_numpy(in_rooms(frames.images[part], STRENGTH, seed, ())),
                STRENGTH,
                jitter,
            )
            dead = of_step(step, DEAD, frames.images, failures, seed=options.seed, views=())
            loss = loss_of(
                module(torch.cat([pictures, torch.from_numpy(dead)])),
                torch.from_numpy(np.append(frames.labels[part], np.zeros(DEAD, np.int64))),
                torch.from_numpy(np.append(targets[part], np.full(DEAD, -6.0, np.float32))),
                1.0,
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 5.0)
            optimizer.step()
            share = 1 - min(MEAN, (1 + step) / (10 + step))
            with torch.no_grad():
                for one, other in zip(mean.parameters(), module.parameters(), strict=True):
                    one.lerp_(other, share)
        wrong = int((log_odds(mean, hard.images) > 0).sum())
        print(f"round {number + 1}: {len(hard.labels)} hard failures, {wrong} still claimed")
        weights = {name: one.contiguous() for name, one in mean.inner.net.state_dict().items()}
        safetensors.torch.save_file(weights, options.out)
    print(f"next: vinoreward finetune --data data/hover --weights {options.out} --epochs 1")


if __name__ == "__main__":
    main()
