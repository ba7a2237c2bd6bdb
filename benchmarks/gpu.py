"""Steps of a batch of hover environments that stays on a GPU, and what they consist of."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from harness import SCENES, Benchmark, Row, Value, gpu_name, median
from scenes import ENCODER, placed, shipped
from vinoreward import VectorEncodedObservation
from vinoreward.backends.base import load_backend
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.locate import GUARD_FILE
from vinoreward.bundles.save import save_bundle
from vinoreward.rewards.classifier import Classifier
from vinoreward_envs.arrays import make_arrays
from vinoreward_envs.constants import MAX_MOVE
from vinoreward_envs.making import spec_of
from vinoreward_envs.scenes import HoverScenes, piece_of
from vinoreward_training.classifier.fit_detector import LEAST_EPISODES, fit_detector

ENV, PIXELS = "PandaHoverRandom-v0", "PandaHoverPixels-v0"
COUNT = 4096
SMALL = 64
"""Pixels of the small square images."""
STEPS = 10
"""Steps of a turn: an episode."""
SIZES = (16, 256, 1024, 4096, 16384)
"""Environments in one batch, to see what a step costs as they grow."""
ROWS = {
    "gpu 96×128": Row("steps a second, 4,096 environments, learned reward, 96×128", "≥100,000"),
    "gpu 96×128 camera": Row("… inverse kinematics and camera, per environment"),
    "gpu 96×128 classifier": Row("… classifier in half precision with guard, per environment"),
    "gpu 64×64": Row("the same at 64×64: steps a second", "≥200,000"),
    "gpu 64×64 camera": Row("… inverse kinematics and camera, per environment"),
    "gpu 64×64 classifier": Row("… classifier in half precision with guard, per environment"),
    "gpu states": Row("steps a second, 4,096 environments, states only"),
    "gpu lab": Row("a step whose episodes all look otherwise over one without", "≤1.1×"),
    "gpu pixels": Row("steps a second, PandaHoverPixels-v0 through the encoder"),
    **{f"gpu {n}": Row(f"a step of one of {n:,} environments, learned reward") for n in SIZES},
}


class Batch:
    """Steps a batch with actions that are on its device already."""

    def __init__(self, count: int, device: str, seed: int, env: str = ENV, **made: Any) -> None:
        import torch

        self.env: Any = gym.make_vec(
            env,
            count,
            vectorization_mode="vector_entry_point",
            array="torch",
            device=device,
            **made,
        )
        draw = torch.Generator().manual_seed(seed)
        moves = torch.rand((STEPS, count, 2), generator=draw)
        self._moves = (MAX_MOVE * (2.0 * moves - 1.0)).to(device)
        self._at = 0
        self.env.reset(seed=seed)

    def __call__(self) -> None:
        """Take one step in each environment."""
        self.env.step(self._moves[self._at % STEPS])
        self._at += 1


def measure(options: Any) -> Iterator[tuple[str, Value]]:
    """Time steps and their parts on the first CUDA device."""
    device = "cuda:0"
    count, rounds, seed = options.environments, options.rounds, options.seed

    def stepped(count: int, **made: Any) -> list[float]:
        batch = Batch(count, device, seed, **made)
        with contextlib.closing(batch.env):
            return seconds(batch, device, rounds, STEPS)

    def rate(taken: list[float]) -> Value:
        return median([count / each for each in taken], "")

    bundle = shipped()
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        small = of_size(bundle, Path(folder) / "small", SMALL)
        for size, used in (("96×128", bundle), ("64×64", small)):
            yield f"gpu {size}", rate(stepped(count, bundle=used, backend="torch"))
            for part, call in parts(stack, used, device, count, seed).items():
                taken = seconds(call, device, rounds, 1)
                yield f"gpu {size} {part}", median([1e6 * each / count for each in taken], " µs")
        yield "gpu states", rate(stepped(count, backend="oracle"))
        learned = {"bundle": bundle, "backend": "torch"}
        yield "gpu lab", varied(count, device, options, learned)
        pixels = Batch(count, device, seed, PIXELS, **learned)
        pixels.env = VectorEncodedObservation(
            pixels.env, ENCODER, backend="torch", device="CUDA", precision="fp16"
        )
        pixels.env.reset(seed=seed)
        with contextlib.closing(pixels.env):
            yield "gpu pixels", rate(seconds(pixels, device, rounds, STEPS))
        for n in SIZES:
            taken = stepped(min(n, 4 * count), **learned)
            yield f"gpu {n}", median([1e6 * each / min(n, 4 * count) for each in taken], " µs")


def varied(count: int, device: str, options: Any, learned: dict[str, Any]) -> Value:
    """Return what a step costs with randomization "lab" over one without, in turns."""
    with contextlib.ExitStack() as stack:
        both = [
            Batch(count, device, options.seed, randomization=ranges, **learned)
            for ranges in ("lab", None)
        ]
        for each in both:
            stack.callback(each.env.close)
        taken = [[seconds(b, device, 1, STEPS)[0] for b in both] for _ in range(options.rounds)]
    return median([lab / plain for lab, plain in taken], "×")


def parts(
    stack: contextlib.ExitStack, bundle: Bundle, device: str, count: int, seed: int
) -> dict[str, Callable[[], object]]:
    """Return the camera, and the classifier with its guard, for ``count`` scenes."""
    import torch

    piece = piece_of(count, device)
    grippers, objects = (torch.tensor(at[:, :2], device=device) for at in placed(piece, seed))
    scenes = HoverScenes(
        piece, arrays=make_arrays("torch", device), camera=spec_of(bundle), on_device=True
    )
    scenes.gripper, scenes.objects = grippers, objects
    classifier = stack.enter_context(
        Classifier(bundle, backend="torch", device="CUDA", precision="fp16")
    )
    images = scenes.images()

    def of_all(function: Callable[[], object]) -> Callable[[], object]:
        return lambda: [function() for _ in range(-(-count // piece))]

    return {
        "camera": of_all(scenes.images),
        "classifier": of_all(lambda: classifier.predict(images)),
    }


def seconds(call: Callable[[], object], device: str, rounds: int, calls: int) -> list[float]:
    """Return the wall seconds of a call in each round, until the device has done it."""
    import torch

    def turn() -> float:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize(device)
        return (time.perf_counter() - began) / calls

    turn()
    return [turn() for _ in range(rounds)]


def of_size(bundle: Bundle, folder: Path, side: int) -> Bundle:
    """Return a bundle of the same weights for square images, to time it with.

    Its answers mean nothing: nobody trained it on such images. Its guard is fitted to noise.
    """
    scene = {**bundle.spec.image.scene, "height": side, "width": side}
    image = dataclasses.replace(bundle.spec.image, height=side, width=side, scene=scene)
    random = np.random.default_rng(0)
    noise = random.integers(0, 256, (8 * LEAST_EPISODES, side, side, 3), np.uint8)
    guard = fit_detector(noise, noise, np.arange(len(noise)) // 2)
    kept = {name: bundle.path / name for name in ("model.onnx", "model.safetensors")}
    changed = dataclasses.replace(bundle.spec, image=image, quantization=None, files={})
    network = dataclasses.replace(bundle.network("fp32"), size=(side, side))
    with load_backend("torch", network) as backend:
        logits = backend.infer(noise[:4])
    saved = save_bundle(folder, changed, {**kept, GUARD_FILE: guard.to_bytes()}, noise[:4], logits)
    return Bundle.load(saved)


BENCH = Benchmark(
    "A batch on a GPU",
    ROWS,
    measure,
    device=lambda _: gpu_name(),
    rounds=10,
    environments=COUNT,
    seed=SCENES,
)

if __name__ == "__main__":
    sys.exit(BENCH.main())
