"""Quantized arrays of weights, and codes packed to any number of bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from policy_specs import SMALL

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.policies import wire
from vinoreward_actors.policies.policy import (
    ActivationRange,
    Policy,
    QuantizedArray,
    largest_code,
    quantize_array,
    random_policy,
)
from vinoreward_actors.policies.wire import pack, unpack

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
    with pytest.raises(InputError, match="not layers"):
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
    assert packed.nbytes == -(-codes.size * bits // 8)
    np.testing.assert_array_equal(unpack(packed, bits, codes.shape), codes)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 31, 32, 33, 100])
def test_chunks_meet_without_a_gap(bits: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    largest = largest_code(bits)
    codes = np.random.default_rng(count).integers(-largest, largest + 1, count).astype(np.int8)
    whole = pack(codes, bits)
    monkeypatch.setattr(wire, "CHUNK", 16)
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
