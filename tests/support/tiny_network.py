"""A network small enough to be right by hand, what goes into its bundle, and ways to harm one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.save import save_bundle
from vinoreward.bundles.schema import BundleSpec, Decision, Quantization
from vinoreward.images import ImageSpec

HEIGHT, WIDTH = 6, 8
MEAN = (0.4, 0.5, 0.3)
STD = (0.2, 0.25, 0.3)
WEIGHTS = np.array([[3.0, -2.0], [0.5, 1.0], [-2.5, 3.0]], dtype=np.float32)


def network(
    path: Path,
    *,
    swap: bool = False,
    mean: tuple[float, ...] = MEAN,
    weights: np.ndarray = WEIGHTS,
    metadata: dict[str, str] | None = None,
    float_input: bool = False,
    softmax: bool = False,
    sigmoid: bool = False,
    size: tuple[Any, Any] = (HEIGHT, WIDTH),
) -> Path:
    """Write a real network: mean colour of the image, times ``weights``."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    grey = np.asarray(mean, np.float32).reshape(1, 3, 1, 1)
    spread = np.asarray(STD, np.float32).reshape(1, 3, 1, 1)
    constants = {
        "weights": weights.astype(np.float32),
        "mean": grey,
        "spread": spread,
        "full": np.float32(255.0),
        "order": np.array([2, 1, 0] if swap else [0, 1, 2], np.int64),
    }
    nodes = []
    source = "images"
    if not float_input:
        nodes = [
            helper.make_node("Cast", ["images"], ["float"], to=TensorProto.FLOAT),
            helper.make_node("Transpose", ["float"], ["planes"], perm=[0, 3, 1, 2]),
            helper.make_node("Gather", ["planes", "order"], ["ordered"], axis=1),
            helper.make_node("Div", ["ordered", "full"], ["unit"]),
            helper.make_node("Sub", ["unit", "mean"], ["centred"]),
            helper.make_node("Div", ["centred", "spread"], ["normal"]),
        ]
        source = "normal"
    last = "scores" if softmax or sigmoid else "logits"
    nodes += [
        helper.make_node("GlobalAveragePool", [source], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], [last]),
    ]
    if softmax:
        nodes.append(helper.make_node("Softmax", ["scores"], ["logits"], axis=1))
    if sigmoid:
        nodes.append(helper.make_node("Sigmoid", ["scores"], ["logits"]))
    shape = ["N", 3, *size] if float_input else ["N", *size, 3]
    kind = TensorProto.FLOAT if float_input else TensorProto.UINT8
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("images", kind, shape)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", weights.shape[1]])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items() if k in used],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    if metadata:
        helper.set_model_props(model, metadata)
    onnx.save(model, path)
    return path


def brightness_bundle(path: Path, height: int, width: int) -> Bundle:
    """Return a bundle in memory: the logit of success is the sum of the mean colours in [0, 1]."""
    network(path, float_input=True, size=(height, width), weights=np.array([[0.0, 1.0]] * 3))
    return Bundle.from_model(
        path,
        labels=("failure", "success"),
        success_label="success",
        height=height,
        width=width,
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        output="logits",
        resize="pil_bilinear",
    )


def expected_logits(images: np.ndarray, weights: np.ndarray = WEIGHTS) -> np.ndarray:
    """What the network must give, restated with numpy."""
    normal = (images.astype(np.float64) / 255.0 - np.array(MEAN)) / np.array(STD)
    return (normal.mean(axis=(1, 2)) @ weights.astype(np.float64)).astype(np.float32)


def golden_images(count: int = 4) -> np.ndarray:
    """Colourful frames: each has its own tint."""
    generator = np.random.default_rng(3)
    tints = generator.integers(20, 236, (count, 1, 1, 3))
    noise = generator.integers(-20, 20, (count, HEIGHT, WIDTH, 3))
    return (tints + noise).astype(np.uint8)


SPEC = BundleSpec(
    name="tiny",
    image=ImageSpec(HEIGHT, WIDTH, mean=MEAN, std=STD, scene={"renderer": "fast", "height": 6}),
    decision=Decision(threshold=0.8, temperature=1.5, chosen_for={"target_fpr": 0.01}),
    metrics={"recall": {"value": 0.98, "count": 200, "interval": [0.95, 0.99]}},
    dataset={"sha256": "ab" * 32, "counts": {"success": 100, "failure": 300}, "seed": 0},
    versions={"vinoreward": "0.1.0"},
)


def save_tiny(folder: Path) -> Bundle:
    """Save the network's bundle as ``folder/tiny``, and its file beside it."""
    images, model = golden_images(), network(folder / "source.onnx")
    logits = expected_logits(images)
    return Bundle.load(save_bundle(folder / "tiny", SPEC, {"model.onnx": model}, images, logits))


def save_for(config: Any, dataset: Any, parts: Any, folder: Path) -> int:
    """Stand for the training in ``vinoreward finetune``: save a tiny network for its images."""
    from vinoreward_training.data.dataset_files import read_about
    from vinoreward_training.tasks.recorded import recorded_task

    image = dataset.image(mean=MEAN, std=STD)
    about = {"sha256": dataset.sha256, **recorded_task(read_about(config.data))}
    spec = dataclasses.replace(SPEC, name=config.name, image=image, dataset=about)
    model = network(folder / "model.onnx", size=(image.height, image.width))
    images = dataset.images[:4]
    files = {"model.onnx": model}
    save_bundle(folder / "bundle", spec, files, images, expected_logits(images), "# tiny")
    return 0


# The gate and the choice do not look into the file, so a coarser network stands for INT8 here.
COARSE = np.round(WEIGHTS * 8) / 8 + 0.02
PASSED = Quantization(passed=True, flips=1, frames=400, method="nncf-ptq")


def forge(bundle: Bundle, name: str, content: bytes) -> None:
    """Replace a file and its recorded hash, as somebody who means it would."""
    (bundle.path / name).write_bytes(content)
    rewrite(bundle, lambda spec: spec["files"].update({name: hashlib.sha256(content).hexdigest()}))


def rewrite(bundle: Bundle, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the parsed ``bundle.json`` in place."""
    path = bundle.path / "bundle.json"
    value = json.loads(path.read_text())
    change(value)
    text = json.dumps(value)
    path.write_text(text)
    (bundle.path / "bundle.sha256").write_text(hashlib.sha256(text.encode()).hexdigest())


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(item.relative_to(folder)): item.read_bytes()
        for item in sorted(folder.rglob("*"))
        if item.is_file()
    }
