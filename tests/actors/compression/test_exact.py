"""What pruning, low rank and fusion promise: each exact, where nothing is lost."""

import dataclasses

import numpy as np
import pytest
from compression_policies import (
    CNN,
    MLP,
    assert_equal,
    assert_same_function,
    changed,
    context_for,
    observations_for,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.errors import ConfigError
from vinoreward_actors.compression import Fuse, LowRank, Prune
from vinoreward_actors.compression.prune import importance, keep_neurons
from vinoreward_actors.policies.policy import Policy, forward, random_policy
from vinoreward_actors.policies.spec import Dense, Flatten, PolicySpec, mlp

# Pruning


@pytest.mark.parametrize("spec", [MLP, CNN], ids=["mlp", "cnn"])
def test_taking_neurons_out_is_the_same_as_silencing_them(spec):
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
def test_dead_neurons_go_first_and_nothing_is_lost(spec, criterion):
    policy = random_policy(spec, 3)
    weights = policy.float_parameters()
    for layer in spec.weighted[:-1]:
        for part in ("weight", "bias"):
            array = weights[f"{layer.name}.{part}"].copy()
            array[::2] = 0
            weights[f"{layer.name}.{part}"] = array
    dead = Policy(spec, weights)
    stage = Prune(0.5, criterion=criterion)
    pruned = stage.compress(dead, context_for(dead))
    assert_same_function(dead, pruned)
    assert [x.outputs for x in pruned.spec.weighted] == [
        *[x.outputs // 2 for x in spec.weighted[:-1]],
        spec.outputs,
    ]


def test_activation_sees_neurons_that_are_large_but_silent():
    weights = random_policy(MLP, 4).float_parameters()
    weights["dense0.bias"] = weights["dense0.bias"].copy()
    weights["dense0.bias"][3] = -100.0
    loud = Policy(MLP, weights)
    context = context_for(loud)
    assert importance(loud, context, "magnitude")["dense0"].argmax() == 3
    assert importance(loud, context, "activation")["dense0"][3] == 0


@settings(max_examples=30, deadline=None)
@given(sparsity=st.floats(0, 0.999), hidden=st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_every_layer_keeps_a_neuron_and_the_head_all(sparsity, hidden):
    spec = mlp(4, 2, head="tanh_gaussian", hidden=hidden, value=True)
    policy = random_policy(spec, 0)
    pruned = Prune(sparsity).compress(policy, context_for(policy))
    widths = [layer.outputs for layer in pruned.spec.weighted]
    assert widths == [*[max(1, round(width * (1 - sparsity))) for width in hidden], 4]
    assert np.isfinite(forward(pruned, observations_for(spec))).all()


def test_the_choice_of_neurons_stays_for_some_pushes():
    stage = Prune(0.5, frozen_for=3)
    chosen = []
    for push in range(7):
        policy = random_policy(MLP, push)
        stage.compress(policy, context_for(policy, push))
        chosen.append(tuple(stage.state()["kept.dense0"]))
    assert chosen[0] == chosen[1] == chosen[2] != chosen[3] == chosen[4] == chosen[5] != chosen[6]
    stage.set_parameter("sparsity", 0.25)
    assert stage.compress(policy, context_for(policy)).spec.weighted[0].outputs == 12
    # Another network is chosen for anew.
    wide = random_policy(mlp(6, 3, head="logits", hidden=(32,)), 0)
    assert stage.compress(wide, context_for(wide)).spec.weighted[0].outputs == 24


TAKEN = dataclasses.replace(MLP, layers=(*MLP.layers[:2], Dense("dense1_low", 12, 3)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Prune(1.0),
        lambda: Prune(-0.1),
        lambda: Prune(0.5, frozen_for=0),
        lambda: LowRank(),
        lambda: LowRank(rank=3, energy=0.5),
        lambda: LowRank(rank=0),
        lambda: LowRank(energy=0.0),
        lambda: LowRank(energy=1.1),
        # A layer of the name that it would give to one.
        lambda: LowRank(3).compress(random_policy(TAKEN, 0), context_for(random_policy(TAKEN, 0))),
    ],
)
def test_impossible_pruning_and_ranks_are_refused(make):
    with pytest.raises(ConfigError, match="Expected"):
        make()


# Low rank

WIDE = mlp(20, 3, head="logits", hidden=(60, 50), value=True)


def low_rank_policy(rank):
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
def test_a_layer_of_low_rank_becomes_two_and_the_same(stage):
    policy = low_rank_policy(6)
    found = stage.compress(policy, context_for(policy))
    assert_same_function(policy, found)
    names = [layer.name for layer in found.spec.weighted]
    assert "dense1_low" in names and names[-1] == "head"
    thin = next(layer for layer in found.spec.weighted if layer.name == "dense1_low")
    assert (thin.inputs, thin.outputs, thin.activation) == (60, 6, "none")
    assert found.spec.multiply_adds() < policy.spec.multiply_adds()


def test_layers_that_would_not_get_cheaper_are_left_alone():
    policy = random_policy(WIDE, 6)
    assert_equal(LowRank(50).compress(policy, context_for(policy)), policy)
    assert_equal(LowRank(energy=1.0).compress(policy, context_for(policy)), policy)


@pytest.mark.parametrize("rank", [1, 5, 20])
def test_no_other_factors_of_that_rank_are_closer(rank):
    """Eckart and Young: what is left is the rest of the singular values."""
    policy = random_policy(mlp(150, 2, head="logits", hidden=(120,)), 7)
    found = LowRank(rank).compress(policy, context_for(policy)).float_parameters()
    weight = policy.float_parameters()["dense0.weight"].astype(np.float64)
    product = found["dense0.weight"].astype(np.float64) @ found["dense0_low.weight"]
    best = np.sqrt((np.linalg.svd(weight, compute_uv=False)[rank:] ** 2).sum())
    # The quick decomposition is within 1 % of the best, even where all values are alike.
    assert np.linalg.norm(weight - product) <= 1.01 * best


def test_ranks_found_stay_for_some_pushes_and_keep_the_energy():
    stage = LowRank(energy=0.9, frozen_for=2)
    ranks = []
    for rank in (4, 20, 20):
        policy = low_rank_policy(rank)
        found = stage.compress(policy, context_for(policy)).float_parameters()
        ranks.append(stage.state()["rank.dense1"])
    assert ranks[0] == ranks[1] < ranks[2]
    weight = policy.float_parameters()["dense1.weight"]
    product = found["dense1.weight"] @ found["dense1_low.weight"]
    assert np.linalg.norm(weight - product) ** 2 <= 0.1001 * np.linalg.norm(weight) ** 2


# Fusion


@pytest.mark.parametrize("spec", [MLP, CNN], ids=["mlp", "cnn"])
def test_the_scale_goes_into_the_first_layer(spec):
    policy = random_policy(dataclasses.replace(spec, scale=0.02), 8)
    found = Fuse().compress(policy, context_for(policy))
    assert found.spec.scale == 1.0
    assert_same_function(policy, found)


def linear(*sizes, value=True):
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
def test_linear_layers_are_merged_where_that_is_less_work(sizes, names):
    policy = random_policy(linear(*sizes), 9)
    found = Fuse().compress(policy, context_for(policy))
    assert [layer.name for layer in found.spec.layers] == names
    assert found.spec.multiply_adds() <= policy.spec.multiply_adds()
    assert_same_function(policy, found)


def test_layers_with_an_activation_or_of_low_rank_stay():
    policy = random_policy(MLP, 10)
    assert_equal(Fuse().compress(policy, context_for(policy)), policy)
    policy = low_rank_policy(6)
    thin = LowRank(6).compress(policy, context_for(policy))
    assert_equal(Fuse().compress(thin, context_for(policy)), thin)
