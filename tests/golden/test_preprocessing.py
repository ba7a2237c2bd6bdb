"""Images become network inputs by one formula, whichever library computes it.

The network here returns its input unchanged, so what comes out is exactly what preprocessing made.
The right answer is worked out pixel by pixel from the definition, in float64.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
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
    return NetworkSpec(path, (HEIGHT, WIDTH), VALUES, trusted=True)  # or each is tried in a child


def make_images(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    made = rng.integers(0, 256, (count, HEIGHT, WIDTH, 3), dtype=np.uint8)
    made[0, 0, 0], made[0, 0, 1] = 0, 255
    return made


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    mean=st.tuples(*[st.floats(0, 1)] * 3),
    std=st.tuples(*[st.floats(0.05, 2)] * 3),
    scale=st.sampled_from([255.0, 1.0]),
    color_order=st.sampled_from(["RGB", "BGR"]),
    layout=st.sampled_from(["NCHW", "NHWC"]),
    seed=st.integers(0, 1000),
)
@example(IMAGENET_MEAN, IMAGENET_STD, 255.0, "RGB", "NCHW", 0)
@example(IMAGENET_MEAN, IMAGENET_STD, 255.0, "BGR", "NHWC", 0)
def test_formula_for_any_numbers(  # type: ignore[no-untyped-def]
    tmp_path: Path, mean, std, scale, color_order, layout, seed
) -> None:
    # Means and deviations are of what the scale leaves: from 0 to 1, or to 255.
    mean, std = (tuple(255 / scale * value for value in each) for each in (mean, std))
    steps = Preprocess(mean, std, scale, color_order, layout)
    spec = dataclasses.replace(unchanged(tmp_path, layout), preprocess=steps)
    for batch, name in itertools.product((make_images(1, seed), make_images(5, seed)), NAMES):
        np.testing.assert_allclose(
            load_backend(name, spec).infer(batch), by_definition(batch, steps), atol=2e-5, rtol=1e-5
        )


@pytest.mark.parametrize("count", [1, 4])
def test_torch_modules_formula(count: int) -> None:
    """What training and export use is the same formula."""
    module = WithPreprocess(torch.nn.Flatten(), IMAGENET_MEAN, IMAGENET_STD)
    batch = make_images(count)
    expected = by_definition(batch, Preprocess(IMAGENET_MEAN, IMAGENET_STD))
    found = module(torch.from_numpy(batch)).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-6, rtol=2e-6)
    # Worked out by hand: black, then white, as the first pixels are.
    red = found.reshape(count, 3, HEIGHT, WIDTH)[0, 0, 0, :2]
    np.testing.assert_allclose(red, [-2.117904, 2.248908], atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_float_network_without_a_description_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give a preprocess"):
        load_backend(name, unchanged(tmp_path, "NCHW")).load()
