"""Chains: what they promise, refuse and go on from; what is compiled, and how good it is."""

import dataclasses
import pickle

import numpy as np
import pytest
from actor_learner_parts import chain
from compression_policies import (
    MLP,
    assert_equal,
    assert_same_function,
    changed,
    context_for,
    observations_for,
)

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.compression import (
    Compile,
    CompressionContext,
    CompressorChain,
    Distill,
    Prune,
    Quantize,
    Stage,
    check_policy,
    compare_outputs,
)
from vinoreward_actors.policies.backends.base import make_backend
from vinoreward_actors.policies.policy import QuantizedArray, forward, random_policy
from vinoreward_actors.policies.spec import mlp


class Makes(Stage):
    """A user's stage: one method, here a function of the policy."""

    def __init__(self, make):
        self.make = make

    def compress(self, policy, context):
        return self.make(policy)


def test_the_papers_line_works():
    chain = CompressorChain().add(Prune(0.5)).add(Distill(steps=3)).add(Quantize("int8"))
    policy = random_policy(MLP, 0).replace(version=7)
    found = chain.add(Compile("openvino")).compress(policy, context_for(policy))
    assert [layer.outputs for layer in found.spec.weighted] == [8, 6, 3]
    assert found.in_int8("dense1")
    assert not found.in_int8("dense0") and not found.in_int8("head")
    assert (found.backend, found.version, found.blob) == ("openvino", 7, None)
    assert_same_function(CompressorChain().compress(policy, context_for(policy)), policy, 0)


def test_a_users_stage_needs_one_method():
    policy = random_policy(MLP, 0)
    bias = policy.float_parameters()["head.bias"]
    louder = Makes(lambda policy: changed(policy, head__bias=bias + 1))
    found = chain(louder).compress(policy, context_for(policy))
    seen = observations_for(MLP)
    np.testing.assert_allclose(forward(found, seen), forward(policy, seen) + 1, atol=1e-5)


def test_the_policy_given_is_not_changed():
    policy = random_policy(MLP, 0)
    before = {name: value.copy() for name, value in policy.float_parameters().items()}
    chain = CompressorChain().add(Prune(0.5)).add(Distill(steps=2))
    chain.add(Quantize("int8")).compress(policy, context_for(policy))
    for name, value in policy.float_parameters().items():
        np.testing.assert_array_equal(value, before[name])


TWICE = Quantize("int8")


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([Prune(0.5)], "not followed by Distill"),
        ([Prune(0.5), Quantize("int8")], "not followed by Distill"),
        ([Distill(), Prune(0.5)], "not followed by Distill"),
        ([Prune(0.5), Distill(student=MLP)], "its own student"),
        ([Quantize("int8"), Distill()], "float weights first, then Quantize"),
        ([Compile("openvino"), Quantize("int8")], "then Compile"),
        ([Quantize("int8"), Quantize("w4")], "two Quantize"),
        ([Quantize], "is not a Stage"),
        ([TWICE, TWICE], "added twice"),
        # What a user's stage gets wrong.
        (
            [Makes(lambda _: random_policy(mlp(6, 4, head="logits"), 0))],
            "Makes changed the policy's actions",
        ),
        (
            [Makes(lambda policy: changed(policy, head__bias=np.full(3, np.nan, np.float32)))],
            "compressed policy's head.bias has NaN",
        ),
        ([Makes(lambda _: None)], "Makes returned None"),
    ],
)
def test_stages_that_cannot_work_are_refused(stages, words):
    policy = random_policy(MLP, 0)
    with pytest.raises((ConfigError, InputError), match=words):
        chain(*stages).compress(policy, context_for(policy))


def test_float_stages_refuse_quantized_weights():
    policy = random_policy(MLP, 0)
    context = context_for(policy)
    coarse = CompressorChain().add(Quantize("w4")).compress(policy, context)
    for stage in (Distill(), Prune(0.5), Quantize("int8")):
        with pytest.raises(ConfigError, match="put Quantize after it"):
            stage.compress(coarse, context)


def test_teachers_and_observations_that_cannot_be_are_refused():
    policy = random_policy(MLP, 0)
    broken = changed(policy, dense1__bias=np.full(12, np.inf, dtype=np.float32))
    with pytest.raises(InputError, match=r"teacher's dense1\.bias has NaN"):
        context_for(broken)
    with pytest.raises(InputError, match=r"policy's dense1\.bias has NaN"):
        CompressorChain().compress(broken, context_for(policy))
    with pytest.raises(InputError, match="no observations"):
        CompressionContext(policy, observations_for(MLP, 0))
    with pytest.raises(InputError, match=r"Expected float32\(N, 6\)"):
        CompressionContext(policy, np.zeros((3, 5), dtype=np.float32))


def test_settings_reach_the_stages_that_have_them():
    chain = CompressorChain().add(Prune(0.5)).add(Distill(steps=2)).add(Quantize("int8"))
    assert chain.parameters() == {"sparsity": 0.5, "bits": 8.0}
    chain.configure(sparsity=0.75, bits=4)
    assert chain.parameters() == {"sparsity": 0.75, "bits": 4.0}
    policy = random_policy(MLP, 0)
    found = chain.compress(policy, context_for(policy))
    weight = found.parameters["dense1.weight"]
    assert isinstance(weight, QuantizedArray)
    assert (weight.bits, weight.shape) == (4, (3, 4))
    overridden = dataclasses.replace(context_for(policy), sparsity=0.0, bits=32)
    found = chain.compress(policy, overridden)
    assert found.spec == policy.spec
    assert chain.parameters() == {"sparsity": 0.0, "bits": 32.0}


@pytest.mark.parametrize(
    "parameters",
    [{"sparsity": 1.0}, {"sparsity": -0.1}, {"bits": 1}, {"bits": 9}, {"bits": 4.5}, {"rank": 3}],
)
def test_settings_that_cannot_work_are_refused(parameters):
    with pytest.raises(ConfigError, match=r"Expected|no stage .* 'rank'"):
        chain(Prune(0.5), Distill(), Quantize("int8")).configure(**parameters)


def three_stages():
    return chain(Prune(0.5), Distill(steps=5), Quantize("int8"))


def test_a_chain_goes_on_from_its_state_to_the_bit():
    """Also one that was sent to another process."""
    pushes = [random_policy(MLP, seed) for seed in (0, 0, 1)]
    whole, resumed = three_stages(), three_stages()
    for push, policy in enumerate(pushes[:2]):
        whole.compress(policy, context_for(policy, push, push))
    state, sent = whole.state(), pickle.loads(pickle.dumps(whole))
    assert all(isinstance(value, np.ndarray | int | float) for value in state.values())
    resumed.load_state(state)
    before = {name: np.array(value) for name, value in state.items()}
    last = pushes[2], context_for(pushes[2], 2, 2)
    expected, fresh = whole.compress(*last), three_stages().compress(*last)
    for one in (resumed, sent):
        assert_equal(one.compress(*last), expected)
    assert not np.array_equal(fresh.parameters["head.weight"], expected.parameters["head.weight"])
    for name, value in state.items():  # it is the caller's own
        np.testing.assert_array_equal(value, before[name])


def test_a_state_of_another_chain_is_refused():
    with pytest.raises(ConfigError, match="same stages"):
        CompressorChain().add(Quantize("int8")).load_state({"0-Prune.age": 1})


# What is compiled, and how good a compressed policy is


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
        (Compile("numpy"), "int8"),
    ):
        found = compiled(stage, precision)
        assert (found.blob, found.backend) == (None, stage.backend)


def test_an_unknown_backend_is_refused():
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
