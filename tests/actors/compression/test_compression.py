"""Chains: what they promise, which they refuse, and that they go on from their state."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from subprocess import run

import numpy as np
import pytest
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
    Fuse,
    LowRank,
    Prune,
    Quantize,
    Stage,
)
from vinoreward_actors.policies.policy import Policy, QuantizedArray, forward, random_policy
from vinoreward_actors.policies.spec import mlp


class Louder(Stage):
    """A user's stage: one method."""

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        weights = policy.float_parameters()
        weights["head.bias"] = weights["head.bias"] + 1
        return policy.replace(parameters=weights)


def test_the_papers_line_works() -> None:
    chain = (
        CompressorChain()
        .add(Prune(0.5))
        .add(Distill(steps=3))
        .add(Quantize("int8"))
        .add(Compile("openvino"))
    )
    policy = random_policy(MLP, 0).replace(version=7)
    found = chain.compress(policy, context_for(policy))
    assert [layer.outputs for layer in found.spec.weighted] == [8, 6, 3]
    assert found.in_int8("dense1")
    assert not found.in_int8("dense0") and not found.in_int8("head")
    assert (found.backend, found.version, found.blob) == ("openvino", 7, None)


def test_a_chain_without_stages_gives_the_policy_back() -> None:
    policy = random_policy(MLP, 0)
    assert_same_function(CompressorChain().compress(policy, context_for(policy)), policy, 0)


def test_a_users_stage_needs_one_method() -> None:
    policy = random_policy(MLP, 0)
    found = CompressorChain().add(Louder()).compress(policy, context_for(policy))
    observations = observations_for(MLP)
    np.testing.assert_allclose(
        forward(found, observations), forward(policy, observations) + 1, atol=1e-5
    )


def test_the_policy_given_is_not_changed() -> None:
    policy = random_policy(MLP, 0)
    before = {name: value.copy() for name, value in policy.float_parameters().items()}
    chain = CompressorChain().add(LowRank(2)).add(Fuse()).add(Prune(0.5)).add(Distill(steps=2))
    chain.add(Quantize("int8")).compress(policy, context_for(policy))
    for name, value in policy.float_parameters().items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([Prune(0.5)], "not followed by Distill"),
        ([Prune(0.5), Quantize("int8")], "not followed by Distill"),
        ([Distill(), Prune(0.5)], "not followed by Distill"),
        ([Prune(0.5), Distill(student=MLP)], "its own student"),
        ([Quantize("int8"), Distill()], "float weights first, then Quantize"),
        ([Quantize("int8"), Fuse()], "float weights first, then Quantize"),
        ([Compile("openvino"), Quantize("int8")], "then Compile"),
        ([Quantize("int8"), Quantize("w4")], "two Quantize"),
    ],
)
def test_stages_in_an_order_that_cannot_work_are_refused(stages: list[Stage], words: str) -> None:
    chain = CompressorChain()
    for stage in stages:
        chain.add(stage)
    policy = random_policy(MLP, 0)
    with pytest.raises(ConfigError, match=words):
        chain.compress(policy, context_for(policy))


def test_what_is_no_stage_or_there_already_is_refused() -> None:
    stage = Quantize("int8")
    with pytest.raises(ConfigError, match="is not a Stage"):
        CompressorChain().add(Quantize)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="added twice"):
        CompressorChain().add(stage).add(stage)


def test_float_stages_refuse_quantized_weights() -> None:
    policy = random_policy(MLP, 0)
    context = context_for(policy)
    coarse = CompressorChain().add(Quantize("w4")).compress(policy, context)
    for stage in (Fuse(), LowRank(2), Distill(), Prune(0.5), Quantize("int8")):
        with pytest.raises(ConfigError, match="put Quantize after it"):
            stage.compress(coarse, context)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_teacher_with_nan_is_refused_before_anything_is_made_of_it(bad: float) -> None:
    policy = random_policy(MLP, 0)
    broken = changed(policy, dense1__bias=np.full(12, bad, dtype=np.float32))
    with pytest.raises(InputError, match=r"teacher's dense1\.bias has NaN"):
        context_for(broken)
    with pytest.raises(InputError, match=r"policy's dense1\.bias has NaN"):
        CompressorChain().compress(broken, context_for(policy))


def test_a_context_needs_suitable_observations() -> None:
    policy = random_policy(MLP, 0)
    with pytest.raises(InputError, match="no observations"):
        CompressionContext(policy, observations_for(MLP, 0))
    with pytest.raises(InputError, match=r"Expected float32\(N, 6\)"):
        CompressionContext(policy, np.zeros((3, 5), dtype=np.float32))


class Stranger(Stage):
    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        return random_policy(mlp(6, 4, head="logits"), 0)


class Breaker(Stage):
    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        return changed(policy, head__bias=np.full(3, np.nan, dtype=np.float32))


class Forgetful(Stage):
    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (Stranger(), "Stranger changed the policy's actions"),
        (Breaker(), "compressed policy's head.bias has NaN"),
        (Forgetful(), "Forgetful returned None"),
    ],
)
def test_what_a_users_stage_gets_wrong_is_said(stage: Stage, words: str) -> None:
    policy = random_policy(MLP, 0)
    with pytest.raises((ConfigError, InputError), match=words):
        CompressorChain().add(stage).compress(policy, context_for(policy))


def test_settings_reach_the_stages_that_have_them() -> None:
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


def test_settings_that_cannot_work_are_refused() -> None:
    chain = CompressorChain().add(Prune(0.5)).add(Distill()).add(Quantize("int8"))
    for parameters in (
        {"sparsity": 1.0},
        {"sparsity": -0.1},
        {"bits": 1},
        {"bits": 9},
        {"bits": 4.5},
    ):
        with pytest.raises(ConfigError, match="Expected"):
            chain.configure(**parameters)
    with pytest.raises(ConfigError, match=r"no stage .* 'rank'"):
        chain.configure(rank=3)
    with pytest.raises(ConfigError, match="has no setting"):
        Distill().set_parameter("bits", 3)


def four_stages() -> CompressorChain:
    stages = (Prune(0.5), LowRank(energy=0.9), Distill(steps=5), Quantize("int8"))
    chain = CompressorChain()
    for stage in stages:
        chain.add(stage)
    return chain


def test_a_chain_goes_on_from_its_state_to_the_bit() -> None:
    pushes = [random_policy(MLP, seed) for seed in (0, 0, 1)]
    whole = four_stages()
    for push, policy in enumerate(pushes):
        expected = whole.compress(policy, context_for(policy, push, push))
        if push == 1:
            state = whole.state()
    assert all(isinstance(value, np.ndarray | int | float) for value in state.values())
    resumed = four_stages()
    resumed.load_state(state)
    assert_equal(resumed.compress(pushes[2], context_for(pushes[2], 2, 2)), expected)
    fresh = four_stages().compress(pushes[2], context_for(pushes[2], 2, 2))
    assert not np.array_equal(fresh.parameters["head.weight"], expected.parameters["head.weight"])


def test_state_is_owned_and_that_of_another_chain_refused() -> None:
    chain = four_stages()
    policy = random_policy(MLP, 0)
    chain.compress(policy, context_for(policy))
    state = chain.state()
    before = {name: np.array(value) for name, value in state.items()}
    chain.compress(random_policy(MLP, 3), context_for(policy, 1))
    for name, value in state.items():
        np.testing.assert_array_equal(value, before[name])
    with pytest.raises(ConfigError, match="same stages"):
        CompressorChain().add(Quantize("int8")).load_state(state)
    with pytest.raises(ConfigError, match="Louder got the state"):
        CompressorChain().add(Louder()).load_state({"0-Louder.volume": 3})
    for stage in (Prune(0.5), LowRank(3), Distill(), Quantize("int8")):
        with pytest.raises(ConfigError, match="got the state"):
            stage.load_state({"colour": 3})


def test_a_chain_can_be_sent_to_another_process() -> None:
    chain = four_stages()
    policy = random_policy(MLP, 0)
    chain.compress(policy, context_for(policy))
    sent = pickle.loads(pickle.dumps(chain))
    context = context_for(policy, 1)
    assert_equal(sent.compress(policy, context), chain.compress(policy, context))


def test_building_a_chain_does_not_import_torch() -> None:
    code = (
        "import sys; from vinoreward_actors.compression import *; "
        "CompressorChain().add(Prune(0.5)).add(Distill()).add(Quantize('int8')).check(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert run([sys.executable, "-c", code], check=False).returncode == 0
