"""Small policies, and what tests of compression do with them."""

from __future__ import annotations

import numpy as np
from policy_specs import forward_with_value, observations_for

from vinoreward_actors.compression import CompressionContext
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp

MLP = mlp(6, 3, head="logits", hidden=(16, 12), value=True)
CNN = PolicySpec(
    observation_shape=(2, 12, 10),
    layers=(
        Conv("conv0", 2, 6, 4, 2),
        Conv("conv1", 6, 8, 2, 1),
        Flatten(),
        Dense("dense0", 8 * 4 * 3, 10, "relu"),
        Dense("head", 10, 5),
    ),
    head="q",
    actions=5,
    value=Dense("value", 10, 1),
    observation_dtype="uint8",
    scale=1 / 255,
)


def context_for(policy: Policy, push: int = 0, seed: int = 0) -> CompressionContext:
    return CompressionContext(policy, observations_for(policy.spec, 32, seed), push=push)


def assert_same_function(one: Policy, two: Policy, tolerance: float = 1e-5) -> None:
    observations = observations_for(one.spec, 40, seed=9)
    for found, expected in zip(
        forward_with_value(two, observations), forward_with_value(one, observations), strict=True
    ):
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def changed(policy: Policy, **arrays: np.ndarray) -> Policy:
    """Replace parameters; ``a__weight`` stands for ``a.weight``."""
    named = {name.replace("__", "."): value for name, value in arrays.items()}
    return policy.replace(parameters={**policy.parameters, **named})


def assert_equal(one: Policy, two: Policy) -> None:
    assert one.spec == two.spec
    assert dict(one.ranges) == dict(two.ranges)
    for name, value in one.float_parameters().items():
        np.testing.assert_array_equal(value, two.float_parameters()[name])
