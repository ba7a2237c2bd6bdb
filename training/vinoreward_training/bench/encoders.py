"""Bench rows about encoders: one inference, a wrapped step, and what the latent knows."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

import gymnasium as gym
import numpy as np
import numpy.typing as npt

import vinoreward  # noqa: F401  (registers the environments)
from vinoreward.backends.base import TensorSpec
from vinoreward.backends.int8 import quantize_onnx
from vinoreward.backends.registry import load_backend
from vinoreward.backends.spec import NetworkSpec
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ModelNotFoundError
from vinoreward.wrappers.encoded import EncodedObservation
from vinoreward_envs.camera.pictures import resized
from vinoreward_training.bench.env import Stepper
from vinoreward_training.bench.network import one_thread
from vinoreward_training.bench.probe import PROBE_LIMIT_MM, probe_rows
from vinoreward_training.bench.statistics import Row, Timing, interleaved, speed_row
from vinoreward_training.classifier.fresh_scenes import fresh_scenes
from vinoreward_training.configs.bench import BenchConfig

if TYPE_CHECKING:
    from vinoreward.bundles.bundle import Bundle

ENVIRONMENT = "PandaHoverPixels-v0"
SIZES = ((64, 6.0), (256, 4.0))
"""Side of the square pictures, and how many times faster than eager PyTorch INT8 must be."""
LATENT = 32
CALIBRATION_FRAMES = 100
STEPS_PER_TURN = 40

Pictures = npt.NDArray[np.uint8]


def encoder_bundle(config: BenchConfig) -> Bundle | None:
    """Return the encoder to measure, None where none of that name or folder is there."""

    with contextlib.suppress(ModelNotFoundError):
        return Bundle.load(config.encoder)
    return None


def not_there(config: BenchConfig, name: str, what: str, target: str) -> Row:
    """Return the row of a figure that needs an encoder where there is none."""
    note = f"there is no encoder {config.encoder}; train one with vinoreward train-vae"
    return Row(name, what, None, target=target, met=False, note=note)


def encoders_rows(config: BenchConfig) -> list[Row]:
    """Time encoders alone and in a step, and judge what a linear probe reads from the latent."""
    one_thread()
    rows = [row for side, at_least in SIZES for row in alone_rows(config, side, at_least)]
    bundle = encoder_bundle(config)
    if bundle is None:
        missing = functools.partial(not_there, config, "encoders")
        return [
            *rows,
            missing("encoding in a whole wrapped step", ">= 4 x"),
            missing("linear probe on fresh scenes", f"<= {PROBE_LIMIT_MM:g} mm"),
        ]
    return [*rows, *step_rows(config, bundle), *probe_rows(config, bundle)]


def resized_scenes(count: int, seed: int, side: int) -> Pictures:
    """Return pictures of fresh hover scenes, ``(count, side, side, 3)``, resized by PIL."""

    return np.stack([resized(picture, side, side) for picture in fresh_scenes(count, seed)[0]])


def alone_rows(config: BenchConfig, side: int, at_least: float) -> list[Row]:
    """Time one picture through a conv_vae of random weights, against eager PyTorch.

    Weights do not change the time, so the INT8 network needs no gate here.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        pictures = resized_scenes(CALIBRATION_FRAMES, config.seed, side)
        networks = _networks(Path(folder), side, pictures)
        candidates: dict[str, Callable[[], object]] = {}
        for name, backend in networks.items():
            stack.enter_context(backend)
            candidates[name] = functools.partial(backend.infer, pictures[:1])
        times = interleaved(candidates, rounds=config.rounds, calls=20, warm_up=20)
    return [
        speed_row(
            "encoders",
            f"conv_vae {side}x{side}, batch 1, one thread: {name} against eager PyTorch",
            times["torch fp32"],
            timing,
            at_least=at_least if name == "openvino int8" else None,
            note="random weights and, in INT8, no gate: neither changes the time",
        )
        for name, timing in times.items()
        if name != "torch fp32"
    ]


def _networks(folder: Path, side: int, pictures: Pictures) -> dict[str, Any]:
    """Return backend and precision to the backend that runs the network so."""
    import safetensors.torch
    import torch

    from vinoreward.encoders.vae import build_encoder
    from vinoreward_training.encoder.export import MEAN, STD, export_encoder

    torch.manual_seed(0)
    encoder = build_encoder("conv_vae", side, side, 2 * LATENT).eval()
    fp32, int8 = folder / "model.onnx", folder / "model.int8.onnx"
    weights = folder / "model.safetensors"
    export_encoder(encoder, fp32, pictures[:4])
    safetensors.torch.save_file(encoder.state_dict(), weights)
    quantize_onnx(fp32, int8, pictures)
    spec = NetworkSpec(
        fp32,
        TensorSpec((None, side, side, 3), "uint8"),
        TensorSpec((None, 2 * LATENT), "float32"),
        architecture="conv_vae",
        weights=weights,
        mean=MEAN,
        std=STD,
    )
    quantized = dataclasses.replace(spec, path=int8)
    return {
        "torch fp32": load_backend("torch", spec),
        "onnxruntime fp32": load_backend("onnxruntime", spec),
        "openvino fp32": load_backend("openvino", spec),
        "onnxruntime int8": load_backend("onnxruntime", quantized),
        "openvino int8": load_backend("openvino", quantized),
    }


class Clock(gym.Wrapper[Any, Any, Any, Any]):
    """Counts the seconds spent in the environment below: what a wrapper above it does not cost."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.wall = 0.0
        self.cpu = 0.0

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.cpu += time.process_time() - cpu
        self.wall += time.perf_counter() - wall

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset, on the clock."""
        with self._counted():
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step, on the clock."""
        with self._counted():
            return self.env.step(action)


class EagerEncoding(gym.ObservationWrapper[Any, Any, Any]):
    """The encoder the way it is done by hand: PIL, a tensor, eager PyTorch, every step.

    Args:
        env: its observation is the ``(H, W, 3)`` uint8 picture.
        bundle: an encoder of ours with its weights for PyTorch.
    """

    def __init__(self, env: gym.Env[Any, Any], bundle: Bundle) -> None:
        import torch
        from safetensors.torch import load_file

        from vinoreward.encoders.vae import build_encoder

        super().__init__(env)
        picture, spec = bundle.spec.picture, bundle.spec
        self._size = (picture.width, picture.height)
        self._latent = spec.latent_size or 0
        self._network = build_encoder(
            str(spec.architecture), picture.height, picture.width, spec.width
        ).eval()
        self._network.load_state_dict(load_file(bundle.path / "model.safetensors"))
        self._mean = torch.tensor(picture.mean).view(3, 1, 1)
        self._std = torch.tensor(picture.std).view(3, 1, 1)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (self._latent,), np.float32)

    def observation(self, observation: Any) -> npt.NDArray[np.float32]:
        """Return the latent ``(D,)`` of a picture."""
        import torch
        from PIL import Image

        image = Image.fromarray(observation)
        if image.size != self._size:
            image = image.resize(self._size, Image.Resampling.BILINEAR)
        planes = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255.0)
        with torch.no_grad():
            output = self._network(((planes - self._mean) / self._std).unsqueeze(0))
        latent: npt.NDArray[np.float32] = output[0, : self._latent].numpy()
        return latent


def step_rows(config: BenchConfig, bundle: Bundle) -> list[Row]:
    """Time whole steps of the wrapped environment, and how much of them is the encoding."""

    what = f"{ENVIRONMENT} with the learned reward and the encoder {bundle.spec.name}"
    if bundle.spec.architecture is None or "model.safetensors" not in bundle.spec.files:
        note = "the bundle has no weights for PyTorch to compare with"
        return [Row("encoders", f"encoding in a step of {what}", None, note=note)]
    with contextlib.ExitStack() as stack:

        def clock() -> Clock:
            made = gym.make(ENVIRONMENT, bundle=config.bundle)
            return stack.enter_context(contextlib.closing(Clock(made)))

        clocks = {"ours": clock(), "eager": clock()}
        ours = EncodedObservation(clocks["ours"], bundle)
        precision = ours.encoder.precision
        wrapped = {"ours": ours, "eager": EagerEncoding(clocks["eager"], bundle)}
        steppers = {name: Stepper(env, config.seed) for name, env in wrapped.items()}
        whole, inside = step_times(steppers, clocks, config.rounds)
        ours.encoder.close()
    encoding = {name: _less(whole[name], inside[name]) for name in whole}
    row = speed_row(
        "encoders",
        f"time spent in encoding per step of {what} ({precision}): eager PyTorch in an "
        "ObservationWrapper over ours",
        encoding["eager"],
        encoding["ours"],
        at_least=4.0,
        note=f"{_ms(encoding['eager'])} and {_ms(encoding['ours'])} of processor time",
    )
    rest = speed_row(
        "encoders",
        f"the whole step of {what}, resets included: eager PyTorch in an ObservationWrapper over "
        "ours",
        whole["eager"],
        whole["ours"],
        note=f"{_ms(whole['eager'])} and {_ms(whole['ours'])}; of ours {_ms(inside['ours'])} is "
        "the environment: moving, drawing, judging",
    )
    return [row, rest]


def step_times(
    steppers: dict[str, Stepper], clocks: dict[str, Clock], rounds: int
) -> tuple[dict[str, Timing], dict[str, Timing]]:
    """Return the seconds of a whole step, and of the environment below the wrapper, in turns."""
    whole: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in steppers}
    inside: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in steppers}
    for stepper in steppers.values():
        for _ in range(20):
            stepper()
    names = list(steppers)
    for index in range(rounds):
        for name in names[index % len(names) :] + names[: index % len(names)]:
            clock, stepper = clocks[name], steppers[name]
            clock.wall = clock.cpu = 0.0
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(STEPS_PER_TURN):
                stepper()
            whole[name][1].append((time.process_time() - cpu) / STEPS_PER_TURN)
            whole[name][0].append((time.perf_counter() - wall) / STEPS_PER_TURN)
            inside[name][0].append(clock.wall / STEPS_PER_TURN)
            inside[name][1].append(clock.cpu / STEPS_PER_TURN)
    timed = ({k: Timing(tuple(w), tuple(c)) for k, (w, c) in t.items()} for t in (whole, inside))
    first, second = timed
    return first, second


def _less(whole: Timing, part: Timing) -> Timing:
    return Timing(
        tuple(a - b for a, b in zip(whole.wall, part.wall, strict=True)),
        tuple(a - b for a, b in zip(whole.cpu, part.cpu, strict=True)),
    )


def _ms(timing: Timing) -> str:
    return f"{timing.median_cpu * 1e3:.3g} ms"
