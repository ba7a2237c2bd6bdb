"""Hundreds and thousands of hover environments in one batch, on processors."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from harness import SCENES, Benchmark, Row, Timing, Value, interleaved, median, one_thread, times
from scenes import BUNDLE, placed, shipped
from vinoreward.rewards.classifier import Classifier
from vinoreward_envs.arm import inverse_kinematics
from vinoreward_envs.camera.fast import FastCamera
from vinoreward_envs.constants import MAX_MOVE
from vinoreward_envs.making import spec_of
from vinoreward_envs.objects import object_rest_pose
from vinoreward_envs.scenes import CHUNK
from vinoreward_training.profile import Stepper

ENV = "PandaHoverRandom-v0"
STATES = (16, 256, 4096)
"""Environments in a batch without images."""
LEARNED = (16, 256, 1024)
"""Environments in a batch with the learned reward."""
MIDDLE = LEARNED[1]
ROWS = {
    "batch states": Row("steps a second, 4,096 environments, states only, one core", "≥100,000"),
    "batch learned": Row("steps a second, 256 environments, learned reward, all cores", "≥2,000"),
    "batch raster": Row("… rasteriser, processor time per image"),
    "batch classifier": Row("… classifier with guard, processor time per image"),
    "batch step": Row("… all of a step, processor time"),
    "batch lab": Row("… a step whose episodes all look otherwise over one without", "≤1.1×"),
    "batch scalar states": Row("a scalar step over one in the batch: states only, 4,096"),
    "batch scalar learned": Row("… learned reward, 256"),
    **{f"batch states {n}": Row(f"processor time of a step, states only, {n:,}") for n in STATES},
    **{f"batch learned {n}": Row(f"processor time of a step, learned, {n:,}") for n in LEARNED},
}


class BatchStepper:
    """Steps a batch of environments with random actions; they reset themselves."""

    def __init__(self, count: int, seed: int, **arguments: Any) -> None:
        self.env = gym.make_vec(ENV, count, vectorization_mode="vector_entry_point", **arguments)
        draw = np.random.default_rng(seed)
        moves = draw.uniform(-MAX_MOVE, MAX_MOVE, (20, count, 2)).astype(np.float32)
        # Drawing actions is the learner's work, so it is done before.
        self._moves = itertools.cycle(moves)
        self.env.reset(seed=seed)
        # Otherwise all would be truncated in the same step, and reset in a batch of all.
        for mask in np.arange(count) % 10 == np.arange(10)[:, None]:
            if mask.any():
                self.env.reset(options={"reset_mask": mask})
            self()

    def __call__(self) -> None:
        """Take one step in each environment."""
        self.env.step(next(self._moves))


def measure(options: Any) -> Iterator[tuple[str, Value]]:
    """Time all in turns."""
    one_thread()

    def size(count: int) -> int:
        return min(count, int(options.most))

    judged = {"backend": "openvino", "bundle": BUNDLE}
    with contextlib.ExitStack() as stack:

        def batch(count: int, **arguments: Any) -> BatchStepper:
            stepper = BatchStepper(size(count), options.seed, **arguments)
            stack.callback(stepper.env.close)
            return stepper

        def scalar(**arguments: Any) -> Stepper:
            env = gym.make(ENV, **arguments)
            return Stepper(stack.enter_context(contextlib.closing(env)))

        candidates: dict[str, Callable[[], object]] = {
            "scalar states": scalar(backend="oracle"),
            "scalar learned": scalar(**judged),
            **{f"states {n}": batch(n, backend="oracle") for n in STATES},
            **{f"learned {n}": batch(n, **judged) for n in LEARNED},
            "lab": batch(MIDDLE, **judged, randomization="lab"),
            **_parts(stack, size(MIDDLE), options.seed),
        }
        calls = {"scalar states": 20, "scalar learned": 20}
        calls |= {f"states {n}": 2 * STATES[-1] // n for n in STATES}
        taken = interleaved(candidates, rounds=options.rounds, calls=calls)
    step = {f"states {n}": taken[f"states {n}"] / size(n) for n in STATES}
    step |= {f"learned {n}": taken[f"learned {n}"] / size(n) for n in LEARNED}
    states, whole = step[f"states {STATES[-1]}"], step[f"learned {MIDDLE}"]
    yield "batch states", _rate(states)
    yield "batch learned", _rate(whole)
    for part in ("raster", "classifier"):
        yield f"batch {part}", _cost(taken[part] / size(MIDDLE), 1e3, " ms")
    yield "batch step", _cost(whole, 1e3, " ms")
    yield "batch lab", times(taken["lab"] / size(MIDDLE), whole)
    yield "batch scalar states", times(taken["scalar states"], states)
    yield "batch scalar learned", times(taken["scalar learned"], whole)
    for name, timing in step.items():
        yield f"batch {name}", _cost(timing, 1e6, " µs")


def _parts(stack: contextlib.ExitStack, count: int, seed: int) -> dict[str, Callable[[], object]]:
    """Return the rasteriser and the classifier alone, on one thread, for hovering arms."""
    bundle = shipped()
    grippers, objects = placed(count, seed)
    joints = inverse_kinematics(grippers)
    poses = np.stack([object_rest_pose((x, y)) for x, y in objects.tolist()])
    present = np.ones(count, np.bool_)
    camera = stack.enter_context(FastCamera(spec_of(bundle), capacity=CHUNK))
    classifier = stack.enter_context(Classifier(bundle))
    images = camera.render_batch(joints, poses, present)
    return {
        "raster": lambda: camera.render_batch(joints, poses, present),
        "classifier": lambda: classifier.predict(images),
    }


def _rate(step: Timing) -> Value:
    return median([1.0 / seconds for seconds in step.wall], "")


def _cost(step: Timing, factor: float, unit: str) -> Value:
    return median([factor * seconds for seconds in step.cpu], unit)


BENCH = Benchmark("A batch of environments", ROWS, measure, rounds=30, most=4096, seed=SCENES)

if __name__ == "__main__":
    sys.exit(BENCH.main())
