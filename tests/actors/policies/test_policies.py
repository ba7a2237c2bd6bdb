"""Policies: what they are, and that the reference computes what torch does."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from policy_specs import IMAGES, SMALL, forward_with_value, observations_for

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.policies.policy import (
    ActivationRange,
    forward,
    layer_inputs,
    quantize_array,
    quantized,
    random_policy,
)
from vinoreward_actors.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp
from vinoreward_actors.policies.torch_policy import from_policy, load_policy, to_policy

# Specs


def test_mlp_gives_the_head_as_many_outputs_as_it_needs():
    for head, outputs in (("logits", 3), ("q", 3), ("tanh", 3), ("tanh_gaussian", 6)):
        spec = mlp(5, 3, head=head, hidden=(8,))
        assert (spec.outputs, spec.multiply_adds()) == (outputs, 5 * 8 + 8 * outputs)


def test_a_spec_survives_json_and_its_digest_tells_networks_apart():
    for spec in (SMALL, IMAGES):
        again = PolicySpec.from_dict(json.loads(json.dumps(spec.to_dict())))
        assert again == spec and again.digest() == spec.digest()
    other = mlp(5, 3, head="logits", hidden=(8, 7), value=True, activation="tanh")
    assert other.digest() != SMALL.digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"head": "softmax"},
        {"observation_dtype": "float64"},
        {"scale": 0.0},
        {"scale": float("nan")},
        {"actions": 4},
        {"observation_shape": (6,)},
        {"observation_shape": (5, 5)},
        {"observation_shape": (0,)},
        {"layers": ()},
        {"layers": (*SMALL.layers[:2], Dense("dense0", 7, 3))},
        {"layers": (*SMALL.layers[:2], Dense("a.b", 7, 3))},
        {"layers": (*SMALL.layers[:2], Dense("head", 7, 3, "relu"))},
        {"layers": (*SMALL.layers[:2], Dense("head", 6, 3))},
        {"layers": (*SMALL.layers[:2], Flatten())},
        {"layers": (Dense("dense0", 5, 8, "gelu"), *SMALL.layers[1:])},
        {"layers": (Conv("conv", 5, 8, 1, 1), *SMALL.layers[1:])},
        {"value": Dense("value", 7, 2)},
        {"value": Dense("value", 8, 1)},
        {"value": Dense("head", 7, 1)},
        {"value": Dense("value", 7, 1, "tanh")},
    ],
)
def test_layers_that_do_not_fit_are_refused(changes):
    with pytest.raises(ConfigError, match="Expected"):
        dataclasses.replace(SMALL, **changes)


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: value.pop("layers"),
        lambda value: value.update(layers=3),
        lambda value: value.update(colour="red"),
        lambda value: value["layers"][0].update(kind="lstm"),
        lambda value: value["layers"][0].pop("outputs"),
        lambda value: value["layers"][0].update(outputs="8"),
        lambda value: value["layers"][0].update(outputs=-8),
        lambda value: value.update(observation_shape=[float("inf")]),
        lambda value: value.update(observation_shape=5),
        lambda value: value.update(scale="1"),
        lambda value: value.update(actions=None),
        lambda value: value.update(value=[]),
    ],
)
def test_a_damaged_description_is_refused(damage):
    value = SMALL.to_dict()
    damage(value)
    with pytest.raises(ConfigError, match="Expected"):
        PolicySpec.from_dict(value)


# The reference against torch


@pytest.mark.parametrize("spec", [SMALL, IMAGES], ids=["mlp", "conv"])
def test_the_reference_computes_what_torch_does(spec):
    policy = random_policy(spec, 1)
    observations = observations_for(spec, 7)
    with torch.no_grad():
        outputs, values = from_policy(policy)(torch.from_numpy(observations))
    found, read = forward_with_value(policy, observations)
    np.testing.assert_allclose(found, outputs.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(read, values.numpy(), rtol=1e-5, atol=1e-5)


def test_a_module_gives_back_the_policy_that_was_loaded():
    policy = random_policy(IMAGES, 2)
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    module = from_policy(policy)
    assert torch.equal(torch.rand(1), expected)  # copying draws no random numbers
    again = to_policy(module, version=9)
    assert again.version == 9
    for name, value in policy.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], value)
    with pytest.raises(ConfigError, match="same layers"):
        load_policy(module, random_policy(SMALL, 0))


def test_unsuitable_observations_are_refused():
    rows = np.zeros((1, 5), dtype=np.float32)
    for wrong in (np.zeros((1, 6), dtype=np.float32), rows.astype(np.float64), rows + np.nan):
        with pytest.raises(InputError, match="Expected"):
            forward(random_policy(SMALL, 0), wrong)


def test_int8_layers_see_rounded_inputs_and_others_do_not():
    policy = random_policy(SMALL, 4)
    weight = policy.parameters["dense1.weight"]
    assert isinstance(weight, np.ndarray)
    codes = quantize_array(weight, 8)
    bounds = ActivationRange(0.0, 2.0)
    mixed = policy.replace(
        parameters={**policy.parameters, "dense1.weight": codes}, ranges={"dense1": bounds}
    )
    observations = observations_for(SMALL, 20)
    inputs = layer_inputs(mixed, observations)
    expected = quantized(inputs["dense1"], bounds) @ codes.dequantized().T
    expected = np.maximum(expected + policy.float_parameters()["dense1.bias"], 0)
    np.testing.assert_allclose(inputs["head"], expected, rtol=1e-6)
    weights_only = mixed.replace(ranges={})
    assert not np.allclose(forward(weights_only, observations), forward(mixed, observations))
