"""Policies as bytes: the promised number of them, and damaged ones refused."""

import json
import sys
from subprocess import run

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_specs import BITS, IMAGES, SMALL, assert_same

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.policies.policy import (
    ActivationRange,
    Policy,
    QuantizedArray,
    quantize_array,
    random_policy,
)
from vinoreward_actors.policies.wire import decode, encode, lowered


def wire_bytes(spec, bits):
    """The size in bytes of a float policy's arrays on the wire."""
    total = 0
    for name, shape in spec.parameter_shapes().items():
        count = int(np.prod(shape))
        if bits in (16, 32) or name.endswith(".bias"):
            total += count * (2 if bits == 16 and not name.endswith(".bias") else 4)
        else:
            total += -(-count * bits // 8) + 4 * shape[0]
    return total


@pytest.mark.parametrize(
    ("spec", "bits"), [*((SMALL, bits) for bits in BITS), (IMAGES, 32), (IMAGES, 8), (IMAGES, 3)]
)
def test_a_policy_crosses_bit_for_bit_in_the_promised_bytes(spec, bits):
    policy = random_policy(spec, 5).replace(version=12, backend="openvino")
    sent = encode(policy, bits=bits)
    assert_same(decode(sent.header, sent.payload()), lowered(policy, bits))
    assert sent.nbytes - len(sent.header) == wire_bytes(spec, bits)
    assert all(offset % 64 == 0 for offset, _ in sent.parts)


def test_ranges_blob_and_mixed_precision_cross_too():
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
    assert_same(decode(sent.header, sent.payload()), mixed)


def test_bits_that_do_not_exist_or_cannot_hold_the_weights_are_refused():
    policy = random_policy(SMALL, 0)
    for bits in (0, 1, 9, 12, 64):
        with pytest.raises(ConfigError, match="Expected 2 to 8"):
            encode(policy, bits=bits)
    for bad in (np.nan, 1e6):
        weights = policy.float_parameters()
        weights["head.weight"] = np.full((3, 7), bad, dtype=np.float32)
        with pytest.raises(InputError, match="65504"):
            encode(Policy(SMALL, weights), bits=16)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.update(format=2),
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
        lambda value: value["parameters"][0]["codes"].update(bytes=3),
        lambda value: value["parameters"][0]["scales"].update(bytes=3),
        lambda value: value["parameters"][1].update(dtype="object"),
        lambda value: value["parameters"][1].pop("data"),
        lambda value: value.update(ranges=[]),
        lambda value: value.update(ranges={"dense0": [1.0]}),
        lambda value: value.update(ranges={"dense0": [0, 10**400]}),
        lambda value: value.update(version=None),
        lambda value: value.update(blob={"offset": 0, "bytes": 10**9}),
    ],
)
def test_a_damaged_header_is_refused(change):
    sent = encode(random_policy(SMALL, 8), bits=4)
    value = json.loads(sent.header)
    change(value)
    with pytest.raises(InputError, match="Expected"):
        decode(json.dumps(value).encode(), sent.payload())


def test_what_is_no_header_is_refused():
    for header in (b"", b"\xff\xfe", b"{", b"[]", b"null", b"[" * 100_000):
        with pytest.raises(InputError, match="encode wrote"):
            decode(header, np.zeros(64, dtype=np.uint8))
    sent = encode(random_policy(SMALL, 10))
    with pytest.raises(InputError, match="inside the payload"):
        decode(sent.header, sent.payload()[:-64])


@settings(max_examples=200)
@given(at=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_one_wrong_byte_in_a_header_gives_a_policy_or_an_error(at, byte):
    sent = encode(random_policy(SMALL, 9), bits=8)
    header = bytearray(sent.header)
    header[at % len(header)] = byte
    try:
        decode(bytes(header), sent.payload())
    except InputError:
        return


def test_nothing_that_actors_need_imports_torch():
    """Nor does a chain, a monitor or a corrector that is only made."""
    code = (
        "import sys\n"
        "from vinoreward_actors.policies import distributions, policy, spec, wire\n"
        "from vinoreward_actors import correction, monitoring\n"
        "from vinoreward_actors.compression import *\n"
        "CompressorChain().add(Prune(0.5)).add(Distill()).add(Quantize('int8')).check()\n"
        "sys.exit({'torch', 'openvino', 'scipy', 'onnxruntime'} & set(sys.modules) or 0)"
    )
    done = run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("bits", [2, 4, 7, 8])
def test_codes_that_are_not_packed_are_views_of_what_was_sent(bits):
    policy = lowered(random_policy(SMALL, 0), bits)
    tight, wide = encode(policy), encode(policy, packed=False)
    buffer = wide.payload()
    found, expected = decode(wide.header, buffer), decode(tight.header, tight.payload())
    for name, value in expected.parameters.items():
        other = found.parameters[name]
        if not isinstance(value, QuantizedArray):
            np.testing.assert_array_equal(other, value)
            continue
        assert isinstance(other, QuantizedArray)
        np.testing.assert_array_equal(other.codes, value.codes)
        assert np.shares_memory(other.codes, buffer)
    assert wide.nbytes > tight.nbytes if bits < 8 else wide.nbytes == tight.nbytes
    if bits < 8:
        with pytest.raises(InputError, match="no code has"):
            decode(wide.header, np.full_like(buffer, 0x7F))
