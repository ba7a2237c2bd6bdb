"""The NumPy backend: for small networks, and machines without another library.

Matrix products use as many threads as the BLAS was set to before NumPy was imported: start actors
with ``OMP_NUM_THREADS=1``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from vinoreward_actors.policies.backends.base import Infer, PolicyBackend
from vinoreward_actors.policies.policy import Floats, Policy, activated, folded
from vinoreward_actors.policies.spec import Activation, Conv, Dense, Flatten

Step = Callable[[Floats], Floats]


class NumpyBackend(PolicyBackend):
    """Runs a policy with NumPy, into buffers allocated once per set of weights.

    INT8 layers round as on other backends but compute in floats: NumPy has no fast product of
    bytes. The result is exact, but not faster.
    """

    name: ClassVar[str] = "numpy"

    def _load(self, policy: Policy) -> Infer:
        steps = _steps(policy, self.batch)
        scale = np.float32(policy.spec.scale)
        seen = np.empty((self.batch, *policy.spec.observation_shape), dtype=np.float32)

        def infer(observations: npt.NDArray[Any]) -> Floats:
            values = seen
            # The check of the outputs reports overflows; a warning would say less.
            with np.errstate(over="ignore", invalid="ignore"):
                np.multiply(observations, scale, out=values, dtype=np.float32)
                for step in steps:
                    values = step(values)
            return values.copy()

        return infer


def _steps(policy: Policy, batch: int) -> list[Step]:
    steps: list[Step] = []
    shapes = policy.spec.shapes()
    for layer, before, after in zip(policy.spec.layers, shapes, shapes[1:], strict=False):
        if isinstance(layer, Flatten):
            steps.append(lambda values: values.reshape(len(values), -1))
            continue
        if policy.in_int8(layer.name):
            int8 = folded(policy, layer.name)
            steps.append(_rounding((batch, *before), int8.bounds.low, int8.bounds.step))
            weight, scales, bias = int8.codes.astype(np.float32), int8.scales, int8.bias
        else:
            weight = policy.float_parameter(f"{layer.name}.weight")
            scales, bias = None, policy.float_parameter(f"{layer.name}.bias")
        # One product per observation, or per pixel of a convolution.
        count = batch * math.prod(after[1:])
        product = _product(weight.reshape(layer.outputs, -1), scales, bias, layer.activation, count)
        steps.append(product if isinstance(layer, Dense) else _conv(layer, batch, after, product))
    return steps


def _rounding(shape: tuple[int, ...], low: float, step: float) -> Step:
    """Return a step that maps values to the levels 0 to 255 of a range."""
    out = np.empty(shape, dtype=np.float32)

    def run(values: Floats) -> Floats:
        np.subtract(values, np.float32(low), out=out)
        np.divide(out, np.float32(step), out=out)
        np.rint(out, out=out)
        np.clip(out, 0.0, 255.0, out=out)
        return out

    return run


def _product(
    weight: Floats, scales: Floats | None, bias: Floats, activation: Activation, count: int
) -> Step:
    """Return a step from (count, inputs) to (count, outputs)."""
    turned = weight.T
    out = np.empty((count, len(weight)), dtype=np.float32)

    def run(values: Floats) -> Floats:
        np.dot(values, turned, out=out)
        if scales is not None:
            np.multiply(out, scales, out=out)
        np.add(out, bias, out=out)
        if activation == "relu":
            np.maximum(out, np.float32(0.0), out=out)
        elif activation == "tanh":
            np.tanh(out, out=out)
        elif activation != "none":
            out[:] = activated(out, activation)
        return out

    return run


def _conv(layer: Conv, batch: int, after: tuple[int, ...], product: Step) -> Step:
    """Return a step that copies patches of images, multiplies them, and puts channels first."""
    channels, height, width = after
    kernel = (layer.kernel, layer.kernel)
    patches = np.empty((batch, height, width, layer.inputs, *kernel), dtype=np.float32)
    table = patches.reshape(batch * height * width, -1)
    out = np.empty((batch, channels, height, width), dtype=np.float32)

    def run(values: Floats) -> Floats:
        windows = np.lib.stride_tricks.sliding_window_view(values, kernel, axis=(2, 3))
        windows = windows[:, :, :: layer.stride, :: layer.stride]
        np.copyto(patches, windows.transpose(0, 2, 3, 1, 4, 5))
        np.copyto(out, product(table).reshape(batch, height, width, channels).transpose(0, 3, 1, 2))
        return out

    return run
