"""The measurements of an actor's step: what is compared, and that figures come out."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from vinoreward.errors import ConfigError
from vinoreward_actors.policies.policy import forward, random_policy
from vinoreward_actors.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp
from vinoreward_training.bench.actor_steps import (
    Arm,
    eager,
    halved,
    observations,
    policy_for,
    refresh_rows,
    step_rows,
)

SMALL = mlp(6, 2, head="tanh", hidden=(16, 8), value=True)
IMAGES = PolicySpec(
    observation_shape=(4, 20, 20),
    layers=(
        Conv("conv0", 4, 6, 4, 2),
        Conv("conv1", 6, 10, 3, 2),
        Flatten(),
        Dense("dense0", 160, 32, "relu"),
        Dense("head", 32, 3),
    ),
    head="q",
    actions=3,
    observation_dtype="uint8",
    scale=1 / 255,
)


@pytest.mark.parametrize("spec", [SMALL, IMAGES])
def test_a_halved_network_fits_together(spec: PolicySpec) -> None:
    half = halved(spec)
    assert half.multiply_adds() < 0.5 * spec.multiply_adds()
    assert half.outputs == spec.outputs
    for layer, before in zip(half.weighted[:-1], spec.weighted, strict=False):
        assert layer.outputs == before.outputs // 2
    outputs = forward(random_policy(half, 0), observations(Arm("half", half, "numpy"), 0))
    assert outputs.shape == (1, spec.outputs)


@pytest.mark.parametrize(
    "precision", ["int8", "fp32", "fp16", *(f"w{bits}" for bits in range(2, 9))]
)
def test_every_precision_makes_a_policy(precision: str) -> None:
    arm = Arm("small", SMALL, "openvino", precision, batch=3)
    policy = policy_for(arm, 0)
    assert policy.backend == "openvino"
    assert np.isfinite(forward(policy, observations(arm, 0))).all()
    assert policy.in_int8("dense0") == (precision == "int8")


def test_steps_and_refreshes_are_measured() -> None:
    arms = [
        Arm("small", SMALL, "numpy", target=0.001),
        Arm("small", SMALL, "openvino", "int8", batch=4),
    ]
    rows = step_rows(eager("small", SMALL), arms, rounds=2)
    assert [row.met for row in rows] == [True, None]
    assert all(row.value is not None and row.value > 0 for row in rows)
    assert "batch 4 against small fp32, torch, batch 1" in rows[1].what
    fresh = refresh_rows([dataclasses.replace(arm, target=1e6) for arm in arms], rounds=2)
    assert [row.met for row in fresh] == [True, True]
    assert set(fresh[0].details) == {
        "refresh_ms_cpu",
        "first_action_ms_cpu",
        "later_action_ms_cpu",
    }


def test_what_cannot_be_measured_is_said() -> None:
    with pytest.raises(ConfigError, match="'int5'"):
        policy_for(Arm("small", SMALL, "numpy", "int5"), 0)
    with pytest.raises(ConfigError, match="0 rounds"):
        step_rows(eager("small", SMALL), [], rounds=0)
    with pytest.raises(ConfigError, match="0 rounds"):
        refresh_rows([], rounds=0)
