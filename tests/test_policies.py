"""Policies as plain data: layers, arithmetic, packing, and what crosses between processes."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from subprocess import run
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vinoreward.errors import ConfigError, InputError
from vinoreward.policies import packing
from vinoreward.policies.packing import pack, packed_size, unpack
from vinoreward.policies.policy import (
    ActivationRange,
    Policy,
    QuantizedArray,
    largest_code,
    quantize_array,
    random_policy,
)
from vinoreward.policies.reference import forward, forward_with_value, layer_inputs, quantized
from vinoreward.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp
from vinoreward.policies.torch_policy import TorchPolicy, from_policy, load_policy, to_policy
from vinoreward.policies.wire import decode, encode, lowered, wire_bytes

SMALL = mlp(5, 3, head="logits", hidden=(8, 7), value=True)
PICTURES = PolicySpec(
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


def observations_for(spec: PolicySpec, count: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    if spec.observation_dtype == "uint8":
        return random.integers(0, 256, (count, *spec.observation_shape), dtype=np.uint8)
    return random.standard_normal((count, *spec.observation_shape)).astype(np.float32)


# Specs


@pytest.mark.parametrize("head", ["logits", "q", "tanh", "tanh_gaussian"])
def test_mlp_gives_the_head_as_many_outputs_as_it_needs(head: Any) -> None:
    spec = mlp(5, 3, head=head, hidden=(8,))
    assert spec.outputs == (6 if head == "tanh_gaussian" else 3)
    assert spec.multiply_adds() == 5 * 8 + 8 * spec.outputs


def test_parameter_shapes_are_in_order_with_the_value_head_last() -> None:
    assert list(PICTURES.parameter_shapes().items())[:2] == [
        ("conv0.weight", (4, 2, 4, 4)),
        ("conv0.bias", (4,)),
    ]
    assert list(PICTURES.parameter_shapes())[-2:] == ["value.weight", "value.bias"]


@pytest.mark.parametrize("spec", [SMALL, PICTURES], ids=["mlp", "conv"])
def test_a_spec_survives_json_and_keeps_its_digest(spec: PolicySpec) -> None:
    again = PolicySpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert again.digest() == spec.digest()


def test_the_digest_tells_networks_apart() -> None:
    other = dataclasses.replace(
        SMALL, layers=(dataclasses.replace(SMALL.layers[0], activation="tanh"), *SMALL.layers[1:])
    )
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
        {"layers": (Dense("dense0", 5, 8, "gelu"), *SMALL.layers[1:])},  # type: ignore[arg-type]
        {"layers": (Conv("conv", 5, 8, 1, 1), *SMALL.layers[1:])},
        {"value": Dense("value", 7, 2)},
        {"value": Dense("value", 8, 1)},
        {"value": Dense("head", 7, 1)},
        {"value": Dense("value", 7, 1, "tanh")},
    ],
)
def test_layers_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
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
def test_a_damaged_description_is_refused(damage: Callable[[dict[str, Any]], object]) -> None:
    value = SMALL.to_dict()
    damage(value)
    with pytest.raises(ConfigError, match="Expected"):
        PolicySpec.from_dict(value)


# The reference against torch


@pytest.mark.parametrize("spec", [SMALL, PICTURES], ids=["mlp", "conv"])
def test_the_reference_computes_what_torch_does(spec: PolicySpec) -> None:
    policy = random_policy(spec, 1)
    observations = observations_for(spec, 7)
    with torch.no_grad():
        outputs, values = from_policy(policy)(torch.from_numpy(observations))
    found, read = forward_with_value(policy, observations)
    assert values is not None
    np.testing.assert_allclose(found, outputs.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(read, values.numpy(), rtol=1e-5, atol=1e-5)


def test_a_module_gives_back_the_policy_that_was_loaded() -> None:
    policy = random_policy(PICTURES, 2)
    module = TorchPolicy(PICTURES)
    load_policy(module, policy)
    again = to_policy(module, version=9)
    assert again.version == 9
    for name, value in policy.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], value)
    with pytest.raises(ConfigError, match="same layers"):
        load_policy(module, random_policy(SMALL, 0))


def test_copying_a_policy_into_torch_draws_no_random_numbers() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    from_policy(random_policy(SMALL, 0))
    assert torch.equal(torch.rand(1), expected)


def test_a_module_with_nan_gives_no_policy() -> None:
    module = TorchPolicy(SMALL)
    with torch.no_grad():
        module.get_parameter("head.bias")[1] = float("nan")
    with pytest.raises(InputError, match=r"head\.bias holds NaN"):
        to_policy(module)


def test_layer_inputs_are_what_each_layer_is_given() -> None:
    policy = random_policy(PICTURES, 3)
    observations = observations_for(PICTURES, 2)
    inputs = layer_inputs(policy, observations)
    assert {name: value.shape for name, value in inputs.items()} == {
        "conv0": (2, 2, 12, 10),
        "conv1": (2, 4, 5, 4),
        "dense0": (2, 72),
        "head": (2, 9),
    }
    weights = policy.float_parameters()
    head = inputs["head"] @ weights["head.weight"].T + weights["head.bias"]
    np.testing.assert_allclose(head, forward(policy, observations), rtol=1e-6)


@pytest.mark.parametrize(
    "observations",
    [
        np.zeros((1, 6), dtype=np.float32),
        np.zeros((1, 5)),
        np.array([[0, 0, np.nan, 0, 0]], dtype=np.float32),
        np.array([[0, 0, np.inf, 0, 0]], dtype=np.float32),
    ],
)
def test_unsuitable_observations_are_refused(observations: np.ndarray) -> None:
    with pytest.raises(InputError, match="Expected"):
        forward(random_policy(SMALL, 0), observations)


def test_int8_layers_see_rounded_inputs_and_others_do_not() -> None:
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


def test_rounding_clips_to_the_range_and_gives_256_levels() -> None:
    bounds = ActivationRange(-1.0, 1.55)
    values = np.linspace(-3, 3, 5001, dtype=np.float32)
    seen = quantized(values, bounds)
    assert len(np.unique(seen)) == 256
    assert seen.min() == np.float32(-1.0)
    assert seen.max() == pytest.approx(1.55)
    inside = (values >= -1.0) & (values <= 1.55)
    assert np.abs(seen - values)[inside].max() <= bounds.step / 2 + 1e-6


# Quantized arrays

matrices = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=4, max_side=6),
    elements=st.floats(-1e6, 1e6, width=32),
)


@given(weights=matrices, bits=st.integers(2, 8))
def test_each_weight_is_off_by_half_a_step_at_most(weights: np.ndarray, bits: int) -> None:
    found = quantize_array(weights, bits)
    assert np.abs(found.codes).max(initial=0) <= largest_code(bits)
    shape = (-1, *[1] * (weights.ndim - 1))
    error = np.abs(found.dequantized().astype(np.float64) - weights)
    assert (error <= found.scales.reshape(shape) * 0.500001 + 1e-30).all()


@given(weights=matrices, bits=st.integers(2, 8))
def test_scales_are_per_output_and_reach_its_largest_weight(weights: np.ndarray, bits: int) -> None:
    found = quantize_array(weights, bits)
    highest = np.abs(weights).reshape(len(weights), -1).max(1)
    seen = np.abs(found.dequantized()).reshape(len(weights), -1).max(1)
    np.testing.assert_allclose(seen[highest > 1e-30], highest[highest > 1e-30], rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_not_quantized(bad: float) -> None:
    weights = np.ones((2, 2), dtype=np.float32)
    weights[1, 0] = bad
    with pytest.raises(InputError, match="NaN or infinity"):
        quantize_array(weights)


@pytest.mark.parametrize("bits", [0, 1, 9, 16, 32])
def test_codes_have_two_to_eight_bits(bits: int) -> None:
    with pytest.raises(ConfigError, match="Expected 2 to 8"):
        quantize_array(np.ones((2, 2), dtype=np.float32), bits)


def test_a_policy_takes_the_parameters_of_its_spec_only() -> None:
    policy = random_policy(SMALL, 0)
    with pytest.raises(InputError, match=r"head\.bias"):
        Policy(SMALL, {k: v for k, v in policy.parameters.items() if k != "head.bias"})
    with pytest.raises(InputError, match="float64"):
        Policy(SMALL, {**policy.parameters, "head.bias": np.zeros(3)})
    with pytest.raises(InputError, match="no layers"):
        policy.replace(ranges={"value": ActivationRange(0, 1)})
    with pytest.raises(TypeError):
        policy.parameters["head.bias"] = np.zeros(3)  # type: ignore[index]
    with pytest.raises(InputError, match="int8"):
        QuantizedArray(np.zeros((2, 2), dtype=np.int8), np.ones(3, dtype=np.float32))


@pytest.mark.parametrize("bounds", [(0.1, 1.0), (-1.0, -0.5), (0.0, 0.0), (0.0, np.inf)])
def test_ranges_hold_nought_and_more(bounds: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="Expected"):
        ActivationRange(*bounds)


# Packing


@st.composite
def codes_and_bits(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    bits = draw(st.integers(2, 8))
    largest = largest_code(bits)
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=9))
    return draw(hnp.arrays(np.int8, shape, elements=st.integers(-largest, largest))), bits


@given(pair=codes_and_bits())
def test_codes_come_back_and_take_the_promised_bytes(pair: tuple[np.ndarray, int]) -> None:
    codes, bits = pair
    packed = pack(codes, bits)
    assert packed.nbytes == packed_size(codes.size, bits) == -(-codes.size * bits // 8)
    np.testing.assert_array_equal(unpack(packed, bits, codes.shape), codes)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 31, 32, 33, 100])
def test_chunks_meet_without_a_gap(bits: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    largest = largest_code(bits)
    codes = np.random.default_rng(count).integers(-largest, largest + 1, count).astype(np.int8)
    whole = pack(codes, bits)
    monkeypatch.setattr(packing, "CHUNK", 16)
    np.testing.assert_array_equal(pack(codes, bits), whole)
    np.testing.assert_array_equal(unpack(whole, bits, (count,)), codes)


def test_codes_of_a_strided_array_are_packed_in_order() -> None:
    codes = np.arange(-6, 6, dtype=np.int8).reshape(3, 4).T
    np.testing.assert_array_equal(unpack(pack(codes, 4), 4, (4, 3)), codes)


def test_a_code_without_room_is_refused() -> None:
    with pytest.raises(InputError, match="-7 to 7"):
        pack(np.array([-8], dtype=np.int8), 4)


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_pattern_that_no_code_has_is_seen(bits: int) -> None:
    damaged = pack(np.zeros(16, dtype=np.int8), bits)
    # In 8 bits codes lie as they are, and -128 is no code; otherwise all ones is the unused one.
    damaged[:] = 0x80 if bits == 8 else 0xFF
    with pytest.raises(InputError, match="damaged"):
        unpack(damaged, bits, (16,))


@given(pair=codes_and_bits(), at=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_damaged_bytes_give_valid_codes_or_an_error(
    pair: tuple[np.ndarray, int], at: int, flip: int
) -> None:
    codes, bits = pair
    packed = pack(codes, bits)
    packed[at % packed.size] ^= flip
    try:
        found = unpack(packed, bits, codes.shape)
    except InputError:
        return
    assert np.abs(found.astype(int)).max() <= largest_code(bits)


def test_another_number_of_bytes_is_refused() -> None:
    packed = pack(np.zeros(10, dtype=np.int8), 3)
    for wrong in (packed[:-1], np.append(packed, np.uint8(0)), packed.view(np.int8)):
        with pytest.raises(InputError, match="4 bytes"):
            unpack(wrong, 3, (10,))
    with pytest.raises(InputError, match="Expected"):
        unpack(np.zeros(0, dtype=np.uint8), 3, (2**32, 2**32))


# The wire


def same(one: Policy, two: Policy) -> None:
    assert (one.spec, one.engine, one.version, one.blob) == (
        two.spec,
        two.engine,
        two.version,
        two.blob,
    )
    assert dict(one.ranges) == dict(two.ranges)
    assert list(one.parameters) == list(two.parameters)
    for name, value in one.parameters.items():
        other = two.parameters[name]
        assert type(value) is type(other)
        if isinstance(value, QuantizedArray) and isinstance(other, QuantizedArray):
            assert value.bits == other.bits
            np.testing.assert_array_equal(value.codes, other.codes)
            np.testing.assert_array_equal(value.scales, other.scales)
        else:
            assert value.dtype == other.dtype
            np.testing.assert_array_equal(value, other)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("spec", [SMALL, PICTURES], ids=["mlp", "conv"])
def test_a_policy_crosses_bit_for_bit_in_the_promised_bytes(spec: PolicySpec, bits: int) -> None:
    policy = random_policy(spec, 5).replace(version=12, engine="openvino")
    sent = encode(policy, bits=bits)
    same(decode(sent.header, sent.payload()), lowered(policy, bits))
    assert sent.nbytes - len(sent.header) == wire_bytes(spec, bits)
    assert all(offset % 64 == 0 for offset, _ in sent.parts)


def test_bytes_fall_with_bits() -> None:
    spec = mlp(64, 4, head="logits", hidden=(256, 256))
    sizes = [encode(random_policy(spec, 0), bits=bits).nbytes for bits in BITS]
    assert sizes == sorted(sizes, reverse=True)
    weights = sum(np.prod(s) for n, s in spec.parameter_shapes().items() if n.endswith("weight"))
    for bits, size in zip(BITS, sizes, strict=True):
        # Biases, scales and header: less than 3 % of this network's float32 bytes.
        assert size <= weights * bits / 8 + 0.03 * weights * 4


def test_ranges_blob_and_mixed_precision_cross_too() -> None:
    policy = random_policy(SMALL, 6)
    weights = policy.float_parameters()
    mixed = policy.replace(
        parameters={
            **weights,
            "dense0.weight": weights["dense0.weight"].astype(np.float16),
            "dense1.weight": quantize_array(weights["dense1.weight"], 3),
        },
        ranges={"dense1": ActivationRange(0.0, 3.5)},
        blob=b"compiled",
    )
    sent = encode(mixed)
    same(decode(sent.header, sent.payload()), mixed)


def test_float_arrays_and_bytes_are_views_of_the_buffer() -> None:
    sent = encode(random_policy(SMALL, 7).replace(blob=b"compiled"), bits=8)
    buffer = sent.payload()
    found = decode(sent.header, buffer)
    weight, bias = found.parameters["dense0.weight"], found.parameters["dense0.bias"]
    assert isinstance(weight, QuantizedArray) and isinstance(bias, np.ndarray)
    assert np.shares_memory(weight.codes, buffer)
    assert np.shares_memory(bias, buffer)
    assert found.blob == b"compiled"
    assert np.shares_memory(np.frombuffer(found.blob, dtype=np.uint8), buffer)
    again = encode(found)  # it can go on as it came
    assert decode(again.header, again.payload()).blob == b"compiled"


@pytest.mark.parametrize("bits", [0, 1, 9, 12, 64])
def test_other_numbers_of_bits_are_refused(bits: int) -> None:
    with pytest.raises(ConfigError, match="Expected 2 to 8"):
        encode(random_policy(SMALL, 0), bits=bits)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e6])
def test_half_precision_refuses_what_it_cannot_hold(bad: float) -> None:
    policy = random_policy(SMALL, 0)
    weights = policy.float_parameters()
    weights["head.weight"] = np.full((3, 7), bad, dtype=np.float32)
    with pytest.raises(InputError, match="65504"):
        encode(Policy(SMALL, weights), bits=16)


def damaged_header(change: Callable[[dict[str, Any]], object]) -> tuple[bytes, np.ndarray]:
    sent = encode(random_policy(SMALL, 8), bits=4)
    value = json.loads(sent.header)
    change(value)
    return json.dumps(value).encode(), sent.payload()


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.update(format=2),
        lambda value: value.pop("format"),
        lambda value: value.pop("spec"),
        lambda value: value.update(spec=[]),
        lambda value: value["spec"].update(head="softmax"),
        lambda value: value["spec"]["layers"][0].update(outputs=9),
        lambda value: value.update(parameters={}),
        lambda value: value["parameters"].pop(),
        lambda value: value["parameters"][0].update(bits=99),
        lambda value: value["parameters"][0].update(bits="many"),
        lambda value: value["parameters"][0].update(shape=[8, 6]),
        lambda value: value["parameters"][0].update(shape=[-1, 5]),
        lambda value: value["parameters"][0].update(shape=[2**40, 2**40]),
        lambda value: value["parameters"][0]["codes"].update(offset=-64),
        lambda value: value["parameters"][0]["codes"].update(offset=10**9),
        lambda value: value["parameters"][0]["codes"].update(offset=float("inf")),
        lambda value: value["parameters"][0]["codes"].update(offset=float("nan")),
        lambda value: value["parameters"][0]["codes"].update(bytes=3),
        lambda value: value["parameters"][0]["scales"].update(bytes=3),
        lambda value: value["parameters"][1].update(dtype="object"),
        lambda value: value["parameters"][1].pop("data"),
        lambda value: value.update(ranges=[]),
        lambda value: value.update(ranges={"dense0": [1.0]}),
        lambda value: value.update(ranges={"dense0": [1.0, 2.0]}),
        lambda value: value.update(ranges={"dense0": [0, 10**400]}),
        lambda value: value.update(version=None),
        lambda value: value.update(blob={"offset": 0, "bytes": 10**9}),
    ],
)
def test_a_damaged_header_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(InputError, match="Expected"):
        decode(*damaged_header(change))


@pytest.mark.parametrize("header", [b"", b"\xff\xfe", b"{", b"[]", b"null", b"[" * 100_000])
def test_what_is_no_header_is_refused(header: bytes) -> None:
    with pytest.raises(InputError, match="encode wrote"):
        decode(header, np.zeros(64, dtype=np.uint8))


@settings(max_examples=200)
@given(at=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_one_wrong_byte_in_a_header_gives_a_policy_or_an_error(at: int, byte: int) -> None:
    sent = encode(random_policy(SMALL, 9), bits=8)
    header = bytearray(sent.header)
    header[at % len(header)] = byte
    try:
        decode(bytes(header), sent.payload())
    except InputError:
        return


def test_a_short_payload_is_refused() -> None:
    sent = encode(random_policy(SMALL, 10))
    with pytest.raises(InputError, match="inside the payload"):
        decode(sent.header, sent.payload()[:-64])


def test_nothing_that_actors_need_imports_torch() -> None:
    modules = ["spec", "policy", "reference", "distributions", "packing", "wire"]
    lines = "; ".join(f"import vinoreward.policies.{name}" for name in modules)
    code = f"import sys; {lines}; sys.exit('torch' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0
