"""The learners on small tasks, off-policy, resumed, and when training diverges."""

import io

import gymnasium as gym
import numpy as np
import pytest
import torch
from learner_collectors import Collector, Target, evaluate, random_trajectory

from vinoreward.errors import ConfigError, InputError, OutputError
from vinoreward_actors.actor_learner.learners.base import Consumption
from vinoreward_actors.actor_learner.learners.d4pg import D4PG, D4PGConfig
from vinoreward_actors.actor_learner.learners.dqn import DQN, DQNConfig
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.correction import ImportanceSampling, NoCorrection, VTrace
from vinoreward_actors.policies.distributions import log_softmax
from vinoreward_actors.policies.policy import forward, random_policy
from vinoreward_actors.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp


def small(kind, seed=0):
    """A small learner of each kind."""
    if kind == "impala":
        spec = mlp(3, 2, head="logits", hidden=(8,))
        return Impala(spec, ImpalaConfig(seed=seed, precision="fp32"))
    replay = {"seed": seed, "batch_size": 8, "learning_starts": 10, "buffer_size": 60, **FP32}
    if kind == "dqn":
        config = DQNConfig(
            **replay,
            n_step=3,
            target_update_interval=3,
        )
        return DQN(mlp(3, 2, head="q", hidden=(8,)), config)
    several = {"n_step": 2, "target_update_interval": 3}
    config = D4PGConfig(**replay, **several, hidden=(8,))
    return D4PG(mlp(3, 2, head="tanh", hidden=(8,)), config)


KINDS = ("impala", "dqn", "d4pg")
FP32 = {"precision": "fp32"}


def saved(state):
    """A state after it was written to a file and read as plain tensors and numbers."""
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


def same(one, other):
    return all(
        np.array_equal(value, other.parameters[name]) for name, value in one.parameters.items()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_learner_goes_on_to_the_bit(kind):
    random = np.random.default_rng(0)
    learner = small(kind)
    data = [random_trajectory(learner.spec, random) for _ in range(12)]
    for trajectory in data[:6]:
        learner.update([trajectory])
    state = saved(learner.state())
    other = small(kind, seed=9)
    assert not same(learner.policy(0), other.policy(0))
    other.load_state(state)
    assert other.exploration == learner.exploration
    for trajectory in data[6:]:
        assert learner.update([trajectory]) == other.update([trajectory])
    assert same(learner.policy(1), other.policy(1)) and learner.updates == other.updates > 6
    state["parts"].pop("actor")
    with pytest.raises(ConfigError, match="parts"):
        other.load_state(state)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_learns_the_same_whatever_else_draws(kind):
    random, found = np.random.default_rng(0), []
    data = [random_trajectory(small(kind).spec, random) for _ in range(5)]
    for noise in (1, 2):
        torch.manual_seed(noise)
        learner = small(kind)
        for trajectory in data:
            before = torch.get_rng_state()
            learner.update([trajectory])
            assert torch.equal(before, torch.get_rng_state())
            torch.rand(noise)
        found.append(learner.policy(0))
    assert same(*found) and not same(found[0], small(kind).policy(0))


@pytest.mark.parametrize("kind", KINDS)
def test_divergence_is_said_and_leaves_the_weights(kind):
    random = np.random.default_rng(0)
    learner = small(kind)
    while not learner.update([random_trajectory(learner.spec, random, steps=6, count=4)]):
        pass
    for _ in range(5):
        before = learner.policy(0)
        with torch.no_grad():
            for name, value in learner.actor.named_parameters():
                if name.startswith("head"):
                    value.fill_(torch.nan)
        with pytest.raises(OutputError, match="diverged"):
            learner.update([random_trajectory(learner.spec, random, steps=6, count=4)])
        for name, value in before.parameters.items():
            learner.actor.get_parameter(name).data.copy_(torch.from_numpy(value))
        # Everything else is as it was: learning goes on.
        assert learner.update([random_trajectory(learner.spec, random, steps=6, count=4)])


@pytest.mark.parametrize("kind", KINDS)
def test_what_actors_get_computes_what_the_learner_computes(kind):
    learner = small(kind)
    observations = np.random.default_rng(0).standard_normal((5000, 3)).astype(np.float32)
    policy = learner.policy(7)
    assert policy.version == 7 and policy.spec == learner.spec
    outputs = learner.evaluate_outputs(observations)
    np.testing.assert_allclose(outputs, forward(policy, observations), atol=1e-5)
    # A copy: what actors hold does not change while the learner goes on.
    kept = {name: value.copy() for name, value in policy.parameters.items()}
    random = np.random.default_rng(1)
    for _ in range(3):
        learner.update([random_trajectory(learner.spec, random)])
    assert all(np.array_equal(kept[name], policy.parameters[name]) for name in kept)


def test_images_are_learned_from_by_all():
    random = np.random.default_rng(0)
    replay = {"batch_size": 4, "learning_starts": 4, "buffer_size": 60, **FP32}
    for make, head, outputs in (
        (lambda spec: Impala(spec, ImpalaConfig(**FP32)), "logits", 2),
        (lambda spec: DQN(spec, DQNConfig(**replay)), "q", 2),
        (lambda spec: D4PG(spec, D4PGConfig(**replay, hidden=(8,))), "tanh", 2),
    ):
        layers = (Conv("conv", 1, 2, 4, 2), Flatten(), Dense("head", 18, outputs))
        kind = {"observation_dtype": "uint8", "scale": 1 / 255}
        learner = make(PolicySpec((1, 8, 8), layers, head, 2, **kind))
        before = learner.policy(0)
        assert learner.update([random_trajectory(learner.spec, random)])
        assert not same(before, learner.policy(0))


def test_what_learners_wait_for():
    impala, dqn = small("impala"), small("dqn")
    assert impala.consumption == Consumption(4) and not impala.ready
    assert dqn.consumption == Consumption(0, sampled=8, minimum=10) and not dqn.ready
    random = np.random.default_rng(0)
    assert dqn.update([random_trajectory(dqn.spec, random, steps=3, count=3)]) == {}
    assert dqn.exploration.epsilon > 0.99
    assert dqn.update([random_trajectory(dqn.spec, random, steps=3, count=3)]) and dqn.ready
    assert dqn.update([]) and dqn.updates == 2
    with pytest.raises(InputError, match="no steps"):
        impala.update([])
    with pytest.raises(InputError, match="same length"):
        impala.update([random_trajectory(impala.spec, random, steps=steps) for steps in (2, 3)])


Q, GAUSSIAN = mlp(3, 2, head="q"), mlp(3, 2, head="tanh_gaussian")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DQNConfig(n_step=0), "n_step=0"),
        (lambda: DQNConfig(gamma=1.5), "gamma"),
        (lambda: Impala(Q), "logits or tanh_gaussian"),
        (lambda: D4PG(Q), "head 'q'"),
        (lambda: DQNConfig(precision="fp16"), "fp32 or bf16"),
        (lambda: Impala(GAUSSIAN, ImpalaConfig(correctors=(ImportanceSampling(),))), "'target'"),
    ],
)
def test_settings_that_cannot_work_are_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def bandit(spec, random, probabilities, count=256):
    """One-step episodes of a known behaviour policy: the second action is worth 1."""
    found = random_trajectory(spec, random, steps=1, count=count, ends=0.0)
    found.terminated[:] = True
    found.actions[:] = random.choice(len(probabilities), size=(1, count), p=probabilities)
    found.rewards[:] = found.actions == 1
    found.log_mu[:] = np.log(np.asarray(probabilities))[found.actions]
    return found


def test_impala_learns_from_a_behaviour_that_is_far_off():
    spec = mlp(2, 3, head="logits", hidden=(16,))
    for correctors in ((VTrace(),), (NoCorrection(), ImportanceSampling(rho=2.0))):
        config = ImpalaConfig(learning_rate=1e-2, correctors=correctors, precision="fp32")
        learner = Impala(spec, config)
        random = np.random.default_rng(0)
        for _ in range(150):
            metrics = learner.update([bandit(spec, random, [0.85, 0.05, 0.1])])
        outputs = learner.evaluate_outputs(random.standard_normal((50, 2)).astype(np.float32))
        assert np.exp(log_softmax(outputs))[:, 1].min() > 0.9
        # Most actions are those that the learner would no longer take.
        assert metrics["ess"] < 0.2


def test_the_critic_values_the_learners_policy_not_the_behaviours():
    """With the policy held still by a rate of nearly nought, the value is that of pi under mu."""
    spec = mlp(2, 2, head="logits", hidden=(4,))
    still = random_policy(spec, 0, gain=0.0)
    config = ImpalaConfig(
        learning_rate=2e-2,
        entropy_coef=0.0,
        correctors=(VTrace(rho=np.inf, c=1.0), ImportanceSampling(rho=1e-6)),
        precision="fp32",
    )
    learner = Impala(spec, config)
    bias = still.parameters["head.bias"]
    wanted = float(np.exp(log_softmax(bias[None]))[0, 1])
    random = np.random.default_rng(1)
    for _ in range(200):
        for name, value in still.parameters.items():
            learner.actor.get_parameter(name).data.copy_(torch.from_numpy(value))
        metrics = learner.update([bandit(spec, random, [0.8, 0.2], count=1024)])
    assert metrics["value"] == pytest.approx(wanted, abs=0.05) and abs(wanted - 0.2) > 0.2


@pytest.mark.slow
def test_dqn_learns_cart_pole():
    def make():
        return gym.make("CartPole-v1")

    spec = mlp(4, 2, head="q", hidden=(64, 64))
    told = {"learning_rate": 1e-3, "epsilon_decay_steps": 5_000, **FP32}
    learner = DQN(spec, DQNConfig(**told))
    collector = Collector(make, spec, count=8, seed=0)
    best = 0.0
    for version in range(400):
        learner.update([collector.collect(learner.policy(version), 8, learner.exploration)])
        for _ in range(7 if learner.ready else 0):
            learner.update([])
        if version % 40 == 39 and np.mean(collector.returns[-20:]) > 120:
            best = max(best, evaluate(make, learner.policy(0)))
        if best > 150:
            break
    assert best > 150


@pytest.mark.slow
def test_d4pg_reaches_the_target_with_three_steps():
    told = {"learning_starts": 200, "batch_size": 64, "hidden": (64, 64), "learning_rate": 1e-3}
    told |= {"n_step": 3, "critic_learning_rate": 1e-3}
    told |= {"v_min": -40.0, "v_max": 0.0, "target_update_interval": 50}
    spec = mlp(2, 1, head="tanh", hidden=(64, 64))
    learner = D4PG(spec, D4PGConfig(**told, **FP32))
    collector = Collector(Target, spec, count=4, seed=0)
    before = after = evaluate(Target, learner.policy(0))
    for version in range(100):
        learner.update([collector.collect(learner.policy(version), 10, learner.exploration)])
        for _ in range(12 if learner.ready else 0):
            learner.update([])
        if version % 10 == 9 and (after := evaluate(Target, learner.policy(0))) > -1:
            break
    assert before < -5 and after > -1
