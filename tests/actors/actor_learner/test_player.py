"""A trained policy in use: saved, loaded, and asked for actions, without any training around it."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from backend_policies import PRECISIONS, SPECS, observations, with_precision
from policy_specs import assert_same

import vinoreward_actors
from vinoreward.errors import (
    ConfigError,
    InputError,
    MissingExtraError,
    ModelCorruptError,
    ModelNotFoundError,
)
from vinoreward_actors import CompressorChain, Player, load_policy, save_policy
from vinoreward_actors.compression import CompressionContext, Quantize
from vinoreward_actors.policies.policy import forward, random_policy
from vinoreward_actors.policies.spec import mlp

BACKENDS = ("numpy", "openvino", "onnxruntime")


# Files


@pytest.mark.parametrize("precision", [*PRECISIONS, "3 bits"])
def test_every_precision_comes_back_to_the_bit(tmp_path, precision):
    for name, spec in SPECS.items():
        policy = random_policy(spec, 1)
        if precision == "3 bits":
            chain = CompressorChain().add(Quantize("w3"))
            policy = chain.compress(policy, CompressionContext(policy, observations(spec, 9)))
        else:
            policy = with_precision(policy, precision)
        policy = policy.replace(version=7, backend="openvino")
        assert save_policy(tmp_path / name, policy, "compressed").name == "compressed.json"
        assert_same(load_policy(tmp_path / name / "compressed.json"), policy)


def test_a_missing_safetensors_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "safetensors.numpy", raising=False)
    for use in (lambda: load_policy(tmp_path), lambda: save_policy(tmp_path, _small())):
        with pytest.raises(MissingExtraError, match="pip install safetensors"):
            use()


# Acting


def _small():
    return random_policy(mlp(3, 2, head="tanh", hidden=(8,)), 0)


def best(policy, seen):
    """The best actions by the reference, as plainly as it can be said."""
    outputs = forward(policy, seen)
    if policy.spec.head in ("logits", "q"):
        return outputs.argmax(1)
    return np.tanh(outputs[:, : policy.spec.actions])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", ["fp32", "4 bits", "int8"])
def test_actions_are_the_references(precision, backend):
    for spec in SPECS.values():
        policy = with_precision(random_policy(spec, 3), precision).replace(backend=backend)
        seen = observations(spec, 6, seed=4)
        expected, tolerance = best(policy, seen), 0.05 if policy.ranges else 1e-4
        with Player(policy, batch=6) as many, Player(policy) as one:
            for found in (many.act(seen), np.stack([one.act(each) for each in seen])):
                assert found.shape == expected.shape
                np.testing.assert_allclose(found, expected, atol=0 if spec.discrete else tolerance)


def test_actions_are_those_of_the_space():
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


def test_float64_is_taken_and_other_numbers_are_not():
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
    "wrong",
    [
        {"space": gym.spaces.Discrete(2)},
        {"space": gym.spaces.Box(-1.0, 1.0, (3,))},
        {"space": gym.spaces.Box(-np.inf, np.inf, (2,))},
        {"backend": "abacus"},
        {"batch": 0},
    ],
)
def test_spaces_and_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError, match="Expected"):
        Player(_small(), **wrong)


def test_policies_that_are_not_whole_are_refused(tmp_path):
    with pytest.raises(ModelNotFoundError, match="Expected"):
        load_policy(tmp_path)
    path, weights = save_policy(tmp_path, _small()), tmp_path / "policy.safetensors"
    assert load_policy(tmp_path).spec == load_policy(path).spec
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with pytest.raises(ModelCorruptError, match="belong together"):
        load_policy(tmp_path)
    path.write_text("{}")
    with pytest.raises(ModelCorruptError, match="Expected"):
        load_policy(tmp_path)
    weights.unlink()
    with pytest.raises((ModelNotFoundError, ModelCorruptError)):
        load_policy(tmp_path)


def test_acting_needs_no_training(tmp_path):
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
