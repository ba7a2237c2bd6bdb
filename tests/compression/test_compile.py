"""What is compiled is what engines load; how good a compressed policy is."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from compression_policies import (
    MLP,
    changed,
    context_for,
    observations_for,
)

from vinoreward.actor_learner.executors.registry import compile_blob, make_executor
from vinoreward.compression import (
    Compile,
    CompressorChain,
    Quantize,
    check_policy,
    compare_outputs,
)
from vinoreward.errors import ConfigError, InputError, OutputError
from vinoreward.policies.policy import Policy, random_policy
from vinoreward.policies.reference import forward
from vinoreward.policies.spec import mlp

# Compilation


def compiler(policy: Policy) -> bytes | None:
    """As engines do: integers are worth preparing, floats are not."""
    return f"{policy.engine} {len(policy.ranges)}".encode() if policy.ranges else None


def compiled(stage: Compile, precision: str, given: bool = True) -> Policy:
    policy = random_policy(MLP, 11)
    context = dataclasses.replace(context_for(policy), compiler=compiler if given else None)
    return CompressorChain().add(Quantize(precision)).add(stage).compress(policy, context)


def test_int8_travels_compiled() -> None:
    assert compiled(Compile("openvino"), "int8").blob == b"openvino 1"
    assert compiled(Compile("openvino", lambda policy: b"own"), "int8").blob == b"own"


@pytest.mark.parametrize("width", [256, 1030])
@pytest.mark.parametrize("engine", ["openvino", "onnxruntime", "numpy"])
def test_what_engines_compile_is_what_they_load(engine: Any, width: int) -> None:
    def compile_one(policy: Policy) -> bytes | None:
        return compile_blob(policy, 4)

    policy = random_policy(mlp(6, 3, head="logits", hidden=(width, width)), 0)
    context = dataclasses.replace(context_for(policy), compiler=compile_one)
    chain = CompressorChain().add(Quantize("int8")).add(Compile(engine))
    found = chain.compress(policy, context)
    assert (found.blob is not None) == (width >= 1000 and engine != "numpy")
    observations = observations_for(policy.spec, 4)
    with make_executor(engine, 4) as executor:
        executor.refresh(found)
        np.testing.assert_allclose(
            executor.infer(observations), forward(found, observations), rtol=0.05, atol=0.05
        )


@pytest.mark.parametrize(
    ("stage", "precision", "given"),
    [
        (Compile("openvino"), "int8", False),
        (Compile("openvino"), "w8", True),
        (Compile("openvino", blob=False), "int8", True),
        (Compile("openvino", lambda policy: None), "int8", True),
    ],
)
def test_nothing_is_compiled_where_it_does_not_pay(
    stage: Compile, precision: str, given: bool
) -> None:
    found = compiled(stage, precision, given)
    assert found.blob is None
    assert found.engine == stage.engine


def test_a_compiled_form_that_is_wanted_must_come() -> None:
    assert compiled(Compile("onnxruntime", blob=True), "int8").blob == b"onnxruntime 1"
    with pytest.raises(ConfigError, match="no compiler"):
        compiled(Compile("openvino", blob=True), "int8", given=False)
    with pytest.raises(OutputError, match="no compiled form"):
        compiled(Compile("openvino", lambda policy: None, blob=True), "int8")
    with pytest.raises(ConfigError, match="Expected one of"):
        Compile("tflite")  # type: ignore[arg-type]


# Quality


@pytest.mark.parametrize("head", ["logits", "q", "tanh", "tanh_gaussian"])
def test_a_policy_is_as_good_as_itself(head: str) -> None:
    policy = random_policy(mlp(6, 2, head=head), 12)  # type: ignore[arg-type]
    quality = check_policy(policy, policy, observations_for(policy.spec))
    assert quality.finite
    assert quality.agreement == 1.0
    assert quality.kl_max == pytest.approx(0, abs=1e-9)


def test_quality_counts_by_hand() -> None:
    spec = mlp(2, 2, head="logits", hidden=(1,))
    teacher = np.log(np.array([[0.5, 0.5], [0.9, 0.1]]))
    outputs = np.log(np.array([[0.6, 0.4], [0.2, 0.8]]))
    quality = compare_outputs(spec, teacher, outputs)
    rows = (np.exp(teacher) * (teacher - outputs)).sum(1)
    assert quality.kl_mean == pytest.approx(rows.mean())
    assert quality.kl_max == pytest.approx(rows.max())
    assert quality.agreement == 0.5
    certain = mlp(2, 1, head="tanh", hidden=(1,))
    quality = compare_outputs(certain, np.zeros((2, 1)), np.array([[0.04], [0.4]]), sigma=0.2)
    assert quality.agreement == 0.5
    assert quality.kl_max == pytest.approx(2.0)


def test_outputs_that_are_not_finite_are_seen() -> None:
    policy = random_policy(MLP, 13)
    broken = changed(policy, head__weight=np.full((3, 12), 3e38, dtype=np.float32))
    quality = check_policy(broken, policy, observations_for(MLP))
    assert not quality.finite
    assert quality.kl_max == np.inf
    assert quality.agreement == 0.0
    with pytest.raises(InputError, match="finite numbers of the teacher"):
        check_policy(policy, broken, observations_for(MLP))
    with pytest.raises(InputError, match="no observations"):
        check_policy(policy, policy, observations_for(MLP, 0))
