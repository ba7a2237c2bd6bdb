"""Quantization: what is rounded, how far, and what is remembered from push to push."""

from __future__ import annotations

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
    forward,
    layer_inputs,
    quantized,
    random_policy,
)
from vinoreward_actors.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp
from vinoreward_actors.policies.wire import encode

MLP = mlp(6, 3, head="logits", hidden=(32, 32, 32), value=True)
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


def normal(count: int, seed: int = 0, spread: float = 1.0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (spread * random.standard_normal((count, 6))).astype(np.float32)


def coarse(policy: Policy, stage: Quantize, observations: np.ndarray | None = None) -> Policy:
    seen = normal(200) if observations is None else observations
    return stage.compress(policy, CompressionContext(policy, seen))


def bits_of(policy: Policy) -> dict[str, int]:
    """Bits of each weight."""
    return {
        name.removesuffix(".weight"): value.bits
        if isinstance(value, QuantizedArray)
        else value.dtype.itemsize * 8
        for name, value in policy.parameters.items()
        if name.endswith(".weight")
    }


# Layers


def test_the_first_layer_the_head_and_the_value_stay_float() -> None:
    found = coarse(random_policy(MLP, 0), Quantize("int8"))
    assert bits_of(found) == {"dense0": 32, "dense1": 8, "dense2": 8, "head": 32, "value": 32}
    assert set(found.ranges) == {"dense1", "dense2"}
    everything = coarse(random_policy(MLP, 0), Quantize("int8", first=True, head=True))
    assert set(everything.ranges) == {"dense0", "dense1", "dense2", "head"}


@pytest.mark.parametrize("bits", range(2, 9))
def test_weights_alone_have_no_ranges(bits: int) -> None:
    found = coarse(random_policy(MLP, 0), Quantize(f"w{bits}"))
    assert bits_of(found)["dense1"] == bits
    assert not found.ranges


def test_half_precision_is_for_every_layer() -> None:
    policy = random_policy(MLP, 0)
    found = coarse(policy, Quantize("fp16"))
    assert set(bits_of(found).values()) == {16, 32}
    assert bits_of(found)["dense0"] == bits_of(found)["head"] == 16
    np.testing.assert_allclose(
        forward(found, normal(20)), forward(policy, normal(20)), rtol=0.01, atol=0.01
    )


def test_bytes_on_the_wire_fall_with_bits() -> None:
    spec = mlp(6, 3, head="logits", hidden=(256, 256, 256))
    policy = random_policy(spec, 0)
    sizes = {
        name: encode(coarse(policy, Quantize(name))).nbytes
        for name in ("fp16", "int8", "w6", "w4", "w3", "w2")
    }
    full = encode(policy).nbytes
    for name, size in sizes.items():
        bits = 16 if name == "fp16" else int(name[-1])
        # What stays float: first layer, head, biases, scales and header.
        assert full * bits / 32 < size < full * bits / 32 + 18_000, name
    assert list(sizes.values()) == sorted(sizes.values(), reverse=True)


def test_turning_bits_changes_what_is_made() -> None:
    stage = Quantize("int8")
    policy = random_policy(MLP, 0)
    for bits, expected, ranges in ((8, 8, 2), (16, 16, 0), (4, 4, 0), (32, 32, 0), (8, 8, 2)):
        stage.set_parameter("bits", bits)
        found = coarse(policy, stage)
        assert (bits_of(found)["dense1"], len(found.ranges)) == (expected, ranges)
    weights_only = Quantize("w4")
    weights_only.set_parameter("bits", 8)
    assert not coarse(policy, weights_only).ranges


@pytest.mark.parametrize("precision", ["int4", "w1", "w9", "fp32", "INT8", "w", "bf16"])
def test_unknown_precisions_are_refused(precision: str) -> None:
    with pytest.raises(ConfigError, match="'w2' to 'w8'"):
        Quantize(precision)


@pytest.mark.parametrize(
    "arguments", [{"margin": 0.9}, {"decay": 1.1}, {"ranges": "median"}, {"margin": float("nan")}]
)
def test_impossible_settings_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="Expected a margin"):
        Quantize("int8", **arguments)  # type: ignore[arg-type]


def test_a_network_with_nothing_to_quantize_is_refused() -> None:
    policy = random_policy(mlp(6, 3, head="logits", hidden=(8,)), 0)
    with pytest.raises(ConfigError, match="first=True or head=True"):
        coarse(policy, Quantize("int8"))
    assert coarse(policy, Quantize("int8", head=True)).in_int8("head")


# Ranges


@given(
    low=st.floats(-1e4, 0),
    high=st.floats(0, 1e4),
)
def test_aligned_ranges_hold_the_bounds_and_nought_exactly(low: float, high: float) -> None:
    if high - low < 1e-6:
        return
    found = aligned((low, high))
    assert found.low <= low and found.high >= high
    # At most 1 % wider than needed, however short one side is.
    assert found.high - found.low <= (high - low) * 1.01
    zero = -found.low / found.step
    assert zero == int(zero)
    nought = np.zeros(3, dtype=np.float32)
    np.testing.assert_array_equal(quantized(nought, found), nought)


@given(
    values=st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=20),
)
def test_what_lies_in_a_range_is_off_by_half_a_step_at_most(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    if not array.any():
        return
    found = aligned((min(array.min(), 0.0), max(array.max(), 0.0)))
    assert np.abs(quantized(array, found) - array).max() <= found.step * 0.5001


def test_min_and_max_are_over_everything_and_means_are_not() -> None:
    policy = random_policy(MLP, 1)
    observations = np.concatenate([normal(150), normal(1, 1, 30.0)])
    inputs = layer_inputs(policy, observations)["dense1"]
    low, high = measure(policy, observations, "minmax")["dense1"]
    assert (low, high) == (inputs.min(), inputs.max())
    low, high = measure(policy, observations, "mean")["dense1"]
    assert high == pytest.approx(inputs.max(1).mean(), rel=1e-6)
    # The one observation that is unlike the others is cut off.
    assert high < 0.3 * inputs.max()


def test_ranges_are_remembered_and_slowly_forgotten() -> None:
    assert merged((-1.0, 2.0), None, 0.9) == (-1.0, 2.0)
    assert merged((-1.0, 2.0), (-4.0, 1.0), 0.5) == (-2.0, 2.0)
    policy = random_policy(MLP, 2)
    stage = Quantize("int8", decay=0.5)
    wide = coarse(policy, stage, normal(100, 0, 10.0)).ranges["dense1"].high
    after = [coarse(policy, stage, normal(100)).ranges["dense1"].high for _ in range(6)]
    assert after[0] == pytest.approx(wide / 2, rel=0.01)
    assert after == sorted(after, reverse=True)
    fresh = coarse(policy, Quantize("int8"), normal(100)).ranges["dense1"].high
    assert after[-1] == pytest.approx(fresh, rel=0.01)


@pytest.mark.parametrize("place", [0, 500, 1023])
@pytest.mark.parametrize("shift", [0, 1, 7, 127])
def test_a_rare_observation_is_never_forgotten_while_it_is_there(place: int, shift: int) -> None:
    """Whatever its place, and however many new ones push it on, and on few rows a push."""
    spec = mlp(6, 2, head="logits", hidden=(8, 8), activation="relu")
    policy, stage = random_policy(spec, 0), Quantize("int8", rows=128, first=True)
    common, first = normal(1024), spec.weighted[0].name
    for push in range(120):
        rows = common.copy()
        rows[(place - push * shift) % 1024] = 40.0
        context = CompressionContext(policy, rows, push=push)
        assert stage.compress(policy, context).ranges[first].high >= 40.0


def test_after_the_first_push_ranges_are_measured_on_a_part_of_all_rows() -> None:
    spec = mlp(6, 2, head="logits", hidden=(8, 8), activation="relu")
    policy, stage = random_policy(spec, 0), Quantize("int8", rows=10, decay=1.0, first=True)
    calm, wild = normal(50), normal(50, seed=1, spread=9.0)

    def width(observations: np.ndarray) -> float:
        context = CompressionContext(policy, observations)
        found = stage.compress(policy, context).ranges[spec.weighted[0].name]
        return found.high - found.low

    first = width(calm)
    assert width(np.concatenate([wild, calm])) > 3 * first
    with pytest.raises(ConfigError, match="at least one row"):
        Quantize("int8", rows=0)


def test_some_rows_are_of_all_of_them_and_others_at_each_push() -> None:
    policy, rows = random_policy(MLP, 0), normal(1000)
    seen = [CompressionContext(policy, rows, push=push).some(64) for push in range(200)]
    assert all(60 <= len(part) <= 70 for part in seen)
    assert len({row.tobytes() for part in seen for row in part}) == 1000
    again = CompressionContext(policy, rows, push=7).some(64)
    assert np.array_equal(again, seen[7])
    assert len(CompressionContext(policy, rows[:5]).some(64)) == 5


def test_margins_stop_at_what_activations_can_say() -> None:
    assert widened((-0.5, 2.0), 1.5, (-np.inf, np.inf)) == (-0.75, 3.0)
    assert widened((-0.9, 0.9), 1.5, (-1.0, 1.0)) == (-1.0, 1.0)
    assert widened((0.5, 2.0), 1.0, (0.0, np.inf)) == (0.0, 2.0)
    assert widened((0.0, 0.0), 1.5, (0.0, np.inf)) == (0.0, 1.0)
    found = limits(IMAGES)
    assert found["conv0"] == (0.0, 255 * IMAGES.scale)
    assert found["dense0"] == (0.0, np.inf)
    assert found["head"] == (-1.0, 1.0)


def test_rounding_is_bounded_by_the_steps_of_weights_and_inputs() -> None:
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


def test_pixels_fall_on_levels_so_nothing_of_them_is_lost() -> None:
    policy = random_policy(IMAGES, 4)
    dark = np.random.default_rng(0).integers(0, 9, (40, 1, 8, 8), dtype=np.uint8)
    found = coarse(policy, Quantize("int8"), dark)
    assert found.in_int8("conv0") and found.in_int8("dense0") and not found.in_int8("head")
    pixels = np.arange(256, dtype=np.uint8).astype(np.float32) * np.float32(IMAGES.scale)
    np.testing.assert_allclose(quantized(pixels, found.ranges["conv0"]), pixels, rtol=1e-6)
    kept = coarse(policy, Quantize("int8", first=False), dark)
    assert not kept.in_int8("conv0")


def test_a_layer_that_is_always_silent_gets_a_range() -> None:
    policy = random_policy(MLP, 5)
    weights = policy.float_parameters()
    weights["dense0.weight"] = np.zeros((32, 6), dtype=np.float32)
    weights["dense0.bias"] = np.full(32, -1, dtype=np.float32)
    found = coarse(Policy(MLP, weights), Quantize("int8"))
    assert found.ranges["dense1"].low == 0
    assert found.ranges["dense1"].high >= 1


def test_layers_that_overflow_are_said() -> None:
    policy = random_policy(MLP, 6)
    weights = policy.float_parameters()
    weights["dense0.weight"] = np.full((32, 6), 3e38, dtype=np.float32)
    with pytest.raises(InputError, match="layer dense1 is NaN or infinite"):
        coarse(Policy(MLP, weights), Quantize("int8"))
    with pytest.raises(InputError, match="65504"):
        coarse(Policy(MLP, weights), Quantize("fp16"))


def test_ranges_go_on_from_saved_state() -> None:
    policy = random_policy(MLP, 7)
    stage = Quantize("int8")
    coarse(policy, stage, normal(100, 0, 10.0))
    again = Quantize("int8")
    again.load_state(stage.state())
    expected = coarse(policy, stage, normal(100, 1))
    assert dict(coarse(policy, again, normal(100, 1)).ranges) == dict(expected.ranges)


def test_a_compiled_form_of_other_weights_is_dropped() -> None:
    policy = random_policy(MLP, 8).replace(blob=b"old")
    for precision in ("int8", "w4", "fp16"):
        assert coarse(policy, Quantize(precision)).blob is None


@pytest.mark.slow
def test_ranges_by_means_are_those_of_nncf() -> None:
    """What ``ranges="mean"`` stands for is what nncf.quantize does when nothing is said."""
    nncf = pytest.importorskip("nncf")
    ov = pytest.importorskip("openvino")
    opset = pytest.importorskip("openvino.opset13")
    policy = random_policy(mlp(6, 3, head="logits", hidden=(32, 32)), 9)
    observations = np.concatenate([normal(299), normal(1, 1, 30.0)])
    weights = policy.float_parameters()
    source = node = opset.parameter([1, 6], np.float32)
    for layer in policy.spec.weighted:
        weight = opset.constant(weights[f"{layer.name}.weight"])
        node = opset.matmul(node, weight, False, True)
        node = opset.add(node, opset.constant(weights[f"{layer.name}.bias"][None]))
        if layer.activation == "relu":
            node = opset.relu(node)
    model = nncf.quantize(
        ov.Model([node], [source]),
        nncf.Dataset([row[None] for row in observations]),
        subset_size=300,
    )
    found = sorted(
        float(op.input_value(2).get_node().data.reshape(-1)[0])
        for op in model.get_ops()
        if op.get_type_name() == "FakeQuantize"
        and op.input_value(0).get_node().get_type_name() != "Constant"
    )
    measured = measure(policy, observations, "mean")
    # Layers' inputs with a sign get a symmetric range, of the mean largest size.
    signed = float(np.abs(observations).max(1).mean())
    expected = sorted([signed, measured["dense1"][1], measured["head"][1]])
    np.testing.assert_allclose(found, expected, rtol=1e-3)
