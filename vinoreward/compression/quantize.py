"""Post-training quantization: INT8 with fixed ranges, half precision, or weights in few bits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from vinoreward.compression.context import CompressionContext
from vinoreward.compression.ranges import (
    Bounds,
    Estimator,
    aligned,
    limits,
    measure,
    remembered,
    widened,
)
from vinoreward.compression.stage import QUANTIZED, Stage, State, float_weights
from vinoreward.errors import ConfigError
from vinoreward.policies.policy import ActivationRange, Parameter, Policy, quantize_array
from vinoreward.policies.spec import PolicySpec
from vinoreward.policies.wire import to_float16


class Quantize(Stage):
    """Stores weights in fewer bits, and enables INT8 arithmetic.

    ``"int8"``: 8-bit weights with one scale per output, and a fixed input range per layer, so that
    backends multiply integers. ``"w2"`` to ``"w8"``: weights only. Backends expand them to compute,
    so size and memory traffic fall and inputs are not rounded. ``"fp16"``: weights in half
    precision. Biases and the value head stay float32.

    The first layer and the head stay float by default: they are small and cause most of the loss.
    For 8-bit images the first layer is quantized: the 256 values of a pixel are the 256 levels, so
    nothing is lost.

    Setting ``bits`` during training: 32 leaves the policy unchanged, 16 is half precision, 8 is the
    stage's own precision (``"int8"``, or else ``"w8"``), fewer are weights only.

    Args:
        precision: see above.
        margin: factor by which ranges exceed the observed ones.
        decay: of the widest observed range, per as many pushes as measure all observations once,
            so that old extremes fade.
        first: whether to quantize the first layer; None does so for 8-bit images.
        head: whether to quantize the head.
        rows: observations for measuring ranges at each push, sampled from all of them. The first
            push measures all of them; later ones only update the ranges, because actors wait for
            the measurement.
        ranges: ``"minmax"``; ``"mean"`` is NNCF's default, without margin or memory, which ruins
            policies. It exists to show that a monitor detects it.

    Raises:
        ConfigError: invalid values.
    """

    phase = QUANTIZED

    def __init__(
        self,
        precision: str = "int8",
        *,
        margin: float = 1.3,
        decay: float = 0.95,
        first: bool | None = None,
        head: bool = False,
        rows: int = 128,
        ranges: Estimator = "minmax",
    ) -> None:
        if not re.fullmatch("int8|fp16|w[2-8]", precision):
            raise ConfigError(
                f"Quantize got precision {precision!r}. Expected 'int8', 'fp16', or 'w2' to 'w8' "
                "for weights alone."
            )
        possible = 1.0 <= margin < 100.0 and 0.0 <= decay <= 1.0 and rows >= 1
        if not possible or ranges not in get_args(Estimator):
            raise ConfigError(
                f"Quantize got margin={margin}, decay={decay}, rows={rows}, ranges={ranges!r}. "
                "Expected a margin of at least 1, a decay from 0 to 1, at least one row, and one "
                f"of {', '.join(get_args(Estimator))}."
            )
        self.precision = precision
        self.margin = margin
        self.decay = decay
        self.first = first
        self.head = head
        self.rows = rows
        self.ranges: Estimator = ranges
        self._bits = {"int8": 8, "fp16": 16}.get(precision) or int(precision[1:])
        self._seen: dict[str, Bounds] = {}

    def check(self, following: Sequence[Stage]) -> None:
        """Refuse a second quantization."""
        if any(isinstance(stage, Quantize) for stage in following):
            raise ConfigError(
                "the chain has two Quantize stages. Expected one; there are no float weights for "
                "the second."
            )

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        """Return the quantized policy.

        Raises:
            ConfigError: the network has no layer to quantize.
            InputError: weights or layer inputs that are not finite, or too large for 16 bits.
        """
        if self._bits == 32:
            return policy
        parameters: dict[str, Parameter] = dict(float_weights(policy, self))
        names = self._layers(policy.spec)
        for name in names:
            weight = f"{name}.weight"
            wide = policy.float_parameters()[weight]
            if self._bits == 16:
                parameters[weight] = to_float16(weight, wide)
            else:
                parameters[weight] = quantize_array(wide, self._bits)
        ranges: dict[str, ActivationRange] = {}
        if self.precision == "int8" and self._bits == 8:
            found = self._ranges(policy, context)
            ranges = {name: found[name] for name in names}
        return policy.replace(parameters=parameters, ranges=ranges, blob=None)

    def _layers(self, spec: PolicySpec) -> list[str]:
        names = [layer.name for layer in spec.weighted]
        if self._bits == 16:
            return names
        first = spec.observation_dtype == "uint8" if self.first is None else self.first
        kept = names[:1] if not first else []
        kept += names[-1:] if not self.head else []
        found = [name for name in names if name not in kept]
        if not found:
            raise ConfigError(
                f"the network's layers are {', '.join(names)}; the first and the head stay float. "
                "Expected a layer between them, or first=True or head=True."
            )
        return found

    def _ranges(self, policy: Policy, context: CompressionContext) -> dict[str, ActivationRange]:
        known = self.ranges == "minmax" and set(self._seen) == {
            layer.name for layer in policy.spec.weighted
        }
        rows = context.some(self.rows) if known else context.observations
        now = measure(policy, rows, self.ranges)
        decay = self.decay ** (len(rows) / len(context.observations))
        limit = limits(policy.spec)
        if self.ranges == "mean":
            return {name: aligned(widened(now[name], 1.0, limit[name])) for name in now}
        self._seen = {
            name: remembered(bounds, self._seen.get(name), decay) for name, bounds in now.items()
        }
        found = {
            name: aligned(widened(bounds, self.margin, limit[name]))
            for name, bounds in self._seen.items()
        }
        if policy.spec.observation_dtype == "uint8":
            # One level per pixel value, also if the images so far were dark.
            name = policy.spec.weighted[0].name
            found[name] = ActivationRange(*limit[name])
        return found

    def parameters(self) -> dict[str, float]:
        """Return the bits of weights."""
        return {"bits": float(self._bits)}

    def set_parameter(self, parameter: str, value: float) -> None:
        """Change the bits per weight: 2 to 8, 16, or 32 for no quantization."""
        if parameter != "bits":
            super().set_parameter(parameter, value)
        if value not in (*range(2, 9), 16, 32):
            raise ConfigError(f"bits is {value}. Expected 2 to 8, 16 or 32.")
        self._bits = int(value)

    def state(self) -> dict[str, npt.NDArray[Any] | int | float]:
        """Return the bits and the widest observed range of each layer's input."""
        return {
            "bits": self._bits,
            **{f"seen.{name}": np.array(bounds) for name, bounds in self._seen.items()},
        }

    def load_state(self, state: State) -> None:
        """Restore the saved ranges."""
        seen = {name: value for name, value in state.items() if name.startswith("seen.")}
        if set(state) != {"bits", *seen}:
            raise ConfigError(
                f"Quantize got the state {sorted(state)}. Expected bits and observed ranges."
            )
        self.set_parameter("bits", float(state["bits"]))
        self._seen = {}
        for name, value in seen.items():
            low, high = np.asarray(value, dtype=np.float64).tolist()
            self._seen[name[len("seen.") :]] = (low, high)
