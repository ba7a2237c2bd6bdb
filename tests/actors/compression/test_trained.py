"""What each compression costs a trained policy, by divergence and return; what a monitor does."""

from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from vinoreward_actors.compression import (
    CompressionContext,
    CompressorChain,
    Distill,
    Prune,
    Quantize,
    check_policy,
)
from vinoreward_actors.compression.quantize import aligned
from vinoreward_actors.monitoring import CompressionSetting, MonitorBatch, default_monitor
from vinoreward_actors.policies.distributions import Exploration, act, log_prob
from vinoreward_actors.policies.policy import Policy, forward, layer_inputs
from vinoreward_actors.policies.spec import mlp

pytestmark = pytest.mark.slow

EPISODES = 10
WORTH = -350
"""Mean return of a policy that has learned the task; a random one's is about -1200."""
SPEC = mlp(3, 1, head="tanh_gaussian", hidden=(256, 256))
STUDENT = mlp(3, 1, head="tanh_gaussian", hidden=(32, 32))


@dataclass(frozen=True)
class Trained:
    """A policy with what it was trained on."""

    policy: Policy
    observations: np.ndarray

    def compressed(self, *stages):
        chain = CompressorChain()
        for stage in stages:
            chain.add(stage)
        return chain.compress(self.policy, CompressionContext(self.policy, self.observations))

    def quality(self, policy):
        return check_policy(policy, self.policy, self.observations)


@pytest.fixture(scope="module")
def trained():
    """SAC on Pendulum-v1 after 5,000 steps.

    Trained once with Stable-Baselines3 2.9.2 (learning_rate 1e-3, learning_starts 200, batch_size
    128, seed 2) and kept in a file: the same seed learns another policy where a processor's kernels
    round otherwise. The observations are the last 2,000 of its replay buffer.
    """
    with np.load(Path(__file__).parents[2] / "data" / "pendulum_policy.npz") as file:
        arrays = dict(file)
    return Trained(observations=arrays.pop("observations"), policy=Policy(SPEC, arrays))


def returns(policy):
    """Return (EPISODES,) returns of greedy actions; the same starts for every policy."""
    environments = [gymnasium.make("Pendulum-v1") for _ in range(EPISODES)]
    seen = np.stack([env.reset(seed=500 + i)[0] for i, env in enumerate(environments)])
    total = np.zeros(EPISODES)
    for _ in range(200):
        # Pendulum's actions reach from -2 to 2.
        actions = 2.0 * np.tanh(forward(policy, seen.astype(np.float32))[:, :1])
        steps = [env.step(action) for env, action in zip(environments, actions, strict=True)]
        seen = np.stack([step[0] for step in steps])
        total += [float(step[1]) for step in steps]
    for env in environments:
        env.close()
    return total


def lost(trained, policy):
    """Return by how much the mean return falls, over the same starts."""
    return float((returns(trained.policy) - returns(policy)).mean())


def acted(trained, acting, looks):
    """Let a policy act and explore as actors do; yield what the monitor sees, 200 rows a look."""
    environments = [gymnasium.make("Pendulum-v1") for _ in range(10)]
    resets = [env.reset(seed=900 + i) for i, env in enumerate(environments)]
    seen = np.stack([reset[0] for reset in resets]).astype(np.float32)
    explore, random = Exploration(), np.random.default_rng(0)
    for _ in range(looks):
        rows = []
        for _ in range(20):
            outputs = forward(acting, seen)
            chosen = act(SPEC, outputs, random, explore)
            rows.append((seen, outputs, chosen.actions, chosen.log_mu))
            steps = [
                env.step(2.0 * action)
                for env, action in zip(environments, chosen.actions, strict=True)
            ]
            # Only time ends an episode, and all at once.
            starts = [
                env.reset()[0] if step[3] else step[0]
                for env, step in zip(environments, steps, strict=True)
            ]
            seen = np.stack(starts).astype(np.float32)
        observations, mu, actions, log_mu = map(np.concatenate, zip(*rows, strict=True))
        pi = forward(trained.policy, observations)
        ones = np.ones(len(pi), dtype=np.int64)
        log_pi = log_prob(SPEC, pi, actions, explore)
        yield MonitorBatch(SPEC, pi, mu, ones, 1, ones, log_pi, log_mu, explore)
    for env in environments:
        env.close()


@pytest.mark.parametrize(
    ("stage", "kl_max"), [(Quantize("int8"), 0.2), (Quantize("fp16"), 1e-3)], ids=["int8", "fp16"]
)
def test_int8_with_ranges_that_hold_everything_and_fp16_lose_nothing(trained, stage, kl_max):
    assert returns(trained.policy).mean() > WORTH
    found = trained.compressed(stage)
    quality = trained.quality(found)
    assert quality.kl_max < kl_max and quality.agreement > 0.95
    assert abs(lost(trained, found)) < 5


def test_ranges_by_means_ruin_it_and_the_monitor_stops_them(trained):
    """NNCF's default quantizes every layer and clips the rare observations, which decide."""
    everything = trained.compressed(Quantize("int8", first=True, head=True))
    inputs = layer_inputs(trained.policy, trained.observations)
    means = everything.replace(
        ranges={
            name: aligned((min(rows.min(1).mean(), 0.0), max(rows.max(1).mean(), 0.0)))
            for name, rows in inputs.items()
        }
    )
    good, bad = trained.quality(everything), trained.quality(means)
    assert bad.kl_max > 10
    assert bad.kl_max > 10 * good.kl_max
    # The share of actions that are nearly the same would have chosen the wrong one.
    assert bad.agreement > good.agreement
    assert abs(lost(trained, everything)) < 20
    assert lost(trained, means) > 200
    monitor = default_monitor(SPEC.head, CompressionSetting(bits=8))
    for batch in acted(trained, means, 5):
        monitor.observe(batch)
        if monitor.changes:
            break
    assert not monitor.setting.enabled
    # No return was looked at.
    assert "compression_kl_mu_pi_max" in monitor.changes[0].reason


@pytest.mark.parametrize("everywhere", [False, True])
def test_the_default_monitor_lets_good_int8_act(trained, everywhere):
    good = trained.compressed(Quantize("int8", first=everywhere, head=everywhere))
    begun = CompressionSetting(bits=8)
    monitor = default_monitor(SPEC.head, begun)
    for batch in acted(trained, good, 20):
        assert monitor.observe(batch) == begun, monitor.changes
    assert "compression_kl_mu_pi_max" in monitor.readings[-1].values


def test_four_bits_are_enough_and_two_are_not(trained):
    found = {bits: trained.compressed(Quantize(f"w{bits}", head=True)) for bits in (8, 6, 4, 2)}
    largest = [trained.quality(policy).kl_max for policy in found.values()]
    assert largest == sorted(largest)
    assert all(abs(lost(trained, found[bits])) < 25 for bits in (8, 6, 4))
    assert lost(trained, found[2]) > 200


@pytest.mark.parametrize("sparsity", [0.5, 0.75])
def test_pruning_alone_ruins_it_and_distillation_brings_it_back(trained, sparsity):
    context = CompressionContext(trained.policy, trained.observations)
    pruned = Prune(sparsity).compress(trained.policy, context)
    taught = trained.compressed(Prune(sparsity), Distill(400, batch=256))
    assert taught.spec == pruned.spec
    before, after = trained.quality(pruned), trained.quality(taught)
    assert before.kl_max > 2
    assert after.kl_max < 0.2 * before.kl_max
    assert after.kl_mean < 0.1 * before.kl_mean
    assert abs(lost(trained, taught)) < 20
    if sparsity == 0.75:
        assert lost(trained, pruned) > 50


@pytest.mark.parametrize(
    ("stages", "work"),
    [
        ([Prune(0.5), Distill(400, batch=256), Quantize("int8")], 0.3),
        ([Distill(400, student=STUDENT, cold_steps=2000, batch=256)], 0.05),
    ],
    ids=["the whole chain", "a student of its own"],
)
def test_chains_keep_the_return(trained, stages, work):
    found = trained.compressed(*stages)
    assert found.spec.multiply_adds() < work * SPEC.multiply_adds()
    assert abs(lost(trained, found)) < 20
    if isinstance(stages[-1], Quantize):
        assert found.in_int8("dense1") and trained.quality(found).kl_max < 0.5


def test_pushes_of_a_policy_that_goes_on_learning_stay_good(trained):
    """The teacher drifts at every push; the student keeps up with a few steps."""
    random = np.random.default_rng(0)
    chain = CompressorChain().add(Prune(0.5, frozen_for=3)).add(Distill(100)).add(Quantize("int8"))
    teacher = trained.policy
    for push in range(7):
        weights = {
            name: value + 0.003 * random.standard_normal(value.shape).astype(np.float32)
            for name, value in teacher.float_parameters().items()
        }
        teacher = Policy(SPEC, weights)
        found = chain.compress(teacher, CompressionContext(teacher, trained.observations, push))
        assert check_policy(found, teacher, trained.observations).kl_mean < 0.1, push
