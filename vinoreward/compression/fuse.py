"""Graph fusion: the same function in fewer operations, exact up to rounding."""

from __future__ import annotations

import dataclasses

import numpy as np

from vinoreward.compression.context import CompressionContext
from vinoreward.compression.stage import FLOAT, Stage, float_weights
from vinoreward.policies.policy import Floats, Parameter, Policy
from vinoreward.policies.spec import Conv, Dense, Flatten, Layer

Weights = tuple[Floats, Floats]


class Fuse(Stage):
    """Folds constant operations into weights.

    - The scale of observations is folded into the first layer.
    - Two dense layers without an activation between them become one if that is less work. A value
      head on the same layer is folded too.
    - A Flatten of flat input is removed.

    Fusing an activation into the layer before it (FC + ReLU, AcceRL's graph fusion) needs no work
    here: a layer of a spec has its own activation, and every backend fuses it.
    """

    phase = FLOAT

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        """Return the same function with fewer operations."""
        weights = float_weights(policy, self)
        spec = policy.spec
        layers: list[Layer] = []
        folded: dict[str, Weights] = {}
        value, head = spec.value, spec.layers[-1].name
        read = _of(weights, value) if value is not None else None
        for layer, shape in zip(spec.layers, spec.shapes(), strict=False):
            if isinstance(layer, Flatten):
                if len(shape) > 1:
                    layers.append(layer)
                continue
            weight, bias = _of(weights, layer)
            if not folded and spec.scale != 1.0:
                weight = weight * np.float32(spec.scale)
            # Repeat: a layer not worth merging into a wide one may be worth it for a thin one.
            while (joined := _worth_joining(layers, layer)) is not None:
                inner = folded.pop(layers.pop().name)
                if value is not None and read is not None and layer.name == head:
                    value = dataclasses.replace(value, inputs=joined.inputs)
                    read = _joined(inner, read)
                weight, bias = _joined(inner, (weight, bias))
                layer = joined
            layers.append(layer)
            folded[layer.name] = (weight, bias)
        if value is not None and read is not None:
            folded[value.name] = read
        found: dict[str, Parameter] = {}
        for name, (weight, bias) in folded.items():
            found[f"{name}.weight"], found[f"{name}.bias"] = weight, bias
        fused = dataclasses.replace(spec, layers=tuple(layers), value=value, scale=1.0)
        return policy.replace(spec=fused, parameters=found, ranges={}, blob=None)


def _of(weights: dict[str, Floats], layer: Dense | Conv) -> Weights:
    return weights[f"{layer.name}.weight"], weights[f"{layer.name}.bias"]


def _worth_joining(before: list[Layer], layer: Layer) -> Dense | None:
    """Return one layer to replace the last and ``layer``, if that is no more work."""
    last = before[-1] if before else None
    if (
        not isinstance(last, Dense)
        or not isinstance(layer, Dense)
        or last.activation != "none"
        or last.inputs * layer.outputs > last.outputs * (last.inputs + layer.outputs)
    ):
        return None
    return dataclasses.replace(layer, inputs=last.inputs)


def _joined(inner: Weights, outer: Weights) -> Weights:
    """Return weight and bias of ``outer(inner(x))``; sums in float64."""
    wide = outer[0].astype(np.float64)
    weight = (wide @ inner[0]).astype(np.float32)
    bias = (wide @ inner[1] + outer[1]).astype(np.float32)
    return weight, bias
