"""Policies for tests."""

from __future__ import annotations

import numpy as np

from vinoreward_actors.policies.policy import (
    Floats,
    Policy,
    QuantizedArray,
    forward,
    layer_inputs,
)
from vinoreward_actors.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp

SMALL = mlp(5, 3, head="logits", hidden=(8, 7), value=True)
IMAGES = PolicySpec(
    observation_shape=(2, 12, 10),
    layers=(
        Conv("conv0", 2, 4, 4, 2),
        Conv("conv1", 4, 6, 2, 1, "tanh"),
        Flatten(),
        Dense("dense0", 6 * 4 * 3, 9, "relu"),
        Dense("head", 9, 5),
    ),
    head="q",
    actions=5,
    value=Dense("value", 9, 1),
    observation_dtype="uint8",
    scale=1 / 255,
)
BITS = (32, 16, 8, 6, 4, 3, 2)


def observations_for(spec: PolicySpec, count: int = 32, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    if spec.observation_dtype == "uint8":
        return random.integers(0, 256, (count, *spec.observation_shape), dtype=np.uint8)
    return random.standard_normal((count, *spec.observation_shape)).astype(np.float32)


def forward_with_value(policy: Policy, observations: np.ndarray) -> tuple[Floats, Floats | None]:
    """The head's outputs (N, K), and values (N,) if there is a value head."""
    outputs, value = forward(policy, observations), policy.spec.value
    if value is None:
        return outputs, None
    features = layer_inputs(policy, observations)[policy.spec.layers[-1].name]
    weights = policy.float_parameters()
    read = features @ weights[f"{value.name}.weight"].T + weights[f"{value.name}.bias"]
    return outputs, read[:, 0]


def assert_same(one: Policy, two: Policy) -> None:
    """To the bit: codes, scales and bits, not what they stand for."""
    assert (one.spec, one.backend, one.version) == (two.spec, two.backend, two.version)
    assert (one.blob, dict(one.ranges)) == (two.blob, dict(two.ranges))
    assert list(one.parameters) == list(two.parameters)
    for name, value in one.parameters.items():
        other = two.parameters[name]
        assert type(value) is type(other)
        if isinstance(value, QuantizedArray) and isinstance(other, QuantizedArray):
            assert value.bits == other.bits
            np.testing.assert_array_equal(value.codes, other.codes)
            np.testing.assert_array_equal(value.scales, other.scales)
        else:
            assert isinstance(other, np.ndarray) and value.dtype == other.dtype
            np.testing.assert_array_equal(value, other)
