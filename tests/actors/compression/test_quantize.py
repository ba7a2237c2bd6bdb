"""Quantization: what is rounded, how far, and what is remembered from push to push."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.compression import CompressionContext, Quantize
from vinoreward_actors.compression.quantize import aligned, limits, measure, merged, widened
from vinoreward_actors.policies.policy import (
    Policy,
    QuantizedArray,
    activated,
    forward,
    layer_inputs,
    quantized,
    random_policy,
)
from vinoreward_actors.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp
from vinoreward_actors.policies.wire import encode

MLP = mlp(6, 3, head="logits", hidden=(32, 32, 32), value=True)
TWO = mlp(6, 2, head="logits", hidden=(8, 8), activation="relu")
IMAGES = PolicySpec(
    observation_shape=(1, 8, 8),
    layers=(
        Conv("conv0", 1, 4, 4, 2),
        Flatten(),
        Dense("dense0", 36, 8, "tanh"),
        Dense("head", 8, 3),
    ),
    head="q",
    actions=3,
    observation_dtype="uint8",
    scale=1 / 255,
)


def normal(count, seed=0, spread=1.0):
    random = np.random.default_rng(seed)
    return (spread * random.standard_normal((count, 6))).astype(np.float32)


def coarse(policy, stage, observations=None):
    seen = normal(200) if observations is None else observations
    return stage.compress(policy, CompressionContext(policy, seen))


def bits_of(policy):
    """Bits of each weight."""
    return {
        name.removesuffix(".weight"): value.bits
        if isinstance(value, QuantizedArray)
        else value.dtype.itemsize * 8
        for name, value in policy.parameters.items()
        if name.endswith(".weight")
    }


# Layers


def test_the_first_layer_the_head_and_the_value_stay_float():
    policy = random_policy(MLP, 0)
    found = coarse(policy.replace(blob=b"old"), Quantize("int8"))
    assert bits_of(found) == {"dense0": 32, "dense1": 8, "dense2": 8, "head": 32, "value": 32}
    assert set(found.ranges) == {"dense1", "dense2"}
    assert found.blob is None  # it was of other weights
    everything = coarse(policy, Quantize("int8", first=True, head=True))
    assert set(everything.ranges) == {"dense0", "dense1", "dense2", "head"}


def test_half_precision_is_for_every_layer():
    policy = random_policy(MLP, 0)
    found = coarse(policy, Quantize("fp16"))
    assert bits_of(found) == dict.fromkeys(("dense0", "dense1", "dense2", "head"), 16) | {
        "value": bits_of(found)["value"]
    }
    seen = normal(20)
    np.testing.assert_allclose(forward(found, seen), forward(policy, seen), rtol=0.01, atol=0.01)


def test_bytes_on_the_wire_fall_with_bits():
    policy = random_policy(mlp(6, 3, head="logits", hidden=(256, 256, 256)), 0)
    full, before = encode(policy).nbytes, np.inf
    for name in ("fp16", "int8", "w6", "w4", "w3", "w2"):
        found = coarse(policy, Quantize(name))
        bits, size = 16 if name == "fp16" else int(name[-1]), encode(found).nbytes
        assert bits_of(found)["dense1"] == bits
        assert bool(found.ranges) == (name == "int8")
        # What stays float: first layer, head, biases, scales and header.
        assert full * bits / 32 < size < full * bits / 32 + 18_000, name
        assert size < before
        before = size


def test_turning_bits_changes_what_is_made():
    stage = Quantize("int8")
    policy = random_policy(MLP, 0)
    for bits, expected, ranges in ((8, 8, 2), (16, 16, 0), (4, 4, 0), (32, 32, 0), (8, 8, 2)):
        stage.set_parameter("bits", bits)
        found = coarse(policy, stage)
        assert (bits_of(found)["dense1"], len(found.ranges)) == (expected, ranges)
    weights_only = Quantize("w4")
    weights_only.set_parameter("bits", 8)
    assert not coarse(policy, weights_only).ranges


def overflowing(precision):
    weights = random_policy(MLP, 6).float_parameters()
    weights["dense0.weight"] = np.full((32, 6), 3e38, dtype=np.float32)
    return coarse(Policy(MLP, weights), Quantize(precision))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Quantize("int4"), "'w2' to 'w8'"),
        (lambda: Quantize("w1"), "'w2' to 'w8'"),
        (lambda: Quantize("w"), "'w2' to 'w8'"),
        (lambda: Quantize("int8", margin=0.9), "Expected a margin"),
        (lambda: Quantize("int8", decay=1.1), "Expected a margin"),
        (lambda: Quantize("int8", rows=0), "at least one row"),
        (
            lambda: coarse(random_policy(mlp(6, 3, head="q", hidden=(8,)), 0), Quantize("int8")),
            "first=True or head=True",
        ),
        (lambda: overflowing("int8"), "layer dense1 is NaN or infinite"),
        (lambda: overflowing("fp16"), "65504"),
    ],
)
def test_what_cannot_be_quantized_is_refused(make, said):
    with pytest.raises((ConfigError, InputError), match=said):
        make()


# Ranges


@given(low=st.floats(-1e4, 0), high=st.floats(0, 1e4), share=st.floats(0, 1))
def test_aligned_ranges_hold_bounds_and_nought_exactly_and_the_rest_by_half_a_step(
    low, high, share
):
    if high - low < 1e-6:
        return
    found = aligned((low, high))
    assert found.low <= low and found.high >= high
    # At most 1 % wider than needed, however short one side is.
    assert found.high - found.low <= (high - low) * 1.01
    zero = -found.low / found.step
    assert zero == int(zero)
    array = np.array([0.0, low + share * (high - low)], dtype=np.float32)
    error = np.abs(quantized(array, found) - array)
    assert error[0] == 0 and error[1] <= found.step * 0.5001 + 1e-6 * (high - low)


def test_ranges_are_the_minimum_and_maximum_over_everything():
    policy = random_policy(MLP, 1)
    observations = np.concatenate([normal(150), normal(1, 1, 30.0)])
    inputs = layer_inputs(policy, observations)["dense1"]
    assert measure(policy, observations)["dense1"] == (inputs.min(), inputs.max())


def test_ranges_are_remembered_and_slowly_forgotten_and_go_on_from_saved_state():
    assert merged((-1.0, 2.0), None, 0.9) == (-1.0, 2.0)
    assert merged((-1.0, 2.0), (-4.0, 1.0), 0.5) == (-2.0, 2.0)
    policy = random_policy(MLP, 2)
    stage, resumed = Quantize("int8", decay=0.5), Quantize("int8", decay=0.5)
    wide = coarse(policy, stage, normal(100, 0, 10.0)).ranges["dense1"].high
    resumed.load_state(stage.state())
    after = [coarse(policy, stage, normal(100)).ranges["dense1"].high for _ in range(6)]
    assert after[0] == coarse(policy, resumed, normal(100)).ranges["dense1"].high
    assert after[0] == pytest.approx(wide / 2, rel=0.01)
    assert after == sorted(after, reverse=True)
    fresh = coarse(policy, Quantize("int8"), normal(100)).ranges["dense1"].high
    assert after[-1] == pytest.approx(fresh, rel=0.01)


@pytest.mark.parametrize(("place", "shift"), [(0, 0), (500, 1), (1023, 7), (0, 127)])
def test_a_rare_observation_is_never_forgotten_while_it_is_there(place, shift):
    """Whatever its place, and however many new ones push it on, and on few rows a push."""
    policy, stage = random_policy(TWO, 0), Quantize("int8", rows=128, first=True)
    common, first = normal(1024), TWO.weighted[0].name
    for push in range(120):
        rows = common.copy()
        rows[(place - push * shift) % 1024] = 40.0
        context = CompressionContext(policy, rows, push=push)
        assert stage.compress(policy, context).ranges[first].high >= 40.0


def test_after_the_first_push_ranges_are_measured_on_a_part_of_all_rows():
    policy, stage = random_policy(TWO, 0), Quantize("int8", rows=10, decay=1.0, first=True)
    calm, wild = normal(50), normal(50, seed=1, spread=9.0)

    def width(observations):
        found = coarse(policy, stage, observations).ranges[TWO.weighted[0].name]
        return found.high - found.low

    first = width(calm)
    assert width(np.concatenate([wild, calm])) > 3 * first


def test_some_rows_are_of_all_of_them_and_others_at_each_push():
    policy, rows = random_policy(MLP, 0), normal(1000)
    seen = [CompressionContext(policy, rows, push=push).some(64) for push in range(200)]
    assert all(60 <= len(part) <= 70 for part in seen)
    assert len({row.tobytes() for part in seen for row in part}) == 1000
    assert np.array_equal(CompressionContext(policy, rows, push=7).some(64), seen[7])
    assert len(CompressionContext(policy, rows[:5]).some(64)) == 5


def test_margins_stop_at_what_activations_can_say():
    assert widened((-0.5, 2.0), 1.5, (-np.inf, np.inf)) == (-0.75, 3.0)
    assert widened((-0.9, 0.9), 1.5, (-1.0, 1.0)) == (-1.0, 1.0)
    assert widened((0.5, 2.0), 1.0, (0.0, np.inf)) == (0.0, 2.0)
    assert widened((0.0, 0.0), 1.5, (0.0, np.inf)) == (0.0, 1.0)
    found = limits(IMAGES)
    assert found["conv0"] == (0.0, 255 * IMAGES.scale)
    assert (found["dense0"], found["head"]) == ((0.0, np.inf), (-1.0, 1.0))
    for activation, low in (("elu", -1.0), ("silu", -0.2785)):
        spec = mlp(6, 3, head="logits", hidden=(8,), activation=activation)
        assert limits(spec)["head"] == (low, np.inf)
        everywhere = activated(np.linspace(-50, 50, 10_001, dtype=np.float32), activation)
        assert low <= everywhere.min() <= low + 1e-4
    # A layer that is always silent gets a range too.
    weights = random_policy(MLP, 5).float_parameters()
    weights["dense0.weight"] = np.zeros((32, 6), dtype=np.float32)
    weights["dense0.bias"] = np.full(32, -1, dtype=np.float32)
    silent = coarse(Policy(MLP, weights), Quantize("int8")).ranges["dense1"]
    assert silent.low == 0 and silent.high >= 1


def test_rounding_is_bounded_by_the_steps_of_weights_and_inputs():
    """|error| <= sum over inputs of (|w| dx + dw (|x| + dx)), worked out for one layer."""
    policy = random_policy(mlp(6, 3, head="logits", hidden=(32, 16)), 3)
    observations = normal(300)
    found = coarse(policy, Quantize("int8", margin=1.0), observations)
    inputs = layer_inputs(policy, observations)
    weight = policy.float_parameters()["dense1.weight"]
    codes = found.parameters["dense1.weight"]
    assert isinstance(codes, QuantizedArray)
    dx, dw = found.ranges["dense1"].step / 2, codes.scales / 2
    bound = np.abs(weight).sum(1) * dx + dw * (np.abs(inputs["dense1"]) + dx).sum(1, keepdims=True)
    error = np.abs(layer_inputs(found, observations)["head"] - inputs["head"])
    assert (error <= bound + 1e-5).all()
    assert error.max() > 0


def test_pixels_fall_on_levels_so_nothing_of_them_is_lost():
    policy = random_policy(IMAGES, 4)
    dark = np.random.default_rng(0).integers(0, 9, (40, 1, 8, 8), dtype=np.uint8)
    found = coarse(policy, Quantize("int8"), dark)
    assert found.in_int8("conv0") and found.in_int8("dense0") and not found.in_int8("head")
    pixels = np.arange(256, dtype=np.uint8).astype(np.float32) * np.float32(IMAGES.scale)
    np.testing.assert_allclose(quantized(pixels, found.ranges["conv0"]), pixels, rtol=1e-6)
    assert not coarse(policy, Quantize("int8", first=False), dark).in_int8("conv0")
