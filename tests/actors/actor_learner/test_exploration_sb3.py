"""Actors of a Stable-Baselines3 model do what the model itself would do to explore."""

import contextlib
import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.noise import (
    ActionNoise,
    NormalActionNoise,
    VectorizedActionNoise,
)

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.config import ActorLearnerConfig
from vinoreward_actors.actor_learner.controller import Controller
from vinoreward_actors.actor_learner.learners.sb3 import SB3Config, SB3Learner
from vinoreward_actors.actor_learner.learners.sb3_network import policy_of
from vinoreward_actors.actor_learner.transport.link import ActorSettings
from vinoreward_actors.policies import distributions
from vinoreward_actors.policies.distributions import Exploration, act
from vinoreward_actors.policies.policy import forward
from vinoreward_actors.policies.spec import mlp

SEEN = gym.spaces.Box(-1, 1, (4,), np.float32)
ARM = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32))
NORMAL = NormalActionNoise(np.array([0.0, 0.05]), np.array([0.1, 0.3]))
STEPS = 40


class Still(gym.Env[Any, Any]):
    """Nothing happens."""

    def __init__(self, action_space):
        self.observation_space, self.action_space = SEEN, action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        return np.zeros(4, np.float32), 0.0, False, False, {}


def learner_of(kind, *, begun=True, sigma=None, **settings):
    """A model's learner, after its first steps or before them."""
    env = Still(gym.spaces.Discrete(3) if kind is DQN else ARM)
    model = kind(
        "MlpPolicy",
        env,
        policy_kwargs={"net_arch": [8]},
        buffer_size=10,
        learning_starts=50,
        seed=0,
        device="cpu",
        **settings,
    )
    model.num_timesteps = 50 if begun else 49
    return SB3Learner(model, SB3Config(total_steps=1000, sigma=sigma))


@contextlib.contextmanager
def drawing_from(seed):
    """NumPy's global generator, from which SB3 draws, with a seed."""
    outside = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(outside)


def of_the_model(learner, rows, count=1):
    """What the model executes for observations, in [-1, 1]."""
    model = learner.model
    model._last_obs = rows
    return model._sample_action(model.learning_starts, model.action_noise, count)[1]


@pytest.mark.parametrize(
    ("kind", "noise", "bias"),
    [
        (TD3, None, 0.0),
        (DDPG, NORMAL, 3.0),
        (TD3, NORMAL, -1.5),
        (DDPG, VectorizedActionNoise(NORMAL, 1), 0.0),
    ],
)
def test_the_same_draws_give_the_models_actions(kind, noise, bias):
    learner = learner_of(kind, action_noise=noise)
    with torch.no_grad():
        learner.model.actor.mu[-2].bias.fill_(bias)  # before the tanh
    policy, explore = policy_of(learner.model), learner.exploration
    rows = np.random.default_rng(0).uniform(-1, 1, (STEPS, 1, 4)).astype(np.float32)
    random = np.random.RandomState(7)
    with drawing_from(7):
        for row in rows:
            found = act(policy.spec, forward(policy, row), random, explore)
            np.testing.assert_allclose(found.actions, of_the_model(learner, row), atol=1e-6)


@pytest.mark.parametrize("kind", [TD3, SAC])
def test_the_first_steps_are_uniform(kind):
    learner = learner_of(kind, begun=False)
    policy, explore = policy_of(learner.model), learner.exploration
    rows = np.zeros((5000, 4), np.float32)
    learner.model.action_space.seed(3)
    wanted = of_the_model(learner, rows, len(rows))
    found = act(policy.spec, forward(policy, rows), np.random.default_rng(3), explore)
    np.testing.assert_allclose(found.actions, wanted, atol=1e-6)
    np.testing.assert_allclose(found.actions.std(0), 1 / math.sqrt(3), rtol=0.02)
    np.testing.assert_allclose(found.log_mu, -2 * math.log(2), rtol=1e-6)
    learner.model.num_timesteps = 50
    assert not learner.exploration.uniform


@pytest.mark.parametrize(("steps", "epsilon"), [(0, 1.0), (50, None), (900, 0.05)])
def test_dqn_takes_random_actions_as_often(steps, epsilon):
    learner = learner_of(DQN)
    model = learner.model
    model.num_timesteps = steps
    model._update_current_progress_remaining(steps, 1000)
    model._on_step()
    assert learner.exploration.epsilon == (epsilon or model.exploration_rate)


class Loud(ActionNoise):
    """Not one of Stable-Baselines3's."""

    def __call__(self):
        return np.ones(2)


def noisy_gaussian():
    explore = Exploration(noise=distributions.ActionNoise((0.0,), (0.1,)))
    spec = mlp(4, 2, head="tanh_gaussian", hidden=())
    return act(spec, np.zeros((1, 4), np.float32), np.random.default_rng(0), explore)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: learner_of(SAC, action_noise=NORMAL),
            r"SAC with NormalActionNoise.*action_noise=None",
        ),
        (lambda: learner_of(TD3, action_noise=Loud()), "Loud"),
        (lambda: learner_of(TD3, action_noise=NormalActionNoise(np.zeros(3), np.ones(3))), "shape"),
        (lambda: distributions.ActionNoise((0.0,), (-1.0,)), "sigma of at least 0"),
        (noisy_gaussian, "tanh_gaussian head"),
    ],
)
def test_noise_that_actors_cannot_draw_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_sigma_is_in_place_of_the_models_noise():
    assert learner_of(TD3, sigma=0.2, action_noise=NORMAL).exploration.noise == (
        distributions.ActionNoise((0.0,), (0.2,))
    )
    assert learner_of(TD3, sigma=0.2).exploration.unit == 0.2
    assert learner_of(TD3, sigma=0.0, action_noise=NORMAL).exploration == Exploration()
    assert learner_of(SAC, sigma=0.2).exploration == Exploration()


def test_noise_travels_in_orders():
    for noise in (NORMAL, None):
        learner = learner_of(TD3, action_noise=noise, begun=False)
        explore = learner.exploration
        actor_settings = Controller(learner, ActorLearnerConfig(), None, None).actor_settings(
            ActorSettings(), 1
        )
        again = ActorSettings.from_json(actor_settings.to_json())
        assert again == actor_settings
        # Every actor's is the model's.
        assert again.exploration(0, 4) == again.exploration(3, 4) == explore
