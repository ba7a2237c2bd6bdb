"""Bench rows about thousands of hover environments in one batch."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

import vinoreward  # noqa: F401  (registers the environments)
from vinoreward.bundles.bundle import Bundle
from vinoreward.machine import usable_cores
from vinoreward.rewards.classifier import Classifier
from vinoreward_envs.arm import inverse_kinematics
from vinoreward_envs.camera.fast import FastCamera
from vinoreward_envs.constants import HOVER_HEIGHT, MAX_MOVE, WORKSPACE_HIGH, WORKSPACE_LOW
from vinoreward_envs.objects import object_rest_pose
from vinoreward_envs.scenes import CHUNK
from vinoreward_training.bench.rewards import Stepper, one_thread, scene_camera
from vinoreward_training.bench.rows import (
    Row,
    Timing,
    interleaved,
    median_row,
    paired_ratios,
    quartiles,
    speed_row,
)
from vinoreward_training.configs import BenchConfig

ID = "PandaHoverRandom-v0"
STATES = (16, 256, 4096)
"""Environments in one batch, without images."""
LOOKED_AT = (16, 256, 1024)
"""Environments in one batch that the classifier judges."""
SMALL, LEARNED, LARGE = 16, 256, 4096
SCALAR_STEPS = 20
"""Steps of the scalar environment in a turn."""
_DIFFERENT = 20


class BatchStepper:
    """Steps a batch of environments with random actions; they reset themselves."""

    def __init__(self, count: int, seed: int, **arguments: Any) -> None:
        self.env = gym.make_vec(ID, count, vectorization_mode="vector_entry_point", **arguments)
        draw = np.random.default_rng(seed)
        moves = draw.uniform(-MAX_MOVE, MAX_MOVE, (_DIFFERENT, count, 2)).astype(np.float32)
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


def batch_rows(config: BenchConfig) -> list[Row]:
    """Time a step of many environments in one batch, with and without the learned reward."""
    one_thread()
    cores = usable_cores()
    with contextlib.ExitStack() as stack:

        def batch(count: int, **arguments: Any) -> BatchStepper:
            stepper = BatchStepper(count, config.seed, **arguments)
            stack.callback(stepper.env.close)
            return stepper

        def scalar(**arguments: Any) -> Stepper:
            made = gym.make(ID, **arguments)
            return Stepper(stack.enter_context(contextlib.closing(made)), config.seed)

        learned = {"backend": "openvino", "bundle": config.bundle}
        candidates: dict[str, Callable[[], object]] = {
            "scalar oracle": scalar(backend="oracle"),
            "scalar learned": scalar(**learned),
            **{f"states {n}": batch(n, backend="oracle") for n in STATES},
            **{f"learned {n}": batch(n, **learned) for n in LOOKED_AT},
            f"varied {LEARNED}": batch(LEARNED, **learned, randomization="lab"),
            **_parts(stack, config),
        }
        calls = dict.fromkeys(candidates, 1)
        calls |= {"scalar oracle": SCALAR_STEPS, "scalar learned": SCALAR_STEPS}
        calls |= {f"states {n}": max(1, 2 * LARGE // n) for n in STATES}
        times = interleaved(candidates, rounds=config.rounds, calls=calls)
    per_step = {
        name: times[name] / _count(name) for name in times if not name.startswith("scalar")
    } | {name: times[name] for name in times if name.startswith("scalar")}
    raster, judge = (per_step[f"{part} {LEARNED}"] for part in ("raster", "judge"))
    limit = cores / (np.median(raster.cpu) + np.median(judge.cpu))
    what = f"environment steps a second of {ID} in one batch"
    return [
        _rate_row(
            f"{what} of {LARGE}, states only (the truth as reward), one core",
            per_step[f"states {LARGE}"],
            target=">= 100000 steps/s",
        ),
        _rate_row(
            f"{what} of {LEARNED} with the learned reward, {cores} cores",
            per_step[f"learned {LEARNED}"],
            target=">= 2000 steps/s",
            note=f"rasteriser and classifier alone allow {limit:.0f} on {cores} idle cores",
        ),
        _cost_row(f"… rasteriser, per frame of a batch of {LEARNED}", raster),
        _cost_row(f"… classifier and guard, per frame of a batch of {LEARNED}", judge),
        _cost_row(
            f"… all of a step in a batch of {LEARNED}, resets included",
            per_step[f"learned {LEARNED}"],
            note=f"{cores} cores without other work would take "
            f"{cores / np.median(per_step[f'learned {LEARNED}'].cpu):.0f} steps a second",
        ),
        median_row(
            "batch",
            f"cost of a step in a batch of {LEARNED} whose episodes all look otherwise (light, "
            "camera, object, table, noise, delay) over one without, with the learned reward",
            paired_ratios(per_step[f"varied {LEARNED}"].cpu, per_step[f"learned {LEARNED}"].cpu),
            "rounds",
            target="<= 1.1 x",
            note=f"{1e3 * np.median(per_step[f'varied {LEARNED}'].cpu):.3g} ms; processor time",
        ),
        *(
            speed_row(
                "batch",
                f"a step of the scalar environment over one in a batch of {n}, {reward}",
                per_step[f"scalar {kind}"],
                per_step[f"{name} {n}"],
            )
            for kind, name, n, reward in (
                ("oracle", "states", LARGE, "states only"),
                ("learned", "learned", LEARNED, "with the learned reward"),
            )
        ),
        *(
            speed_row(
                "batch",
                f"cost of a step in a batch of {SMALL} over one in a batch of {most}, {reward}",
                per_step[f"{name} {SMALL}"],
                per_step[f"{name} {most}"],
                at_least=1.0 if name == "states" else None,
                note="per step, in microseconds: "
                + ", ".join(f"{n}: {1e6 * np.median(per_step[f'{name} {n}'].cpu):.3g}" for n in ns),
            )
            for name, ns, most, reward in (
                ("states", STATES, STATES[-1], "states only"),
                ("learned", LOOKED_AT, LOOKED_AT[-1], "with the learned reward"),
            )
        ),
    ]


def _count(name: str) -> int:
    return int(name.split()[1])


def _parts(stack: contextlib.ExitStack, config: BenchConfig) -> dict[str, Callable[[], object]]:
    """Return the rasteriser and the classifier alone, on one thread, for hovering arms."""
    bundle = Bundle.load(config.bundle)
    draw = np.random.default_rng(config.seed)
    grippers, objects = draw.uniform(WORKSPACE_LOW, WORKSPACE_HIGH, (2, LEARNED, 2))
    targets = np.column_stack([grippers, np.full(LEARNED, HOVER_HEIGHT)])
    joints = inverse_kinematics(targets)
    poses = np.stack([object_rest_pose((x, y)) for x, y in objects.tolist()])
    present = np.ones(LEARNED, np.bool_)
    camera = stack.enter_context(FastCamera(scene_camera(bundle), capacity=CHUNK))
    classifier = stack.enter_context(Classifier(bundle))
    images = camera.render_batch(joints, poses, present)
    return {
        f"raster {LEARNED}": lambda: camera.render_batch(joints, poses, present),
        f"judge {LEARNED}": lambda: classifier.predict(images),
    }


def _rate_row(what: str, per_step: Timing, *, target: str, note: str = "") -> Row:
    rates = [1.0 / seconds for seconds in per_step.wall]
    return _row(what, rates, "steps/s", target=target, note=note or "by wall time")


def _cost_row(what: str, per_step: Timing, note: str = "") -> Row:
    return _row(what, [1e3 * seconds for seconds in per_step.cpu], "ms", note=note)


def _row(what: str, values: Sequence[float], unit: str, **more: Any) -> Row:
    low, middle, high = quartiles(values)
    spread = f"quartiles of {len(values)} rounds"
    return Row("batch", what, middle, unit, low=low, high=high, spread=spread, **more)
