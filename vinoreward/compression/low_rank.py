"""Low-rank factorisation: a dense layer as two thinner ones, where that is less work.

AcceRL names it as ongoing. The best approximation of a matrix by one of rank r is its singular
value decomposition cut off after r (Eckart and Young 1936).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.compression.context import CompressionContext
from vinoreward.compression.stage import FLOAT, Stage, State, float_weights
from vinoreward.errors import ConfigError
from vinoreward.policies.policy import Floats, Parameter, Policy
from vinoreward.policies.spec import Dense, Layer

EXTRA = 16
"""Directions beyond the rank that the quick decomposition looks at, and then drops."""


def rank_for(weight: Floats, energy: float) -> int:
    """Return the least rank that keeps a part of the squared singular values' sum."""
    small = weight if len(weight) <= weight.shape[1] else weight.T
    wide = small.astype(np.float64)
    squares = np.maximum(np.linalg.eigvalsh(wide @ wide.T)[::-1], 0.0)
    kept = np.cumsum(squares)
    # Without tolerance, rounding would ask for every rank of a matrix that has few.
    return int(np.searchsorted(kept, energy * kept[-1] * (1.0 - 1e-12)) + 1)


def factors(weight: Floats, rank: int) -> tuple[Floats, Floats]:
    """Return (rank, I) and (O, rank) float32 factors of a weight (O, I), evenly scaled.

    A rank far below the sides is found by two rounds of power iteration from random directions
    (Halko, Martinsson and Tropp 2011, algorithm 4.4), always the same ones: 20 times quicker for
    2048 x 2048.
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


class LowRank(Stage):
    """Replaces hidden dense layers by two, ``NAME_low`` without activation and then ``NAME``.

    A layer of O outputs and I inputs is left alone where rank x (O + I) would not be below O x I
    multiplications. The head stays: it is small, and a value head may read what it reads.

    Args:
        rank: of every layer; or
        energy: part of the squared singular values that is kept, from above 0 to 1; each layer gets
            the rank that it needs.
        frozen_for: pushes for which ranks found by ``energy`` stay: another shape means that actors
            compile and students start anew.

    Raises:
        ConfigError: neither or both of rank and energy, or values that cannot work.
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
                f"low-rank layers were asked for with rank={rank}, energy={energy}, "
                f"frozen_for={frozen_for}. Expected a rank from 1, or an energy from 0 to 1, and "
                "at least 1 push."
            )
        self.rank = rank
        self.energy = energy
        self.frozen_for = frozen_for
        self._ranks: dict[str, int] = {}
        self._pushes = 0

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        """Return the policy with thinner layers.

        Raises:
            ConfigError: names of layers that end in ``_low`` already stand for something else.
        """
        weights = float_weights(policy, self)
        if self._pushes >= self.frozen_for:
            self._ranks, self._pushes = {}, 0
        self._pushes += 1
        layers: list[Layer] = []
        found: dict[str, Parameter] = {}
        for layer in policy.spec.layers:
            weight = weights.get(f"{layer.name}.weight")
            if weight is None:
                layers.append(layer)
                continue
            bias = weights[f"{layer.name}.bias"]
            if isinstance(layer, Dense) and layer is not policy.spec.layers[-1]:
                rank = self._rank(layer, weight)
                if rank * (layer.inputs + layer.outputs) < layer.inputs * layer.outputs:
                    thin = Dense(f"{layer.name}_low", layer.inputs, rank)
                    inner, weight = factors(weight, rank)
                    found[f"{thin.name}.weight"] = inner
                    found[f"{thin.name}.bias"] = np.zeros(rank, dtype=np.float32)
                    layers.append(thin)
                    layer = dataclasses.replace(layer, inputs=rank)
            layers.append(layer)
            found[f"{layer.name}.weight"] = weight
            found[f"{layer.name}.bias"] = bias
        if policy.spec.value is not None:
            for part in ("weight", "bias"):
                name = f"{policy.spec.value.name}.{part}"
                found[name] = weights[name]
        spec = dataclasses.replace(policy.spec, layers=tuple(layers))
        return policy.replace(spec=spec, parameters=found, ranges={}, blob=None)

    def _rank(self, layer: Dense, weight: Floats) -> int:
        if self.energy is None:
            return min(self.rank or 1, layer.inputs, layer.outputs)
        if layer.name not in self._ranks:
            self._ranks[layer.name] = rank_for(weight, self.energy)
        return min(self._ranks[layer.name], layer.inputs, layer.outputs)

    def state(self) -> dict[str, npt.NDArray[Any] | int | float]:
        """Return the ranks found, and their age in pushes."""
        return {
            "pushes": self._pushes,
            **{f"rank.{name}": rank for name, rank in self._ranks.items()},
        }

    def load_state(self, state: State) -> None:
        """Continue with the saved ranks."""
        ranks = {name: value for name, value in state.items() if name.startswith("rank.")}
        if set(state) != {"pushes", *ranks}:
            raise ConfigError(
                f"LowRank was given state {sorted(state)}. Expected pushes and ranks."
            )
        self._pushes = int(state["pushes"])
        self._ranks = {name[len("rank.") :]: int(value) for name, value in ranks.items()}
