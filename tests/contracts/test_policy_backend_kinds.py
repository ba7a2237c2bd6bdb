"""What single backends promise beside the contract: what they import, compile and compute with."""

from __future__ import annotations

import platform
import sys

import numpy as np
import numpy.typing as npt
import pytest
from backend_policies import SPECS, WIDE, agrees, in_int8
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from task_runs import run_python

from vinoreward.errors import ConfigError, VinorewardError
from vinoreward_actors.policies.backends.base import (
    BACKENDS,
    compile_blob,
    finite,
    make_backend,
)
from vinoreward_actors.policies.backends.onnxruntime_backend import (
    read_blob,
)
from vinoreward_actors.policies.backends.openvino_backend import OpenVINOBackend
from vinoreward_actors.policies.policy import (
    ActivationRange,
    folded,
    forward,
    quantize_array,
    quantized,
    random_policy,
)
from vinoreward_actors.policies.spec import mlp


@pytest.fixture(params=BACKENDS.names())
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


ON_X86 = platform.machine().lower() in ("x86_64", "amd64")


def test_actors_do_not_import_torch() -> None:
    """Nor a backend that they do not use."""
    code = (
        "import sys\n"
        "from backend_policies import SPECS, in_int8, observations\n"
        "from vinoreward_actors.policies.backends.base import make_backend\n"
        "from vinoreward_actors.policies.policy import random_policy\n"
        "policy = random_policy(SPECS['small'], 0)\n"
        "used = set()\n"
        "for name in ('numpy', 'onnxruntime', 'openvino'):\n"
        "    used.add(name)\n"
        "    with make_backend(name, 1) as backend:\n"
        "        for each in (policy, in_int8(policy)):\n"
        "            backend.refresh(each)\n"
        "            backend.infer(observations(policy.spec, 1))\n"
        "    heavy = {'torch', 'nncf', 'openvino', 'onnxruntime'} & set(sys.modules)\n"
        "    assert heavy <= used, (name, heavy)\n"
    )
    run_python(f"import sys\nsys.path[:0] = {sys.path!r}\n{code}")


@pytest.mark.parametrize(
    ("name", "extra"), [("onnxruntime", r"\[onnxruntime\]"), ("torch", r"\[train\]")]
)
def test_a_missing_library_is_named(name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(VinorewardError, match=extra):
        make_backend(name, 1)


@pytest.mark.skipif(not ON_X86, reason="INT8 kernels of x86 processors")
@pytest.mark.parametrize("batch", [1, 8])
def test_openvino_really_computes_in_int8(batch: int) -> None:
    with OpenVINOBackend(batch) as backend:
        for spec in [*SPECS.values(), WIDE]:
            backend.refresh(in_int8(random_policy(spec, 0)))
            nodes = backend._request.get_compiled_model().get_runtime_model().get_ordered_ops()
            precisions = [
                node.get_rt_info()["runtimePrecision"].astype(str)
                for node in nodes
                if node.get_rt_info()["layerType"].astype(str)
                in ("Convolution", "FullyConnected", "MatMul")
            ]
            assert len(precisions) == len(spec.weighted)
            assert set(precisions) <= {"u8", "i8"}


@pytest.mark.parametrize(
    ("name", "batch"), [("openvino", 1), ("openvino", 4), ("onnxruntime", 1), ("onnxruntime", 4)]
)
def test_a_blob_is_used_if_it_fits_and_ignored_if_not(name: str, batch: int) -> None:
    policy = in_int8(random_policy(WIDE, 0)).replace(backend=name)
    other = in_int8(random_policy(WIDE, 1))
    blob = compile_blob(policy, batch)
    assert blob is not None
    with make_backend(name, batch) as backend:

        def used() -> bool:
            acting = backend.policy
            if isinstance(backend, OpenVINOBackend):
                return backend.imported
            return acting is not None and read_blob(backend.computed(acting)) is not None

        backend.refresh(policy.replace(blob=blob))
        assert used()
        agrees(backend, policy)
        middle, newline = len(blob) // 2, blob.index(b"\n", 40)
        unfit = [
            b"",
            b"nonsense",
            blob[:middle],
            blob[:newline],
            blob + b"x",
            blob[:middle] + bytes([blob[middle] ^ 1]) + blob[middle + 1 :],
            blob[:-1] + bytes([blob[-1] ^ 128]),
            blob.replace(b'"backend": "', b'"backend": "x', 1),
            blob.replace(b'"network": "', b'"network": "x', 1),
            blob.replace(b"{", b"[", 1),
        ]
        if name == "openvino":
            unfit.append(blob.replace(b'"openvino": "', b'"openvino": "x', 1))
        for each in unfit:
            backend.refresh(policy.replace(blob=each))
            assert not used()
            agrees(backend, policy)
        # A blob of other weights or ranges would act with them, and nobody would know.
        ranges = {
            key: ActivationRange(each.low, 2 * each.high) for key, each in policy.ranges.items()
        }
        for acting in (other, policy.replace(ranges=ranges)):
            backend.refresh(acting.replace(blob=blob))
            assert not used()
            agrees(backend, acting)
    if name == "openvino":
        with OpenVINOBackend(batch + 1) as pair:
            pair.refresh(policy.replace(blob=blob))
            assert not pair.imported
            agrees(pair, policy)


def test_nothing_is_prepared_where_weights_are_swapped(backend_name: str) -> None:
    small = random_policy(SPECS["small"], 0).replace(backend=backend_name)
    assert compile_blob(small, 1) is None
    assert compile_blob(in_int8(small), 1) is None
    with pytest.raises(ConfigError, match="no policy backend"):
        compile_blob(small.replace(backend="nonsense"), 1)


@given(
    arrays.arrays(
        np.float32, st.integers(1, 40), elements=st.floats(width=32, allow_subnormal=False)
    )
)
def test_finite_is_what_it_says(array: npt.NDArray[np.float32]) -> None:
    assert finite(array) == bool(np.isfinite(array).all())


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.floats(-5.0, 0.0), st.floats(0.125, 7.0))
def test_folding_changes_nothing(seed: int, low: float, high: float) -> None:
    random = np.random.default_rng(seed)
    policy = random_policy(mlp(9, 4, head="q", hidden=()), seed)
    weight = quantize_array(policy.float_parameters()["head.weight"])
    bounds = ActivationRange(low, high)
    policy = policy.replace(
        parameters={**policy.parameters, "head.weight": weight}, ranges={"head": bounds}
    )
    whole = folded(policy, "head")
    seen = random.normal(0.0, 4.0, (16, 9)).astype(np.float32)
    levels = np.rint((quantized(seen, bounds) - low) / bounds.step)
    found = (levels @ whole.codes.T) * whole.scales + whole.bias
    np.testing.assert_allclose(found, forward(policy, seen), rtol=1e-4, atol=1e-4)
