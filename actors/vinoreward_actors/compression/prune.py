"""Structured pruning: removes whole neurons and channels, so every backend gets faster.

AcceRL, section 2.2: rows and columns of weight matrices are deleted, not set to zero. Distillation
always follows, because the pruned network alone predicts badly.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError
from vinoreward_actors.compression.chain import FLOAT, CompressionContext, Stage, State, part_of
from vinoreward_actors.compression.distill import Distill
from vinoreward_actors.policies.policy import Floats, Parameter, Policy
from vinoreward_actors.policies.spec import Flatten, Layer

Indices = npt.NDArray[np.int64]


def keep_neurons(policy: Policy, kept: dict[str, Indices]) -> Policy:
    """Return a narrower policy, equal to one whose removed neurons always output zero.

    ``kept`` gives the sorted indices of the outputs that a hidden layer keeps; other layers keep
    all.
    """
    weights = policy.float_parameters()
    parameters: dict[str, Parameter] = {}
    layers: list[Layer] = []
    # Which inputs of the next layer, and of the head, remain; None for all.
    rest: Indices | None = None
    head_rest: Indices | None = None
    for layer, shape in zip(policy.spec.layers, policy.spec.shapes(), strict=False):
        if isinstance(layer, Flatten):
            if rest is not None and len(shape) == 3:
                pixels = math.prod(shape[1:])
                rest = (rest[:, None] * pixels + np.arange(pixels)).reshape(-1)
            layers.append(layer)
            continue
        weight, bias = weights[f"{layer.name}.weight"], weights[f"{layer.name}.bias"]
        weight = weight if rest is None else weight[:, rest]
        head_rest, rest = rest, kept.get(layer.name)
        if rest is not None:
            weight, bias = weight[rest], bias[rest]
        layers.append(dataclasses.replace(layer, inputs=weight.shape[1], outputs=weight.shape[0]))
        parameters[f"{layer.name}.weight"] = np.ascontiguousarray(weight)
        parameters[f"{layer.name}.bias"] = np.ascontiguousarray(bias)
    value = policy.spec.value
    if value is not None:
        weight = weights[f"{value.name}.weight"]
        weight = weight if head_rest is None else np.ascontiguousarray(weight[:, head_rest])
        value = dataclasses.replace(value, inputs=weight.shape[1])
        parameters[f"{value.name}.weight"] = weight
        parameters[f"{value.name}.bias"] = weights[f"{value.name}.bias"]
    spec = dataclasses.replace(policy.spec, layers=tuple(layers), value=value)
    return policy.replace(spec=spec, parameters=parameters, ranges={}, blob=None)


def importance(policy: Policy) -> dict[str, Floats]:
    """Return the L2 norm of the weights and bias of each output of each hidden layer."""
    weights = policy.float_parameters()
    norms: dict[str, Floats] = {}
    for layer in policy.spec.weighted[:-1]:
        rows = weights[f"{layer.name}.weight"].reshape(layer.outputs, -1)
        square = np.einsum("oi,oi->o", rows, rows) + weights[f"{layer.name}.bias"] ** 2
        norms[layer.name] = np.sqrt(square).astype(np.float32)
    return norms


class Prune(Stage):
    """Removes the neurons and channels of smallest norm from every hidden layer.

    Never prunes actions and the value, and keeps at least one neuron per layer. Chooses the neurons
    again only every ``frozen_for`` pushes, or when the sparsity or the network changes: a student
    whose neurons change at every push could not learn from push to push.

    Args:
        sparsity: fraction of neurons to remove, from 0 to below 1.
        frozen_for: pushes between two choices.
    """

    phase = FLOAT

    @property
    def shrinks(self) -> bool:
        """See :attr:`Stage.shrinks`."""
        return self.sparsity > 0.0

    def __init__(self, sparsity: float, *, frozen_for: int = 20) -> None:
        self.sparsity = _checked_sparsity(sparsity)
        if frozen_for < 1:
            raise ConfigError(f"Prune got frozen_for={frozen_for}. Expected at least 1 push.")
        self.frozen_for = frozen_for
        self._kept: dict[str, Indices] = {}
        self._widths: dict[str, int] = {}
        self._pushes = 0

    def check(self, following: Sequence[Stage]) -> None:
        """Refuse pruning without distillation after it, which the paper always has."""
        students = [stage for stage in following if isinstance(stage, Distill)]
        if not students:
            raise ConfigError(
                "Prune is not followed by Distill. Expected .add(Prune(...)).add(Distill()): a "
                "pruned network acts badly until it is distilled."
            )
        if students[0].student is not None:
            raise ConfigError(
                "Prune is followed by a Distill with its own student, which would discard the "
                "pruned network. Expected one or the other."
            )

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        """Return the narrower policy, before distillation."""
        self._float_weights(policy)
        if self.sparsity == 0.0:
            return policy
        widths = {layer.name: layer.outputs for layer in policy.spec.weighted[:-1]}
        if widths != self._widths or self._pushes >= self.frozen_for or not self._kept:
            self._widths, self._pushes, self._kept = widths, 0, {}
            for name, worth in importance(policy).items():
                count = max(1, round(len(worth) * (1.0 - self.sparsity)))
                # A stable sort: among equals the first ones stay, on every machine.
                best = np.argsort(-worth, kind="stable")[:count]
                self._kept[name] = np.sort(best).astype(np.int64)
        self._pushes += 1
        return keep_neurons(policy, self._kept)

    def parameters(self) -> dict[str, float]:
        """Return the sparsity."""
        return {"sparsity": self.sparsity}

    def set_parameter(self, parameter: str, value: float) -> None:
        """Change the sparsity; the next push chooses neurons again."""
        if parameter != "sparsity":
            super().set_parameter(parameter, value)
        if value != self.sparsity:
            self.sparsity = _checked_sparsity(value)
            self._kept = {}

    def state(self) -> State:
        """Return the sparsity, the choice of neurons, and its age in pushes."""
        return {
            "sparsity": self.sparsity,
            "pushes": self._pushes,
            **{f"kept.{name}": kept.copy() for name, kept in self._kept.items()},
            **{f"width.{name}": width for name, width in self._widths.items()},
        }

    def load_state(self, state: State) -> None:
        """Restore the saved choice of neurons."""
        self.sparsity = _checked_sparsity(float(state["sparsity"]))
        self._pushes = int(state["pushes"])
        self._kept = {
            name: np.array(kept, np.int64) for name, kept in part_of(state, "kept").items()
        }
        self._widths = {name: int(width) for name, width in part_of(state, "width").items()}


def _checked_sparsity(sparsity: float) -> float:
    if not 0.0 <= sparsity < 1.0:
        raise ConfigError(f"the sparsity is {sparsity}. Expected a fraction from 0 to below 1.")
    return float(sparsity)
