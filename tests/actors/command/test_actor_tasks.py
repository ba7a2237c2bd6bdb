"""The tasks that actors play: what they observe, how they end, and that a seed repeats them."""

import contextlib
import itertools
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import FlattenObservation, FrameStackObservation, GrayscaleObservation
from task_runs import play, run_python, same

from vinoreward.errors import ConfigError, MissingExtraError
from vinoreward_actors.policies.spec import Conv, Dense
from vinoreward_actors.tasks.lookup import ACCERL, ACTORQ, HOVER, TASKS, find_task, make_task
from vinoreward_actors.tasks.networks import NETWORKS, network

# dm_control 1.0.50 does what NumPy 2.5 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Setting the shape on a NumPy array")

NEEDED = {"dm_control": "shimmy", "atari": "ale_py", "hover": "warp"}


def needs(name):
    """Skip the test where a task's suite is not installed."""
    if (suite := TASKS[name].suite) in NEEDED:
        pytest.importorskip(NEEDED[suite])


# Every task


def test_the_papers_tasks_are_all_there():
    assert " ".join(task.name for task in ACTORQ) == (
        "cartpole-balance walker-stand hopper-stand reacher-hard cheetah-run finger-spin "
        "humanoid-stand humanoid-walk CartPole-v0 MountainCar-v0 Acrobot-v1"
    )
    assert " ".join(task.name for task in ACCERL) == (
        "alien amidar beam_rider name_this_game riverraid hero space_invaders breakout road_runner "
        "bank_heist pong seaquest"
    )
    assert {task.name for task in HOVER} == {"PandaHover-v0", "PandaHoverRandom-v0"}


@pytest.mark.parametrize("suite", sorted({task.suite for task in TASKS.values()}))
def test_every_task_is_what_the_table_says(suite):
    if suite in NEEDED:
        pytest.importorskip(NEEDED[suite])
    for task in (task for task in TASKS.values() if task.suite == suite):
        with contextlib.closing(make_task(task.name, seed=1)) as env:
            assert env.observation_space.shape == task.observation_shape
            assert env.observation_space.dtype == task.observation_dtype
            actions = gym.spaces.Box(-1.0, 1.0, (task.actions,), np.float32)
            discrete = gym.spaces.Discrete(task.actions)
            assert env.action_space == (discrete if task.discrete else actions)
            observation, _ = env.reset()
            assert env.observation_space.contains(observation)
            for _ in range(3):
                observation, reward, terminated, truncated, info = env.step(
                    env.action_space.sample()
                )
                assert env.observation_space.contains(observation)
                assert isinstance(reward, float | int)  # Shimmy pays a whole 0
                assert isinstance(terminated, bool) and isinstance(truncated, bool)
                assert suite != "hover" or "true_success" in info
                if terminated or truncated:
                    break


@pytest.mark.parametrize(
    "name", ["reacher-hard", "humanoid-walk", "MountainCar-v0", "pong", "PandaHoverRandom-v0"]
)
def test_a_seed_repeats_a_task(name):
    """One of each suite, and what draws most of its start."""
    needs(name)
    steps = 12 if "Hover" in name else 60
    one, other, third = (make_task(name, seed=seed) for seed in (5, 5, 6))
    first = play(one, steps)
    assert same(first, play(other, steps))
    assert not same(first, play(third, steps))
    # So does a reset of an environment that has been used.
    one.action_space.seed(5)
    again = [one.reset(seed=5)[0], *play(one, steps, reset=False)]
    assert same(first, again)
    # Another episode of the same seed is another one.
    assert name == "pong" or not np.array_equal(first[0], one.reset()[0])
    for env in (one, other, third):
        env.close()


def test_a_step_limit_of_ones_own():
    for name in ("CartPole-v0", "cartpole-balance", "pong"):
        needs(name)
        env = make_task(name, seed=0, max_steps=3)
        env.reset()
        action = env.action_space.sample()
        assert [env.step(action)[2:4] for _ in range(3)] == [(False, False)] * 2 + [(False, True)]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("CartPole-v0", {"max_steps": 0}, "Expected 1 or more"),
        ("CartPole-v0", {"max_steps": 2.5}, "Expected 1 or more"),
        ("CartPole-v0", {"max_steps": True}, "Expected 1 or more"),
        ("CartPole-v0", {"gravity_of_the_moon": 1}, "gravity_of_the_moon"),
        ("cartpole-balance", {"gravity_of_the_moon": 1}, "gravity_of_the_moon"),
        ("pong", {"gravity_of_the_moon": 1}, "gravity_of_the_moon"),
        ("PandaHover-v0", {"gravity_of_the_moon": 1}, "gravity_of_the_moon"),
        ("PandaHoverPixels-v0", {"backend": "oracle"}, r"Expected \(channels, height, width\)"),
    ],
)
def test_options_that_cannot_be_are_refused(name, options, said):
    if name in TASKS:
        needs(name)
    with pytest.raises(ConfigError, match=said):
        make_task(name, **options)


class Choosy(gym.Env[Any, Any]):
    """Cannot be made without a size, which is that of its observations."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, size, render_mode=None):
        if size > 9:
            raise RuntimeError("no room today")
        self.observation_space = gym.spaces.Box(-1, 1, (size,), np.float32)


@pytest.fixture
def registered():
    def make(cure=lambda env: env, **options):
        return cure(Offers(**options))

    gym.register("Choosy-v0", f"{__name__}:Choosy")
    gym.register("Offers-v0", make)
    yield
    del gym.registry["Choosy-v0"], gym.registry["Offers-v0"]


@pytest.mark.usefixtures("registered")
def test_an_environment_is_described_as_its_options_make_it():
    task = find_task("Choosy-v0", {"size": 5, "max_steps": 3})
    assert task.observation_shape == (5,)
    assert make_task("Choosy-v0", size=5).observation_space.shape == (5,)
    with pytest.raises(ConfigError, match="size"):
        find_task("Choosy-v0")
    for make in (find_task, lambda name, options: make_task(name, **options)):
        with pytest.raises(ConfigError, match=r"Choosy-v0 .*RuntimeError: no room today") as error:
            make("Choosy-v0", {"size": 10})
        assert isinstance(error.value.__cause__, RuntimeError)


class Offers(gym.Env[Any, Any]):
    """Has any action space, and notes the last action; images of (84, 84, 3) on demand."""

    def __init__(self, actions, images=False):
        shape, kind = ((84, 84, 3), np.uint8) if images else ((2,), np.float32)
        self.observation_space = gym.spaces.Box(0, 255, shape, kind)
        self.action_space = actions

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    "space", [gym.spaces.Discrete(3, start=5), gym.spaces.Box(-2, 3, (2, 3))], ids=str
)
def test_other_actions_are_refused_with_what_converts_them(space):
    with pytest.raises(ConfigError, match=r"with gymnasium\.wrappers\.TransformAction"):
        find_task("Offers-v0", {"actions": space})


@pytest.mark.usefixtures("registered")
def test_what_is_to_be_done_about_images_can_be_done():
    def cure(env):
        return FrameStackObservation(GrayscaleObservation(env), 4)

    options = {"actions": gym.spaces.Discrete(2), "images": True}
    with pytest.raises(ConfigError, match="GrayscaleObservation, Resize"):
        find_task("Offers-v0", options)
    task = find_task("Offers-v0", {**options, "cure": cure})
    assert network(task, "net3").observation_shape == (4, 84, 84)
    row = find_task("Offers-v0", {**options, "cure": FlattenObservation})
    assert network(row).observation_shape == (84 * 84 * 3,)


def test_an_action_of_the_hover_task_is_scaled_to_metres():
    env = make_task("PandaHover-v0", seed=0, backend="oracle", motion="kinematic")
    before, _ = env.reset()
    after, *_ = env.step(np.array([0.5, 0.0], np.float32))
    assert after[0] - before[0] == pytest.approx(0.05, abs=1e-3)
    plain = make_task("PandaHover-v0", seed=0, normalise_actions=False, backend="oracle")
    assert plain.action_space.high[0] == pytest.approx(0.1)


def test_an_unknown_name_lists_the_known_ones():
    for make in (find_task, make_task):
        with pytest.raises(ConfigError, match=r"no task 'Pong'.*cartpole-balance.*pong.*PandaHov"):
            make("Pong")
    pytest.importorskip("shimmy")
    with pytest.raises(ConfigError, match=r"cartpole-jump.*Did you mean: `cartpole-"):
        find_task("dm_control/cartpole-jump-v0")
    pytest.importorskip("ale_py")
    with pytest.raises(ConfigError, match=r"Pong2.*Did you mean"):
        find_task("ALE/Pong2-v5")


def test_other_environments_are_described_by_making_them():
    pendulum = find_task("Pendulum-v1")
    assert (pendulum.observation_shape, pendulum.actions, pendulum.discrete) == ((3,), 1, False)
    assert pendulum.max_steps == 200
    taxi = find_task("FrozenLake-v1")  # a numbered state becomes a row
    env = make_task("FrozenLake-v1", seed=0)
    assert env.reset()[0].sum() == 1.0
    assert (taxi.observation_shape, taxi.actions, taxi.threshold) == ((16,), 4, 0.70)
    pytest.importorskip("shimmy")
    swing = find_task("dm_control/cartpole-swingup-v0")
    assert (swing.observation_shape, swing.actions, swing.max_steps) == ((5,), 1, 1000)
    pytest.importorskip("ale_py")
    freeway = find_task("ALE/Freeway-v5")
    assert (freeway.observation_shape, freeway.actions) == ((4, 84, 84), 3)
    assert freeway.observation_dtype == "uint8"


def test_a_game_is_played_as_gymnasium_preprocesses_it():
    """Four grey images of the larger of two frames, without sticky actions; points as they are."""
    ale_py = pytest.importorskip("ale_py")
    cv2 = pytest.importorskip("cv2")
    raw = ale_py.AtariEnv("pong", obs_type="grayscale", frameskip=1, repeat_action_probability=0.0)
    env = make_task("pong", noop_max=0)
    stack = [raw.reset(seed=0)[0]] * 4
    observation, _ = env.reset(seed=0)
    random = np.random.default_rng(1)
    for _ in range(60):
        shrunk = [cv2.resize(image, (84, 84), interpolation=cv2.INTER_AREA) for image in stack]
        np.testing.assert_array_equal(observation, np.stack(shrunk))
        action = int(random.integers(6))
        frames = [raw.step(action) for _ in range(4)]
        observation, reward, terminated, truncated, _ = env.step(action)
        stack = [*stack[1:], np.maximum(frames[2][0], frames[3][0])]
        assert reward == sum(frame[1] for frame in frames)
        assert not (terminated or truncated)


def test_an_episode_of_clipped_rewards_tells_the_points():
    pytest.importorskip("ale_py")
    options = {"clip_reward": True, "terminal_on_life_loss": True}
    clipped, whole = (make_task("space_invaders", seed=2, **more) for more in (options, {}))
    clipped.reset(), whole.reset()
    random, points, rewards = np.random.default_rng(0), 0.0, set()
    while True:
        action = int(random.integers(6))
        _, reward, ended, truncated, info = clipped.step(action)
        _, paid, over, _, _ = whole.step(action)
        rewards.add(float(reward))
        points += float(paid)
        assert not truncated and not over
        if ended:
            break
    assert info["lives"] == 2
    assert rewards == {0.0, 1.0} and info["episode"]["r"] == points >= 10


@pytest.mark.parametrize(
    ("module", "name", "extra"),
    [("dm_control", "walker-stand", "dm-control"), ("ale_py", "pong", "atari")],
)
def test_a_missing_package_names_its_extra(monkeypatch, module, name, extra):
    for loaded in [key for key in sys.modules if key.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)  # the import system's word for "not there"
    with pytest.raises(MissingExtraError, match=rf"{module}.*pip install .*\[{extra}\]"):
        make_task(name)


@pytest.mark.slow
def test_tasks_need_no_torch():
    pytest.importorskip("shimmy")
    pytest.importorskip("ale_py")
    run_python(
        "import os, sys\n"
        "from vinoreward_actors.tasks.lookup import make_task\n"
        "for name in ('cartpole-balance', 'CartPole-v0', 'pong', 'PandaHoverRandom-v0'):\n"
        "    env = make_task(name, seed=0)\n"
        "    env.reset(), env.step(env.action_space.sample())\n"
        "found = {'torch', 'matplotlib', 'OpenGL', 'stable_baselines3'} & set(sys.modules)\n"
        "sys.exit(f'imported {found}' if found or 'MUJOCO_GL' in os.environ else 0)\n"
    )


# The networks of the papers, by name


def sizes(spec):
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
def test_accerls_networks(name, wanted, features):
    spec = network("pong", name)
    assert sizes(spec) == [*wanted, (6,)]
    assert next(layer for layer in spec.weighted if isinstance(layer, Dense)).inputs == features
    assert (spec.head, spec.observation_dtype, spec.scale) == ("logits", "uint8", 1 / 255)
    assert spec.value is not None and spec.value.inputs == wanted[-1][0]


def test_actorqs_network_is_smooth():
    spec = network("cheetah-run", algorithm="d4pg")
    assert sizes(spec) == [(2048,), (2048,), (2048,), (6,)]
    assert [layer.activation for layer in spec.weighted] == ["tanh", "tanh", "tanh", "none"]
    assert (spec.head, spec.value) == ("tanh", None)
    for name, activation in (("3x2048", "tanh"), ("2x64", "relu")):
        spec = network("CartPole-v0", name, "dqn")
        assert {layer.activation for layer in spec.weighted[:-1]} == {activation}
        assert len(spec.weighted) == int(name[0]) + 1


@pytest.mark.parametrize("algorithm", ["impala", "dqn", "d4pg"])
def test_a_network_fits_its_task_or_is_refused(algorithm):
    for task, name in itertools.product(TASKS.values(), NETWORKS):
        fits = (len(task.observation_shape) == 1) == (name in ("3x2048", "2x256")) and (
            algorithm in (("impala", "dqn") if task.discrete else ("impala", "d4pg"))
        )
        if not fits:
            with pytest.raises(ConfigError, match="Expected"):
                network(task, name, algorithm)
            continue
        spec = network(task, name, algorithm)
        assert (spec.observation_shape, spec.actions) == (task.observation_shape, task.actions)
        assert (spec.observation_dtype, spec.discrete) == (task.observation_dtype, task.discrete)
        assert (spec.value is not None) == (algorithm == "impala")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("pong", "net4"), r"no network 'net4'.*3x2048.*net1"),
        (("pong", "net1", "ppo"), r"no algorithm 'ppo'.*d4pg.*impala"),
    ],
)
def test_unknown_networks_and_algorithms_list_the_known_ones(wrong, said):
    with pytest.raises(ConfigError, match=said):
        network(*wrong)
