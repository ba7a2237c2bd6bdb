"""Stable-Baselines3's algorithms as learners: the same network, replay, settings and files."""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from learner_collectors import Collector, Target, evaluate, random_trajectory
from stable_baselines3 import DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.td3.policies import Actor
from torch import nn

from vinoreward.errors import ConfigError, ModelCorruptError, OutputError
from vinoreward.files import read_state, save_state
from vinoreward_actors.actor_learner.learners.sb3 import SB3Config, SB3Learner
from vinoreward_actors.actor_learner.learners.sb3_network import own_outputs, policy_of
from vinoreward_actors.policies.distributions import Exploration, act
from vinoreward_actors.policies.policy import forward

SMALL = {"net_arch": [16, 16]}
CONFIG = SB3Config(total_steps=10_000)


class Spaces(gym.Env[Any, Any]):
    """An environment of given spaces that does nothing."""

    def __init__(self, observation, action):
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


VECTOR = gym.spaces.Box(-3, 3, (5,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (3, 40, 36), np.uint8)
ARM = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32))
BUTTONS = gym.spaces.Discrete(4)


def model_of(kind, observation=VECTOR, policy="MlpPolicy", **settings):
    action = BUTTONS if kind is DQN else ARM
    settings = {"policy_kwargs": SMALL, "buffer_size": 500, "device": "cpu", **settings}
    # SB3 writes into what it is given.
    return kind(policy, Spaces(observation, action), seed=0, **copy.deepcopy(settings))


@pytest.mark.parametrize(
    ("kind", "observation", "activation"),
    [
        (SAC, VECTOR, nn.ReLU),
        (SAC, IMAGE, nn.Tanh),
        (TD3, VECTOR, nn.Tanh),
        (DDPG, IMAGE, nn.ReLU),
        (DQN, VECTOR, nn.Tanh),
        (DQN, IMAGE, nn.ReLU),
    ],
)
def test_the_extracted_network_is_the_models(kind, observation, activation):
    policy = "CnnPolicy" if observation is IMAGE else "MlpPolicy"
    arguments = {"policy_kwargs": {**SMALL, "activation_fn": activation}, "buffer_size": 50}
    model = model_of(kind, observation, policy, **arguments)
    extracted = policy_of(model, version=3)
    assert extracted.version == 3
    assert extracted.spec.observation_dtype == observation.dtype
    observation.seed(0)
    seen = np.stack([observation.sample() for _ in range(20)])
    outputs = forward(extracted, seen)
    found = np.tanh(outputs) if extracted.spec.head == "tanh" else outputs
    np.testing.assert_allclose(found, own_outputs(model, seen), rtol=1e-5, atol=1e-6)
    random = np.random.default_rng(0)
    actions = act(extracted.spec, outputs, random, Exploration(greedy=True)).actions
    wanted, _ = model.predict(seen, deterministic=True)
    if kind is DQN:
        np.testing.assert_array_equal(actions, wanted)
    else:
        np.testing.assert_allclose(model.policy.unscale_action(actions), wanted, atol=1e-5)


NO_TIMEOUTS = {"replay_buffer_kwargs": {"handle_timeout_termination": False}}
BOTH = gym.spaces.Dict({"a": VECTOR, "b": VECTOR})


class Halved(Actor):
    """Computes something else than its layers say."""

    def forward(self, observations):
        return 0.5 * super().forward(observations)


def halved():
    model = model_of(TD3)
    model.actor.__class__ = Halved
    return model


def normalised():
    env = VecNormalize(DummyVecEnv([lambda: Spaces(VECTOR, ARM)]))
    return SAC("MlpPolicy", env, device="cpu")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: model_of(SAC, BOTH, "MultiInputPolicy"), "FlattenObservation"),
        (lambda: model_of(DQN, gym.spaces.Discrete(5)), "FlattenObservation"),
        (lambda: model_of(SAC, policy_kwargs={**SMALL, "activation_fn": nn.ELU}), "ELU"),
        (lambda: model_of(SAC, use_sde=True), "use_sde"),
        (lambda: PPO("MlpPolicy", Spaces(VECTOR, ARM), device="cpu"), "PPO"),
        (lambda: model_of(SAC, optimize_memory_usage=True, **NO_TIMEOUTS), "optimize_memory_usage"),
        (lambda: model_of(SAC, n_steps=3, **NO_TIMEOUTS), "handle_timeout_termination"),
        (normalised, "VecNormalize"),
        (halved, "compute different outputs"),
    ],
)
def test_what_actors_cannot_compute_or_learn_from_is_refused(make, said):
    model = make()
    with pytest.raises(ConfigError, match=said):
        SB3Learner(model, CONFIG)


@pytest.mark.parametrize(("steps", "handled"), [(1, True), (3, True), (1, False)])
def test_the_replay_holds_what_was_done(steps, handled):
    told = {} if handled else NO_TIMEOUTS
    model = model_of(SAC, n_steps=steps, learning_starts=100, **told)
    learner = SB3Learner(model, CONFIG)
    random = np.random.default_rng(0)
    trajectory = random_trajectory(learner.spec, random, steps=6, count=2, ends=0.8)
    assert learner.update([trajectory]) == {} and model.num_timesteps == 12
    buffer = model.replay_buffer
    for b in range(2):
        rows = slice(6 * b, 6 * b + 6)
        for name in ("observations", "next_observations", "actions", "rewards"):
            stored = getattr(buffer, name)[rows, 0]
            np.testing.assert_array_equal(stored, getattr(trajectory, name)[:, b])
        # What SB3 takes for the end of all reward is the termination and nothing else.
        ends = buffer.dones[rows, 0] * (1 - buffer.timeouts[rows, 0])
        np.testing.assert_array_equal(ends.astype(bool), trajectory.terminated[:, b])
        # Sums of several steps stop where a trajectory does.
        assert not handled or buffer.dones[6 * b + 5, 0] == 1


def test_as_many_steps_are_taken_as_the_model_would():
    for settings, wanted in (
        ({"train_freq": 4, "gradient_steps": 2}, 20),
        ({"train_freq": 1, "gradient_steps": -1}, 40),
        ({"train_freq": (2, "episode"), "gradient_steps": 3}, 6),
    ):
        model = model_of(SAC, learning_starts=20, batch_size=8, **settings)
        learner = SB3Learner(model, CONFIG)
        random = np.random.default_rng(0)
        first = random_trajectory(learner.spec, random, steps=10, count=2, ends=0.0)
        assert learner.update([first]) == {} and not learner.ready
        assert learner.consumption.any_age
        # Four episodes end in these 40 transitions.
        second = random_trajectory(learner.spec, random, steps=20, count=2, ends=0.0)
        second.terminated[[19, 19], [0, 1]] = True
        second.truncated[[9, 9], [0, 1]] = True
        metrics = learner.update([second])
        assert model._n_updates == learner.updates == wanted == metrics["gradient_steps"]
        assert {"critic_loss", "actor_loss", "ent_coef"} <= set(metrics)
        assert model._current_progress_remaining == pytest.approx(1 - 60 / 10_000)


def test_an_environment_for_each_column():
    vector = DummyVecEnv([lambda: Spaces(VECTOR, ARM)] * 2)
    model = SAC("MlpPolicy", vector, policy_kwargs=dict(SMALL), buffer_size=100, device="cpu")
    learner = SB3Learner(model, CONFIG)
    random = np.random.default_rng(0)
    trajectory = random_trajectory(learner.spec, random, steps=5, count=4)
    learner.update([trajectory])
    np.testing.assert_array_equal(model.replay_buffer.rewards[:5], trajectory.rewards[:, :2])
    np.testing.assert_array_equal(model.replay_buffer.rewards[5:10], trajectory.rewards[:, 2:])
    with pytest.raises(ConfigError, match="multiple of 2"):
        learner.update([random_trajectory(learner.spec, random, steps=5, count=3)])


def test_exploration_is_the_models():
    dqn = SB3Learner(model_of(DQN, learning_starts=50), SB3Config(total_steps=1000))
    random = np.random.default_rng(0)
    assert dqn.exploration.epsilon == 1.0
    dqn.update([random_trajectory(dqn.spec, random, steps=60, count=1)])
    # The schedule falls from 1 to 0.05 within a tenth of the run.
    assert dqn.exploration.epsilon == pytest.approx(1 - 0.95 * 60 / 100)
    sac = SB3Learner(model_of(SAC, learning_starts=50), CONFIG)
    for steps, uniform in ((20, True), (29, True), (1, False)):
        sac.update([random_trajectory(sac.spec, random, steps=steps, count=1)])
        assert sac.exploration == Exploration(uniform=uniform)


@pytest.mark.parametrize("kind", [SAC, TD3, DQN])
def test_a_restored_model_goes_on_to_the_bit(kind, tmp_path):
    def make(seed):
        settings = {"learning_starts": 10, "batch_size": 8, "buffer_size": 60}
        model = model_of(kind, **settings)
        model.set_random_seed(seed)
        return SB3Learner(model, SB3Config(total_steps=500, seed=seed))

    random = np.random.default_rng(0)
    learner = make(0)
    data = [random_trajectory(learner.spec, random) for _ in range(12)]
    for trajectory in data[:7]:
        learner.update([trajectory])
    saved = tmp_path / "state.pt"
    save_state(saved, learner.state())
    other = make(1)
    other.load_state(read_state(saved))
    for trajectory in data[7:]:
        # What else draws in this process does not matter, and is not disturbed.
        np.random.rand()
        torch.rand(1)
        before = np.random.get_state()[1].copy(), torch.get_rng_state()
        assert learner.update([trajectory]) == other.update([trajectory])
        np.testing.assert_array_equal(before[0], np.random.get_state()[1])
        assert torch.equal(before[1], torch.get_rng_state())
    one, two = learner.policy(0), other.policy(0)
    for name, value in one.parameters.items():
        np.testing.assert_array_equal(value, two.parameters[name])
    with pytest.raises(ConfigError, match="of the same network"):
        SB3Learner(model_of(TD3 if kind is SAC else SAC), CONFIG).load_state(other.state())


@pytest.mark.parametrize(
    "change",
    [
        {"counters": {"tensorboard_log": 1}},
        {"counters": {"_n_updates": "many"}},
        {"counters": {"_n_updates": float("nan")}},
        {"variables": {"policy": torch.zeros(1)}},
        # A replay of other rows.
        {"position": 5},
        {"position": 200},
        {"full": True},
        {"arrays": "rewards"},
    ],
)
def test_a_state_of_anything_else_is_refused_before_anything_is_taken_from_it(change):
    learner, other = (SB3Learner(model_of(DQN), CONFIG) for _ in range(2))
    random = np.random.default_rng(3)
    learner.update([random_trajectory(learner.spec, random, steps=4, count=1)])
    state = learner.state()
    replay = state["model"]["replay"]
    if change == {"arrays": "rewards"}:
        change = {"arrays": {**replay["arrays"], "rewards": replay["arrays"]["rewards"][:1]}}
    if "counters" not in change and "variables" not in change:
        change = {"replay": {**replay, **change}}
    state["model"] = {**state["model"], **change}
    with pytest.raises(
        ModelCorruptError, match=r"its counters|its variables|_n_updates is|of each"
    ):
        other.load_state(state)
    assert other.model.replay_buffer.pos == 0


def test_divergence_is_said():
    model = model_of(SAC, learning_starts=5, batch_size=4)
    learner = SB3Learner(model, CONFIG)
    random = np.random.default_rng(0)
    learner.update([random_trajectory(learner.spec, random)])
    with torch.no_grad():
        model.critic.qf0[0].weight.fill_(torch.nan)
    with pytest.raises(OutputError, match="finite"):
        learner.update([random_trajectory(learner.spec, random)])
    with torch.no_grad():
        model.actor.mu.weight.fill_(torch.nan)
    with pytest.raises(OutputError, match="diverged"):
        learner.policy(1)


@pytest.mark.slow
def test_a_model_learns_and_its_file_is_plain(tmp_path):
    told = {"learning_rate": 1e-3, "tau": 0.02, "learning_starts": 200, "batch_size": 64}
    net = {"policy_kwargs": {"net_arch": [64, 64]}, "device": "cpu"}
    model = SAC("MlpPolicy", Target(), train_freq=4, seed=0, **told, **net)
    learner = SB3Learner(model, SB3Config(total_steps=4000))
    collector = Collector(Target, learner.spec, count=4, seed=0)
    before = evaluate(Target, learner.policy(0))
    for version in range(100):
        learner.update([collector.collect(learner.policy(version), 10, learner.exploration)])
    assert evaluate(Target, learner.policy(0)) > -1 > before
    model.save(tmp_path / "model")
    plain = SAC.load(tmp_path / "model", env=Target(), device="cpu")
    seen = np.random.default_rng(0).uniform(-1, 1, (9, 2)).astype(np.float32)
    found, wanted = (one.predict(seen, deterministic=True)[0] for one in (plain, model))
    np.testing.assert_array_equal(found, wanted)
    assert plain.num_timesteps == 4000 and plain.learning_starts == 200
    # And goes on as SB3 does.
    plain.learn(20, reset_num_timesteps=False)
    assert plain.num_timesteps == 4020
