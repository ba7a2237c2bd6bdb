"""The networks of the papers, by name."""

from __future__ import annotations

import pytest

from vinoreward.errors import ConfigError
from vinoreward_actors.policies.spec import Conv, Dense, PolicySpec
from vinoreward_actors.tasks.lookup import TASKS
from vinoreward_actors.tasks.networks import ALGORITHMS, NETWORKS, network


def sizes(spec: PolicySpec) -> list[tuple[int, ...]]:
    return [
        (layer.outputs, layer.kernel, layer.stride) if isinstance(layer, Conv) else (layer.outputs,)
        for layer in spec.weighted
    ]


@pytest.mark.parametrize(
    ("name", "wanted", "features"),
    [
        ("original", [(32, 8, 4), (64, 4, 2), (64, 3, 1), (2048,)], 3136),
        ("net1", [(16, 8, 4), (32, 4, 2), (256,)], 2592),
        ("net2", [(8, 8, 4), (16, 4, 2), (128,)], 1296),
        ("net3", [(4, 8, 4), (4, 4, 2), (32,)], 324),
        ("nature", [(32, 8, 4), (64, 4, 2), (64, 3, 1), (512,)], 3136),
    ],
)
def test_accerls_networks(name: str, wanted: list[tuple[int, ...]], features: int) -> None:
    spec = network("pong", name)
    assert sizes(spec) == [*wanted, (6,)]
    assert next(layer for layer in spec.weighted if isinstance(layer, Dense)).inputs == features
    assert (spec.head, spec.observation_dtype, spec.scale) == ("logits", "uint8", 1 / 255)
    assert spec.value is not None
    assert spec.value.inputs == wanted[-1][0]


def test_actorqs_network() -> None:
    spec = network("cheetah-run", algorithm="d4pg")
    assert sizes(spec) == [(2048,), (2048,), (2048,), (6,)]
    assert [layer.activation for layer in spec.weighted] == ["tanh", "tanh", "tanh", "none"]
    assert (spec.head, spec.value) == ("tanh", None)
    assert network("CartPole-v0", "2x256", "dqn").weighted[0].activation == "relu"
    assert network("CartPole-v0", activation="relu").weighted[0].activation == "relu"
    assert sizes(network("CartPole-v0", "1x64", "dqn", value=True)) == [(64,), (2,)]


@pytest.mark.parametrize(
    ("name", "activation"),
    [("3x2048", "tanh"), ("3x2048-relu", "relu"), ("2x64", "relu"), ("2x64-tanh", "tanh")],
)
def test_a_name_may_say_the_activation(name: str, activation: str) -> None:
    spec = network("CartPole-v0", name, "dqn")
    assert {layer.activation for layer in spec.weighted[:-1]} == {activation}
    assert len(spec.weighted) == int(name[0]) + 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_fits_its_task_or_is_refused(name: str, algorithm: str) -> None:
    for task in TASKS.values():
        fits = (len(task.observation_shape) == 1) == (name in ("3x2048", "2x256")) and (
            algorithm in (("impala", "dqn") if task.discrete else ("impala", "d4pg", "td3", "sac"))
        )
        if not fits:
            with pytest.raises(ConfigError, match="Expected"):
                network(task, name, algorithm)
            continue
        spec = network(task, name, algorithm)
        assert spec.observation_shape == task.observation_shape
        assert spec.observation_dtype == task.observation_dtype
        assert spec.actions == task.actions
        assert spec.discrete == task.discrete
        assert (spec.value is not None) == (algorithm == "impala")


def test_unknown_networks_and_algorithms_list_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no network 'net4'.*3x2048.*net1"):
        network("pong", "net4")
    with pytest.raises(ConfigError, match=r"no algorithm 'ppo'.*impala.*sac"):
        network("pong", "net1", "ppo")
    with pytest.raises(ConfigError, match="activation='gelu'"):
        network("pong", activation="gelu")  # type: ignore[arg-type]
