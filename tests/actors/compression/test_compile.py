"""What is compiled is what backends load; how good a compressed policy is."""

import dataclasses

import numpy as np
import pytest
from compression_policies import MLP, changed, context_for, observations_for

from vinoreward.errors import ConfigError, InputError, OutputError
from vinoreward_actors.compression import (
    Compile,
    CompressorChain,
    Quantize,
    check_policy,
    compare_outputs,
)
from vinoreward_actors.policies.backends.base import make_backend
from vinoreward_actors.policies.policy import forward, random_policy
from vinoreward_actors.policies.spec import mlp

# Compilation


WIDE = mlp(6, 3, head="logits", hidden=(1030, 1030))


def compiled(stage, precision, spec=WIDE):
    policy = random_policy(spec, 11)
    chain = CompressorChain().add(Quantize(precision)).add(stage)
    return chain.compress(policy, context_for(policy))


@pytest.mark.parametrize("backend_name", ["openvino", "onnxruntime"])
def test_what_backends_compile_is_what_they_load(backend_name):
    policy = random_policy(WIDE, 0)
    context = dataclasses.replace(context_for(policy), batch=4)
    chain = CompressorChain().add(Quantize("int8")).add(Compile(backend_name))
    found = chain.compress(policy, context)
    assert found.blob is not None
    seen = observations_for(policy.spec, 4)
    with make_backend(backend_name, 4) as backend:
        backend.refresh(found)
        np.testing.assert_allclose(backend.infer(seen), forward(found, seen), rtol=0.05, atol=0.05)


def test_nothing_is_compiled_where_it_does_not_pay():
    for stage, precision in (
        (Compile("onnxruntime"), "w8"),
        (Compile("openvino", blob=False), "int8"),
        (Compile("numpy"), "int8"),
    ):
        found = compiled(stage, precision)
        assert (found.blob, found.backend) == (None, stage.backend)


def test_a_compiled_form_that_is_wanted_must_come():
    assert compiled(Compile("onnxruntime", blob=True), "int8").blob
    with pytest.raises(OutputError, match="no compiled model"):
        compiled(Compile("onnxruntime", blob=True), "int8", MLP)
    with pytest.raises(ConfigError, match="Expected one of"):
        Compile("tflite")


# Quality


def test_quality_counts_by_hand():
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


def test_outputs_that_are_not_finite_are_seen():
    policy = random_policy(MLP, 13)
    broken = changed(policy, head__weight=np.full((3, 12), 3e38, dtype=np.float32))
    quality = check_policy(broken, policy, observations_for(MLP))
    assert (quality.finite, quality.kl_max, quality.agreement) == (False, np.inf, 0.0)
    with pytest.raises(InputError, match="a finite teacher"):
        check_policy(policy, broken, observations_for(MLP))
    with pytest.raises(InputError, match="no observations"):
        check_policy(policy, policy, observations_for(MLP, 0))
