"""Small real environments with images, and a real classifier bundle that reads them.

A corridor of eight cells. The image's red is the position, so that the probability of success is
known for every cell; its blue is drawn anew for each episode. An episode ends at both ends of the
corridor and is truncated after six steps. Stepping an episode that ended is an error here, so that
a wrapper that does it is found out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.locate import GUARD_FILE
from vinoreward.bundles.save import save_bundle
from vinoreward.bundles.schema import BundleSpec, Decision, Encoding, Progress, Quantization
from vinoreward.images import ImageSpec, View
from vinoreward_training.classifier.fit_detector import fit_detector
from vinoreward_training.runs.bundles import add_int8

HEIGHT, WIDTH = 6, 8
LAST_CELL = 7
MAX_STEPS = 6
SLOPE, MIDDLE = 20.0, 0.7


def cell_log_odds(cell: int) -> float:
    """What the bundle of :func:`save_toy_bundle` must say about a cell, restated."""
    return SLOPE * (_red(cell) / 255.0 - MIDDLE)


def _red(cell: int) -> int:
    return round(255 * cell / LAST_CELL)


class Corridor(gym.Env[Any, Any]):
    """Action 0 goes left, 1 goes right. Reward: minus the cells to go."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(
        self,
        observation: str = "vector",
        render_mode: str | None = None,
        first_cells: tuple[int, ...] = (1, 2, 3, 4, 5, 6),
        scene: dict[str, Any] | None = None,
    ) -> None:
        self.render_mode = render_mode
        self.kind = observation
        self.first_cells = first_cells
        if scene is not None:
            self.image_scene = scene
        self.action_space = gym.spaces.Discrete(2)
        image = gym.spaces.Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
        vector = gym.spaces.Box(0, 10, (2,), np.float32)
        self.observation_space: gym.Space[Any] = {
            "vector": vector,
            "image": image,
            "planes": gym.spaces.Box(0, 255, (3, HEIGHT, WIDTH), np.uint8),
            "dict": gym.spaces.Dict({"image": image, "position": vector}),
            "grey": gym.spaces.Box(0, 255, (HEIGHT, WIDTH), np.uint8),
            "grey_first": gym.spaces.Box(0, 255, (1, HEIGHT, WIDTH), np.uint8),
            "alpha": gym.spaces.Box(0, 255, (HEIGHT, WIDTH, 4), np.uint8),
            "cameras": gym.spaces.Dict(
                {"front": image, "wrist": gym.spaces.Box(0, 255, (3, 4, WIDTH), np.uint8)}
            ),
            "square": gym.spaces.Box(0, 255, (3, WIDTH, 3), np.uint8),
        }[observation]
        self.cell = 0
        self.blue = 0
        self.steps = 0
        self.over = True

    def threads(self) -> tuple[int, str | None, str | None]:
        """Return PyTorch's threads in this process, and what two other libraries are told."""
        import torch

        told = os.environ.get("OPENBLAS_NUM_THREADS"), os.environ.get("MKL_NUM_THREADS")
        return torch.get_num_threads(), *told

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell = int(self.np_random.choice(self.first_cells))
        self.blue = int(self.np_random.integers(256))
        self.steps = 0
        self.over = False
        return self._observe(), {"true_success": False, "blue": self.blue}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.over:
            raise RuntimeError("stepped an episode that is over")
        self.cell += 1 if int(action) == 1 else -1
        self.steps += 1
        terminated = self.cell in (0, LAST_CELL)
        truncated = self.steps >= MAX_STEPS
        self.over = terminated or truncated
        info = {
            "true_success": self.cell >= 6,
            "is_success": self.cell == LAST_CELL,
            "where": np.array([self.cell, self.steps]),
        }
        return self._observe(), float(self.cell - LAST_CELL), terminated, truncated, info

    def render(self) -> Any:
        image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        image[..., 0] = _red(self.cell)
        image[..., 2] = self.blue
        return image

    def _observe(self) -> Any:
        vector = np.array([self.cell, self.steps], np.float32)
        image = self.render()
        if self.kind == "planes":
            return image.transpose(2, 0, 1).copy()
        if self.kind == "cameras":
            wrist = np.zeros((3, 4, WIDTH), np.uint8)
            wrist[0] = 40 * self.steps
            return {"front": image, "wrist": wrist}
        if self.kind.startswith("grey"):
            axis = {"grey": (), "grey_first": 0}[self.kind]
            return np.expand_dims(image[..., 0].copy(), axis)
        if self.kind == "image":
            return image
        return {"image": image, "position": vector} if self.kind == "dict" else vector


gym.register("ToyCorridor-v0", entry_point="toy_environments:Corridor")


def save_linear_network(
    path: Path, weights: np.ndarray, bias: np.ndarray, *, output: str = "logits", ends: str = ""
) -> Path:
    """Write a graph: uint8 images -> the sum of all their numbers times ``weights``, plus ``bias``.

    Args:
        path: of the file.
        weights: ``(H, W, 3, K)``.
        bias: ``(K,)``.
        output: the result's name.
        ends: an operator that the result goes through, if any.
    """
    constants = {
        "shape": np.array([-1, weights[..., 0].size], np.int64),
        "weights": weights.reshape(-1, len(bias)).astype(np.float32),
        "bias": bias.astype(np.float32),
    }
    nodes = [
        helper.make_node("Cast", ["images"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["float", "shape"], ["rows"]),
        helper.make_node("MatMul", ["rows", "weights"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["sums" if ends else output]),
        *([helper.make_node(ends, ["sums"], [output], axis=1)] if ends else []),
    ]
    size = ["N", *weights.shape[:3]]
    graph = helper.make_graph(
        nodes,
        "toy",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, size)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["N", len(bias)])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, str(path))
    return path


def of_images(images: np.ndarray, weights: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """What the network of :func:`save_linear_network` must give, restated."""
    found = np.tensordot(images.astype(np.float64), weights, 3) + bias
    return np.asarray(found, np.float32)


# Log-odds SLOPE * (mean red / 255 - MIDDLE).
_WEIGHTS = np.zeros((HEIGHT, WIDTH, 3, 2))
_WEIGHTS[:, :, 0, 1] = SLOPE / 255 / HEIGHT / WIDTH
_BIAS = np.array([0, -SLOPE * MIDDLE])


def save_toy_network(path: Path) -> Path:
    """Write the network of :func:`save_toy_bundle`."""
    return save_linear_network(path, _WEIGHTS, _BIAS)


def _save_classifier(
    folder: Path,
    images: np.ndarray,
    weights: np.ndarray,
    bias: np.ndarray,
    decision: Decision | None = None,
    files: dict[str, bytes] | None = None,
    probabilities: bool = False,
    progress: Progress | None = None,
    **image: Any,
) -> Bundle:
    """Save a bundle around a linear network, with ``images`` as its golden frames."""
    path = folder.parent / f"{folder.name}.onnx"
    model = save_linear_network(path, weights, bias, ends="Softmax" if probabilities else "")
    logits = of_images(images, weights, bias)
    if probabilities:
        logits = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    height, width, _, _ = weights.shape
    spec = BundleSpec(
        name="toy-corridor",
        image=ImageSpec(height, width, mean=(0, 0, 0), std=(1, 1, 1), **image),
        decision=decision or Decision(threshold=0.5, chosen_for={"target_fpr": 0.1}),
        output="probabilities" if probabilities else "logits",
        progress=progress,
    )
    return Bundle.load(
        save_bundle(folder, spec, {"model.onnx": model, **(files or {})}, images, logits)
    )


def save_toy_bundle(
    folder: Path,
    *,
    decision: Decision | None = None,
    scene: dict[str, Any] | None = None,
    probabilities: bool = False,
    seen: Sequence[int] | None = None,
) -> Bundle:
    """Save a bundle that claims the cells from 5; with a guard that knows the cells ``seen``."""
    images = np.zeros((LAST_CELL + 1, HEIGHT, WIDTH, 3), np.uint8)
    images[..., 0] = np.array([_red(cell) for cell in range(LAST_CELL + 1)])[:, None, None]
    images[..., 2] = 17
    files: dict[str, bytes] = {}
    if seen is not None:
        known = np.repeat(images[list(seen)], 32, axis=0)
        known[..., 2] = np.tile(np.arange(0, 256, 8), len(seen))[:, None, None]
        files[GUARD_FILE] = fit_detector(known, known, np.arange(len(known))).to_bytes()
    return _save_classifier(
        folder, images, _WEIGHTS, _BIAS, decision, files, probabilities, scene=scene or {}
    )


PROGRESS = Progress(horizon=5, scale=1.4, offset=-0.2)


def cell_progress(cell: int) -> float:
    """What the bundle of :func:`save_progress_bundle` must say of a cell, restated."""
    return min(1.0, max(0.0, 1.4 * _red(cell) / 255 - 0.2))


def save_progress_bundle(
    folder: Path, gains: tuple[float, float, float] = (1, 0, 0), **options: Any
) -> Bundle:
    """Save the toy bundle with a third column, the red of the image in [0, 1]; or, with other
    ``gains``, a sum of its colours."""
    images = np.zeros((LAST_CELL + 1, HEIGHT, WIDTH, 3), np.uint8)
    images[..., 0] = np.array([_red(cell) for cell in range(LAST_CELL + 1)])[:, None, None]
    column = np.full((HEIGHT, WIDTH, 3, 1), 1 / 255 / HEIGHT / WIDTH) * np.array(gains)[:, None]
    weights, bias = np.concatenate([_WEIGHTS, column], axis=-1), np.append(_BIAS, 0.0)
    return _save_classifier(folder, images, weights, bias, progress=PROGRESS, **options)


def save_column_bundle(folder: Path, *, decision: Decision | None = None) -> Bundle:
    """Save a classifier that looks at the red of one column alone: a shift shows it another."""
    weights = np.zeros((HEIGHT, WIDTH, 3, 2))
    weights[:, WIDTH // 2, 0, 1] = 1 / 16 / HEIGHT
    images = np.random.default_rng(0).integers(0, 256, (4, HEIGHT, WIDTH, 3), dtype=np.uint8)
    return _save_classifier(folder, images, weights, np.array([0, -130 / 16]), decision)


PASSED = Quantization(passed=True, flips=0, frames=400, method="nncf-ptq")


def with_int8(bundle: Bundle, shift: float, band: float | None) -> Bundle:
    """Add the network itself, with ``shift`` added to its success logit: it stands for INT8."""
    moved = np.array([0, shift], np.float32)
    model = onnx.load(str(bundle.path / "model.onnx"))
    (bias,) = (item for item in model.graph.initializer if item.name == "bias")
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + moved, "bias"))
    path = bundle.path.parent / f"{bundle.path.name}.int8.onnx"
    onnx.save(model, str(path))
    return Bundle.load(add_int8(bundle, path, PASSED, bundle.golden.logits + moved, band))


VIEWS = (
    View(name="front", height=HEIGHT, source="obs:front", age=2),
    View(name="wrist", height=4, source="obs:wrist"),
    View(name="front", height=HEIGHT, source="obs:front"),
)
"""The front camera now and two steps ago, and the wrist's, in no order that could be guessed."""


def views_log_odds(before: int, steps: int, now: int) -> float:
    """What the bundle of :func:`save_views_bundle` must say of two cells and a step, restated."""
    return SLOPE * ((0.3 * _red(before) + 0.2 * 40 * steps + 0.5 * _red(now)) / 255 - MIDDLE / 2)


def save_views_bundle(folder: Path, *, resize: Any = "none") -> Bundle:
    """Save a bundle of :data:`VIEWS`; it also hates an image of another episode, by its blue."""
    weights = np.zeros((sum(view.height for view in VIEWS), WIDTH, 3, 2))
    top = 0
    for view, red, blue in zip(VIEWS, (0.3, 0.2, 0.5), (-0.05, 0.0, 0.05), strict=True):
        weights[top : top + view.height, :, 0, 1] = red * SLOPE / 255 / view.height / WIDTH
        weights[top : top + view.height, :, 2, 1] = blue / view.height / WIDTH
        top += view.height
    images = np.random.default_rng(0).integers(0, 256, (4, *weights.shape[:3])).astype(np.uint8)
    images[..., 2] = 9
    return _save_classifier(folder, images, weights, _BIAS / 2, views=VIEWS, resize=resize)


# --- encoders ------------------------------------------------------------------------------------

LATENT = 3


class Camera(gym.Env[Any, Any]):
    """A corridor whose images differ in every pixel, in every form that observations have.

    Counts how often it is rendered, so that nothing is rendered twice unseen.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(
        self,
        observation: str = "image",
        render_mode: str | None = None,
        max_steps: int = 4,
        scene: dict[str, Any] | None = None,
    ) -> None:
        self.render_mode = render_mode
        self.kind = observation
        self.max_steps = max_steps
        self.renders = 0
        if scene is not None:
            self.image_scene = scene
        self.action_space = gym.spaces.Discrete(2)
        box = gym.spaces.Box
        image = box(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
        vector = box(np.float64(-1), np.float64(30), (2,), np.float64)
        self.observation_space: gym.Space[Any] = {
            "vector": vector,
            "image": image,
            "planes": box(0, 255, (3, HEIGHT, WIDTH), np.uint8),
            "dict": gym.spaces.Dict(
                {"camera": image, "gear": gym.spaces.Discrete(3), "joints": vector}
            ),
            "two": gym.spaces.Dict({"left": image, "right": image}),
            "stack": box(0, 255, (2, HEIGHT, WIDTH, 3), np.uint8),
            "small": box(0, 255, (HEIGHT, WIDTH - 1, 3), np.uint8),
            "mask": box(0, 1, (HEIGHT, WIDTH, 3), np.uint8),
        }[observation]
        self.steps = 0
        self.over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.over = False
        self._draw()
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.over:
            raise RuntimeError("stepped an episode that is over")
        self._draw()
        self.steps += 1
        terminated = bool(self.steps >= 2 and self.now[0, 0, 0] < 60)
        truncated = self.steps >= self.max_steps
        self.over = terminated or truncated
        return self._observe(), float(action), terminated, truncated, {"steps": self.steps}

    def render(self) -> Any:
        self.renders += 1
        return self.now

    def _draw(self) -> None:
        self.now = self.np_random.integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)

    def _observe(self) -> Any:
        joints = np.array([self.steps, self.now[0, 0, 0] / 10], np.float64)
        return {
            "vector": joints,
            "image": self.now,
            "planes": self.now.transpose(2, 0, 1).copy(),
            "dict": {"camera": self.now, "gear": np.int64(self.steps % 3), "joints": joints},
        }.get(self.kind, self.now)


gym.register("ToyCamera-v0", entry_point="toy_environments:Camera")


def _encoder_numbers(posterior: bool) -> tuple[np.ndarray, np.ndarray]:
    """Weights and bias of one random linear map of all pixels, which are from -0.5 to 0.5."""
    columns = 2 * LATENT if posterior else LATENT
    weights = np.random.default_rng(7).normal(0, 0.25, (HEIGHT, WIDTH, 3, columns))
    return weights / 255, -0.5 * weights.sum(axis=(0, 1, 2))


def toy_latents(images: np.ndarray, posterior: bool = True) -> np.ndarray:
    """What the network of :func:`save_toy_encoder` must give, restated: means, log variances."""
    return of_images(images, *_encoder_numbers(posterior))


def save_toy_encoder_network(path: Path, *, posterior: bool = True) -> Path:
    """Write the network of :func:`save_toy_encoder`."""
    return save_linear_network(path, *_encoder_numbers(posterior), output="latent")


def save_toy_encoder(
    folder: Path,
    *,
    posterior: bool = True,
    bound: float = 20.0,
    scene: dict[str, Any] | None = None,
    resize: Any = "none",
) -> Bundle:
    """Save a bundle around :func:`save_toy_encoder_network`."""
    path = folder.parent / f"{folder.name}.onnx"
    model = save_toy_encoder_network(path, posterior=posterior)
    images = np.random.default_rng(1).integers(0, 256, (4, HEIGHT, WIDTH, 3)).astype(np.uint8)
    image = ImageSpec(
        HEIGHT, WIDTH, mean=(0.5,) * 3, std=(1, 1, 1), scene=scene or {}, resize=resize
    )
    bounds = Encoding((-bound,) * LATENT, (bound,) * LATENT, posterior=posterior, std=None)
    spec = BundleSpec(
        "toy-encoder", image, kind="encoder", labels=(), latent_size=LATENT, encoding=bounds
    )
    latents = toy_latents(images, posterior)
    return Bundle.load(save_bundle(folder, spec, {"model.onnx": model}, images, latents))
