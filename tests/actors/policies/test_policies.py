"""Policies: what they are, that the reference computes what torch does, and their arrays."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from policy_specs import IMAGES, SMALL, forward_with_value, observations_for

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.policies import wire
from vinoreward_actors.policies.policy import (
    ActivationRange,
    Policy,
    QuantizedArray,
    forward,
    largest_code,
    layer_inputs,
    quantize_array,
    quantized,
    random_policy,
)
from vinoreward_actors.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp
from vinoreward_actors.policies.torch_policy import from_policy, load_policy, to_policy
from vinoreward_actors.policies.wire import pack, unpack

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


# Quantized arrays


matrices = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=4, max_side=6),
    elements=st.floats(-1e6, 1e6, width=32),
)


@given(weights=matrices, bits=st.integers(2, 8))
def test_weights_are_off_by_half_a_step_of_their_outputs_scale(weights, bits):
    found = quantize_array(weights, bits)
    assert np.abs(found.codes).max(initial=0) <= largest_code(bits)
    shape = (-1, *[1] * (weights.ndim - 1))
    error = np.abs(found.dequantized().astype(np.float64) - weights)
    assert (error <= found.scales.reshape(shape) * 0.500001 + 1e-30).all()
    highest = np.abs(weights).reshape(len(weights), -1).max(1)
    seen = np.abs(found.dequantized()).reshape(len(weights), -1).max(1)
    np.testing.assert_allclose(seen[highest > 1e-30], highest[highest > 1e-30], rtol=1e-6)


def test_other_weights_and_bits_are_not_quantized():
    weights = np.ones((2, 2), dtype=np.float32)
    for bits in (0, 1, 9, 32):
        with pytest.raises(ConfigError, match="Expected 2 to 8"):
            quantize_array(weights, bits)
    for bad in (np.nan, -np.inf):
        weights[1, 0] = bad
        with pytest.raises(InputError, match="NaN or infinity"):
            quantize_array(weights)


def test_a_policy_takes_the_parameters_of_its_spec_only():
    policy = random_policy(SMALL, 0)
    with pytest.raises(InputError, match=r"head\.bias"):
        Policy(SMALL, {k: v for k, v in policy.parameters.items() if k != "head.bias"})
    with pytest.raises(InputError, match="float64"):
        Policy(SMALL, {**policy.parameters, "head.bias": np.zeros(3)})
    with pytest.raises(InputError, match="not layers"):
        policy.replace(ranges={"value": ActivationRange(0, 1)})
    with pytest.raises(TypeError):
        policy.parameters["head.bias"] = np.zeros(3)
    with pytest.raises(InputError, match="int8"):
        QuantizedArray(np.zeros((2, 2), dtype=np.int8), np.ones(3, dtype=np.float32))


def test_ranges_hold_nought_and_more():
    for bounds in ((0.1, 1.0), (-1.0, -0.5), (0.0, 0.0), (0.0, np.inf)):
        with pytest.raises(InputError, match="Expected"):
            ActivationRange(*bounds)


# Packing


@st.composite
def codes_and_bits(draw):
    bits = draw(st.integers(2, 8))
    largest = largest_code(bits)
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=9))
    return draw(hnp.arrays(np.int8, shape, elements=st.integers(-largest, largest))), bits


@given(pair=codes_and_bits())
def test_codes_come_back_and_take_the_promised_bytes(pair):
    codes, bits = pair
    packed = pack(codes, bits)
    assert packed.nbytes == -(-codes.size * bits // 8)
    np.testing.assert_array_equal(unpack(packed, bits, codes.shape), codes)


@pytest.mark.parametrize("bits", range(2, 9))
def test_chunks_meet_without_a_gap(bits):
    """More codes than are packed at once, whose last chunk is not full."""
    largest, count = largest_code(bits), 2 * wire.CHUNK + 17
    codes = np.random.default_rng(bits).integers(-largest, largest + 1, count).astype(np.int8)
    packed = pack(codes, bits)
    np.testing.assert_array_equal(unpack(packed, bits, (count,)), codes)
    head = pack(codes[: wire.CHUNK], bits)
    np.testing.assert_array_equal(packed[: len(head)], head)


def test_codes_are_packed_in_order_and_only_if_there_is_room():
    codes = np.arange(-6, 6, dtype=np.int8).reshape(3, 4).T
    np.testing.assert_array_equal(unpack(pack(codes, 4), 4, (4, 3)), codes)
    with pytest.raises(InputError, match="-7 to 7"):
        pack(np.array([-8], dtype=np.int8), 4)


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_pattern_that_no_code_has_is_seen(bits):
    damaged = pack(np.zeros(16, dtype=np.int8), bits)
    # In 8 bits codes lie as they are, and -128 is no code; otherwise all ones is the unused one.
    damaged[:] = 0x80 if bits == 8 else 0xFF
    with pytest.raises(InputError, match="damaged"):
        unpack(damaged, bits, (16,))


@given(pair=codes_and_bits(), at=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_damaged_bytes_give_valid_codes_or_an_error(pair, at, flip):
    codes, bits = pair
    packed = pack(codes, bits)
    packed[at % packed.size] ^= flip
    try:
        found = unpack(packed, bits, codes.shape)
    except InputError:
        return
    assert np.abs(found.astype(int)).max() <= largest_code(bits)


def test_another_number_of_bytes_is_refused():
    packed = pack(np.zeros(10, dtype=np.int8), 3)
    for wrong in (packed[:-1], np.append(packed, np.uint8(0)), packed.view(np.int8)):
        with pytest.raises(InputError, match="4 bytes"):
            unpack(wrong, 3, (10,))
    with pytest.raises(InputError, match="Expected"):
        unpack(np.zeros(0, dtype=np.uint8), 3, (2**32, 2**32))
