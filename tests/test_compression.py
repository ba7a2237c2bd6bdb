"""Chains and their exact stages: what pruning, low rank, fusion and compilation promise."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from subprocess import run
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.actor_learner.executors.registry import compile_blob, make_executor
from vinoreward.compression import (
    Compile,
    CompressionContext,
    CompressorChain,
    Distill,
    Fuse,
    LowRank,
    Prune,
    Quantize,
    Stage,
    check_policy,
    compare_outputs,
)
from vinoreward.compression.prune import importance, keep_neurons
from vinoreward.errors import ConfigError, InputError, OutputError
from vinoreward.policies.policy import Policy, QuantizedArray, random_policy
from vinoreward.policies.reference import forward, forward_with_value
from vinoreward.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp

MLP = mlp(6, 3, head="logits", hidden=(16, 12), value=True)
CNN = PolicySpec(
    observation_shape=(2, 12, 10),
    layers=(
        Conv("conv0", 2, 6, 4, 2),
        Conv("conv1", 6, 8, 2, 1),
        Flatten(),
        Dense("dense0", 8 * 4 * 3, 10, "relu"),
        Dense("head", 10, 5),
    ),
    head="q",
    actions=5,
    value=Dense("value", 10, 1),
    observation_dtype="uint8",
    scale=1 / 255,
)


def observations_for(spec: PolicySpec, count: int = 32, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    if spec.observation_dtype == "uint8":
        return random.integers(0, 256, (count, *spec.observation_shape), dtype=np.uint8)
    return random.standard_normal((count, *spec.observation_shape)).astype(np.float32)


def context_for(policy: Policy, push: int = 0, seed: int = 0) -> CompressionContext:
    return CompressionContext(policy, observations_for(policy.spec, seed=seed), push=push)


def assert_same_function(one: Policy, two: Policy, tolerance: float = 1e-5) -> None:
    observations = observations_for(one.spec, 40, seed=9)
    for found, expected in zip(
        forward_with_value(two, observations), forward_with_value(one, observations), strict=True
    ):
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def changed(policy: Policy, **arrays: np.ndarray) -> Policy:
    """Replace parameters; ``a__weight`` stands for ``a.weight``."""
    named = {name.replace("__", "."): value for name, value in arrays.items()}
    return policy.replace(parameters={**policy.parameters, **named})


class Louder(Stage):
    """A user's stage: one method."""

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        weights = policy.float_parameters()
        weights["head.bias"] = weights["head.bias"] + 1
        return policy.replace(parameters=weights)


# The chain


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
    assert (found.engine, found.version, found.blob) == ("openvino", 7, None)


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
        ([Prune(0.5), Distill(student=MLP)], "student of its own"),
        ([Quantize("int8"), Distill()], "float weights, then Quantize"),
        ([Quantize("int8"), Fuse()], "float weights, then Quantize"),
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
    with pytest.raises(ConfigError, match="Expected a Stage"):
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
    with pytest.raises(InputError, match=r"teacher's dense1\.bias holds NaN"):
        context_for(broken)
    with pytest.raises(InputError, match=r"policy's dense1\.bias holds NaN"):
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
        (Breaker(), "compressed policy's head.bias holds NaN"),
        (Forgetful(), "Forgetful returned None"),
    ],
)
def test_what_a_users_stage_gets_wrong_is_said(stage: Stage, words: str) -> None:
    policy = random_policy(MLP, 0)
    with pytest.raises((ConfigError, InputError), match=words):
        CompressorChain().add(stage).compress(policy, context_for(policy))


def test_settings_reach_the_stages_that_have_them() -> None:
    chain = CompressorChain().add(Prune(0.5)).add(Distill(steps=2)).add(Quantize("int8"))
    assert chain.knobs() == {"sparsity": 0.5, "bits": 8.0}
    chain.configure(sparsity=0.75, bits=4)
    assert chain.knobs() == {"sparsity": 0.75, "bits": 4.0}
    policy = random_policy(MLP, 0)
    found = chain.compress(policy, context_for(policy))
    weight = found.parameters["dense1.weight"]
    assert isinstance(weight, QuantizedArray)
    assert (weight.bits, weight.shape) == (4, (3, 4))
    overridden = dataclasses.replace(context_for(policy), sparsity=0.0, bits=32)
    found = chain.compress(policy, overridden)
    assert found.spec == policy.spec
    assert chain.knobs() == {"sparsity": 0.0, "bits": 32.0}


def test_settings_that_cannot_work_are_refused() -> None:
    chain = CompressorChain().add(Prune(0.5)).add(Distill()).add(Quantize("int8"))
    for knobs in ({"sparsity": 1.0}, {"sparsity": -0.1}, {"bits": 1}, {"bits": 9}, {"bits": 4.5}):
        with pytest.raises(ConfigError, match="Expected"):
            chain.configure(**knobs)
    with pytest.raises(ConfigError, match=r"no stage .* 'rank'"):
        chain.configure(rank=3)
    with pytest.raises(ConfigError, match="has no setting"):
        Distill().turn("bits", 3)


def four_stages() -> CompressorChain:
    stages = (Prune(0.5), LowRank(energy=0.9), Distill(steps=5), Quantize("int8"))
    chain = CompressorChain()
    for stage in stages:
        chain.add(stage)
    return chain


def assert_equal(one: Policy, two: Policy) -> None:
    assert one.spec == two.spec
    assert dict(one.ranges) == dict(two.ranges)
    for name, value in one.float_parameters().items():
        np.testing.assert_array_equal(value, two.float_parameters()[name])


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
    with pytest.raises(ConfigError, match="Louder was given state"):
        CompressorChain().add(Louder()).load_state({"0-Louder.volume": 3})
    for stage in (Prune(0.5), LowRank(3), Distill(), Quantize("int8")):
        with pytest.raises(ConfigError, match="was given state"):
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
        "import sys; from vinoreward.compression import *; "
        "CompressorChain().add(Prune(0.5)).add(Distill()).add(Quantize('int8')).check(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert run([sys.executable, "-c", code], check=False).returncode == 0


# Pruning


@pytest.mark.parametrize("spec", [MLP, CNN], ids=["mlp", "cnn"])
def test_taking_neurons_out_is_the_same_as_silencing_them(spec: PolicySpec) -> None:
    policy = random_policy(spec, 1)
    random = np.random.default_rng(2)
    weights = policy.float_parameters()
    kept = {}
    for layer in spec.weighted[:-1]:
        kept[layer.name] = np.sort(random.choice(layer.outputs, layer.outputs // 2, replace=False))
        silent = np.setdiff1d(np.arange(layer.outputs), kept[layer.name])
        for part in ("weight", "bias"):
            masked = weights[f"{layer.name}.{part}"].copy()
            masked[silent] = 0
            weights[f"{layer.name}.{part}"] = masked
    pruned = keep_neurons(policy, kept)
    assert_same_function(Policy(spec, weights), pruned)
    assert pruned.spec.multiply_adds() < 0.5 * spec.multiply_adds()
    assert pruned.spec.outputs == spec.outputs


@pytest.mark.parametrize("spec", [MLP, CNN], ids=["mlp", "cnn"])
@pytest.mark.parametrize("criterion", ["magnitude", "activation"])
def test_dead_neurons_go_first_and_nothing_is_lost(spec: PolicySpec, criterion: str) -> None:
    policy = random_policy(spec, 3)
    weights = policy.float_parameters()
    for layer in spec.weighted[:-1]:
        for part in ("weight", "bias"):
            array = weights[f"{layer.name}.{part}"].copy()
            array[::2] = 0
            weights[f"{layer.name}.{part}"] = array
    dead = Policy(spec, weights)
    stage = Prune(0.5, criterion=criterion)  # type: ignore[arg-type]
    pruned = stage.compress(dead, context_for(dead))
    assert_same_function(dead, pruned)
    assert [x.outputs for x in pruned.spec.weighted] == [
        *[x.outputs // 2 for x in spec.weighted[:-1]],
        spec.outputs,
    ]


def test_activation_sees_neurons_that_are_large_but_silent() -> None:
    policy = random_policy(MLP, 4)
    weights = policy.float_parameters()
    weights["dense0.bias"] = weights["dense0.bias"].copy()
    weights["dense0.bias"][3] = -100.0
    loud = Policy(MLP, weights)
    context = context_for(loud)
    assert importance(loud, context, "magnitude")["dense0"].argmax() == 3
    assert importance(loud, context, "activation")["dense0"][3] == 0


@settings(max_examples=30, deadline=None)
@given(sparsity=st.floats(0, 0.999), hidden=st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_every_layer_keeps_a_neuron_and_the_head_all(sparsity: float, hidden: list[int]) -> None:
    spec = mlp(4, 2, head="tanh_gaussian", hidden=hidden, value=True)
    policy = random_policy(spec, 0)
    pruned = Prune(sparsity).compress(policy, context_for(policy))
    widths = [layer.outputs for layer in pruned.spec.weighted]
    assert widths == [*[max(1, round(width * (1 - sparsity))) for width in hidden], 4]
    assert np.isfinite(forward(pruned, observations_for(spec))).all()


def test_the_choice_of_neurons_stays_for_some_pushes() -> None:
    stage = Prune(0.5, frozen_for=3)
    chosen = []
    for push in range(7):
        policy = random_policy(MLP, push)
        stage.compress(policy, context_for(policy, push))
        chosen.append(tuple(stage.state()["kept.dense0"]))  # type: ignore[arg-type]
    assert chosen[0] == chosen[1] == chosen[2]
    assert chosen[3] == chosen[4] == chosen[5]
    assert len(set(chosen)) == 3
    stage.turn("sparsity", 0.25)
    policy = random_policy(MLP, 7)
    assert stage.compress(policy, context_for(policy)).spec.weighted[0].outputs == 12


def test_another_network_is_chosen_for_anew() -> None:
    stage = Prune(0.5)
    wide = random_policy(mlp(6, 3, head="logits", hidden=(32,)), 0)
    for policy in (random_policy(MLP, 0), wide):
        pruned = stage.compress(policy, context_for(policy))
        assert pruned.spec.weighted[0].outputs == policy.spec.weighted[0].outputs // 2


@pytest.mark.parametrize(
    "arguments",
    [{"sparsity": 1.0}, {"sparsity": -0.1}, {"sparsity": 0.5, "frozen_for": 0}],
)
def test_impossible_pruning_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="Expected"):
        Prune(**arguments)  # type: ignore[arg-type]


# Low rank

WIDE = mlp(20, 3, head="logits", hidden=(60, 50), value=True)


def low_rank_policy(rank: int) -> Policy:
    random = np.random.default_rng(5)
    policy = random_policy(WIDE, 5)
    thin = {
        name: (
            random.standard_normal((outputs, rank)) @ random.standard_normal((rank, inputs)) / 60
        )
        for name, outputs, inputs in (("dense0__weight", 60, 20), ("dense1__weight", 50, 60))
    }
    return changed(policy, **{name: value.astype(np.float32) for name, value in thin.items()})


@pytest.mark.parametrize("stage", [LowRank(6), LowRank(energy=1.0 - 1e-9)], ids=["rank", "energy"])
def test_a_layer_of_low_rank_becomes_two_and_the_same(stage: LowRank) -> None:
    policy = low_rank_policy(6)
    found = stage.compress(policy, context_for(policy))
    assert_same_function(policy, found)
    names = [layer.name for layer in found.spec.weighted]
    assert "dense1_low" in names and names[-1] == "head"
    thin = next(layer for layer in found.spec.weighted if layer.name == "dense1_low")
    assert (thin.inputs, thin.outputs, thin.activation) == (60, 6, "none")
    assert found.spec.multiply_adds() < policy.spec.multiply_adds()


def test_layers_that_would_not_get_cheaper_are_left_alone() -> None:
    policy = random_policy(WIDE, 6)
    assert_equal(LowRank(50).compress(policy, context_for(policy)), policy)
    assert_equal(LowRank(energy=1.0).compress(policy, context_for(policy)), policy)


@pytest.mark.parametrize("rank", [1, 5, 20])
def test_no_other_factors_of_that_rank_are_closer(rank: int) -> None:
    """Eckart and Young: what is left is the rest of the singular values."""
    policy = random_policy(mlp(150, 2, head="logits", hidden=(120,)), 7)
    found = LowRank(rank).compress(policy, context_for(policy)).float_parameters()
    weight = policy.float_parameters()["dense0.weight"].astype(np.float64)
    product = found["dense0.weight"].astype(np.float64) @ found["dense0_low.weight"]
    best = np.sqrt((np.linalg.svd(weight, compute_uv=False)[rank:] ** 2).sum())
    # The quick decomposition is within 1 % of the best, even where all values are alike.
    assert np.linalg.norm(weight - product) <= 1.01 * best


def test_energy_is_kept() -> None:
    policy = low_rank_policy(30)
    weight = policy.float_parameters()["dense1.weight"]
    found = LowRank(energy=0.7).compress(policy, context_for(policy)).float_parameters()
    product = found["dense1.weight"] @ found["dense1_low.weight"]
    assert np.linalg.norm(weight - product) ** 2 <= 0.3001 * np.linalg.norm(weight) ** 2


def test_ranks_found_stay_for_some_pushes() -> None:
    stage = LowRank(energy=0.9, frozen_for=2)
    ranks = []
    for rank in (4, 20, 20):
        policy = low_rank_policy(rank)
        stage.compress(policy, context_for(policy))
        ranks.append(stage.state()["rank.dense1"])
    assert ranks[0] == ranks[1] < ranks[2]  # type: ignore[operator]


@pytest.mark.parametrize(
    "arguments", [{}, {"rank": 3, "energy": 0.5}, {"rank": 0}, {"energy": 0.0}, {"energy": 1.1}]
)
def test_impossible_ranks_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="Expected"):
        LowRank(**arguments)  # type: ignore[arg-type]


def test_a_layer_name_that_is_taken_is_said() -> None:
    names = dataclasses.replace(WIDE, layers=(*WIDE.layers[:2], Dense("dense1_low", 50, 3)))
    with pytest.raises(ConfigError, match="names that differ"):
        LowRank(3).compress(random_policy(names, 0), context_for(random_policy(names, 0)))


# Fusion


@pytest.mark.parametrize("spec", [MLP, CNN], ids=["mlp", "cnn"])
def test_the_scale_goes_into_the_first_layer(spec: PolicySpec) -> None:
    policy = random_policy(dataclasses.replace(spec, scale=0.02), 8)
    found = Fuse().compress(policy, context_for(policy))
    assert found.spec.scale == 1.0
    assert_same_function(policy, found)


def linear(*sizes: int, value: bool = True) -> PolicySpec:
    layers = [Dense(f"d{i}", sizes[i], sizes[i + 1]) for i in range(len(sizes) - 1)]
    return PolicySpec(
        observation_shape=(sizes[0],),
        layers=(Flatten("flat"), *layers),
        head="logits",
        actions=sizes[-1],
        value=Dense("value", sizes[-2], 1) if value else None,
        scale=0.5,
    )


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ((6, 8, 3), ["d1"]),
        ((6, 8, 9, 3), ["d2"]),
        ((40, 4, 30, 20, 10), ["d0", "d3"]),
        ((6, 2, 40, 3), ["d2"]),
        ((40, 2, 40, 3), ["d0", "d2"]),
        ((40, 2, 41), ["d0", "d1"]),
    ],
)
def test_linear_layers_are_merged_where_that_is_less_work(
    sizes: tuple[int, ...], names: list[str]
) -> None:
    policy = random_policy(linear(*sizes), 9)
    found = Fuse().compress(policy, context_for(policy))
    assert [layer.name for layer in found.spec.layers] == names
    assert found.spec.multiply_adds() <= policy.spec.multiply_adds()
    assert_same_function(policy, found)


def test_layers_with_an_activation_between_them_stay() -> None:
    policy = random_policy(MLP, 10)
    assert_equal(Fuse().compress(policy, context_for(policy)), policy)


def test_fusing_does_not_undo_low_rank() -> None:
    policy = low_rank_policy(6)
    thin = LowRank(6).compress(policy, context_for(policy))
    assert_equal(Fuse().compress(thin, context_for(policy)), thin)


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
