"""The tasks that actors play: what they observe, how they end, and that a seed repeats them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from vinoreward.errors import ConfigError, InputError, MissingExtraError
from vinoreward.policies.spec import Conv, Dense, PolicySpec
from vinoreward_training.actor_networks import ALGORITHMS, NETWORKS, network
from vinoreward_training.actor_task_table import ACCERL, ACTORQ, HOVER, TASKS, Task
from vinoreward_training.actor_tasks import find_task, make_task
from vinoreward_training.atari_env import AreaResize, AtariEnv
from vinoreward_training.dm_control_env import DmControlEnv

# dm_control 1.0.50 does what NumPy 2.5 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Setting the shape on a NumPy array")

CONTROL = [task.name for task in TASKS.values() if task.suite == "dm_control"]
GAMES = [task.name for task in TASKS.values() if task.suite == "atari"]
NEEDED = {"dm_control": "dm_control", "atari": "ale_py", "hover": "warp"}


@pytest.fixture(params=list(TASKS))
def task(request: pytest.FixtureRequest) -> Task:
    """Every task of the table whose extra is installed."""
    found = TASKS[request.param]
    if found.suite in NEEDED:
        pytest.importorskip(NEEDED[found.suite])
    return found


def play(env: gym.Env[Any, Any], steps: int, *, reset: bool = True) -> list[Any]:
    """Return what an environment says to actions that its own seeded space draws."""
    seen: list[Any] = [env.reset()[0]] if reset else []
    for _ in range(steps):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        seen.append((observation, reward, terminated, truncated))
        if terminated or truncated:
            seen.append(env.reset()[0])
    return seen


def same(one: list[Any], other: list[Any]) -> bool:
    flat = [
        [x for step in seen for x in (step if isinstance(step, tuple) else (step,))]
        for seen in (one, other)
    ]
    return len(flat[0]) == len(flat[1]) and all(
        np.array_equal(a, b) for a, b in zip(*flat, strict=True)
    )


# Every task


def test_the_papers_tasks_are_all_there() -> None:
    assert [task.name for task in ACTORQ] == [
        "cartpole-balance", "walker-stand", "hopper-stand", "reacher-hard", "cheetah-run",
        "finger-spin", "humanoid-stand", "humanoid-walk", "CartPole-v0", "MountainCar-v0",
        "Acrobot-v1",
    ]  # fmt: skip
    assert [task.name for task in ACCERL] == [
        "alien", "amidar", "beam_rider", "name_this_game", "riverraid", "hero",
        "space_invaders", "breakout", "road_runner", "bank_heist", "pong", "seaquest",
    ]  # fmt: skip
    assert {task.name for task in HOVER} == {"PandaHover-v0", "PandaHoverRandom-v0"}


def test_a_published_speed_up_is_the_ratio_of_the_published_times() -> None:
    for task in ACTORQ:
        assert task.paper is not None
        assert task.paper.fp32_seconds and task.paper.int8_seconds and task.paper.speedup
        # Rounded in the paper: Finger Spin is printed one hundredth high.
        ratio = task.paper.fp32_seconds / task.paper.int8_seconds
        assert ratio == pytest.approx(task.paper.speedup, abs=0.011)


def test_a_task_is_what_the_table_says(task: Task) -> None:
    env = make_task(task.name, seed=1)
    try:
        assert env.observation_space.shape == task.observation_shape
        assert env.observation_space.dtype == task.observation_dtype
        if isinstance(env.action_space, gym.spaces.Discrete):
            assert task.discrete
            assert env.action_space.n == task.actions
            assert env.action_space.start == 0
        else:
            assert isinstance(env.action_space, gym.spaces.Box)
            assert not task.discrete
            assert env.action_space.shape == (task.actions,)
            assert env.action_space.dtype == np.float32
            assert np.all(env.action_space.low == -1.0)
            assert np.all(env.action_space.high == 1.0)
        observation, _ = env.reset()
        assert env.observation_space.contains(observation)
        for _ in range(3):
            observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
            assert env.observation_space.contains(observation)
            assert type(reward) is float
            assert isinstance(terminated, bool)
            assert isinstance(truncated, bool)
            assert task.suite != "hover" or "true_success" in info
            if terminated or truncated:
                break
    finally:
        env.close()


def test_a_seed_repeats_a_task(task: Task) -> None:
    steps = 12 if task.suite == "hover" else 60
    one, other, third = (make_task(task.name, seed=seed) for seed in (5, 5, 6))
    first = play(one, steps)
    assert same(first, play(other, steps))
    assert not same(first, play(third, steps))
    # So does a reset of an environment that has been used.
    one.action_space.seed(5)
    again = [one.reset(seed=5)[0], *play(one, steps, reset=False)]
    assert same(first, again)
    for env in (one, other, third):
        env.close()


def test_episodes_of_one_seed_differ() -> None:
    env = make_task("CartPole-v0", seed=1)
    assert not np.array_equal(env.reset()[0], env.reset()[0])
    assert np.array_equal(env.reset(seed=9)[0], make_task("CartPole-v0").reset(seed=9)[0])


@pytest.mark.parametrize(
    ("name", "steps"), [("MountainCar-v0", 200), ("Acrobot-v1", 500), ("cartpole-balance", 1000)]
)
def test_a_time_limit_truncates(name: str, steps: int) -> None:
    env = make_task(name, seed=0)
    env.reset()
    # Nothing is reached without a push.
    idle = np.zeros(1, np.float32) if name in CONTROL else np.int64(1)
    for step in range(1, steps + 1):
        _, _, terminated, truncated, _ = env.step(idle)
        assert not terminated
        assert truncated == (step == steps)


def test_cartpole_lasts_200_steps_and_its_fall_terminates() -> None:
    env = make_task("CartPole-v0", seed=0)
    observation, _ = env.reset()
    total = 0.0
    while True:
        # Balances for as long as one likes: push where the pole leans and falls.
        action = int(observation[2] + 0.5 * observation[3] + 0.02 * observation[0] > 0)
        observation, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        if terminated or truncated:
            break
    assert (total, terminated, truncated) == (200.0, False, True)
    env.reset()
    for _ in range(30):
        _, _, terminated, truncated, _ = env.step(0)
        if terminated or truncated:
            break
    assert (terminated, truncated) == (True, False)


def test_a_step_limit_of_ones_own() -> None:
    for name in ("CartPole-v0", "cartpole-balance", "pong"):
        if (suite := TASKS[name].suite) in NEEDED:
            pytest.importorskip(NEEDED[suite])
        env = make_task(name, seed=0, max_steps=3)
        env.reset()
        action = env.action_space.sample()
        assert [env.step(action)[2:4] for _ in range(3)] == [(False, False)] * 2 + [(False, True)]
    with pytest.raises(ConfigError, match="Expected 1 or more"):
        make_task("CartPole-v0", max_steps=0)


@pytest.mark.parametrize("steps", [-1, "x", 2.5, True])
def test_a_step_limit_is_a_whole_number(steps: Any) -> None:
    with pytest.raises(ConfigError, match="Expected 1 or more"):
        make_task("CartPole-v0", max_steps=steps)


def test_bounded_observations_can_be_scaled() -> None:
    env = make_task("MountainCar-v0", seed=0, rescale_observations=True)
    assert env.observation_space == gym.spaces.Box(-1, 1, (2,), np.float32)
    plain = make_task("MountainCar-v0", seed=0)
    low, high = plain.observation_space.low, plain.observation_space.high  # type: ignore[attr-defined]
    scaled, row = env.reset()[0], plain.reset()[0]
    for _ in range(20):
        assert scaled.dtype == np.float32
        np.testing.assert_allclose(scaled, 2 * (row - low) / (high - low) - 1, atol=1e-5)
        scaled, row = env.step(2)[0], plain.step(2)[0]


def test_unbounded_observations_are_not_scaled() -> None:
    with pytest.raises(ConfigError, match="leave out rescale_observations"):
        make_task("CartPole-v0", rescale_observations=True)


class Choosy(gym.Env[Any, Any]):
    """Cannot be made without a size, which is that of its observations."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, size: int, render_mode: str | None = None) -> None:
        if size > 9:
            raise RuntimeError("no room today")
        self.observation_space = gym.spaces.Box(-1, 1, (size,), np.float32)


@pytest.fixture
def choosy() -> Iterator[str]:
    gym.register("Choosy-v0", f"{__name__}:Choosy")
    yield "Choosy-v0"
    del gym.registry["Choosy-v0"]


def test_an_environment_is_described_as_its_options_make_it(choosy: str) -> None:
    task = find_task(choosy, {"size": 5, "rescale_observations": True, "max_steps": 3})
    assert task.observation_shape == (5,)
    env = make_task(choosy, size=5)
    assert env.observation_space.shape == (5,)
    with pytest.raises(ConfigError, match="size"):
        find_task(choosy)


def test_an_environment_that_cannot_be_made_is_named(choosy: str) -> None:
    for make in (lambda: find_task(choosy, {"size": 10}), lambda: make_task(choosy, size=10)):
        with pytest.raises(ConfigError, match=r"Choosy-v0 .*RuntimeError: no room today") as error:
            make()
        assert isinstance(error.value.__cause__, RuntimeError)


def test_an_action_of_the_hover_task_is_scaled_to_metres() -> None:
    env = make_task("PandaHover-v0", seed=0, backend="oracle", motion="kinematic")
    before, _ = env.reset()
    after, *_ = env.step(np.array([0.5, 0.0], np.float32))
    assert after[0] - before[0] == pytest.approx(0.05, abs=1e-3)
    plain = make_task("PandaHover-v0", seed=0, normalise_actions=False, backend="oracle")
    assert plain.action_space.high[0] == pytest.approx(0.1)  # type: ignore[attr-defined]


def test_an_unknown_name_lists_the_known_ones() -> None:
    for make in (find_task, make_task):
        with pytest.raises(ConfigError, match=r"no task 'Pong'.*cartpole-balance.*pong.*PandaHov"):
            make("Pong")
    pytest.importorskip("dm_control")
    with pytest.raises(ConfigError, match=r"no task cartpole-jump.*cartpole-balance"):
        find_task("dm_control/cartpole-jump")
    pytest.importorskip("ale_py")
    with pytest.raises(ConfigError, match=r"no game 'pong2'.*pong.*seaquest"):
        find_task("atari/pong2")


def test_other_environments_are_described_by_making_them() -> None:
    pendulum = find_task("Pendulum-v1")
    assert (pendulum.observation_shape, pendulum.actions, pendulum.discrete) == ((3,), 1, False)
    assert pendulum.max_steps == 200
    taxi = find_task("FrozenLake-v1")  # a numbered state becomes a row
    env = make_task("FrozenLake-v1", seed=0)
    assert env.reset()[0].sum() == 1.0
    assert (taxi.observation_shape, taxi.actions, taxi.threshold) == ((16,), 4, 0.70)
    pytest.importorskip("dm_control")
    swing = find_task("dm_control/cartpole-swingup")
    assert (swing.observation_shape, swing.actions, swing.max_steps) == ((5,), 1, 1000)
    pytest.importorskip("ale_py")
    freeway = find_task("atari/freeway")
    assert (freeway.observation_shape, freeway.actions) == ((4, 84, 84), 3)
    assert freeway.observation_dtype == "uint8"


def test_pictures_with_channels_last_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Expected \(channels, height, width\)"):
        make_task("PandaHoverPixels-v0", backend="oracle")


@pytest.mark.parametrize("name", ["cartpole-balance", "pong", "CartPole-v0", "PandaHover-v0"])
def test_an_unknown_option_is_refused(name: str) -> None:
    if (suite := TASKS[name].suite) in NEEDED:
        pytest.importorskip(NEEDED[suite])
    with pytest.raises(ConfigError, match="gravity_of_the_moon"):
        make_task(name, gravity_of_the_moon=True)


@pytest.mark.parametrize(
    ("module", "name", "extra"),
    [("dm_control", "walker-stand", "dm-control"), ("ale_py", "pong", "atari")],
)
def test_a_missing_package_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, extra: str
) -> None:
    for loaded in [key for key in sys.modules if key.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)  # the import system's word for "not there"
    with pytest.raises(MissingExtraError, match=rf"{module}.*vinoreward\[{extra}\]"):
        make_task(name)


def run_python(code: str) -> str:
    inherited = {key: value for key, value in os.environ.items() if key != "MUJOCO_GL"}
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=inherited,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.slow
def test_tasks_and_networks_need_no_torch() -> None:
    pytest.importorskip("dm_control")
    pytest.importorskip("ale_py")
    run_python(
        "import os, sys\n"
        "from vinoreward_training.actor_networks import network\n"
        "from vinoreward_training.actor_tasks import make_task\n"
        "for name in ('cartpole-balance', 'CartPole-v0', 'pong', 'PandaHoverRandom-v0'):\n"
        "    env = make_task(name, seed=0)\n"
        "    env.reset(), env.step(env.action_space.sample()), network(name)\n"
        "found = {'torch', 'cv2', 'matplotlib', 'OpenGL', 'stable_baselines3'} & set(sys.modules)\n"
        "sys.exit(f'imported {found}' if found or 'MUJOCO_GL' in os.environ else 0)\n"
    )


# dm_control


@pytest.mark.filterwarnings("ignore:.*A Box observation space (min|max)imum value is")
@pytest.mark.filterwarnings("ignore:.*[Nn]ot able to test alternative render modes")
@pytest.mark.parametrize("name", CONTROL)
def test_the_dm_control_adapter_is_a_gymnasium_environment(name: str) -> None:
    pytest.importorskip("dm_control")
    domain, task = name.split("-")
    check_env(DmControlEnv(domain, task), skip_render_check=True)


def test_the_adapter_gives_what_dm_control_gives() -> None:
    suite = pytest.importorskip("dm_control.suite")
    env = DmControlEnv("walker", "stand")
    env.reset(seed=3)
    twin = suite.load("walker", "stand")
    twin.reset()
    # The same state of the simulation, the same action: the same rewards and observations.
    with twin.physics.reset_context():
        twin.physics.set_state(env._env.physics.get_state())
    random = np.random.default_rng(0)
    for _ in range(20):
        action = random.uniform(-1, 1, 6)
        observation, reward, _, _, _ = env.step(action.astype(np.float32))
        wanted = twin.step(action.astype(np.float32))
        parts = wanted.observation
        assert list(parts) == ["orientations", "height", "velocity"]
        row = [*parts["orientations"], parts["height"], *parts["velocity"]]
        np.testing.assert_allclose(observation, row, atol=1e-6)
        assert reward == pytest.approx(wanted.reward, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTROL)
def test_a_dm_control_episode_is_truncated_after_1000_steps(name: str) -> None:
    pytest.importorskip("dm_control")
    env = make_task(name, seed=0)
    env.reset()
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(1000)]
    assert ends == [(False, False)] * 999 + [(False, True)]


def test_a_dm_control_task_that_fails_terminates() -> None:
    suite = pytest.importorskip("dm_control.suite")
    if ("lqr", "lqr_2_1") not in suite.ALL_TASKS:
        pytest.skip("this dm_control has no linear quadratic regulator")
    # The only task of the suite with an end of its own: a state close to nought.
    env = DmControlEnv("lqr", "lqr_2_1")
    env.reset(seed=0)
    with env._env.physics.reset_context():
        env._env.physics.data.qpos[:] = 0.0
        env._env.physics.data.qvel[:] = 0.0
    _, _, terminated, truncated, _ = env.step(np.zeros(1, np.float32))
    assert (terminated, truncated) == (True, False)
    with pytest.raises(ResetNeeded):
        env.step(np.zeros(1, np.float32))


def test_dm_control_refuses_bad_actions_and_steps_before_a_reset() -> None:
    pytest.importorskip("dm_control")
    env = DmControlEnv("cartpole", "balance")
    with pytest.raises(ResetNeeded):
        env.step(np.zeros(1, np.float32))
    env.reset(seed=0)
    for action in ([np.nan], [0.0, 0.0]):
        with pytest.raises(InputError, match=r"shape \(1,\)"):
            env.step(np.array(action, np.float32))
    with pytest.raises(ConfigError, match="rgb_array"):
        DmControlEnv("cartpole", "balance", render_mode="human")


@pytest.mark.slow
def test_pictures_that_cannot_be_drawn_are_said() -> None:
    pytest.importorskip("dm_control")
    code = (
        "from vinoreward.errors import MissingDisplayError\n"
        "from vinoreward_training.actor_tasks import make_task\n"
        "make_task('cartpole-balance').reset()\n"  # loads dm_control without pictures
        "try:\n"
        "    make_task('cartpole-balance', render_mode='rgb_array')\n"
        "except MissingDisplayError as error:\n"
        "    print(error)\n"
    )
    assert "before any other dm_control environment" in run_python(code)


# Atari


@pytest.fixture
def pong() -> AtariEnv:
    pytest.importorskip("ale_py")
    return AtariEnv("pong")


@pytest.mark.parametrize("options", [{}, {"episodic_life": True, "press_fire": True}])
def test_the_atari_environment_is_a_gymnasium_environment(options: dict[str, Any]) -> None:
    pytest.importorskip("ale_py")
    check_env(AtariEnv("breakout", **options), skip_render_check=True)


def areas(picture: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.float64]:
    """The mean of the area of each pixel, by repeating pixels until the areas are whole."""
    height, width = picture.shape
    rows = picture.astype(np.float64).repeat(side, 0).reshape(side, height, width).mean(1)
    return rows.repeat(side, 1).reshape(side, side, width).mean(2)


@given(st.tuples(*[st.integers(6, 60)] * 2), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_a_resized_pixel_is_the_mean_of_its_area(
    shape: tuple[int, int], side: int, seed: int
) -> None:
    picture = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    resized = AreaResize(*shape, side)(picture)
    assert resized.dtype == np.uint8
    assert np.abs(resized - areas(picture, side)).max() <= 0.5 + 1e-9


def test_an_observation_is_the_larger_of_two_raw_frames_shrunk_and_stacked(pong: AtariEnv) -> None:
    """Against ale-py's own environment, which shows every frame."""
    ale_py = pytest.importorskip("ale_py")
    raw = ale_py.AtariEnv(
        "pong", obs_type="grayscale", frameskip=1, repeat_action_probability=0.0
    )  # fmt: skip
    env = AtariEnv("pong", noops=0)
    first, _ = raw.reset(seed=0)
    observation, _ = env.reset(seed=0)
    stack = [areas(first, 84)] * 4
    random = np.random.default_rng(1)
    score = 0.0
    for _ in range(80):
        assert np.abs(observation - np.stack(stack)).max() <= 0.5 + 1e-9
        action = int(random.integers(6))
        frames = [raw.step(action) for _ in range(4)]
        observation, reward, terminated, truncated, info = env.step(action)
        stack = [*stack[1:], areas(np.maximum(frames[2][0], frames[3][0]), 84)]
        assert reward == sum(frame[1] for frame in frames)
        score += reward
        assert (info["score"], info["points"]) == (score, reward)
        assert not (terminated or truncated)
    assert score < 0


def test_an_observation_belongs_to_the_caller(pong: AtariEnv) -> None:
    before, _ = pong.reset(seed=0)
    kept = before.copy()
    after, *_ = pong.step(2)
    np.testing.assert_array_equal(before, kept)
    np.testing.assert_array_equal(after[:3], before[1:])
    after[:] = 0
    assert pong.step(2)[0][2].any()


def test_the_score_is_neither_clipped_nor_cut_at_a_life() -> None:
    pytest.importorskip("ale_py")
    clipped = make_task("space_invaders", seed=2, clip_reward=True, episodic_life=True)
    whole = make_task("space_invaders", seed=2)
    clipped.reset(), whole.reset()
    random = np.random.default_rng(0)
    lives, points, rewards, scores = [3], 0.0, set(), []
    while True:
        action = int(random.integers(6))
        _, reward, terminated, truncated, info = clipped.step(action)
        rewards.add(reward)
        points += info["points"]
        scores.append(info["score"])
        assert info["score"] == points
        assert terminated == (info["game_over"] or info["lives"] < lives[-1])
        assert not truncated
        if info["lives"] != lives[-1]:
            lives.append(info["lives"])
        if info["game_over"]:
            break
        if terminated:
            with pytest.raises(ResetNeeded):
                clipped.step(0)
            _, info = clipped.reset()
            assert info["score"] == points  # the game goes on
            assert info["lives"] == lives[-1]
    assert lives == [3, 2, 1, 0]
    assert rewards == {0.0, 1.0}
    assert points > len(scores) / 100 and points % 5 == 0 and points >= 50
    assert clipped.reset()[1]["score"] == 0.0

    total = 0.0
    while True:
        _, reward, terminated, truncated, info = whole.step(int(random.integers(6)))
        total += reward
        assert terminated == info["game_over"]
        if terminated:
            break
    assert info["score"] == total
    assert info["lives"] == 0


def test_a_game_cut_short_is_truncated_and_not_over() -> None:
    pytest.importorskip("ale_py")
    for life in (False, True):
        env = make_task("pong", seed=0, max_frames=100, noops=0, episodic_life=life)
        for _ in range(2):
            env.reset()
            steps = [env.step(0) for _ in range(25)]
            assert [step[2:4] for step in steps] == [(False, False)] * 24 + [(False, True)]
            assert steps[-1][4]["frames"] == 100
            assert not steps[-1][4]["game_over"]


def test_fire_starts_a_game_that_would_wait_for_it() -> None:
    pytest.importorskip("ale_py")
    frames = {}
    for press in (False, True):
        env = make_task("breakout", seed=0, press_fire=press)
        env.reset()
        frames[press] = [env.step(0)[4]["lives"] for _ in range(60)][-1]
    assert frames == {False: 5, True: 4}  # the ball is lost if it is in play


def test_a_game_begins_at_different_moments_and_repeats_actions_if_asked() -> None:
    pytest.importorskip("ale_py")
    env = make_task("pong", seed=0)
    assert len({env.reset()[1]["frames"] for _ in range(20)}) > 5
    assert {env.reset()[1]["frames"] for _ in range(60)} <= set(range(1, 31))
    with pytest.raises(ConfigError, match="a probability below 1"):
        AtariEnv("pong", sticky=1.0)
    with pytest.raises(ConfigError, match="frame_skip=0"):
        AtariEnv("pong", frame_skip=0)
    one, other = (make_task("pong", seed=1, sticky=sticky) for sticky in (0.0, 0.25))
    for each in (one, other):
        each.action_space.seed(3)
    assert not same(play(one, 60), play(other, 60))


# Networks


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
