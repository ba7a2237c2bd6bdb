"""Images become network inputs by one formula, whichever library computes it.

The network here returns its input unchanged, so what comes out is exactly what preprocessing made.
The right answer is worked out pixel by pixel from the definition, in float64.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from vinoreward.backends.base import load_backend
from vinoreward.backends.network import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    NetworkSpec,
    Preprocess,
)
from vinoreward.backends.torch_networks import WithPreprocess
from vinoreward.errors import ConfigError

HEIGHT, WIDTH = 4, 6
VALUES = 3 * HEIGHT * WIDTH
NAMES = ("openvino", "onnxruntime")


def by_definition(images: np.ndarray, steps: Preprocess) -> np.ndarray:
    """Return the network's input, one number at a time."""
    count = len(images)
    source = {"RGB": (0, 1, 2), "BGR": (2, 1, 0)}[steps.color_order]
    shape = (3, HEIGHT, WIDTH) if steps.layout == "NCHW" else (HEIGHT, WIDTH, 3)
    made = np.zeros((count, *shape))
    for n, y, x, c in np.ndindex(count, HEIGHT, WIDTH, 3):
        value = (int(images[n, y, x, source[c]]) / steps.scale - steps.mean[c]) / steps.std[c]
        made[(n, c, y, x) if steps.layout == "NCHW" else (n, y, x, c)] = value
    return made.reshape(count, -1)


def unchanged(folder: Path, layout: str) -> NetworkSpec:
    """Write a float network that returns its input, flattened."""
    sizes = [3, HEIGHT, WIDTH] if layout == "NCHW" else [HEIGHT, WIDTH, 3]
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["y"])],
        "unchanged",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *sizes])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", VALUES])],
    )
    path = folder / f"{layout}.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, str(path))
    return NetworkSpec(path, (HEIGHT, WIDTH), VALUES)


def make_images(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    made = rng.integers(0, 256, (count, HEIGHT, WIDTH, 3), dtype=np.uint8)
    made[0, 0, 0], made[0, 0, 1] = 0, 255
    return made


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("color_order", ["RGB", "BGR"])
@pytest.mark.parametrize(
    ("mean", "std", "scale"),
    [
        (IMAGENET_MEAN, IMAGENET_STD, 255.0),
        ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375), 1.0),  # the same in model_api's units
        ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 255.0),
    ],
)
def test_formula(name, layout, color_order, mean, std, scale, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    steps = Preprocess(mean, std, scale, color_order, layout)
    spec = dataclasses.replace(unchanged(tmp_path, layout), preprocess=steps)
    for count in (1, 5):
        batch = make_images(count)
        np.testing.assert_allclose(
            load_backend(name, spec).infer(batch), by_definition(batch, steps), atol=2e-6, rtol=2e-6
        )


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    mean=st.tuples(*[st.floats(0, 1)] * 3),
    std=st.tuples(*[st.floats(0.05, 2)] * 3),
    color_order=st.sampled_from(["RGB", "BGR"]),
    seed=st.integers(0, 1000),
)
def test_formula_for_any_numbers(tmp_path: Path, mean, std, color_order, seed) -> None:  # type: ignore[no-untyped-def]
    steps = Preprocess(mean, std, 255.0, color_order, "NCHW")
    spec = dataclasses.replace(unchanged(tmp_path, "NCHW"), preprocess=steps)
    batch = make_images(2, seed)
    for name in NAMES:
        np.testing.assert_allclose(
            load_backend(name, spec).infer(batch), by_definition(batch, steps), atol=2e-5, rtol=1e-5
        )


def test_known_numbers() -> None:
    """Vectors worked out by hand: pure red, then black, with ImageNet's constants."""
    steps = Preprocess(IMAGENET_MEAN, IMAGENET_STD)
    image = np.zeros((1, HEIGHT, WIDTH, 3), np.uint8)
    image[0, 0, 0] = (255, 0, 0)
    planes = by_definition(image, steps).reshape(3, HEIGHT, WIDTH)
    np.testing.assert_allclose(planes[:, 0, 0], [2.248908, -2.035714, -1.804444], atol=1e-6)
    np.testing.assert_allclose(planes[:, 0, 1], [-2.117904, -2.035714, -1.804444], atol=1e-6)


@pytest.mark.parametrize("count", [1, 4])
def test_torch_modules_formula(count: int) -> None:
    """What training and export use is the same formula."""
    module = WithPreprocess(torch.nn.Flatten(), IMAGENET_MEAN, IMAGENET_STD)
    batch = make_images(count)
    expected = by_definition(batch, Preprocess(IMAGENET_MEAN, IMAGENET_STD))
    np.testing.assert_allclose(
        module(torch.from_numpy(batch)).numpy(), expected, atol=2e-6, rtol=2e-6
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_float_network_without_a_description_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give a preprocess"):
        load_backend(name, unchanged(tmp_path, "NCHW")).load()


@pytest.mark.parametrize("name", NAMES)
def test_the_wrong_layout_is_refused(name: str, tmp_path: Path) -> None:
    spec = dataclasses.replace(unchanged(tmp_path, "NCHW"), preprocess=Preprocess(layout="NHWC"))
    with pytest.raises(ConfigError, match="description"):
        load_backend(name, spec).load()
