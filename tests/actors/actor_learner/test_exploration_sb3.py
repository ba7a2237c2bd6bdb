"""Actors of a Stable-Baselines3 model do what the model itself would do to explore."""

import contextlib
import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from plain_links import acted
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.noise import (
    ActionNoise,
    NormalActionNoise,
    OrnsteinUhlenbeckActionNoise,
    VectorizedActionNoise,
)

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.config import ActorLearnerConfig
from vinoreward_actors.actor_learner.controller import Controller
from vinoreward_actors.actor_learner.learners.sb3 import SB3Config, SB3Learner
from vinoreward_actors.actor_learner.learners.sb3_network import policy_of
from vinoreward_actors.actor_learner.transport.link import ActorSettings
from vinoreward_actors.policies import distributions
from vinoreward_actors.policies.distributions import Exploration, act, log_prob
from vinoreward_actors.policies.policy import forward
from vinoreward_actors.policies.spec import mlp

SEEN = gym.spaces.Box(-1, 1, (4,), np.float32)
ARM = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32))
NORMAL = NormalActionNoise(np.array([0.0, 0.05]), np.array([0.1, 0.3]))
WALK = OrnsteinUhlenbeckActionNoise(
    np.array([0.1, 0.0]), np.array([0.2, 0.6]), theta=0.3, dt=0.1, initial_noise=np.full(2, 0.4)
)
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
        (TD3, WALK, 3.0),
        (DDPG, WALK, -1.5),
        (DDPG, VectorizedActionNoise(WALK, 1), 0.0),
    ],
)
def test_the_same_draws_give_the_models_actions(kind, noise, bias):
    learner = learner_of(kind, action_noise=noise)
    with torch.no_grad():
        learner.model.actor.mu[-2].bias.fill_(bias)  # before the tanh
    policy, explore = policy_of(learner.model), learner.exploration
    rows = np.random.default_rng(0).uniform(-1, 1, (STEPS, 1, 4)).astype(np.float32)
    random = np.random.RandomState(7)
    before = None
    if noise is not None:
        noise.reset()
    with drawing_from(7):
        for step, row in enumerate(rows):
            found = act(policy.spec, forward(policy, row), random, explore, before)
            np.testing.assert_allclose(found.actions, of_the_model(learner, row), atol=1e-6)
            before = found.noise
            if noise is not None and step % 15 == 14:  # an episode ends
                noise.reset()
                before = None


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
    assert learner_of(TD3, sigma=0.2, action_noise=WALK).exploration.noise == (
        distributions.ActionNoise((0.0,), (0.2,))
    )
    assert learner_of(TD3, sigma=0.2).exploration.unit == 0.2
    # In the long run a walk is as wide as its returns let it be.
    walk = distributions.ActionNoise((0.0,), (0.2,), theta=0.15, dt=0.01)
    assert walk.unit == pytest.approx(0.2 / math.sqrt(2 * 0.15), rel=1e-3)
    assert learner_of(TD3, sigma=0.0, action_noise=WALK).exploration == Exploration()
    assert learner_of(SAC, sigma=0.2).exploration == Exploration()


def test_noise_travels_in_orders():
    for noise in (NORMAL, WALK, None):
        learner = learner_of(TD3, action_noise=noise, begun=False)
        explore = learner.exploration
        actor_settings = Controller(learner, ActorLearnerConfig(), None, None).actor_settings(
            ActorSettings(), 1
        )
        again = ActorSettings.from_json(actor_settings.to_json())
        assert again == actor_settings
        # Every actor's is the model's.
        assert again.exploration(0, 4) == again.exploration(3, 4) == explore


GAUSS = distributions.ActionNoise((0.1, -0.2), (0.3, 0.05))
ONE_IS_SURE = distributions.ActionNoise((0.0,), (0.4, 0.0))


@pytest.mark.parametrize(
    ("before", "noise", "uniform"),
    [
        (0.0, GAUSS, False),
        (0.7, GAUSS, True),
        (-3.0, GAUSS, False),
        (0.7, ONE_IS_SURE, False),
        (-3.0, ONE_IS_SURE, True),
    ],
)
def test_recorded_probabilities_are_those_of_what_was_executed(before, noise, uniform):
    """Their sum over all actions is 1, and they are the shares that are drawn."""
    spec = mlp(4, 2, head="tanh", hidden=())
    explore = Exploration(uniform=uniform, noise=noise)
    outputs = np.full((12_000, 2), before, np.float32)
    drawn = act(spec, outputs, np.random.default_rng(0), explore)
    np.testing.assert_allclose(log_prob(spec, outputs, drawn.actions, explore), drawn.log_mu, 1e-5)
    taken = np.asarray(drawn.actions, dtype=np.float64)
    sure = np.asarray(taken[:1])
    for column in range(2):
        if noise.spread[column] == 0.0:
            continue
        # The other action stays as it is; its share is taken out again.
        edges = np.linspace(-1, 1, 2001)
        middle = np.repeat(sure, 2002, axis=0)
        middle[:, column] = np.concatenate([[-1], (edges[1:] + edges[:-1]) / 2, [1]])
        logs = log_prob(spec, outputs[:2002], middle, explore)
        rest = _other(outputs[:1], sure, explore, column)
        shares = np.exp(logs - rest) * np.concatenate([[1], np.diff(edges), [1]])
        assert shares.sum() == pytest.approx(1.0, abs=2e-3)
        for low, high in ((-1.0, -1.0), (-0.999, 0.0), (0.0, 0.999), (1.0, 1.0)):
            chosen = (middle[:, column] >= low) & (middle[:, column] <= high)
            seen = ((taken[:, column] >= low) & (taken[:, column] <= high)).mean()
            assert shares[chosen].sum() == pytest.approx(seen, abs=0.02)


def _other(outputs, actions, explore, column):
    """The log density of the other column alone."""
    best = np.tanh(outputs.astype(np.float64))
    centers = explore.noise.centers(np.zeros((1, 2)))
    alone = slice(1 - column, 2 - column)
    spread = np.broadcast_to(explore.noise.spread, 2)[alone]
    if explore.uniform:
        return distributions.log_density_of_uniform(actions[:, alone], centers[:, alone], spread)
    return distributions.log_density(actions[:, alone], (best + centers)[:, alone], spread)


def test_noise_begins_anew_with_every_episode():
    """Noise that halves at every step, without chance, is seen in what actors executed."""
    noise = distributions.ActionNoise((0.0,), (0.0,), theta=0.5, dt=1.0, start=(0.8,))
    spec = mlp(3, 1, head="tanh", hidden=(8,))
    short = EnvironmentSpec("Pendulum-v1", {"max_episode_steps": 3})
    actor_settings = ActorSettings(noise=noise)

    def still(link):
        policy = link.weights[0]
        zeros = {name: np.zeros_like(value) for name, value in policy.parameters.items()}
        link.weights[0] = policy.replace(parameters=zeros)

    link = acted(
        spec, short, rollouts=2, steps=5, environments=2, settings=actor_settings, begin=still
    )
    actions = np.concatenate([one.actions for one in link.done])[:, :, 0]
    wanted = np.tile([0.4, 0.2, 0.1], 4)[:10]
    np.testing.assert_allclose(actions, np.stack([wanted, wanted], 1), rtol=1e-6)
