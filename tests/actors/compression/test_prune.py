"""What pruning promises: exact, where nothing is lost."""

import numpy as np
import pytest
from compression_policies import (
    CNN,
    MLP,
    assert_same_function,
    context_for,
    observations_for,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.errors import ConfigError
from vinoreward_actors.compression import Prune
from vinoreward_actors.compression.prune import keep_neurons
from vinoreward_actors.policies.policy import Policy, forward, random_policy
from vinoreward_actors.policies.spec import mlp

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
def test_dead_neurons_go_first_and_nothing_is_lost(spec):
    policy = random_policy(spec, 3)
    weights = policy.float_parameters()
    for layer in spec.weighted[:-1]:
        for part in ("weight", "bias"):
            array = weights[f"{layer.name}.{part}"].copy()
            array[::2] = 0
            weights[f"{layer.name}.{part}"] = array
    dead = Policy(spec, weights)
    stage = Prune(0.5)
    pruned = stage.compress(dead, context_for(dead))
    assert_same_function(dead, pruned)
    assert [x.outputs for x in pruned.spec.weighted] == [
        *[x.outputs // 2 for x in spec.weighted[:-1]],
        spec.outputs,
    ]


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


@pytest.mark.parametrize(
    "make",
    [
        lambda: Prune(1.0),
        lambda: Prune(-0.1),
        lambda: Prune(0.5, frozen_for=0),
    ],
)
def test_impossible_pruning_is_refused(make):
    with pytest.raises(ConfigError, match="Expected"):
        make()
