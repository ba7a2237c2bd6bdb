"""Deferred rewards: the same training to the last bit, and scoring while the learner trains."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from later_runs import (
    SEED,
    Steered,
    ThreadCorridor,
    assert_same,
    drawn_corridor,
    later,
    left_by,
    small,
    trained,
)
from stable_baselines3 import DQN, PPO, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize
from toy_environments import Corridor, rendered_corridor, save_toy_bundle

from vinoreward import LearnedReward, PictureInInfo, RewardLater, VecLearnedReward
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, PictureMismatchError

REWARDS: dict[str, Any] = {"success_reward": 3.0, "step_reward": -0.25}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return save_toy_bundle(tmp_path_factory.mktemp("bundle") / "toy", seen=range(7))


def steered(kind: str = "dict", **options: Any) -> gym.Env[Any, Any]:
    return Steered(Corridor(kind, **options))


def flat(count: int, make: Callable[[], gym.Env[Any, Any]] = drawn_corridor) -> Any:
    return DummyVecEnv([make] * count)


CASES: dict[str, tuple[Any, dict[str, Any], int, dict[str, Any]]] = {
    "sac": (SAC, {}, 1, {}),
    "three environments": (SAC, {}, 3, {"gradient_steps": 3}),
    "as many gradient steps as steps": (SAC, {}, 2, {"train_freq": 3, "gradient_steps": -1}),
    "a small buffer": (SAC, {}, 1, {"buffer_size": 20}),
    "without an end by success": (SAC, {"terminate_on_success": False}, 1, {}),
    "potential": (SAC, {"reward_mode": "potential"}, 2, {}),
    "probability": (SAC, {"reward_mode": "probability"}, 1, {}),
    "a hold": (SAC, {"success_hold_steps": 2}, 1, {}),
    "a learning rate that falls": (SAC, {}, 1, {"learning_rate": lambda left: 1e-3 * left}),
    "td3": (TD3, {}, 1, {}),
    "whole episodes": (TD3, {}, 1, {"train_freq": (2, "episode")}),
    "no gradient steps": (TD3, {}, 1, {"gradient_steps": 0}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_training_is_the_same(bundle: Bundle, name: str) -> None:
    algorithm, options, count, learner = CASES[name]

    def env() -> VecLearnedReward:
        return VecLearnedReward(flat(count), bundle, image_source="render", **REWARDS, **options)

    expected = trained(algorithm, env(), **learner)
    assert_same(trained(later(algorithm), env(), **learner), expected)
    rewards = expected.replay["rewards"]
    assert len(np.unique(rewards)) > 1 and np.isfinite(rewards).all()


def test_the_same_as_single_environments_in_process(bundle: Bundle) -> None:
    options = {"image_source": "render", **REWARDS}
    single = LearnedReward(Steered(Corridor(render_mode="rgb_array")), bundle, **options)
    expected = trained(SAC, single)
    assert_same(trained(later(SAC), VecLearnedReward(flat(1), bundle, **options)), expected)
    assert expected.replay["dones"].any() and (expected.replay["rewards"] == 3.0).any()


def in_a_dictionary() -> gym.Env[Any, Any]:
    corridor = ThreadCorridor(render_mode="rgb_array")
    space = gym.spaces.Dict({"where": corridor.observation_space})
    wrapped = gym.wrappers.TransformObservation(corridor, lambda seen: {"where": seen}, space)
    return PictureInInfo(wrapped, only_last=True)


@pytest.mark.parametrize("count", [1, 2])
def test_dqn_and_observations_that_are_dictionaries(bundle: Bundle, count: int) -> None:
    learner = {"policy": "MultiInputPolicy", "target_update_interval": 3, "train_freq": 2}

    def env() -> VecLearnedReward:
        environments = flat(count, in_a_dictionary)
        return VecLearnedReward(environments, bundle, image_source="render", **REWARDS)

    expected = trained(DQN, env(), **learner)
    assert_same(trained(later(DQN), env(), **learner), expected)


def test_observations_that_are_pictures(bundle: Bundle) -> None:
    """SB3 puts a VecTransposeImage around them."""
    network = {"features_extractor_class": FlattenExtractor, "net_arch": [8]}

    def env() -> VecLearnedReward:
        return VecLearnedReward(flat(2, lambda: Corridor("picture")), bundle, **REWARDS)

    expected = trained(DQN, env(), policy="CnnPolicy", policy_kwargs=dict(network))
    found = trained(later(DQN), env(), policy="CnnPolicy", policy_kwargs=dict(network))
    assert_same(found, expected)
    assert found.replay["next_observations"].shape[2:] == (3, 6, 8)


@pytest.mark.parametrize(
    "make", [drawn_corridor, lambda: PictureInInfo(steered("vector", render_mode="rgb_array"))]
)
def test_pictures_drawn_later_or_at_once(bundle: Bundle, make: Any) -> None:
    always = trained(SAC, VecLearnedReward(flat(2), bundle, image_source="render"))
    found = trained(later(SAC), VecLearnedReward(flat(2, make), bundle, image_source="render"))
    assert_same(found, always)


@pytest.mark.slow
def test_environments_in_processes_draw_while_the_learner_trains(bundle: Bundle) -> None:
    expected = trained(SAC, VecLearnedReward(flat(2), bundle, image_source="render"))
    processes = SubprocVecEnv([drawn_corridor] * 2)
    found = trained(later(SAC), VecLearnedReward(processes, bundle, image_source="render"))
    assert_same(found, expected)


@pytest.mark.slow
def test_the_shared_service_scores_the_same(bundle: Bundle) -> None:
    expected = trained(SAC, VecLearnedReward(flat(2), bundle, image_source="render"))
    env = VecLearnedReward(flat(2), bundle, image_source="render", service="shared")
    assert_same(trained(later(SAC), env), expected)


class Waits:
    """Holds the classifier until the learner has drawn its batch."""

    def __init__(self, env: VecLearnedReward, model: Any) -> None:
        self.threads: set[int] = set()
        self.held = 0
        self._drawn = threading.Event()
        self._model = model
        judge, gather = env.classifier.judge, model.replay_buffer._get_samples

        def judged(pictures: Any) -> Any:
            self.threads.add(threading.get_ident())
            if threading.current_thread() is not threading.main_thread():
                assert self._drawn.wait(60), "the learner has not begun"
                self._drawn.clear()
                self.held += 1
            return judge(pictures)

        def gathered(*arguments: Any, **options: Any) -> Any:
            batch = gather(*arguments, **options)
            self._drawn.set()
            return batch

        env.classifier.judge = judged  # type: ignore[method-assign]
        model.replay_buffer._get_samples = gathered


def test_the_learner_begins_before_the_reward_is_there(bundle: Bundle) -> None:
    def env() -> VecLearnedReward:
        return VecLearnedReward(flat(1), bundle, image_source="render", **REWARDS)

    # Three drawn of three: often the newest among them, whose reward is read before it is there.
    learner = {"learning_starts": 2, "batch_size": 3, "buffer_size": 30}
    expected = trained(SAC, env(), 60, **learner)
    judged = env()
    model = later(SAC)("MlpPolicy", judged, seed=SEED, **small(**learner))
    waits = Waits(judged, model)
    model.learn(60)
    # In plain trainings, too, a gradient step follows each of these.
    assert waits.held == model._n_updates == 58
    assert_same(left_by(model), expected)
    judged.close()


class Broken(ThreadCorridor):
    """Draws a picture of another size once."""

    at = 40

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.drawn = 0

    def render(self) -> Any:
        picture = super().render()
        self.drawn += 1
        return picture[:2] if self.drawn == self.at else picture


@pytest.mark.parametrize("buffer_size", [400, 20])
def test_a_step_that_cannot_be_scored_leaves_nothing_in_the_buffer(
    bundle: Bundle, buffer_size: int
) -> None:
    left = []
    for algorithm in (SAC, later(SAC)):
        broken = Steered(Broken(render_mode="rgb_array"))
        pictured = PictureInInfo(broken, only_last=True)
        env = VecLearnedReward(flat(1, lambda env=pictured: env), bundle, image_source="render")
        options = small(buffer_size=buffer_size, gradient_steps=2)
        model = algorithm("MlpPolicy", env, seed=SEED, **options)
        with pytest.raises(PictureMismatchError):
            model.learn(150)
        left.append(left_by(model))
        env.close()
    for name, values in left[0].replay.items():
        np.testing.assert_array_equal(left[1].replay[name], values)
    assert left[1].place == left[0].place


def test_an_error_of_the_learner_leaves_nothing_in_the_buffer(bundle: Bundle) -> None:
    env = VecLearnedReward(flat(1), bundle, image_source="render")
    model = later(SAC)("MlpPolicy", env, seed=SEED, **small())
    update, calls = model.critic.optimizer.step, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return update(*arguments)

    model.critic.optimizer.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        model.learn(60)
    assert np.isfinite(model.replay_buffer.rewards).all()
    assert model.replay_buffer.size() == model.num_timesteps
    model.learn(30, reset_num_timesteps=False)
    assert np.isfinite(model.replay_buffer.rewards).all()
    env.close()


class Stops(BaseCallback):
    """Ends the training after so many steps, and keeps what it is told."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after, self.told = after, []

    def _on_step(self) -> bool:
        infos = self.locals["infos"]
        self.told.append([(info["is_success"], info["reward_prob"]) for info in infos])
        self.told.append([*self.locals["rewards"], *self.locals["dones"]])
        return self.num_timesteps < self.after


@pytest.mark.parametrize("steps", [8, 41])
def test_callbacks_are_told_the_same_and_may_end_the_training(bundle: Bundle, steps: int) -> None:
    told = []
    for algorithm in (SAC, later(SAC)):
        env = VecLearnedReward(flat(1), bundle, image_source="render", **REWARDS)
        model = algorithm("MlpPolicy", env, seed=SEED, **small())
        stops = Stops(steps)
        model.learn(100, callback=stops)
        assert np.isfinite(model.replay_buffer.rewards).all()
        told.append(stops.told)
        env.close()
    assert told[0] == told[1] and len(told[0]) == 2 * steps


def test_what_is_saved_goes_on(bundle: Bundle, tmp_path: Path) -> None:
    left = []
    for algorithm in (SAC, later(SAC)):
        env = VecLearnedReward(flat(1), bundle, image_source="render", **REWARDS)
        model = algorithm("MlpPolicy", env, seed=SEED, **small())
        model.learn(50)
        model.save(tmp_path / "model")
        model.save_replay_buffer(tmp_path / "replay")
        again = algorithm.load(tmp_path / "model", env=env)
        again.load_replay_buffer(tmp_path / "replay")
        again.set_random_seed(3)
        again.learn(40, reset_num_timesteps=False)
        left.append(left_by(again))
        env.close()
    assert_same(left[1], left[0])


def test_a_subclass_is_as_good(bundle: Bundle) -> None:
    class LaterTD3(RewardLater, TD3):
        pass

    assert RewardLater.of(LaterTD3) is LaterTD3
    assert RewardLater.of(TD3) is RewardLater.of(TD3)
    assert RewardLater.of(TD3).__name__ == "TD3"

    def env() -> VecLearnedReward:
        return VecLearnedReward(flat(1), bundle, image_source="render")

    assert_same(trained(LaterTD3, env(), 60), trained(TD3, env(), 60))


def test_refusals(bundle: Bundle) -> None:
    with pytest.raises(ConfigError, match=r"PPO.*off-policy"):
        RewardLater.of(PPO)
    reward = LearnedReward(steered(), bundle, image_source="obs:image")
    with pytest.raises(ConfigError, match=r"DummyVecEnv.*VecLearnedReward as the outermost"):
        later(SAC)("MultiInputPolicy", reward)
    learned = VecLearnedReward(flat(1), bundle, image_source="render")
    with pytest.raises(ConfigError, match=r"VecNormalize.*outermost"):
        later(SAC)("MlpPolicy", VecNormalize(learned))
    for options, said in (
        ({"n_steps": 3}, "n_steps above 1"),
        ({"replay_buffer_class": HerReplayBuffer}, "HerReplayBuffer"),
        (
            {
                "optimize_memory_usage": True,
                "replay_buffer_kwargs": {"handle_timeout_termination": False},
            },
            "optimize_memory_usage",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            later(SAC)("MlpPolicy", learned, **small(**options))
    held = VecLearnedReward(
        flat(1), bundle, image_source="render", success_hold_steps=2, hold_in_observation=True
    )
    with pytest.raises(ConfigError, match="hold_in_observation"):
        later(SAC)("MlpPolicy", held)
    model = later(SAC)("MlpPolicy", learned, **small())
    model.env = DummyVecEnv([rendered_corridor])
    with pytest.raises(ConfigError, match="outermost"):
        model.learn(5)
