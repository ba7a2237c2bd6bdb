"""The contract that every executor keeps: one suite, all engines, all precisions."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vinoreward.actor_learner.executors.base import Executor, finite
from vinoreward.actor_learner.executors.blob import describes, seal, unseal
from vinoreward.actor_learner.executors.folded import folded
from vinoreward.actor_learner.executors.onnx_blob import read_blob
from vinoreward.actor_learner.executors.onnx_graph import policy_model, weights_of
from vinoreward.actor_learner.executors.openvino_executor import OpenVINOExecutor
from vinoreward.actor_learner.executors.registry import ENGINES, compile_blob, make_executor
from vinoreward.errors import ConfigError, InputError, OutputError, VinorewardError
from vinoreward.policies.policy import (
    ActivationRange,
    Policy,
    QuantizedArray,
    quantize_array,
    random_policy,
)
from vinoreward.policies.reference import forward, layer_inputs, quantized
from vinoreward.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp
from vinoreward.policies.wire import decode, encode, lowered

SPECS = {
    "small": mlp(5, 3, head="logits", hidden=(16, 16), value=True),
    "odd": mlp(7, 3, head="tanh", hidden=(33, 17, 9), activation="tanh"),
    "gaussian": mlp(11, 4, head="tanh_gaussian", hidden=(64, 48)),
    "pictures": PolicySpec(
        observation_shape=(3, 22, 19),
        layers=(
            Conv("conv0", 3, 8, 5, 2),
            Conv("conv1", 8, 12, 3, 1, "tanh"),
            Flatten(),
            Dense("dense0", 12 * 7 * 6, 40, "relu"),
            Dense("head", 40, 6),
        ),
        head="q",
        actions=6,
        observation_dtype="uint8",
        scale=1 / 255,
    ),
}
PRECISIONS = ("fp32", "fp16", "8 bits", "4 bits", "int8", "int8 but the first")
# Above the sizes from which weights are compiled in, or turned: other code than for small ones.
WIDE = mlp(24, 6, head="tanh", hidden=(1030, 1030), activation="tanh")
WIDER = mlp(24, 6, head="logits", hidden=(2060, 2060))
ON_X86 = platform.machine().lower() in ("x86_64", "amd64")


def observations(spec: PolicySpec, count: int, seed: int = 0) -> npt.NDArray[np.generic]:
    random = np.random.default_rng(seed)
    shape = (count, *spec.observation_shape)
    if spec.observation_dtype == "uint8":
        return random.integers(0, 256, shape, dtype=np.uint8)
    return random.standard_normal(shape).astype(np.float32)


def in_int8(policy: Policy, *, but: tuple[str, ...] = ()) -> Policy:
    """A policy in INT8 with the ranges that its layers' inputs take on some observations."""
    seen = layer_inputs(policy, observations(policy.spec, 200, seed=9))
    layers = [layer.name for layer in policy.spec.weighted if layer.name not in but]
    weights = {
        f"{name}.weight": quantize_array(policy.float_parameters()[f"{name}.weight"])
        for name in layers
    }
    ranges = {
        name: ActivationRange(min(0.0, float(seen[name].min())), float(seen[name].max()))
        for name in layers
    }
    return policy.replace(parameters={**policy.parameters, **weights}, ranges=ranges)


def with_precision(policy: Policy, precision: str) -> Policy:
    if precision == "int8":
        return in_int8(policy)
    if precision == "int8 but the first":
        return in_int8(policy, but=(policy.spec.weighted[0].name,))
    return lowered(policy, {"fp32": 32, "fp16": 16, "8 bits": 8, "4 bits": 4}[precision])


def tolerance(policy: Policy) -> float:
    """How far an engine may be from the oracle.

    In float: rounding of sums. In INT8 as well, but sums in another order may put an input that
    lies between two levels on the other one: two such in a layer, at its largest weight.
    """
    flips = [
        2 * bounds.step * float(np.abs(policy.float_parameters()[f"{name}.weight"]).max())
        for name, bounds in policy.ranges.items()
    ]
    return max(flips, default=0.0) + 2e-5


def agrees(executor: Executor, policy: Policy, seed: int = 0) -> npt.NDArray[np.float32]:
    """Check one call; return how far each output is from the oracle's."""
    seen = observations(policy.spec, executor.batch, seed)
    found, expected = executor.infer(seen), forward(policy, seen)
    assert found.dtype == np.float32 and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=tolerance(policy))
    return np.abs(found - expected)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=(1, 8))
def executor(engine: str, request: pytest.FixtureRequest) -> Iterator[Executor]:
    with make_executor(engine, request.param) as made:
        yield made


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", SPECS)
def test_outputs_are_those_of_the_oracle(executor: Executor, name: str, precision: str) -> None:
    policy = with_precision(random_policy(SPECS[name], 0), precision)
    executor.refresh(policy)
    apart = [agrees(executor, policy, seed) for seed in range(16)]
    # Inputs between two levels are rare: the rest must agree as closely as in float.
    rows = np.concatenate(apart).max(axis=1)
    assert np.mean(rows < 5e-5) > 0.8, np.sort(rows)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", SPECS)
def test_a_refresh_changes_the_outputs_to_the_new_weights(
    executor: Executor, name: str, precision: str
) -> None:
    policies = [with_precision(random_policy(SPECS[name], seed), precision) for seed in range(3)]
    seen = observations(SPECS[name], executor.batch)
    outputs = []
    for policy in [*policies, policies[0]]:
        executor.refresh(policy)
        assert executor.policy is policy
        agrees(executor, policy)
        outputs.append(executor.infer(seen))
    assert np.abs(outputs[0] - outputs[1]).max() > 3 * tolerance(policies[0])
    np.testing.assert_array_equal(outputs[0], outputs[3])


@pytest.mark.parametrize("spec", [WIDE, WIDER], ids=["wide", "wider"])
@pytest.mark.parametrize("precision", ["fp32", "8 bits", "int8"])
def test_wide_networks(executor: Executor, spec: PolicySpec, precision: str) -> None:
    for seed in range(2):
        policy = with_precision(random_policy(spec, seed), precision)
        executor.refresh(policy)
        agrees(executor, policy)


def test_precision_and_network_may_change_at_any_refresh(executor: Executor) -> None:
    whole, pruned = SPECS["odd"], mlp(7, 3, head="tanh", hidden=(20, 12, 9), activation="tanh")
    for seed, (spec, precision) in enumerate(
        [
            (whole, "fp32"),
            (whole, "int8"),
            (pruned, "int8"),
            (WIDE, "int8"),
            (whole, "int8 but the first"),
            (SPECS["pictures"], "int8"),
            (SPECS["pictures"], "fp16"),
            (pruned, "4 bits"),
            (whole, "int8"),
            (whole, "fp32"),
        ]
    ):
        policy = with_precision(random_policy(spec, seed), precision)
        executor.refresh(policy)
        agrees(executor, policy)


def test_ranges_belong_to_the_weights(executor: Executor) -> None:
    """New ranges with the same weights are as new as new weights."""
    policy = in_int8(random_policy(SPECS["odd"], 0))
    narrow = policy.replace(
        ranges={name: ActivationRange(-0.25, 0.25) for name in policy.ranges},
    )
    from_nought = policy.replace(ranges={name: ActivationRange(0.0, 1.0) for name in policy.ranges})
    for each in (policy, narrow, from_nought, policy):
        executor.refresh(each)
        agrees(executor, each)


def test_weights_may_lie_in_memory_that_is_written_again(executor: Executor) -> None:
    """As in shared memory: read-only views, and the same place holds later weights."""
    for precision in ("fp32", "int8", "fp16", "4 bits"):
        policies = [
            with_precision(random_policy(SPECS["gaussian"], seed), precision) for seed in (0, 1)
        ]
        place = np.zeros(encode(policies[0]).size, dtype=np.uint8)
        view = place.view()
        view.flags.writeable = False
        for policy in policies:
            encoded = encode(policy)
            encoded.write(place)
            found = decode(encoded.header, view)
            executor.refresh(found)
            agrees(executor, policy)


def test_outputs_are_the_callers(executor: Executor) -> None:
    policy = random_policy(SPECS["gaussian"], 0)
    executor.refresh(policy)
    first = executor.infer(observations(policy.spec, executor.batch, 0))
    kept = first.copy()
    second = executor.infer(observations(policy.spec, executor.batch, 1))
    np.testing.assert_array_equal(first, kept)
    assert not np.shares_memory(first, second)
    second[:] = 0.0
    agrees(executor, policy)


def test_observations_need_not_be_contiguous(executor: Executor) -> None:
    policy = random_policy(SPECS["pictures"], 0)
    executor.refresh(policy)
    seen = observations(policy.spec, executor.batch)
    strange = np.asfortranarray(seen)
    strange.flags.writeable = False
    np.testing.assert_array_equal(executor.infer(strange), executor.infer(seen))


def test_other_observations_are_refused(executor: Executor) -> None:
    policy = random_policy(SPECS["small"], 0)
    executor.refresh(policy)
    right = observations(policy.spec, executor.batch)
    wrong = [
        right[0],
        np.repeat(right, 2, axis=0),
        right[:, :-1],
        right.astype(np.float64),
        right.astype(np.uint8),
        right.tolist(),
        None,
    ]
    for each in wrong:
        with pytest.raises(InputError, match=r"Expected a numpy array float32\(\d, 5\)"):
            executor.infer(each)
    for number in (np.nan, np.inf, -np.inf):
        broken = right.copy()
        broken[0, 2] = number
        with pytest.raises(InputError, match="NaN or infinity"):
            executor.infer(broken)
    agrees(executor, policy)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int8 but the first"])
@pytest.mark.parametrize("name", ["small", "odd", "pictures"])
def test_broken_weights_are_caught(executor: Executor, name: str, precision: str) -> None:
    """Wherever the NaN is: relu and the rounding of INT8 would make a number of it."""
    policy = with_precision(random_policy(SPECS[name], 0), precision)
    seen = observations(policy.spec, executor.batch)
    value = policy.spec.value
    for parameter, whole in policy.parameters.items():
        if value is not None and parameter.startswith(f"{value.name}.weight"):
            continue  # actors do not compute the value
        executor.refresh(policy)
        for number in (np.nan, -np.inf):
            if isinstance(whole, QuantizedArray):
                scales = whole.scales.copy()
                scales[-1] = number
                broken = policy.replace(
                    parameters={
                        **policy.parameters,
                        parameter: QuantizedArray(whole.codes, scales),
                    }
                )
            else:
                values = whole.copy()
                values[(0,) * values.ndim] = number
                broken = policy.replace(parameters={**policy.parameters, parameter: values})
            try:
                executor.refresh(broken)
            except InputError:
                assert executor.policy is policy  # what acted before goes on
                agrees(executor, policy)
            else:
                # An infinity may saturate a tanh; a NaN never passes.
                if np.isnan(number):
                    with pytest.raises(OutputError, match="NaN or infinity"):
                        executor.infer(seen)


def test_large_finite_weights_are_no_fault(executor: Executor) -> None:
    policy = random_policy(SPECS["small"], 0)
    bias = np.full(3, 3e38, dtype=np.float32)
    large = policy.replace(parameters={**policy.parameters, "head.bias": bias})
    executor.refresh(large)
    agrees(executor, large)


def test_closing_twice_is_fine_and_using_it_then_is_said(engine: str) -> None:
    policy = random_policy(SPECS["small"], 0)
    executor = make_executor(engine, 2)
    with pytest.raises(ConfigError, match="no weights yet"):
        executor.infer(observations(policy.spec, 2))
    executor.refresh(policy)
    executor.close()
    executor.close()
    assert executor.policy is None
    with pytest.raises(ConfigError, match="closed"):
        executor.infer(observations(policy.spec, 2))
    with pytest.raises(ConfigError, match="closed"):
        executor.refresh(policy)
    make_executor(engine, 1).close()  # without ever having had weights


def test_weights_are_let_go(executor: Executor) -> None:
    """A lease on shared memory ends with the next refresh, so nothing may hold the old arrays."""
    policy = random_policy(SPECS["small"], 0)
    array = np.array(policy.parameters["dense0.weight"])
    before = sys.getrefcount(array)
    held = policy.replace(parameters={**policy.parameters, "dense0.weight": array})
    executor.refresh(held)
    executor.infer(observations(policy.spec, executor.batch))
    del held
    executor.refresh(policy)
    assert sys.getrefcount(array) == before


def test_unknown_engines_and_batches_are_refused(engine: str) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        make_executor(engine, 0)
    with pytest.raises(ConfigError, match="Expected one of numpy, openvino"):
        make_executor("tensorflow", 1)


@pytest.mark.parametrize("name", [name for name in ENGINES if not name.startswith("torch")])
def test_actors_do_not_import_torch(name: str) -> None:
    code = (
        "import sys, numpy as np\n"
        "from vinoreward.actor_learner.executors.registry import make_executor\n"
        "from vinoreward.policies.policy import ActivationRange, quantize_array, random_policy\n"
        "from vinoreward.policies.spec import mlp\n"
        "policy = random_policy(mlp(4, 2, head='logits'), 0)\n"
        "weights = {n: quantize_array(v) if v.ndim > 1 else v"
        " for n, v in policy.parameters.items()}\n"
        "ranges = {layer.name: ActivationRange(-4, 4) for layer in policy.spec.layers}\n"
        f"with make_executor({name!r}, 1) as executor:\n"
        "    for each in (policy, policy.replace(parameters=weights, ranges=ranges)):\n"
        "        executor.refresh(each)\n"
        "        executor.infer(np.ones((1, 4), dtype=np.float32))\n"
        "heavy = {'torch', 'onnx', 'nncf', 'openvino', 'onnxruntime'} - {"
        f"{name!r}" + "}\n"
        "print(sorted(heavy.intersection(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "extra"), [("onnxruntime", r"\[onnxruntime\]"), ("torch", r"\[train\]")]
)
def test_a_missing_library_is_named(name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(VinorewardError, match=extra):
        make_executor(name, 1)


@pytest.mark.skipif(not ON_X86, reason="INT8 kernels of x86 processors")
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("name", [*SPECS, "wide"])
def test_openvino_really_computes_in_int8(name: str, batch: int) -> None:
    policy = in_int8(random_policy({**SPECS, "wide": WIDE}[name], 0))
    with OpenVINOExecutor(batch) as executor:
        with pytest.raises(ConfigError, match="refresh first"):
            executor.kernels()
        executor.refresh(policy)
        precisions = [
            precision
            for kind, precision in executor.kernels().values()
            if kind in ("Convolution", "FullyConnected", "MatMul")
        ]
    assert len(precisions) == len(policy.spec.weighted)
    assert set(precisions) <= {"u8", "i8"}


@pytest.mark.parametrize(
    ("name", "batch"), [("openvino", 1), ("openvino", 4), ("onnxruntime", 1), ("onnxruntime", 4)]
)
def test_a_blob_is_used_if_it_fits_and_ignored_if_not(name: str, batch: int) -> None:
    policy = in_int8(random_policy(WIDE, 0)).replace(engine=name)
    other = in_int8(random_policy(WIDE, 1))
    blob = compile_blob(policy, batch)
    assert blob is not None
    with make_executor(name, batch) as executor:

        def used() -> bool:
            acting = executor.policy
            if isinstance(executor, OpenVINOExecutor):
                return executor.imported
            return acting is not None and read_blob(acting) is not None

        executor.refresh(policy.replace(blob=blob))
        assert used()
        agrees(executor, policy)
        middle, newline = len(blob) // 2, blob.index(b"\n", 40)
        unfit = [
            b"",
            b"nonsense",
            blob[:middle],
            blob[:newline],
            blob + b"x",
            blob[:middle] + bytes([blob[middle] ^ 1]) + blob[middle + 1 :],
            blob[:-1] + bytes([blob[-1] ^ 128]),
            blob.replace(b'"engine": "', b'"engine": "x', 1),
            blob.replace(b'"network": "', b'"network": "x', 1),
            blob.replace(b"{", b"[", 1),
        ]
        if name == "openvino":
            unfit.append(blob.replace(b'"openvino": "', b'"openvino": "x', 1))
        for each in unfit:
            executor.refresh(policy.replace(blob=each))
            assert not used()
            agrees(executor, policy)
        # A blob of other weights would act with them, and nobody would know.
        executor.refresh(other.replace(blob=blob))
        assert not used()
        agrees(executor, other)
    if name == "openvino":
        with OpenVINOExecutor(batch + 1) as pair:
            pair.refresh(policy.replace(blob=blob))
            assert not pair.imported
            agrees(pair, policy)


@pytest.mark.parametrize("batch", [1, 4])
def test_onnxruntime_multiplies_what_the_blob_holds(batch: int) -> None:
    """Seen with a forged one, which says that it is of other weights than it is."""
    policy, other = (
        in_int8(random_policy(WIDE, seed)).replace(engine="onnxruntime") for seed in range(2)
    )
    inside = unseal(compile_blob(other, batch), describes(other, "onnxruntime"))
    assert inside is not None
    forged = seal(describes(policy, "onnxruntime"), bytes(inside))
    with make_executor("onnxruntime", batch) as executor:
        executor.refresh(policy.replace(blob=memoryview(forged)))
        agrees(executor, other)


def test_nothing_is_prepared_where_weights_are_swapped(engine: str) -> None:
    small = random_policy(SPECS["small"], 0).replace(engine=engine)
    assert compile_blob(small, 1) is None
    assert compile_blob(in_int8(small), 1) is None
    with pytest.raises(ConfigError, match="no engine"):
        compile_blob(small.replace(engine="nonsense"), 1)


@pytest.mark.parametrize("constants", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "int8", "int8 but the first"])
@pytest.mark.parametrize("name", SPECS)
def test_our_onnx_is_onnx(name: str, precision: str, constants: bool) -> None:
    onnx = pytest.importorskip("onnx")
    policy = with_precision(random_policy(SPECS[name], 0), precision)
    weights = weights_of(policy)
    model = onnx.load_model_from_string(policy_model(policy, 2, weights, constants=constants))
    onnx.checker.check_model(model, full_check=True)
    assert len(model.graph.input) == (1 if constants else len(model.graph.input))
    assert model.graph.output[0].name == "outputs"


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


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8", "8 bits"])
def test_memory_stays_flat_over_refreshes(engine: str, precision: str) -> None:
    psutil = pytest.importorskip("psutil")
    spec = WIDE if precision == "int8" else mlp(24, 6, head="tanh")
    policies = [with_precision(random_policy(spec, seed), precision) for seed in (0, 1)]
    process, seen = psutil.Process(), observations(spec, 1)
    with make_executor(engine, 1) as executor:

        def refreshes(count: int) -> None:
            for number in range(count):
                executor.refresh(policies[number % 2])
                executor.infer(seen)

        refreshes(20)
        growth = []
        for _ in range(5):
            before = process.memory_info().rss
            refreshes(20)
            growth.append(process.memory_info().rss - before)
    # A leak grows in every stretch; an allocator that takes a block now and then does not. One
    # set of weights a refresh would be 6 MB (20 of 0.3) or 21 MB (20 of 1.1).
    assert min(growth) < 1e6, growth
