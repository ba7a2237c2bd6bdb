"""INT8 on every processor: the same tests here, and with OpenVINO kept from newer instructions."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from backend_policies import SPECS, WIDE, agrees, in_int8, observations
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vinoreward_actors.compression.chain import check_policy
from vinoreward_actors.policies.backends.base import BackendOutputs, PolicyBackend, make_backend
from vinoreward_actors.policies.backends.openvino_backend import OpenVINOBackend
from vinoreward_actors.policies.policy import (
    LARGEST,
    ActivationRange,
    Policy,
    QuantizedArray,
    forward,
    quantize_array,
    random_policy,
    reduced,
)
from vinoreward_actors.policies.spec import mlp

NETWORKS = {name: SPECS[name] for name in ("small", "odd", "gaussian")} | {"wide": WIDE}
LIMIT = os.environ.get("ONEDNN_MAX_CPU_ISA")
FLAGS = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("backend_name", ["openvino", "onnxruntime"])
def test_int8_is_close_to_full_precision(backend_name: str, batch: int) -> None:
    """Within 4.5 % of the outputs' spread everywhere: 2 % with 8-bit weights, 4 % with 7-bit."""
    with make_backend(backend_name, batch) as backend:
        for name, spec in NETWORKS.items():
            policy = random_policy(spec, 3)
            seen = observations(spec, 200, seed=9)  # the ranges are of these
            wanted = forward(policy, seen)
            backend.refresh(in_int8(policy))
            found = [backend.infer(part) for part in np.split(seen, 200 // batch)]
            error = np.sqrt(np.square(np.concatenate(found) - wanted).mean())
            assert error < 0.045 * wanted.std(), name


def _largest(policy: Policy) -> int:
    codes = [v.codes for v in policy.parameters.values() if isinstance(v, QuantizedArray)]
    return max(int(np.abs(part.astype(np.int16)).max()) for part in codes)


@pytest.mark.parametrize("batch", [1, 8])
def test_weights_have_7_bits_only_where_8_saturate(batch: int) -> None:
    policy = in_int8(random_policy(SPECS["odd"], 0))
    with OpenVINOBackend(batch) as backend:
        computed = backend.computed(policy)
        if LIMIT:
            assert _largest(computed) == LARGEST
        elif "vnni" in FLAGS or platform.machine().lower() not in ("x86_64", "amd64"):
            assert computed is policy
        plain = random_policy(SPECS["odd"], 0)
        assert backend.computed(plain) is plain


@given(arrays.arrays(np.int8, (3, 8), elements=st.integers(-127, 127)), st.floats(1e-6, 1e6))
def test_seven_bits_cannot_saturate_and_cost_little(
    codes: np.ndarray[tuple[int, ...], np.dtype[np.int8]], scale: float
) -> None:
    policy = random_policy(mlp(8, 3, head="q", hidden=()), 0)
    weight = QuantizedArray(codes, np.full(3, scale, dtype=np.float32))
    policy = policy.replace(
        parameters={**policy.parameters, "head.weight": weight},
        ranges={"head": ActivationRange(-1.0, 1.0)},
    )
    found = reduced(policy).parameters["head.weight"]
    assert isinstance(found, QuantizedArray)
    assert 2 * 255 * int(np.abs(found.codes.astype(np.int16)).max(initial=0)) <= 2**15 - 1
    half = 0.501 * 127 / LARGEST * scale
    np.testing.assert_allclose(found.dequantized(), weight.dequantized(), rtol=0, atol=half)
    again = reduced(reduced(policy)).parameters["head.weight"]
    assert isinstance(again, QuantizedArray)
    np.testing.assert_array_equal(again.codes, found.codes)


def test_a_compiled_form_from_another_processor_is_not_used() -> None:
    """Machines may have the same name and not the same instructions, virtual ones above all."""
    policy = in_int8(random_policy(WIDE, 0)).replace(backend="openvino")
    with OpenVINOBackend(1) as backend:
        blob = backend.blob(policy)  # as where 8 bits do not saturate
        backend.refresh(policy.replace(blob=blob))
        assert backend.imported == (backend.computed(policy) is policy)
        agrees(backend, policy)


def _extreme() -> Policy:
    """A network whose layers all saturate, if any does: all inputs and weights are large."""
    policy = random_policy(mlp(6, 2, head="q", hidden=(64, 64), activation="tanh"), 0)
    parameters = policy.float_parameters()
    for name in ("dense1.weight", "head.weight"):
        parameters[name] = np.abs(parameters[name]) + np.float32(1.0)
    parameters["dense0.bias"] = parameters["dense0.bias"] + np.float32(2.0)
    return policy.replace(parameters=parameters, backend="openvino")


def test_quality_is_measured_on_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What NumPy says of a policy is not what a backend does that saturates."""
    saturates = OpenVINOBackend._saturates(70)
    monkeypatch.setattr(PolicyBackend, "_saturates", classmethod(lambda cls, batch: False))
    teacher = _extreme()
    seen = observations(teacher.spec, 70)
    weight = quantize_array(teacher.float_parameters()["head.weight"])
    policy = teacher.replace(
        parameters={**teacher.parameters, "head.weight": weight},
        ranges={"head": ActivationRange(-1.0, 1.0)},
    )
    with BackendOutputs(3) as outputs, make_backend("openvino", 70) as backend:
        found = outputs(policy, seen)
        backend.refresh(policy)
        np.testing.assert_allclose(found, backend.infer(seen), rtol=1e-4)
        in_numpy, measured = (
            check_policy(policy, teacher, seen, run=run) for run in (None, outputs)
        )
        np.testing.assert_allclose(outputs(teacher, seen), forward(teacher, seen), rtol=1e-5)
    assert in_numpy.kl_max < 1e-2
    assert saturates or not LIMIT
    assert (measured.kl_max > 10 * in_numpy.kl_max) == saturates


@pytest.mark.slow
@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="of x86")
@pytest.mark.skipif(bool(LIMIT), reason="runs within itself")
def test_without_vnni() -> None:
    """This file and the contract, as on a processor that multiplies bytes in pairs."""
    here = Path(__file__).parent
    chosen = "openvino and (oracle or wide) or test_policy_backend_int8"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *(
                str(here / name)
                for name in ("test_policy_backend_int8.py", "test_policy_backends.py")
            ),
            *("-k", chosen),
        ],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-5000:]
