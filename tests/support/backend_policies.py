"""Policies of every precision for backends, and their oracle, for tests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from policy_specs import observations_for as observations

from vinoreward_actors.policies.backends.base import PolicyBackend
from vinoreward_actors.policies.policy import (
    ActivationRange,
    Policy,
    forward,
    layer_inputs,
    quantize_array,
)
from vinoreward_actors.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp
from vinoreward_actors.policies.wire import lowered

SPECS = {
    "small": mlp(5, 3, head="logits", hidden=(16, 16), value=True),
    "odd": mlp(7, 3, head="tanh", hidden=(33, 17, 9), activation="tanh"),
    "gaussian": mlp(11, 4, head="tanh_gaussian", hidden=(64, 48)),
    "images": PolicySpec(
        observation_shape=(3, 22, 19),
        layers=(
            Conv("conv0", 3, 8, 5, 2),
            Conv("conv1", 8, 12, 3, 1, "tanh"),
            Flatten(),
            Dense("dense0", 12 * 7 * 6, 40, "relu"),
            Dense("head", 40, 6),
        ),
        head="q",
        actions=6,
        observation_dtype="uint8",
        scale=1 / 255,
    ),
    "smooth": PolicySpec(
        observation_shape=(2, 9, 8),
        layers=(
            Conv("conv0", 2, 8, 3, 1, "silu"),
            Flatten(),
            Dense("dense0", 8 * 7 * 6, 24, "elu"),
            Dense("dense1", 24, 16, "silu"),
            Dense("head", 16, 5),
        ),
        head="logits",
        actions=5,
    ),
}
PRECISIONS = ("fp32", "fp16", "8 bits", "4 bits", "int8", "int8 but the first")
# Above the sizes from which weights are compiled in, or turned: other code than for small ones.
WIDE = mlp(24, 6, head="tanh", hidden=(1030, 1030), activation="tanh")


WIDER = mlp(24, 6, head="logits", hidden=(2060, 2060))


def in_int8(policy: Policy, *, but: tuple[str, ...] = ()) -> Policy:
    """A policy in INT8 with the ranges that its layers' inputs take on some observations."""
    seen = layer_inputs(policy, observations(policy.spec, 200, seed=9))
    layers = [layer.name for layer in policy.spec.weighted if layer.name not in but]
    weights = {
        f"{name}.weight": quantize_array(policy.float_parameters()[f"{name}.weight"])
        for name in layers
    }
    ranges = {
        name: ActivationRange(min(0.0, float(seen[name].min())), float(seen[name].max()))
        for name in layers
    }
    return policy.replace(parameters={**policy.parameters, **weights}, ranges=ranges)


def with_precision(policy: Policy, precision: str) -> Policy:
    if precision == "int8":
        return in_int8(policy)
    if precision == "int8 but the first":
        return in_int8(policy, but=(policy.spec.weighted[0].name,))
    return lowered(policy, {"fp32": 32, "fp16": 16, "8 bits": 8, "4 bits": 4}[precision])


def tolerance(policy: Policy) -> float:
    """How far a backend may be from the oracle.

    In float: rounding of sums. In INT8 as well, but sums in another order may put an input that
    lies between two levels on the other one: two such in a layer, at its largest weight.
    """
    flips = [
        2 * bounds.step * float(np.abs(policy.float_parameters()[f"{name}.weight"]).max())
        for name, bounds in policy.ranges.items()
    ]
    return max(flips, default=0.0) + 2e-5


def agrees(backend: PolicyBackend, policy: Policy, seed: int = 0) -> npt.NDArray[np.float32]:
    """Check one call; return how far each output is from the oracle's."""
    seen = observations(policy.spec, backend.batch, seed)
    found, expected = backend.infer(seen), forward(backend.computed(policy), seen)
    assert found.dtype == np.float32 and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=tolerance(policy))
    return np.abs(found - expected)
