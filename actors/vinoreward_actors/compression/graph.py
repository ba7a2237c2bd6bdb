"""Stages that need no observations: graph fusion, low-rank factorisation and compilation.

AcceRL lists the factorisation as ongoing work. The best rank-r approximation of a matrix is its
truncated singular value decomposition (Eckart and Young 1936).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from vinoreward.errors import ConfigError, OutputError
from vinoreward_actors.compression.chain import COMPILED, FLOAT, CompressionContext, Stage, State
from vinoreward_actors.policies.backends.base import BACKENDS, compile_blob
from vinoreward_actors.policies.policy import Floats, Parameter, Policy
from vinoreward_actors.policies.spec import Conv, Dense, Flatten, Layer

EXTRA = 16
"""Oversampling: directions beyond the rank in the randomised decomposition, dropped at the end."""

Weights = tuple[Floats, Floats]


class Compile(Stage):
    """Marks the policy for a backend: the paper's static computational graph.

    Args:
        backend: that actors use: ``"openvino"``, ``"onnxruntime"`` or ``"numpy"``.
        blob: whether to send the compiled model with the weights. ``"auto"`` does it where it
            pays: from a million INT8 weights. Actors then load 3x2048 in 30 instead of 40 ms on
            OpenVINO, and in 7 instead of 33 ms on ONNX Runtime (20 instead of 45 for several
            environments). It never pays for float weights, which actors swap in place.

    Raises:
        ConfigError: an unknown backend.
    """

    phase = COMPILED

    def __init__(self, backend: str, *, blob: bool | Literal["auto"] = "auto") -> None:
        BACKENDS.find(backend)
        if blob not in (True, False, "auto"):
            raise ConfigError(f"Compile got blob={blob!r}. Expected True, False or 'auto'.")
        self.backend = backend
        self.blob = blob

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        """Return the policy for the backend.

        Raises:
            ConfigError: the backend refuses the network.
            OutputError: ``blob`` is True, but the backend has no compiled model of this policy.
        """
        policy = policy.replace(backend=self.backend, blob=None)
        if not self.blob:
            return policy
        compiled = compile_blob(policy, context.batch)
        if not compiled and self.blob != "auto":
            raise OutputError(
                f"the {self.backend} backend has no compiled model of this policy, but blob=True "
                "asks for one. Leave blob at 'auto'."
            )
        return policy.replace(blob=compiled or None)


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
        weights = self._float_weights(policy)
        spec, value = policy.spec, policy.spec.value
        layers: list[Layer] = []
        folded: dict[str, Weights] = {}
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
                if value is not None and layer.name == spec.layers[-1].name:
                    value = dataclasses.replace(value, inputs=joined.inputs)
                    names = (f"{value.name}.weight", f"{value.name}.bias")
                    weights |= zip(names, _joined(inner, _of(weights, value)), strict=True)
                weight, bias = _joined(inner, (weight, bias))
                layer = joined
            layers.append(layer)
            folded[layer.name] = (weight, bias)
        if value is not None:
            folded[value.name] = _of(weights, value)
        parameters: dict[str, Parameter] = {}
        for name, (weight, bias) in folded.items():
            parameters |= {f"{name}.weight": weight, f"{name}.bias": bias}
        fused = dataclasses.replace(spec, layers=tuple(layers), value=value, scale=1.0)
        return policy.replace(spec=fused, parameters=parameters, ranges={}, blob=None)


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


class LowRank(Stage):
    """Splits hidden dense layers in two: ``NAME_low`` without activation, then ``NAME``.

    Leaves a layer of O outputs and I inputs alone unless rank x (O + I) is below O x I
    multiplications. Never splits the head: it is small, and a value head may share its input.

    Args:
        rank: of every layer; or
        energy: fraction of the squared singular values to keep, above 0 up to 1; the rank of each
            layer follows from it.
        frozen_for: pushes between two updates of ranks from ``energy``. With new shapes, actors
            recompile and students restart.

    Raises:
        ConfigError: neither or both of rank and energy, or invalid values.
    """

    phase = FLOAT

    @property
    def shrinks(self) -> bool:
        """See :attr:`Stage.shrinks`."""
        return True

    def __init__(
        self, rank: int | None = None, *, energy: float | None = None, frozen_for: int = 20
    ) -> None:
        if (
            (rank is None) == (energy is None)
            or (rank is not None and rank < 1)
            or (energy is not None and not 0.0 < energy <= 1.0)
            or frozen_for < 1
        ):
            raise ConfigError(
                f"LowRank got rank={rank}, energy={energy}, frozen_for={frozen_for}. Expected a "
                "rank of at least 1 or an energy above 0 up to 1, and at least 1 push."
            )
        self.rank = rank
        self.energy = energy
        self.frozen_for = frozen_for
        self._ranks: dict[str, int] = {}
        self._pushes = 0

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        """Return the policy with thinner layers; their new names must be free."""
        parameters = self._float_weights(policy)
        if self._pushes >= self.frozen_for:
            self._ranks, self._pushes = {}, 0
        self._pushes += 1
        layers: list[Layer] = []
        for layer in policy.spec.layers:
            if isinstance(layer, Dense) and layer is not policy.spec.layers[-1]:
                weight = parameters[f"{layer.name}.weight"]
                rank = self._rank(layer, weight)
                if rank * (layer.inputs + layer.outputs) < layer.inputs * layer.outputs:
                    thin = Dense(f"{layer.name}_low", layer.inputs, rank)
                    inner, parameters[f"{layer.name}.weight"] = factors(weight, rank)
                    parameters |= {
                        f"{thin.name}.weight": inner,
                        f"{thin.name}.bias": np.zeros(rank, dtype=np.float32),
                    }
                    layers.append(thin)
                    layer = dataclasses.replace(layer, inputs=rank)
            layers.append(layer)
        spec = dataclasses.replace(policy.spec, layers=tuple(layers))
        ordered = {name: parameters[name] for name in spec.parameter_shapes()}
        return policy.replace(spec=spec, parameters=ordered, ranges={}, blob=None)

    def _rank(self, layer: Dense, weight: Floats) -> int:
        if self.energy is None:
            return min(self.rank or 1, layer.inputs, layer.outputs)
        if layer.name not in self._ranks:
            self._ranks[layer.name] = rank_for(weight, self.energy)
        return min(self._ranks[layer.name], layer.inputs, layer.outputs)

    def state(self) -> State:
        """Return the ranks and their age in pushes."""
        ranks = {f"rank.{name}": rank for name, rank in self._ranks.items()}
        return {"pushes": self._pushes, **ranks}

    def load_state(self, state: State) -> None:
        """Restore the saved ranks."""
        parts = self._parts_of(state, ["pushes"], ["rank"])
        self._pushes = int(state["pushes"])
        self._ranks = {name: int(rank) for name, rank in parts["rank"].items()}


def rank_for(weight: Floats, energy: float) -> int:
    """Return the smallest rank that keeps the given fraction of the squared singular values."""
    small = weight if len(weight) <= weight.shape[1] else weight.T
    wide = small.astype(np.float64)
    squares = np.maximum(np.linalg.eigvalsh(wide @ wide.T)[::-1], 0.0)
    energies = np.cumsum(squares)
    # The tolerance keeps rounding from selecting every rank of a low-rank matrix.
    return int(np.searchsorted(energies, energy * energies[-1] * (1.0 - 1e-12)) + 1)


def factors(weight: Floats, rank: int) -> tuple[Floats, Floats]:
    """Return (rank, I) and (O, rank) float32 factors of a weight (O, I), evenly scaled.

    For ranks far below the sides, runs two rounds of power iteration from fixed random directions
    (Halko, Martinsson and Tropp 2011, algorithm 4.4): 20 times faster for 2048 x 2048.
    """
    wide = weight.astype(np.float64)
    if rank + EXTRA < min(weight.shape) // 2:
        start = np.random.default_rng(0).standard_normal((weight.shape[1], rank + EXTRA))
        basis = np.linalg.qr(wide @ start)[0]
        for _ in range(2):
            basis = np.linalg.qr(wide @ np.linalg.qr(wide.T @ basis)[0])[0]
        left, values, right = np.linalg.svd(basis.T @ wide, full_matrices=False)
        left = basis @ left
    else:
        left, values, right = np.linalg.svd(wide, full_matrices=False)
    root = np.sqrt(values[:rank])
    inner = (root[:, None] * right[:rank]).astype(np.float32)
    outer = (left[:, :rank] * root).astype(np.float32)
    return np.ascontiguousarray(inner), np.ascontiguousarray(outer)
