"""Tasks of dm_control as Gymnasium environments."""

from __future__ import annotations

import ctypes.util

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from task_runs import CONTROL, run_python

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.tasks.lookup import make_task
from vinoreward_training.tasks.dm_control import DmControlEnv

# dm_control 1.0.50 does what NumPy 2.5 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Setting the shape on a NumPy array")


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


@pytest.mark.parametrize("name", ["reacher-hard", "cheetah-run"])
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


def test_an_action_is_repeated_and_its_rewards_are_added() -> None:
    pytest.importorskip("dm_control")
    once, many = (
        DmControlEnv("cartpole", "balance"),
        DmControlEnv("cartpole", "balance", action_repeat=300),
    )
    assert np.array_equal(once.reset(seed=1)[0], many.reset(seed=1)[0])
    action = np.array([0.1], np.float32)
    ends = []
    for _ in range(4):
        total = 0.0
        for _ in range(300):
            observation, reward, _, truncated, _ = once.step(action)
            total += reward
            if truncated:
                break
        row, paid, terminated, truncated, _ = many.step(action)
        assert np.array_equal(row, observation) and paid == pytest.approx(total)
        assert not terminated
        ends.append(truncated)
    assert ends == [False, False, False, True]  # 1000 control steps: the fourth is cut short


def test_options_of_the_image_that_the_task_does_not_have_are_refused() -> None:
    pytest.importorskip("dm_control")
    for option, value in (("action_repeat", 0), ("height", 0), ("width", 4000), ("height", 9.5)):
        with pytest.raises(ConfigError, match=f"found {option}={value}"):
            DmControlEnv("reacher", "easy", **{option: value})  # type: ignore[arg-type]
    for camera in ("wrist", 2, -1, 0.5):
        with pytest.raises(ConfigError, match=r"Expected one of the task's: 0 \(fixed\), 1 \(hand"):
            DmControlEnv("reacher", "easy", camera=camera)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.skipif(ctypes.util.find_library("OSMesa") is None, reason="needs libosmesa6")
def test_size_camera_and_shadows_of_an_image() -> None:
    pytest.importorskip("dm_control")
    code = (
        "import os\n"
        "os.environ['MUJOCO_GL'] = 'osmesa'\n"
        "from vinoreward_training.tasks.environments import make_env\n"
        "def drawn(**options):\n"
        "    env = make_env('dm_control/reacher-easy', {'height': 48, 'width': 64, **options},\n"
        "        render_mode='rgb_array')\n"
        "    env.reset(seed=1)\n"
        "    image = env.render()\n"
        "    env.close()\n"
        "    assert image.shape == (48, 64, 3) and image.dtype == 'uint8'\n"
        "    return image.astype(int)\n"
        "table, plain, hand = drawn(), drawn(shadows=False), drawn(camera='hand', shadows=False)\n"
        "tip = hand[24, 32]\n"  # the fingertip's camera has it in its middle, the other has not
        "print(abs(table - plain).mean() > 1, tip[0] > 2 * tip[2], plain[24, 32, 2] > 50)\n"
    )
    assert run_python(code).split() == ["True", "True", "True"]


@pytest.mark.slow
def test_images_that_cannot_be_drawn_are_said() -> None:
    pytest.importorskip("dm_control")
    code = (
        "from vinoreward.errors import MissingDisplayError\n"
        "from vinoreward_actors.tasks.lookup import make_task\n"
        "make_task('cartpole-balance').reset()\n"  # loads dm_control without images
        "try:\n"
        "    make_task('cartpole-balance', render_mode='rgb_array')\n"
        "except MissingDisplayError as error:\n"
        "    print(error)\n"
    )
    assert "before any other dm_control environment" in run_python(code)
