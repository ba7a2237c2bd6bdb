"""A trained policy in use: saved, loaded, and asked for actions, without any training around it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from actor_learner_parts import CARTPOLE, impala, settings
from backend_policies import PRECISIONS, SPECS, observations, with_precision
from compression_policies import context_for

import vinoreward_actors
from vinoreward.errors import ConfigError, InputError, MissingExtraError
from vinoreward_actors import ActorLearner, CompressorChain, Player, load_policy, save_policy
from vinoreward_actors.compression import Compile, Distill, Prune, Quantize
from vinoreward_actors.policies.policy import Policy, QuantizedArray, forward, random_policy
from vinoreward_actors.policies.spec import mlp

BACKENDS = ("numpy", "openvino", "onnxruntime")


def assert_same(found: Policy, expected: Policy) -> None:
    """To the bit: codes, scales and bits, not what they stand for."""
    assert found.spec == expected.spec and found.ranges == expected.ranges
    assert (found.version, found.backend) == (expected.version, expected.backend)
    for name, value in expected.parameters.items():
        other = found.parameters[name]
        if isinstance(value, QuantizedArray):
            assert isinstance(other, QuantizedArray) and other.bits == value.bits
            np.testing.assert_array_equal(other.codes, value.codes)
            np.testing.assert_array_equal(other.scales, value.scales)
        else:
            assert isinstance(other, np.ndarray) and other.dtype == value.dtype
            np.testing.assert_array_equal(other, value)


# Files


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", SPECS)
def test_every_precision_comes_back_to_the_bit(tmp_path: Path, name: str, precision: str) -> None:
    policy = with_precision(random_policy(SPECS[name], 1), precision).replace(version=7)
    assert save_policy(tmp_path, policy, "compressed").name == "compressed.json"
    assert_same(load_policy(tmp_path / "compressed.json"), policy)


@pytest.mark.parametrize("bits", range(2, 9))
def test_few_bits_come_back(tmp_path: Path, bits: int) -> None:
    policy = random_policy(CARTPOLE, 2)
    chain = CompressorChain().add(Quantize(f"w{bits}"))
    small = chain.compress(policy, context_for(policy))
    assert any(isinstance(value, QuantizedArray) for value in small.parameters.values())
    assert_same(load_policy(save_policy(str(tmp_path), small)), small)


@pytest.mark.slow
def test_what_a_training_returns_comes_back_and_plays(tmp_path: Path) -> None:
    chain = (
        CompressorChain()
        .add(Prune(0.5))
        .add(Distill(steps=5, cold_steps=5))
        .add(Quantize("int8"))
        .add(Compile("openvino"))
    )
    summary = ActorLearner("CartPole-v1", impala(), settings(), compressor=chain).learn(100)
    assert summary.compressed is not None and summary.compressed.ranges
    for policy, name in ((summary.policy, "policy"), (summary.compressed, "compressed")):
        found = load_policy(save_policy(tmp_path, policy, name))
        assert_same(found, policy)
        with Player(found) as player:
            assert player.act(np.zeros(4, np.float32)) in (0, 1)
    assert found.spec.layers[0].outputs < CARTPOLE.layers[0].outputs  # type: ignore[union-attr]


def test_a_missing_safetensors_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "safetensors.numpy", raising=False)
    for use in (lambda: load_policy(tmp_path), lambda: save_policy(tmp_path, _small())):
        with pytest.raises(MissingExtraError, match="pip install safetensors"):
            use()


# Acting


def _small() -> Policy:
    return random_policy(mlp(3, 2, head="tanh", hidden=(8,)), 0)


def best(policy: Policy, seen: np.ndarray) -> np.ndarray:
    """The best actions by the reference, as plainly as it can be said."""
    outputs = forward(policy, seen)
    if policy.spec.head in ("logits", "q"):
        return outputs.argmax(1)
    return np.tanh(outputs[:, : policy.spec.actions])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", ["fp32", "4 bits", "int8"])
@pytest.mark.parametrize("name", SPECS)
def test_actions_are_the_references(name: str, precision: str, backend: str) -> None:
    policy = with_precision(random_policy(SPECS[name], 3), precision).replace(backend=backend)
    seen = observations(policy.spec, 6, seed=4)
    expected = best(policy, seen)
    with Player(policy, batch=6) as many, Player(policy) as one:
        for found in (many.act(seen), np.stack([one.act(each) for each in seen])):
            assert found.shape == expected.shape
            if policy.spec.discrete:
                np.testing.assert_array_equal(found, expected)
            else:
                np.testing.assert_allclose(found, expected, atol=0.05 if policy.ranges else 1e-4)


def test_actions_are_those_of_the_space() -> None:
    policy = _small()
    seen = observations(policy.spec, 5)
    low, high = np.array([-2.0, 10.0], np.float32), np.array([2.0, 30.0], np.float32)
    space = gym.spaces.Box(low, high)
    with Player(policy, space, batch=5) as player:
        found = player.act(seen)
    np.testing.assert_allclose(found, low + (best(policy, seen) + 1) / 2 * (high - low), rtol=1e-5)
    assert found.dtype == np.float32 and all(each in space for each in found)
    controller = random_policy(mlp(3, 2, head="q", hidden=(8,)), 0)
    with Player(controller, gym.spaces.Discrete(2, start=5)) as player:
        found = player.act(seen[0])
    assert type(found) is int and found == 5 + best(controller, seen[:1])[0]


def test_an_environment_is_played(tmp_path: Path) -> None:
    """As the documentation does it."""
    env = gym.make("Pendulum-v1")
    path = save_policy(tmp_path, random_policy(mlp(3, 1, head="tanh_gaussian", hidden=(8,)), 0))
    with Player(load_policy(path), env.action_space, backend="openvino") as player:
        observation, _ = env.reset(seed=0)
        over = False
        while not over:
            observation, _, terminated, truncated, _ = env.step(player.act(observation))
            over = terminated or truncated
    env.close()


def test_float64_is_taken_and_other_numbers_are_not() -> None:
    with Player(_small()) as player:
        row = observations(player.policy.spec, 1)[0]
        np.testing.assert_array_equal(player.act(row.astype(np.float64)), player.act(row))
        np.testing.assert_array_equal(player.act(row[None])[0], player.act(row))
        for wrong in (row[:2], np.full(3, np.nan), np.zeros((2, 3)), np.array(["a", "b", "c"])):
            with pytest.raises(InputError, match="Expected"):
                player.act(wrong)
    with pytest.raises(ConfigError, match="closed"):
        player.act(row)
    images = random_policy(SPECS["images"], 0)
    # Not even whole numbers, which would be counted modulo 256.
    for kind in (np.float32, np.uint16, np.int64):
        with Player(images) as player, pytest.raises(InputError, match="uint8"):
            player.act(np.zeros(images.spec.observation_shape, kind))


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(2),
        gym.spaces.Box(-1.0, 1.0, (3,)),
        gym.spaces.Box(-np.inf, np.inf, (2,)),
    ],
)
def test_other_spaces_are_refused(space: gym.Space) -> None:
    with pytest.raises(ConfigError, match="Expected"):
        Player(_small(), space)


@pytest.mark.parametrize("wrong", [{"backend": "abacus"}, {"batch": 0}])
def test_settings_that_cannot_be(wrong: dict) -> None:
    with pytest.raises(ConfigError, match="Expected"):
        Player(_small(), **wrong)


def test_acting_needs_no_training(tmp_path: Path) -> None:
    save_policy(tmp_path, _small().replace(backend="openvino"))
    code = (
        "import sys, vinoreward_actors\n"
        f"player = vinoreward_actors.Player(vinoreward_actors.load_policy({str(tmp_path)!r}))\n"
        "player.act([0.0, 0.0, 0.0])\n"
        "heavy = {'torch', 'vinoreward_training', 'stable_baselines3', 'onnx'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert {"Player", "load_policy", "save_policy"} <= set(vinoreward_actors.__all__)
