"""Bench rows about encoders: inference, a wrapped step, a linear probe, and a shared image."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

import vinoreward  # noqa: F401  (registers the environments)
from vinoreward.backends.base import load_backend
from vinoreward.backends.network import NetworkSpec
from vinoreward.bundles.bundle import Bundle
from vinoreward.encoders import Encoder
from vinoreward.errors import ModelNotFoundError
from vinoreward.wrappers.encoded import EncodedObservation
from vinoreward.wrappers.render_once import RenderOnce
from vinoreward_envs.camera.spec import CameraSpec, resized
from vinoreward_envs.scene import HoverScene
from vinoreward_training.bench.rewards import Stepper, by_hand, one_thread, scene_camera
from vinoreward_training.bench.rows import (
    Clock,
    Row,
    Timing,
    inference_times,
    interleaved,
    speed_row,
    speed_rows,
    turns,
    wall_and_cpu,
)
from vinoreward_training.capture.hover import (
    HoverFrame,
    fresh_frames,
    fresh_scenes,
    hover_frame,
)
from vinoreward_training.configs import BenchConfig
from vinoreward_training.encoder.probe import ProbeError, probe_places
from vinoreward_training.quantize.network import quantize_onnx

ENVIRONMENT = "PandaHoverPixels-v0"
STATE_ENVIRONMENT = "PandaHoverRandom-v0"
"""The same task with the true places instead of the image."""
SIZES = ((64, 6.0), (256, 4.0))
"""Side of the square images, and how many times faster than eager PyTorch INT8 must be."""
ALONE = ("torch fp32", "onnxruntime fp32", "openvino fp32", "onnxruntime int8", "openvino int8")
"""Backend and precision of the encoders that are timed alone; the first is what others beat."""
LATENT = 32
CALIBRATION_FRAMES = 100
STEPS_PER_TURN = 40
PROBE_FRAMES = 4000
"""Frames that the probe is fitted on, drawn the way a capture draws them."""
PROBE_TARGET = "<= 5 mm"

Images = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def encoder_bundle(config: BenchConfig) -> Bundle | None:
    """Return the encoder to measure, None if it does not exist."""
    with contextlib.suppress(ModelNotFoundError):
        return Bundle.load(config.encoder)
    return None


def not_there(config: BenchConfig, name: str, what: str, target: str) -> Row:
    """Return the row of a figure that lacks its encoder."""
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
            missing("linear probe on fresh scenes", PROBE_TARGET),
        ]
    return [*rows, step_row(config, bundle), *probe_rows(config, bundle)]


def alone_rows(config: BenchConfig, side: int, at_least: float) -> list[Row]:
    """Time one image through a conv_vae of random weights, against eager PyTorch."""
    import safetensors.torch
    import torch

    from vinoreward.backends.torch_networks import build_encoder
    from vinoreward_training.encoder.bundle import MEAN, STD, export_encoder

    scenes = fresh_scenes(CALIBRATION_FRAMES, config.seed)[0]
    images = np.stack([resized(scene, side, side) for scene in scenes])
    torch.manual_seed(0)
    encoder = build_encoder("conv_vae", side, side, 2 * LATENT).eval()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        paths = {"fp32": folder / "model.onnx", "int8": folder / "model.int8.onnx"}
        export_encoder(encoder, paths["fp32"], images[:4])
        safetensors.torch.save_file(encoder.state_dict(), folder / "model.safetensors")
        quantize_onnx(paths["fp32"], paths["int8"], images)
        spec = NetworkSpec(
            paths["fp32"],
            (side, side),
            2 * LATENT,
            architecture="conv_vae",
            weights=folder / "model.safetensors",
            mean=MEAN,
            std=STD,
        )
        backends = {
            f"{name} {precision}": load_backend(
                name, dataclasses.replace(spec, path=paths[precision])
            )
            for name, precision in map(str.split, ALONE)
        }
        times = inference_times(backends, images[:1], config.rounds)
    return speed_rows(
        "encoders",
        f"conv_vae {side}x{side}, batch 1, one thread: {{}} against eager PyTorch",
        times,
        {"openvino int8": at_least},
        "random weights and, in INT8, no gate: neither changes the time",
    )


class EagerEncoding(gym.ObservationWrapper[Any, Any, Any]):
    """An encoder of ours by hand: PIL, a tensor, eager PyTorch, every step."""

    def __init__(self, env: gym.Env[Any, Any], bundle: Bundle) -> None:
        from safetensors.torch import load_file

        from vinoreward.backends.torch_networks import build_encoder

        super().__init__(env)
        image, spec = bundle.spec.image, bundle.spec
        network = build_encoder(
            str(spec.architecture), image.height, image.width, spec.width
        ).eval()
        network.load_state_dict(load_file(bundle.path / "model.safetensors"))
        size = (image.width, image.height)
        self._output = by_hand(network, size, image.mean, image.std)
        self._latent = spec.latent_size or 0
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (self._latent,), np.float32)

    def observation(self, observation: Any) -> Floats:
        """Return the latent ``(D,)`` of an image."""
        latent: Floats = self._output(observation)[: self._latent].numpy()
        return latent


def step_row(config: BenchConfig, bundle: Bundle) -> Row:
    """Time the encoding in whole steps of the wrapped environment."""
    what = f"{ENVIRONMENT} with the learned reward and the encoder {bundle.spec.name}"
    if bundle.spec.architecture is None or "model.safetensors" not in bundle.spec.files:
        note = "the bundle has no weights for PyTorch to compare with"
        return Row("encoders", f"encoding in a step of {what}", None, note=note)
    with contextlib.ExitStack() as stack:

        def made() -> gym.Env[Any, Any]:
            env = gym.make(ENVIRONMENT, bundle=config.bundle)
            return stack.enter_context(contextlib.closing(env))

        ours = EncodedObservation(made(), bundle)
        stack.callback(ours.encoder.close)
        wrapped = {"ours": ours, "eager": EagerEncoding(made(), bundle)}
        encoding, below = step_times(wrapped, config.seed, config.rounds)
        precision = ours.encoder.precision
    return speed_row(
        "encoders",
        f"time spent in encoding per step of {what} ({precision}): eager PyTorch in an "
        "ObservationWrapper over ours",
        encoding["eager"],
        encoding["ours"],
        at_least=4.0,
        note=f"{encoding['eager'].median_ms():.3g} ms and {encoding['ours'].median_ms():.3g} ms of "
        f"processor time; the rest of a step, the environment, takes "
        f"{below['ours'].median_ms():.3g} ms",
    )


def step_times(
    wrapped: Mapping[str, gym.Wrapper[Any, Any, Any, Any]], seed: int, rounds: int
) -> tuple[dict[str, Timing], dict[str, Timing]]:
    """Return the seconds per step spent in each wrapper, and in the environment below it."""
    clocks = {name: Clock(wall_and_cpu) for name in wrapped}
    steps: dict[str, Callable[[], object]] = {}
    for name, env in wrapped.items():
        for method in ("reset", "step"):
            setattr(env.env, method, clocks[name].timed("below", getattr(env.env, method)))
        steps[name] = clocks[name].timed("wrapper", Stepper(env, seed))
        for _ in range(20):
            steps[name]()
        clocks[name].take()
    spent: dict[str, list[dict[str, Any]]] = {name: [] for name in wrapped}
    for _, name in turns(wrapped, rounds):
        for _ in range(STEPS_PER_TURN):
            steps[name]()
        spent[name].append(clocks[name].take())

    def timings(part: str) -> dict[str, Timing]:
        return {
            name: Timing.of([turn[part] / STEPS_PER_TURN for turn in taken])
            for name, taken in spent.items()
        }

    return timings("wrapper"), timings("below")


def probe_rows(config: BenchConfig, bundle: Bundle) -> list[Row]:
    """Read gripper and object from the latent by a linear map; say how far off it is."""
    camera = scene_camera(bundle)
    fitted = captured_frames(PROBE_FRAMES, config.seed, camera)
    fresh = fresh_frames(config.scenes, config.seed, camera=camera)
    with Encoder(bundle) as encoder:
        return [
            Row(
                "encoders",
                f"encoder {bundle.spec.name} ({encoder.precision}), fresh scenes: mean error "
                f"of a linear probe, {error.name}",
                error.mean_mm,
                "mm",
                spread=f"95 % below {error.p95_mm:.2f} mm; {error.frames} scenes",
                target=PROBE_TARGET,
                note=f"R2 {error.r2:.5f}; fitted on {error.fitted_on} other scenes; the mean "
                f"place would be {error.chance_mm:.0f} mm off",
                details=dataclasses.asdict(error),
            )
            for error in probe_errors(encoder.encode, fitted, fresh)
        ]


def captured_frames(count: int, seed: int, camera: CameraSpec | None) -> list[HoverFrame]:
    """Draw frames as a capture of that seed does."""
    with HoverScene(camera=camera or CameraSpec()) as scene:
        return [hover_frame(scene, seed, index) for index in range(count)]


def probe_errors(
    encode: Callable[[Images], Floats], fitted: Sequence[HoverFrame], fresh: Sequence[HoverFrame]
) -> list[ProbeError]:
    """Fit the probe on frames and judge it on fresh ones, without absent objects.

    ``encode`` takes images (N, H, W, 3) to latents (N, D).
    """
    frames = [*fitted, *fresh]
    latents = np.concatenate([encode(frame.image[None]) for frame in frames])
    absent = (math.nan, math.nan)
    places = {
        "gripper": np.array([frame.gripper for frame in frames]),
        "object": np.array([frame.object or absent for frame in frames]),
    }
    indices = np.arange(len(frames))
    return probe_places(latents, places, indices[: len(fitted)], indices[len(fitted) :])


class DrawsAnew(gym.Wrapper[Any, Any, Any, Any]):
    """Draws at every ``render()``, as most environments do; ours reuses its last frame."""

    def render(self) -> Any:
        """Return a frame drawn now."""
        scene: Any = self.get_wrapper_attr("scene")
        return scene.render()


def joint_rows(config: BenchConfig) -> list[Row]:
    """Time frames drawn once against twice, and two networks in one compiled graph."""
    encoder = encoder_bundle(config)
    if encoder is None:
        return [not_there(config, "joint", "classifier and encoder in one graph", "")]
    return [render_row(config), graph_row(config, Bundle.load(config.bundle), encoder)]


def render_row(config: BenchConfig) -> Row:
    """Time a step whose frame two wrappers ask for, with and without keeping it."""
    with contextlib.ExitStack() as stack:

        def looked_at_twice(*wrappers: Callable[[Any], Any]) -> Callable[[], object]:
            env = DrawsAnew(gym.make(STATE_ENVIRONMENT, backend="oracle", render_mode="rgb_array"))
            stack.callback(env.close)
            for wrapper in wrappers:
                env = wrapper(env)
            stepper = Stepper(env, config.seed)
            return lambda: [call() for call in (stepper, env.render, env.render)]

        candidates = {"twice": looked_at_twice(), "once": looked_at_twice(RenderOnce)}
        times = interleaved(candidates, rounds=config.rounds, calls=40, warm_up=20)
    return speed_row(
        "joint",
        f"a step of {STATE_ENVIRONMENT} whose frame two wrappers look at: drawn twice over drawn "
        "once",
        times["twice"],
        times["once"],
        note=f"{times['twice'].median_ms():.3g} and {times['once'].median_ms():.3g} ms; "
        "what LearnedReward and EncodedObservation around one environment share",
    )


def graph_row(config: BenchConfig, classifier: Bundle, encoder: Bundle) -> Row:
    """Time classifier and encoder one after the other against one graph with both outputs."""
    bundles = (classifier, encoder)
    precisions = [bundle.resolve_precision("openvino", "auto") for bundle in bundles]
    networks = [bundle.network(one) for bundle, one in zip(bundles, precisions, strict=True)]
    sizes = {network.size for network in networks}
    what = (
        f"{classifier.spec.name} ({precisions[0]}) and {encoder.spec.name} "
        f"({precisions[1]}): one after the other over one graph with both outputs"
    )
    if len(sizes) != 1:
        note = f"they take images of different sizes: {sorted(sizes)}"
        return Row("joint", what, None, note=note)
    image = np.ascontiguousarray(classifier.golden.images[:1])
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        first, second, both = (
            stack.enter_context(load_backend("openvino", network))
            for network in (*networks, _joined(networks, Path(folder)))
        )

        def apart() -> list[Floats]:
            return [first.infer(image), second.infer(image)]

        separate = np.concatenate(apart(), axis=1)
        difference = float(np.abs(both.infer(image) - separate).max())
        candidates: dict[str, Callable[[], object]] = {"apart": apart}
        candidates["together"] = functools.partial(both.infer, image)
        times = interleaved(candidates, rounds=config.rounds, calls=20, warm_up=20)
    return speed_row(
        "joint",
        what,
        times["apart"],
        times["together"],
        note="they share no layer: a call and the image's conversion are all that it saves; "
        f"largest difference of their outputs {difference:.2g}",
    )


def _joined(networks: list[NetworkSpec], folder: Path) -> NetworkSpec:
    """Write one graph of two networks for images of one size, with the outputs of both."""
    import onnx

    first, second = (onnx.load(network.path) for network in networks)
    second = onnx.compose.add_prefix(second, "second/")
    image, own = first.graph.input[0].name, second.graph.input[0].name
    for node in second.graph.node:
        node.input[:] = [image if name == own else name for name in node.input]
    for name in ("node", "initializer", "output"):
        getattr(first.graph, name).extend(getattr(second.graph, name))
    onnx.save(first, folder / "joined.onnx")
    return dataclasses.replace(
        networks[0],
        path=folder / "joined.onnx",
        sha256=None,
        columns=sum(network.columns for network in networks),
        output_index=0,
        joined_index=1,
    )
