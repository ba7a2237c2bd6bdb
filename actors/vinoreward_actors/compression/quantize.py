"""Post-training quantization: INT8 with fixed ranges, half precision, or weights in few bits.

INT8 needs the range of each layer's input, and rare observations decide. NNCF's default, the mean
of each observation's minimum and maximum, clips them and ruins trained policies although the mean
action error falls. The ranges here are the minimum and maximum over all observations, with a margin
and a memory, aligned so that zero is a level.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

import numpy as np

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.compression.chain import (
    QUANTIZED,
    CompressionContext,
    Observations,
    Stage,
    State,
    batches,
    part_of,
)
from vinoreward_actors.policies.policy import ActivationRange, Policy, layer_inputs
from vinoreward_actors.policies.spec import PolicySpec
from vinoreward_actors.policies.wire import lowered

Bounds = tuple[float, float]


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
    ) -> None:
        if not re.fullmatch("int8|fp16|w[2-8]", precision):
            raise ConfigError(
                f"Quantize got precision {precision!r}. Expected 'int8', 'fp16', or 'w2' to 'w8' "
                "for weights alone."
            )
        if not (1.0 <= margin < 100.0 and 0.0 <= decay <= 1.0 and rows >= 1):
            raise ConfigError(
                f"Quantize got margin={margin}, decay={decay}, rows={rows}. Expected a margin of "
                "at least 1, a decay from 0 to 1, and at least one row."
            )
        self.precision, self.first, self.head = precision, first, head
        self.margin, self.decay, self.rows = margin, decay, rows
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
        wide = policy.replace(parameters=self._float_weights(policy), ranges={}, blob=None)
        names = self._layers(policy.spec)
        lower = lowered(wide, self._bits, names)
        if self.precision != "int8" or self._bits != 8:
            return lower
        ranges = self._ranges(wide, context)
        return lower.replace(ranges={name: ranges[name] for name in names})

    def _layers(self, spec: PolicySpec) -> list[str]:
        names = [layer.name for layer in spec.weighted]
        if self._bits == 16:
            return names
        first = spec.observation_dtype == "uint8" if self.first is None else self.first
        chosen = names[0 if first else 1 : len(names) if self.head else -1]
        if not chosen:
            raise ConfigError(
                f"the network's layers are {', '.join(names)}; the first and the head stay float. "
                "Expected a layer between them, or first=True or head=True."
            )
        return chosen

    def _ranges(self, policy: Policy, context: CompressionContext) -> dict[str, ActivationRange]:
        known = set(self._seen) == {layer.name for layer in policy.spec.weighted}
        rows = context.some(self.rows) if known else context.observations
        now = measure(policy, rows)
        decay = self.decay ** (len(rows) / len(context.observations))
        limit = limits(policy.spec)
        self._seen = {
            name: merged(bounds, self._seen.get(name), decay) for name, bounds in now.items()
        }
        ranges = {
            name: aligned(widened(bounds, self.margin, limit[name]))
            for name, bounds in self._seen.items()
        }
        if policy.spec.observation_dtype == "uint8":
            # One level per pixel value, also if the images so far were dark.
            name = policy.spec.weighted[0].name
            ranges[name] = ActivationRange(*limit[name])
        return ranges

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

    def state(self) -> State:
        """Return the bits and the widest observed range of each layer's input."""
        seen = {f"seen.{name}": np.array(bounds) for name, bounds in self._seen.items()}
        return {"bits": self._bits, **seen}

    def load_state(self, state: State) -> None:
        """Restore the saved ranges."""
        self.set_parameter("bits", float(state["bits"]))
        self._seen = {}
        for name, value in part_of(state, "seen").items():
            low, high = np.asarray(value, dtype=np.float64).tolist()
            self._seen[name] = (low, high)


def measure(policy: Policy, observations: Observations) -> dict[str, Bounds]:
    """Return the minimum and maximum input of each layer, for observations (N, *shape).

    Raises:
        InputError: a layer's input is NaN or infinite.
    """
    ranges: dict[str, Bounds] = {}
    for part in batches(observations):
        # The check below reports overflows.
        with np.errstate(over="ignore", invalid="ignore"):
            inputs = layer_inputs(policy, part)
        for name, values in inputs.items():
            low, high = ranges.get(name, (math.inf, -math.inf))
            # NumPy's minimum keeps NaN, so that the check below finds it.
            ranges[name] = (
                float(np.minimum(low, values.min())),
                float(np.maximum(high, values.max())),
            )
    for name, bounds in ranges.items():
        if not all(map(math.isfinite, bounds)):
            raise InputError(
                f"the input of layer {name} is NaN or infinite on some observation. Expected "
                "finite numbers: the learner has diverged. Lower its learning rate."
            )
    return ranges


def limits(spec: PolicySpec) -> dict[str, Bounds]:
    """Return the bounds of each layer's input for any observation."""
    bounds = {
        "tanh": (-1.0, 1.0),
        "relu": (0.0, math.inf),
        "elu": (-1.0, math.inf),
        "silu": (-0.2785, math.inf),
        "none": (-math.inf, math.inf),
    }
    pixels = spec.observation_dtype == "uint8"
    limit = {spec.weighted[0].name: (0.0, 255.0 * spec.scale) if pixels else bounds["none"]}
    for layer, reader in itertools.pairwise(spec.weighted):
        limit[reader.name] = bounds[layer.activation]
    return limit


def merged(now: Bounds, before: Bounds | None, decay: float) -> Bounds:
    """Return the union of the current range and the previous one, shrunk by ``decay``."""
    if before is None:
        return now
    return min(now[0], before[0] * decay), max(now[1], before[1] * decay)


def widened(bounds: Bounds, margin: float, limit: Bounds) -> Bounds:
    """Return a range that includes zero, ``margin`` times as wide, within limits."""
    low = max(min(bounds[0], 0.0) * margin, limit[0])
    high = min(max(bounds[1], 0.0) * margin, limit[1])
    # An input that was always zero may change later; any range will do.
    return (low, high) if low < high else (max(-1.0, limit[0]), min(1.0, limit[1]))


def aligned(bounds: Bounds) -> ActivationRange:
    """Return a range that contains ``bounds`` and has zero as one of its 256 levels exactly.

    The step has at most 16 significant bits. So its multiples up to 255 are exact in float32, and
    no backend's arithmetic shifts zero. ``bounds`` are low <= 0 <= high with low < high.
    """
    low, high = bounds
    ideal = math.floor(255.0 * -low / (high - low))
    # Each non-empty side gets at least one level.
    least, most = int(low < 0), 255 - int(high > 0)
    choices = {min(max(zero, least), most) for zero in (ideal, ideal + 1)}
    # The smallest step that reaches both ends with ``zero`` levels below zero.
    step, zero = min(
        (max(-low / max(zero, 1), high / max(255 - zero, 1)), zero) for zero in choices
    )
    fraction, exponent = math.frexp(max(step, 1e-30))
    step = math.ldexp(math.ceil(fraction * 65536.0), exponent - 16)
    return ActivationRange(-zero * step, (255 - zero) * step)
