"""The contract that every backend keeps: one suite, all backends, all precisions."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from backend_policies import (
    PRECISIONS,
    SPECS,
    WIDE,
    WIDER,
    agrees,
    observations,
    tolerance,
    with_precision,
)

from vinoreward.errors import ConfigError, InputError, OutputError
from vinoreward_actors.policies.backends.base import BACKENDS, PolicyBackend, make_backend
from vinoreward_actors.policies.policy import (
    Policy,
    QuantizedArray,
    random_policy,
)
from vinoreward_actors.policies.spec import mlp
from vinoreward_actors.policies.wire import decode, encode


@functools.cache
def made(name: str, seed: int, precision: str) -> Policy:
    """A policy, which all backends share: the wide ones take longer to make than to run."""
    spec = {**SPECS, "wide": WIDE, "wider": WIDER}[name]
    return with_precision(random_policy(spec, seed), precision)


@pytest.fixture(params=BACKENDS.names())
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=(1, 8))
def backend(backend_name: str, request: pytest.FixtureRequest) -> Iterator[PolicyBackend]:
    with make_backend(backend_name, request.param) as found:
        yield found


def test_outputs_are_those_of_the_oracle(backend: PolicyBackend) -> None:
    for name, precision in itertools.product(SPECS, PRECISIONS):
        policy = made(name, 0, precision)
        backend.refresh(policy)
        apart = [agrees(backend, policy, seed) for seed in range(8)]
        # Inputs between two levels are rare: the rest must agree as closely as in float.
        rows = np.concatenate(apart).max(axis=1)
        assert np.mean(rows < 5e-5) > 0.8, (name, precision, np.sort(rows))


@pytest.mark.parametrize(
    ("name", "precision"), [("odd", "fp32"), ("images", "8 bits"), ("images", "int8 but the first")]
)
def test_a_refresh_changes_the_outputs_to_the_new_weights(
    backend_name: str, name: str, precision: str
) -> None:
    policies = [made(name, seed, precision) for seed in range(3)]
    outputs = []
    with make_backend(backend_name, 4) as backend:
        seen = observations(SPECS[name], backend.batch)
        for policy in [*policies, policies[0]]:
            backend.refresh(policy)
            assert backend.policy is policy
            agrees(backend, policy)
            outputs.append(backend.infer(seen))
    assert np.abs(outputs[0] - outputs[1]).max() > 3 * tolerance(policies[0])
    np.testing.assert_array_equal(outputs[0], outputs[3])


def test_wide_networks(backend: PolicyBackend) -> None:
    wide = itertools.product(["wide"], ["fp32", "8 bits", "int8"])
    for name, precision in [*wide, ("wider", "fp32"), ("wider", "int8")]:
        for seed in range(2):
            policy = made(name, seed, precision)
            backend.refresh(policy)
            agrees(backend, policy)


def test_precision_and_network_may_change_at_any_refresh(backend: PolicyBackend) -> None:
    whole, pruned = SPECS["odd"], mlp(7, 3, head="tanh", hidden=(20, 12, 9), activation="tanh")
    for seed, (spec, precision) in enumerate(
        [
            (whole, "fp32"),
            (whole, "int8"),
            (pruned, "int8"),
            (WIDE, "int8"),
            (whole, "int8 but the first"),
            (SPECS["images"], "int8"),
            (SPECS["images"], "fp16"),
            (pruned, "4 bits"),
            (whole, "int8"),
            (whole, "fp32"),
        ]
    ):
        policy = with_precision(random_policy(spec, seed), precision)
        backend.refresh(policy)
        agrees(backend, policy)


def test_weights_may_lie_in_memory_that_is_written_again(backend: PolicyBackend) -> None:
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
            backend.refresh(found)
            agrees(backend, policy)


def test_outputs_are_the_callers(backend: PolicyBackend) -> None:
    policy = random_policy(SPECS["gaussian"], 0)
    backend.refresh(policy)
    first = backend.infer(observations(policy.spec, backend.batch, 0))
    kept = first.copy()
    second = backend.infer(observations(policy.spec, backend.batch, 1))
    np.testing.assert_array_equal(first, kept)
    assert not np.shares_memory(first, second)
    second[:] = 0.0
    agrees(backend, policy)


def test_other_observations_are_refused(backend: PolicyBackend) -> None:
    policy = random_policy(SPECS["small"], 0)
    backend.refresh(policy)
    right = observations(policy.spec, backend.batch)
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
            backend.infer(each)
    for number in (np.nan, np.inf, -np.inf):
        broken = right.copy()
        broken[0, 2] = number
        with pytest.raises(InputError, match="NaN or infinity"):
            backend.infer(broken)
    agrees(backend, policy)


def test_broken_weights_are_caught(backend: PolicyBackend) -> None:
    """Wherever the NaN is: relu and the rounding of INT8 would make a number of it."""
    for name, precision in itertools.product(["small", "images"], ["fp32", "int8"]):
        policy = made(name, 0, precision)
        seen, value = observations(policy.spec, backend.batch), policy.spec.value
        for parameter, number in itertools.product(policy.parameters, (np.nan, -np.inf)):
            if value is not None and parameter.startswith(f"{value.name}.weight"):
                continue  # actors do not compute the value
            backend.refresh(policy)
            try:
                backend.refresh(broken(policy, parameter, number))
            except InputError:
                assert backend.policy is policy  # what acted before goes on
                agrees(backend, policy)
            else:
                # An infinity may saturate a tanh; a NaN never passes.
                if np.isnan(number):
                    with pytest.raises(OutputError, match="NaN or infinity"):
                        backend.infer(seen)


def broken(policy: Policy, parameter: str, number: float) -> Policy:
    """A policy with a number among its weights, or a scale of them, that is none."""
    whole = policy.parameters[parameter]
    if isinstance(whole, QuantizedArray):
        scales = whole.scales.copy()
        scales[-1] = number
        changed: QuantizedArray | np.ndarray = QuantizedArray(whole.codes, scales)
    else:
        changed = whole.copy()
        changed[(0,) * whole.ndim] = number
    return policy.replace(parameters={**policy.parameters, parameter: changed})


def test_closing_twice_is_fine_and_using_it_then_is_said(backend_name: str) -> None:
    policy = random_policy(SPECS["small"], 0)
    backend = make_backend(backend_name, 2)
    with pytest.raises(ConfigError, match="no weights yet"):
        backend.infer(observations(policy.spec, 2))
    backend.refresh(policy)
    backend.close()
    backend.close()
    assert backend.policy is None
    with pytest.raises(ConfigError, match="closed"):
        backend.infer(observations(policy.spec, 2))
    with pytest.raises(ConfigError, match="closed"):
        backend.refresh(policy)
    make_backend(backend_name, 1).close()  # without ever having had weights


def test_weights_are_let_go(backend: PolicyBackend) -> None:
    """A lease on shared memory ends with the next refresh, so nothing may hold the old arrays."""
    policy = random_policy(SPECS["small"], 0)
    array = np.array(policy.parameters["dense0.weight"])
    before = sys.getrefcount(array)
    held = policy.replace(parameters={**policy.parameters, "dense0.weight": array})
    backend.refresh(held)
    backend.infer(observations(policy.spec, backend.batch))
    del held
    backend.refresh(policy)
    assert sys.getrefcount(array) == before


def test_unknown_backends_and_batches_are_refused(backend_name: str) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        make_backend(backend_name, 0)
    with pytest.raises(ConfigError, match="Expected one of numpy, onnxruntime, openvino"):
        make_backend("tensorflow", 1)


@pytest.mark.full
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_memory_stays_flat_over_refreshes(backend_name: str, precision: str) -> None:
    psutil = pytest.importorskip("psutil")
    spec = WIDE if precision == "int8" else mlp(24, 6, head="tanh")
    policies = [with_precision(random_policy(spec, seed), precision) for seed in (0, 1)]
    process, seen = psutil.Process(), observations(spec, 1)
    with make_backend(backend_name, 1) as backend:

        def refreshes(count: int) -> None:
            for number in range(count):
                backend.refresh(policies[number % 2])
                backend.infer(seen)

        refreshes(15)
        growth = []
        for _ in range(4):
            before = process.memory_info().rss
            refreshes(15)
            growth.append(process.memory_info().rss - before)
    # A leak grows in every stretch; an allocator that takes a block now and then does not. One
    # set of weights a refresh would be 4 MB (15 of 0.3) or 16 MB (15 of 1.1).
    assert min(growth) < 1e6, growth
