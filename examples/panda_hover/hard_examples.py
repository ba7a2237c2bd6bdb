"""Trains a classifier of the hover scene further, on the images that it gets most wrong.

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
from vinoreward.backends.torch_networks import WithPreprocess
from vinoreward.errors import InputError, VinorewardError
from vinoreward.files import write_bytes
from vinoreward_envs.arm import inverse_kinematics
from vinoreward_envs.auditing import AROUND, HEIGHTS
from vinoreward_envs.camera.fast import FastCamera
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.constants import (
    HOVER_HEIGHT,
    HOVER_JOINTS,
    HOVER_START,
    SUCCESS_DISTANCE,
    WORKSPACE_HIGH,
    WORKSPACE_LOW,
)
from vinoreward_envs.objects import object_rest_pose
from vinoreward_training.capture.hover import CATEGORIES, HEIGHT_TOLERANCE, Placement, draw, raised
from vinoreward_training.classifier.camera_failure import step_frames
from vinoreward_training.classifier.corruptions import randomly_corrupted
from vinoreward_training.classifier.networks import build_for
from vinoreward_training.classifier.training import (
    MARGIN_LIMIT,
    WEIGHT_DECAY,
    ChannelsLast,
    ClassifierFit,
    augment,
    loss_of,
    margin_targets,
)
from vinoreward_training.configs import FinetuneConfig
from vinoreward_training.runs.machine import freed_memory_kept

BATCH = 64
DEAD = 4
"""Frames of a failing camera beside them."""
STRENGTH = 0.3
"""Of colour jitter and noise; share of frames as in another room."""
MARGIN = 0.012
"""Metres beside the success distance."""
EDGE, BEYOND = 0.06, 0.02
"""Width (metres) of the workspace's edge, and how much of it is outside."""
RIM = 0.01
"""Failures this close (metres) beyond the success distance are not called wrong."""
NEAR = 0.012
"""Standard deviation (metres) of a place near one that was wrong; of the height a little less."""
UNSURE = -4.0
"""Failures with higher log-odds of success are worth a training step."""
FRAMES = 9000
"""Of a round, about; the numbers below are of that many."""
DRAWN = {"height": 1800, "edge": 1200, "anywhere": 600, "other": 800, "near": 1800}
"""Scenes among which the hard ones are looked for."""
SHOWN = {"rim": 5500, "success": 1800, "near_miss": 700}
"""Scenes that are trained on, hard or not."""
FEWEST, MOST, WORST = 400, 2000, 400
REPLAYED, REMEMBERED = 800, 6000
"""Hard failures of earlier rounds: shown again, and kept."""
MEAN = 0.999
"""Of the weights, over about a thousand steps."""
WARM_UP = 150
"""Steps until the learning rate is at its highest."""

Draw = Callable[[np.random.Generator], Placement]


@dataclass(frozen=True)
class Frames:
    """Images with their truth."""

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
    """Draws images of the hover scene in batches."""

    def __init__(self) -> None:
        self._camera = FastCamera(CameraSpec(), capacity=BATCH)

    def frames(self, kind: Draw, count: int, *seed: int) -> Frames:
        """Return ``count`` frames or, of places that the arm does not reach, fewer."""
        starts = range(0, count, BATCH)
        return Frames.join([self._batch(kind, min(BATCH, count - n), (*seed, n)) for n in starts])

    def _batch(self, kind: Draw, count: int, seed: tuple[int, ...]) -> Frames:
        random = np.random.default_rng(seed)
        placed = [kind(random) for _ in range(count)]
        joints, reached = reaching(placed)
        shown = np.array([place.object_last is not None for place in placed])
        objects = np.array([place.object_last or (0.0, 0.0) for place in placed])
        poses = np.tile(object_rest_pose((0.0, 0.0)), (count, 1, 1))
        poses[:, :2, 3] = objects
        home = (*HOVER_START, HOVER_HEIGHT)
        targets = [(*each.gripper, each.height) if each.gripper else home for each in placed]
        gripper = np.array(targets)
        apart = np.hypot(*(gripper[:, :2] - objects).T)
        distances = np.where(shown, apart, np.inf)
        hovering = np.abs(gripper[:, 2] - HOVER_HEIGHT) <= HEIGHT_TOLERANCE
        labels = ((distances <= SUCCESS_DISTANCE) & hovering).astype(np.int64)
        images = self._camera.render_batch(joints, poses, shown)
        frames = Frames(images, labels, distances, np.hstack([gripper, objects]))
        return frames.take(np.flatnonzero(reached))


def reaching(
    placed: Sequence[Placement],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return the joints (N, 7) of each placement, and whether (N,) the arm reaches it."""
    joints = np.tile(HOVER_JOINTS, (len(placed), 1))
    reached = np.ones(len(placed), np.bool_)
    moved = [index for index, place in enumerate(placed) if place.gripper is not None]
    targets = [(*(placed[index].gripper or ()), placed[index].height) for index in moved]
    try:
        joints[moved] = inverse_kinematics(np.array(targets).reshape(-1, 3), joints[moved])
    except InputError:  # it does not say which are out of reach
        for index, target in zip(moved, targets, strict=True):
            try:
                joints[index] = inverse_kinematics(np.array(target), joints[index])
            except InputError:
                reached[index] = False
    return joints, reached


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


def raised_at_the_edge(random: np.random.Generator) -> Placement:
    """Draw a raised gripper that looks as if it hovered, and an object at the workspace's edge."""

    def at_the_edge(random: np.random.Generator) -> tuple[float, float]:
        low, high = np.subtract(WORKSPACE_LOW, BEYOND), np.add(WORKSPACE_HIGH, BEYOND)
        while True:
            place = random.uniform(low, high)
            if np.minimum(place - low, high - place).min() < EDGE:
                return float(place[0]), float(place[1])

    return raised(random, at_the_edge)


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


KINDS: dict[str, Draw] = {
    "height": of_category("height"),
    "edge": raised_at_the_edge,
    "anywhere": raised_anywhere,
    "other": any_other,
    "rim": at_the_rim,
    "success": of_category("success"),
    "near_miss": of_category("near_miss"),
}
"""What draws each kind of scene; places near the worst come with the second round."""


@torch.inference_mode()
def log_odds(module: nn.Module, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return the log-odds of success (N,) before calibration."""
    module.eval()
    parts = [module(torch.from_numpy(images[n : n + BATCH])) for n in range(0, len(images), BATCH)]
    both = torch.cat(parts)
    return np.asarray((both[:, 1] - both[:, 0]).numpy())


def hardest(module: nn.Module, found: Frames, size: float) -> Frames:
    """Return the failures that a network finds most successful, the worst last."""
    hovering = np.abs(found.places[:, 2] - HOVER_HEIGHT) <= HEIGHT_TOLERANCE
    close = hovering & (found.distances <= SUCCESS_DISTANCE + RIM)
    failed = found.take(np.flatnonzero((found.labels == 0) & ~close))
    score = log_odds(module, failed.images)
    count = int(np.clip((score > UNSURE).sum(), FEWEST * size, MOST * size))
    return failed.take(np.argsort(score, kind="stable")[-count:])


class Rounds:
    """Draws the frames of each round; remembers the hard ones.

    ``size`` is a round's, in shares of ``FRAMES``.
    """

    def __init__(self, seed: int, size: float) -> None:
        self._seed, self._size, self._scenes = seed, size, Scenes()
        self._before: Frames | None = None

    def frames(self, number: int, module: nn.Module) -> tuple[Frames, Frames]:
        """Return what round ``number`` trains on, and those that are hard for ``module``."""
        kinds = dict(KINDS)
        if self._before is not None:
            kinds["near"] = near(self._before.places[-math.ceil(WORST * self._size) :])
        hard = hardest(module, Frames.join(self._drawn(kinds, DRAWN, 2 * number)), self._size)
        shown = self._drawn(kinds, SHOWN, 2 * number + 1)
        if self._before is not None:
            random = np.random.default_rng([self._seed, number, 0x0DE])
            again = random.permutation(len(self._before.labels))
            shown.append(self._before.take(again[: round(REPLAYED * self._size)]))
        before = hard if self._before is None else Frames.join([self._before, hard])
        self._before = before.take(slice(-math.ceil(REMEMBERED * self._size), None))
        return Frames.join([*shown, hard]), hard

    def _drawn(
        self, kinds: Mapping[str, Draw], counts: Mapping[str, int], part: int
    ) -> list[Frames]:
        return [
            self._scenes.frames(kinds[name], math.ceil(count * self._size), self._seed, part, index)
            for index, (name, count) in enumerate(counts.items())
            if name in kinds
        ]


class Training:
    """Trains a network and the running mean of its weights."""

    def __init__(self, net: nn.Module, learning_rate: float, seed: int) -> None:
        self.module = ChannelsLast(WithPreprocess(net, IMAGENET_MEAN, IMAGENET_STD))
        self.mean = copy.deepcopy(self.module)
        self._learning_rate, self._seed, self._step = learning_rate, seed, 0
        self._optimizer = torch.optim.AdamW(
            self.module.parameters(), lr=learning_rate, weight_decay=WEIGHT_DECAY
        )
        self._jitter = torch.Generator().manual_seed(seed)

    def learn(self, frames: Frames, number: int, rounds: int) -> None:
        """Go over some frames once, as round ``number``."""
        targets = margin_targets(frames.distances, frames.labels, SUCCESS_DISTANCE)
        order = np.random.default_rng([self._seed, number]).permutation(len(frames.labels))
        parts = np.array_split(order, math.ceil(len(order) / BATCH))
        self.module.train()
        for done, part in enumerate(tqdm(parts, desc=f"round {number + 1}", leave=False)):
            share = (number + done / len(parts)) / rounds
            self._optimize(self._loss(frames, targets, part), share)

    def _loss(
        self, frames: Frames, targets: npt.NDArray[np.float32], part: npt.NDArray[np.int64]
    ) -> torch.Tensor:
        random = np.random.default_rng([self._seed, self._step, 1])
        rooms = torch.from_numpy(randomly_corrupted(frames.images[part], STRENGTH, random, ()))
        failures = np.flatnonzero(frames.labels == 0)
        dead = step_frames(self._step, DEAD, frames.images, failures, seed=self._seed)
        labels = np.append(frames.labels[part], np.zeros(DEAD, np.int64))
        wanted = np.append(targets[part], np.full(DEAD, -MARGIN_LIMIT, np.float32))
        shown = torch.cat([augment(rooms, STRENGTH, self._jitter), torch.from_numpy(dead)])
        return loss_of(self.module(shown), torch.from_numpy(labels), torch.from_numpy(wanted), 1.0)

    def _optimize(self, loss: torch.Tensor, share: float) -> None:
        """Take a step; ``share`` of all are done."""
        self._step += 1
        rate = min(1.0, self._step / WARM_UP) * 0.5 * (1 + math.cos(math.pi * share))
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate * rate
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.module.parameters(), ClassifierFit.CLIP)
        self._optimizer.step()
        moved = 1 - min(MEAN, (1 + self._step) / (10 + self._step))
        with torch.no_grad():
            for one, other in zip(self.mean.parameters(), self.module.parameters(), strict=True):
                one.lerp_(other, moved)

    def to_bytes(self) -> bytes:
        """Return the mean weights as a ``.safetensors`` file."""
        weights = self.mean.inner.net.state_dict()
        return bytes(safetensors.torch.save({k: one.contiguous() for k, one in weights.items()}))


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
    if options.rounds < 1 or options.frames < BATCH or options.seed < 0 or options.threads < 0:
        parser.error(
            f"found --rounds {options.rounds}, --frames {options.frames}, --seed {options.seed} "
            f"and --threads {options.threads}. Expected at least 1, {BATCH}, 0 and 0"
        )
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    camera = CameraSpec()
    try:
        config = FinetuneConfig(weights=options.weights)
        net = build_for(config, camera.height, camera.width)
    except VinorewardError as error:
        parser.error(str(error))
    training = Training(net, options.learning_rate, options.seed)
    drawing = Rounds(options.seed, options.frames / FRAMES)
    for number in range(options.rounds):
        frames, hard = drawing.frames(number, training.mean)
        with freed_memory_kept():
            training.learn(frames, number, options.rounds)
        write_bytes(options.out, training.to_bytes())
        wrong = int((log_odds(training.mean, hard.images) > 0).sum())
        print(f"round {number + 1}: {len(hard.labels)} hard failures, {wrong} still claimed")
    print(f"next: vinoreward finetune --data data/hover --weights {options.out} --epochs 1")


if __name__ == "__main__":
    main()
