"""Bench rows about a batch of hover environments that never leaves its device.

They need a CUDA device; elsewhere they say so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from vinoreward import VectorEncodedObservation  # also registers the environments
from vinoreward.backends.base import load_backend
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.locate import GUARD_FILE
from vinoreward.bundles.save import save_bundle
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.ood import LEAST_EPISODES, OodDetector
from vinoreward_envs.arrays import Arrays
from vinoreward_envs.constants import MAX_MOVE, WORKSPACE_HIGH, WORKSPACE_LOW
from vinoreward_envs.scenes import HoverScenes, piece_of
from vinoreward_training.bench.encoders import encoder_bundle, not_there
from vinoreward_training.bench.rewards import scene_camera
from vinoreward_training.bench.rows import Row, median_row
from vinoreward_training.bench.seconds import TASKS, Task, task_rows
from vinoreward_training.configs import BenchConfig

ID, PIXELS = "PandaHoverRandom-v0", "PandaHoverPixels-v0"
PPO = ("--learner", "skrl", "--algorithm", "PPO", "--backend", "torch", "--device", "cuda")
"""Of a training whose environments, networks and rollouts stay on the device."""
ENVIRONMENTS = 4096
SMALL_SIDE = 64
"""Pixels of the small square images."""
STEPS = 10
"""Steps of a turn: an episode."""
GOALS = {"large": ">= 100000 steps/s", "small": ">= 200000 steps/s"}
SIZES = (16, 256, 1024, 4096, 16384)
"""Environments in one batch, to see what a step costs as they grow."""


def gpu_rows(config: BenchConfig) -> list[Row]:
    """Time steps of a batch on the first CUDA device, and what they consist of."""
    if not torch.cuda.is_available():
        note = "needs a CUDA device"
        return [
            Row("gpu", "environment steps a second on a GPU", None, target=goal, note=note)
            for goal in GOALS.values()
        ]
    rows = device_rows(config, "cuda:0", ENVIRONMENTS, SIZES)
    return rows + [row for task in TASKS for row in _trained(config, task)]


def device_rows(
    config: BenchConfig, device: str, environments: int, sizes: Sequence[int]
) -> list[Row]:
    """Time steps of a batch that stays on ``device``, for images of two sizes."""
    bundle = Bundle.load(config.bundle)
    rows = []
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        small = of_size(bundle, Path(folder) / "small", SMALL_SIDE, SMALL_SIDE)
        where = device if device == "cpu" else torch.cuda.get_device_name(device)

        def stepped(count: int, **arguments: Any) -> list[float]:
            made = _batch(count, device, config.seed, **arguments)
            with contextlib.closing(made.env):
                return _seconds(made, device, config.rounds, STEPS)

        for name, used in (("large", bundle), ("small", small)):
            size = f"{used.spec.image.height}x{used.spec.image.width}"
            taken = stepped(environments, bundle=used, backend="torch")
            rates = [environments / seconds for seconds in taken]
            rows.append(
                _row(
                    f"environment steps a second of {ID} in one batch of {environments} with the "
                    f"learned reward of {size} images, on {where}",
                    rates,
                    "steps/s",
                    target=GOALS[name],
                    note="wall time; states, images, scores and rewards stay on the device",
                )
            )
            for what, part in _parts(stack, used, device, environments, config.seed).items():
                times = _seconds(part, device, config.rounds, 1)
                us = [1e6 * seconds / environments for seconds in times]
                rows.append(_row(f"... {what}, microseconds an environment", us, "us"))
        rows += _compared(environments, device, config, bundle)
        states = [environments / each for each in stepped(environments, backend="oracle")]
        rows.append(_row(f"... states only, in one batch of {environments}", states, "steps/s"))
        costs = {
            count: 1e6 * float(np.median(stepped(count, bundle=bundle, backend="torch"))) / count
            for count in sizes
        }
    falls = all(b <= 1.05 * a for a, b in itertools.pairwise(costs.values()))
    rows.append(
        Row(
            "gpu",
            f"cost of a step in a batch of {sizes[0]} over one in a batch of {sizes[-1]}, per "
            "environment, with the learned reward",
            costs[sizes[0]] / costs[sizes[-1]],
            "x",
            target="the cost falls or stays as the batch grows",
            met=falls,
            note="microseconds: " + ", ".join(f"{n}: {cost:.3g}" for n, cost in costs.items()),
        )
    )
    return rows


def _trained(config: BenchConfig, task: Task) -> list[Row]:
    """Train on the device until the task is solved, each seed in a process of its own."""
    if importlib.util.find_spec("skrl") is None:
        note = "needs the extra skrl"
        return [Row("gpu", f"seconds of a training of {task.env} on a GPU", None, note=note)]
    # The bars of these tasks are for two cores.
    task = dataclasses.replace(task, training=None, process=None)
    return task_rows(config, "gpu", task, *PPO)


def _compared(count: int, device: str, config: BenchConfig, bundle: Bundle) -> list[Row]:
    """Time steps of batches whose episodes differ, and of one that is seen through an encoder."""
    arguments: dict[str, Any] = {"bundle": bundle, "backend": "torch"}
    with contextlib.ExitStack() as stack:
        plain, varied = (
            _batch(count, device, config.seed, randomization=ranges, **arguments)
            for ranges in (None, "lab")
        )
        for each in (plain, varied):
            stack.callback(each.env.close)
        rounds = range(config.rounds)  # in turns
        times = [[_seconds(each, device, 1, STEPS)[0] for each in (plain, varied)] for _ in rounds]
    ratios = [one[1] / one[0] for one in times]
    of = f"in one batch of {count}"
    what, encoder = f"... of {PIXELS} through the encoder, {of}", encoder_bundle(config)
    lab = _row(f'... with randomization "lab" over without, {of}', ratios, "x", target="<= 1.1 x")
    if encoder is None:
        return [lab, not_there(config, "gpu", what, "")]
    pixels = _batch(count, device, config.seed, PIXELS, **arguments)
    where: dict[str, Any] = {} if device == "cpu" else {"device": "CUDA", "precision": "fp16"}
    pixels.env = VectorEncodedObservation(pixels.env, encoder, backend="torch", **where)
    pixels.env.reset(seed=config.seed)
    with contextlib.closing(pixels.env):
        seen = [count / each for each in _seconds(pixels, device, config.rounds, STEPS)]
    return [lab, _row(what, seen, "steps/s")]


class _Batch:
    """Steps a batch with actions that are on its device already."""

    def __init__(self, env: Any, device: str, seed: int) -> None:
        self.env = env
        draw = torch.Generator().manual_seed(seed)
        moves = torch.rand((STEPS, env.num_envs, 2), generator=draw)
        self._moves = (MAX_MOVE * (2.0 * moves - 1.0)).to(device)
        self._at = 0
        env.reset(seed=seed)

    def __call__(self) -> None:
        """Take one step in each environment."""
        self.env.step(self._moves[self._at % STEPS])
        self._at += 1


def _batch(count: int, device: str, seed: int, id_: str = ID, **arguments: Any) -> _Batch:
    env: Any = gym.make_vec(
        id_,
        count,
        vectorization_mode="vector_entry_point",
        array="torch",
        device=device,
        **arguments,
    )
    return _Batch(env, device, seed)


def _parts(
    stack: contextlib.ExitStack, bundle: Bundle, device: str, count: int, seed: int
) -> dict[str, Callable[[], object]]:
    """Return the camera, and the classifier with its guard, for a piece of N scenes each."""
    piece = piece_of(count, device)
    pieces = -(-count // piece)
    draw = np.random.default_rng(seed)
    grippers, objects = (
        torch.tensor(draw.uniform(WORKSPACE_LOW, WORKSPACE_HIGH, (piece, 2)), device=device)
        for _ in range(2)
    )
    scenes = HoverScenes(
        piece, arrays=Arrays("torch", device), camera=scene_camera(bundle), on_device=True
    )
    scenes.gripper, scenes.objects = grippers, objects
    on = "CPU" if device == "cpu" else "CUDA"
    precision = "fp32" if device == "cpu" else "fp16"
    classifier = stack.enter_context(
        Classifier(bundle, backend="torch", device=on, precision=precision)
    )
    judge = classifier
    images = scenes.images()

    def drawn() -> None:
        for _ in range(pieces):
            scenes.images()

    def judged() -> None:
        for _ in range(pieces):
            judge.predict(images)

    return {"inverse kinematics and camera": drawn, "classifier and guard": judged}


def _seconds(call: Callable[[], object], device: str, rounds: int, calls: int) -> list[float]:
    """Return the wall seconds of a call in each round, until the device has done it."""

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize(device)

    for _ in range(max(2, calls)):
        call()
    wait()
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        taken.append((time.perf_counter() - began) / calls)
    return taken


def of_size(bundle: Bundle, folder: Path, height: int, width: int) -> Bundle:
    """Return a bundle of the same weights for images of another size, to time it with.

    Its answers mean nothing: nobody trained it on such images. Its guard is fitted to noise.
    """
    spec = bundle.spec
    image = dataclasses.replace(
        spec.image,
        height=height,
        width=width,
        scene={**spec.image.scene, "height": height, "width": width},
    )
    noise = np.random.default_rng(0).integers(
        0, 256, (8 * LEAST_EPISODES, height, width, 3), np.uint8
    )
    guard = OodDetector.fit(noise, noise, np.arange(len(noise)) // 2)
    kept = {name: bundle.path / name for name in ("model.onnx", "model.safetensors")}
    changed = dataclasses.replace(spec, image=image, quantization=None, files={})
    network = bundle.network("fp32")
    asked = dataclasses.replace(network, size=(height, width))
    with load_backend("torch", asked) as backend:
        logits = backend.infer(noise[:4])
    saved = save_bundle(folder, changed, {**kept, GUARD_FILE: guard.to_bytes()}, noise[:4], logits)
    return Bundle.load(saved)


def _row(what: str, values: Sequence[float], unit: str, **more: Any) -> Row:
    return median_row("gpu", what, values, "rounds", unit=unit, **more)
