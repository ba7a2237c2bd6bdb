"""Small real environments with images, and a real classifier bundle that reads them.

A corridor of eight cells. The image's red is the position, so that the probability of success is
known for every cell; its blue is drawn anew for each episode. An episode ends at both ends of the
corridor and is truncated after six steps. Stepping an episode that ended is an error here, so that
a wrapper that does it is found out.
"""

from __future__ import annotations

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
from vinoreward.bundles.schema import BundleSpec, Decision, Encoding, Quantization
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
            "float": gym.spaces.Box(0, 1, (HEIGHT, WIDTH, 3), np.float32),
            "square": gym.spaces.Box(0, 255, (3, WIDTH, 3), np.uint8),
        }[observation]
        self.cell = 0
        self.blue = 0
        self.steps = 0
        self.over = True

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


def save_toy_network(path: Path, *, probabilities: bool = False) -> Path:
    """Write a graph: uint8 images -> logits (0, SLOPE * (mean red / 255 - MIDDLE))."""
    constants = {
        "weights": np.array([[0, SLOPE], [0, 0], [0, 0]], np.float32) / 255,
        "bias": np.array([0, -SLOPE * MIDDLE], np.float32),
        "axes": np.array([1, 2], np.int64),
    }
    nodes = [
        helper.make_node("Cast", ["images"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["float", "axes"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", "weights"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["scores" if probabilities else "logits"]),
    ]
    if probabilities:
        nodes.append(helper.make_node("Softmax", ["scores"], ["logits"], axis=1))
    return _save_graph(path, nodes, constants, "logits", 2)


def _save_graph(
    path: Path,
    nodes: list[Any],
    constants: dict[str, np.ndarray],
    output: str,
    width: int,
    height: int = HEIGHT,
) -> Path:
    """Write a graph from uint8 images to ``output`` of a width."""
    graph = helper.make_graph(
        nodes,
        "toy",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", height, WIDTH, 3])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["N", width])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, str(path))
    return path


def save_toy_bundle(
    folder: Path,
    *,
    decision: Decision | None = None,
    scene: dict[str, Any] | None = None,
    probabilities: bool = False,
    seen: Sequence[int] | None = None,
) -> Bundle:
    """Save a bundle around :func:`save_toy_network`; with a guard that knows the cells ``seen``."""
    model = save_toy_network(folder.parent / f"{folder.name}.onnx", probabilities=probabilities)
    images = np.zeros((LAST_CELL + 1, HEIGHT, WIDTH, 3), np.uint8)
    images[..., 0] = np.array([_red(cell) for cell in range(LAST_CELL + 1)])[:, None, None]
    images[..., 2] = 17
    odds = np.array([cell_log_odds(cell) for cell in range(LAST_CELL + 1)])
    logits = np.stack([np.zeros_like(odds), odds], axis=1)
    if probabilities:
        logits = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    spec = BundleSpec(
        name="toy-corridor",
        image=ImageSpec(
            height=HEIGHT, width=WIDTH, mean=(0, 0, 0), std=(1, 1, 1), scene=scene or {}
        ),
        decision=decision or Decision(threshold=0.5, chosen_for={"target_fpr": 0.1}),
        output="probabilities" if probabilities else "logits",
    )
    logits = logits.astype(np.float32)
    files: dict[str, Path | bytes] = {"model.onnx": model}
    if seen is not None:
        known = np.repeat(images[list(seen)], 32, axis=0)
        known[..., 2] = np.tile(np.arange(0, 256, 8), len(seen))[:, None, None]
        files[GUARD_FILE] = fit_detector(known, known, np.arange(len(known))).to_bytes()
    return Bundle.load(save_bundle(folder, spec, files, images, logits))


def save_column_bundle(folder: Path, *, decision: Decision | None = None) -> Bundle:
    """Save a classifier that looks at the red of one column alone: a shift shows it another."""
    column, slope, middle = WIDTH // 2, 1 / 16, 130
    weights = np.zeros((WIDTH, 2), np.float32)
    weights[column, 1] = slope
    constants = {
        "weights": weights,
        "bias": np.array([0, -middle * slope], np.float32),
        "red": np.array(0, np.int64),
        "rows": np.array([1], np.int64),
    }
    nodes = [
        helper.make_node("Cast", ["images"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Gather", ["float", "red"], ["reds"], axis=3),
        helper.make_node("ReduceMean", ["reds", "rows"], ["columns"], keepdims=0),
        helper.make_node("MatMul", ["columns", "weights"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["logits"]),
    ]
    model = _save_graph(folder.parent / f"{folder.name}.onnx", nodes, constants, "logits", 2)
    images = np.random.default_rng(0).integers(0, 256, (4, HEIGHT, WIDTH, 3), dtype=np.uint8)
    odds = (images[:, :, column, 0].mean(axis=1) - middle) * slope
    spec = BundleSpec(
        name="toy-column",
        image=ImageSpec(height=HEIGHT, width=WIDTH, mean=(0, 0, 0), std=(1, 1, 1)),
        decision=decision or Decision(threshold=0.5, chosen_for={"target_fpr": 0.1}),
    )
    logits = np.stack([np.zeros(4), odds], axis=1).astype(np.float32)
    return Bundle.load(save_bundle(folder, spec, {"model.onnx": model}, images, logits))


PASSED = Quantization(passed=True, flips=0, frames=400, method="nncf-ptq")


def biased(source: Path, target: Path, shift: float) -> Path:
    """Write a toy network with ``shift`` added to its success logit."""
    model = onnx.load(str(source))
    for item in model.graph.initializer:
        if item.name == "bias":
            moved = numpy_helper.to_array(item) + np.array([0, shift], np.float32)
            item.CopyFrom(numpy_helper.from_array(moved, "bias"))
    onnx.save(model, str(target))
    return target


def with_int8(bundle: Bundle, shift: float, band: float | None) -> Bundle:
    """Add the network itself, biased by ``shift``: it stands for INT8."""
    name = f"{bundle.path.name}.int8.onnx"
    path = biased(bundle.path / "model.onnx", bundle.path.parent / name, shift)
    golden = bundle.golden.logits + np.array([0, shift], np.float32)
    return Bundle.load(add_int8(bundle, path, PASSED, golden, band))


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
    height = sum(view.height for view in VIEWS)
    weights = np.zeros((height, 3, 2), np.float32)
    top = 0
    for view, red, blue in zip(VIEWS, (0.3, 0.2, 0.5), (-0.05, 0.0, 0.05), strict=True):
        weights[top : top + view.height, 0, 1] = red * SLOPE / 255 / view.height
        weights[top : top + view.height, 2, 1] = blue / view.height
        top += view.height
    constants = {
        "axis": np.array([2], np.int64),
        "shape": np.array([-1, height * 3], np.int64),
        "weights": weights.reshape(-1, 2),
        "bias": np.array([0, -SLOPE * MIDDLE / 2], np.float32),
    }
    nodes = [
        helper.make_node("Cast", ["images"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["float", "axis"], ["mean"], keepdims=0),
        helper.make_node("Reshape", ["mean", "shape"], ["rows"]),
        helper.make_node("MatMul", ["rows", "weights"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["logits"]),
    ]
    model = _save_graph(
        folder.parent / f"{folder.name}.onnx", nodes, constants, "logits", 2, height
    )
    images = np.random.default_rng(0).integers(0, 256, (4, height, WIDTH, 3)).astype(np.uint8)
    images[..., 2] = 9
    rows = images.astype(np.float64).mean(axis=2).reshape(4, -1)
    logits = rows @ constants["weights"] + constants["bias"]
    image = ImageSpec(
        height=height, width=WIDTH, mean=(0, 0, 0), std=(1, 1, 1), views=VIEWS, resize=resize
    )
    decision = Decision(threshold=0.5, chosen_for={"target_fpr": 0.1})
    spec = BundleSpec(name="toy-views", image=image, decision=decision)
    saved = save_bundle(folder, spec, {"model.onnx": model}, images, logits.astype(np.float32))
    return Bundle.load(saved)


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
            "uneven": box(0, 255, (HEIGHT, WIDTH, 4), np.uint8),
            "float": box(0, 1, (HEIGHT, WIDTH, 3), np.float32),
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


def toy_latents(images: np.ndarray, posterior: bool = True) -> np.ndarray:
    """What the network of :func:`save_toy_encoder` must give, restated: means, log variances."""
    flat = images.reshape(len(images), -1).astype(np.float64) / 255 - 0.5
    return np.asarray(flat @ _toy_weights(posterior))


def _toy_weights(posterior: bool) -> np.ndarray:
    columns = 2 * LATENT if posterior else LATENT
    return np.random.default_rng(7).normal(0, 0.25, (HEIGHT * WIDTH * 3, columns))


def save_toy_encoder_network(path: Path, *, posterior: bool = True) -> Path:
    """Write a graph: uint8 images -> one random linear map of all pixels."""
    constants = {
        "scale": np.array(1 / 255, np.float32),
        "half": np.array(0.5, np.float32),
        "shape": np.array([-1, HEIGHT * WIDTH * 3], np.int64),
        "weights": _toy_weights(posterior).astype(np.float32),
    }
    nodes = [
        helper.make_node("Cast", ["images"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["float", "shape"], ["flat"]),
        helper.make_node("Mul", ["flat", "scale"], ["scaled"]),
        helper.make_node("Sub", ["scaled", "half"], ["centred"]),
        helper.make_node("MatMul", ["centred", "weights"], ["latent"]),
    ]
    return _save_graph(path, nodes, constants, "latent", constants["weights"].shape[1])


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
    spec = BundleSpec(
        name="toy-encoder",
        kind="encoder",
        labels=(),
        latent_size=LATENT,
        encoding=Encoding(
            low=(-bound,) * LATENT, high=(bound,) * LATENT, posterior=posterior, std=None
        ),
        image=ImageSpec(
            height=HEIGHT,
            width=WIDTH,
            mean=(0.5, 0.5, 0.5),
            std=(1, 1, 1),
            scene=scene or {},
            resize=resize,
        ),
    )
    latents = toy_latents(images, posterior)
    return Bundle.load(save_bundle(folder, spec, {"model.onnx": model}, images, latents))
