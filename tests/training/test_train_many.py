"""Training with many environments at once: one classification per step, the same rewards."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import toy_environments
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv
from train_runs import SMALL_DQN, TOY, assert_equal, one_by_one, together, toy_config, toy_task

from vinoreward import ClaimedVsTrue, RateAlarm, VecLearnedReward
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.configs import PlayConfig
from vinoreward_training.play.command import play
from vinoreward_training.policy.checkpoint import build_model
from vinoreward_training.policy.train import SETTINGS, train
from vinoreward_training.runs.report import EPISODE_COLUMNS, read_table
from vinoreward_training.tasks.environments import make_env
from vinoreward_training.tasks.many import make_envs

SMALL: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}, "buffer_size": 100, "seed": 0}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return toy_environments.save_toy_bundle(tmp_path_factory.mktemp("bundle") / "toy")


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({"hold": 2, "step_reward": -0.5}, {}),
        ({"reward_mode": "potential"}, {"gamma": 0.9}),
        ({"image_source": ("obs:image",), "env_kwargs": {"observation": "dict"}}, {}),
    ],
    ids=lambda options: " ".join(options),
)
def test_environments_in_one_batch_pay_what_single_ones_pay(
    bundle: Bundle, options: dict[str, Any], more: dict[str, Any]
) -> None:
    task = toy_task(bundle, **options)
    actions = (np.random.default_rng(3).random((30, 3)) < 0.65).astype(int)
    expected = one_by_one(3, actions, task, **more)
    found = together(3, actions, task, processes=False, **more)
    assert_equal(found, expected)
    assert any(step[3] for steps in found for step in steps)


def test_a_step_of_all_environments_is_one_classification(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    predict = Classifier.predict

    def counted(self: Any, images: Any) -> Any:
        sizes.append(len(images))
        return predict(self, images)

    monkeypatch.setattr(Classifier, "predict", counted)
    with contextlib.closing(make_envs(4, toy_task(bundle), processes=False)) as env:
        env.reset()
        sizes.clear()
        env.step(np.ones(4, int))
    assert [size for size in sizes if size] == [4]


@pytest.mark.parametrize("algorithm", ["DQN", "PPO"])
def test_training_in_many_environments_counts_all_steps_and_resumes(
    tmp_path: Path, bundle: Bundle, algorithm: str
) -> None:
    kwargs = SMALL_DQN if algorithm == "DQN" else {"n_steps": 10, "batch_size": 10}
    out = tmp_path / "run"
    result = train(toy_config(out, bundle, algorithm=algorithm, algorithm_kwargs=kwargs))
    assert result.steps == 120
    rows = read_table(out / "episodes.csv", EPISODE_COLUMNS)
    assert all(row["claimed"] is not None and row["true"] is not None for row in rows)
    # A step of three environments at a time: no episode ends between.
    assert all(row["step"] % 3 == 0 for row in rows if row["step"] is not None)
    more = train(SETTINGS.of(out=out, resume=True, timesteps=180))
    assert more.steps == 180
    assert read_table(out / "episodes.csv", EPISODE_COLUMNS)[: len(rows)] == rows
    played = play(PlayConfig(run=out, env=TOY, episodes=3, film=0))
    assert played.evaluation.claimed is not None and played.evaluation.true is not None


def test_as_many_gradient_steps_as_with_one_environment(bundle: Bundle) -> None:
    def updates(env: Any, **more: Any) -> int:
        model: Any = build_model("DQN", env, {**SMALL_DQN, **more}, seed=0, replay_size=100)
        model.learn(120)
        env.close()
        return int(model._n_updates)

    def many() -> Any:
        return make_envs(3, toy_task(bundle), processes=False)

    single = updates(make_env(toy_task(bundle)))
    assert updates(many()) == pytest.approx(single, abs=3)
    assert updates(many(), gradient_steps=1) == pytest.approx(single / 3, abs=1)


class OnlyOne(gym.Env[Any, Any]):
    """Holds something that exists once, such as a robot's port."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    held = 0

    def __init__(self) -> None:
        if OnlyOne.held > 1:
            raise OSError("the port is in use")
        OnlyOne.held += 1


class Goals(toy_environments.Corridor):
    """Observations as goal-conditioned environments have them."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__("vector", render_mode)
        vector = self.observation_space
        self.observation_space = gym.spaces.Dict({"observation": vector, "desired_goal": vector})

    def _observe(self) -> Any:
        goal = np.array([toy_environments.LAST_CELL, 0], np.float32)
        return {"observation": super()._observe(), "desired_goal": goal}


for kind in (OnlyOne, Goals):
    gym.register(f"VinorewardMany{kind.__name__}-v0", entry_point=kind)
OWN: dict[str, Any] = {"bundle": None, "success_reward": 100.0, "step_reward": -1.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_source": ("obs:camera",), "env_kwargs": {"observation": "dict"}},
         "image, position"),
        ({"image_source": ("obs",)}, "uint8"),
        ({"algorithm_kwargs": {"policy": "CnnPolicy"}}, r"DQN cannot be set up.*image"),
        # SB3's convolutions need 36 pixels.
        ({"image_source": ("obs:image",), "env_kwargs": {"observation": "dict"}}, "set up.*Kernel"),
        ({"env": "VinorewardManyOnlyOne-v0", **OWN}, r"3 environments .*port is in use"),
        # Other processes have not registered it.
        ({"env": "VinorewardManyOnlyOne-v0", **OWN, "vec_env": "subproc", "num_envs": 2},
         r"processes of their own.*--vec-env dummy"),
    ],
    ids=lambda value: "",
)  # fmt: skip
def test_what_cannot_be_trained_is_refused_before_a_step(
    tmp_path: Path, bundle: Bundle, changes: dict[str, Any], message: str
) -> None:
    OnlyOne.held = 0
    with pytest.raises(ConfigError, match=message):
        train(toy_config(tmp_path / "run", bundle, **changes))
    assert not (tmp_path / "run" / "episodes.csv").exists()


def test_dictionaries_of_observations_train_with_many_environments(
    tmp_path: Path, bundle: Bundle
) -> None:
    out = tmp_path / "run"
    env = {"env": "VinorewardManyGoals-v0"}
    assert train(toy_config(out, bundle, **env, timesteps=60)).steps == 60
    assert SETTINGS.of(out=out, resume=True).num_envs == 3
    more = train(SETTINGS.of(out=out, resume=True, timesteps=96))
    assert more.steps == 96
    assert play(PlayConfig(run=out, episodes=2, film=1)).film is not None


def test_many_environments_are_encoded_together_as_single_ones_are(
    tmp_path: Path, bundle: Bundle
) -> None:
    encoder = str(toy_environments.save_toy_encoder(tmp_path / "encoder").path)
    given: dict[str, Any] = {
        "env_kwargs": {"observation": "image"}, "encoder": encoder,
        "image_source": ("obs",),
    }  # fmt: skip
    task = toy_task(bundle, **given)
    actions = (np.random.default_rng(3).random((20, 2)) < 0.65).astype(int)
    expected, found = one_by_one(2, actions, task), together(2, actions, task)
    for one in (expected, found):
        for steps in one:
            assert all(step[0].shape == (toy_environments.LATENT,) for step in steps)
            steps[:] = [(np.round(step[0], 4), *step[1:]) for step in steps]
    assert_equal(found, expected)


def test_the_callback_records_claimed_and_true_success_in_any_training(
    bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    envs = make_vec_env(lambda: toy_environments.Corridor("image"), n_envs=2)
    env = VecLearnedReward(envs, bundle, image_source="obs", terminate_on_success=False)
    record = ClaimedVsTrue(window=5)
    DQN("MlpPolicy", env, learning_starts=1000, **SMALL).learn(200, callback=record)
    rows = record.episodes
    assert [row["step"] for row in rows] == sorted(int(row["step"] or 0) for row in rows)
    for name in ("claimed", "true"):
        values = [row[name] for row in rows[-5:]]
        assert record.rates()[name] == np.mean([value for value in values if value is not None])
    # The claim is made one cell before the truth, so the two are different in some episode.
    assert any(row["claimed"] != row["true"] for row in rows)
    assert all(row["reward"] is not None and row["length"] for row in rows)
    env.close()
    unknown = ClaimedVsTrue(verbose=1)
    model = DQN("MlpPolicy", gym.make("CartPole-v1"), learning_starts=1000, **SMALL)
    model.learn(120, callback=unknown)
    assert unknown.rates() == {} and {row["claimed"] for row in unknown.episodes} == {None}
    assert "true success is not known" in capsys.readouterr().out


class OutOfDistribution(gym.Env[np.ndarray, int]):
    """Episodes of three steps; from episode ``since`` on the second image is unlike the rest."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, since: int | None) -> None:
        self.since, self.episode = since, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.episode += 1
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        ood = self.since is not None and self.episode >= self.since and self.steps == 2
        info = {"reward_ood": np.float32(1.5 if ood else 0.4)}
        return np.zeros(1, np.float32), 0.0, False, self.steps == 3, info


@pytest.mark.parametrize("kind", ["false", "ood"])
def test_the_callback_tells_of_each_alarm_or_stops(bundle: Bundle, kind: str) -> None:
    """False claims end most episodes; images are out of distribution in one environment of two."""

    def trained(*, told: bool = True, **options: Any) -> ClaimedVsTrue:
        if told:
            options |= {"alarm": RateAlarm(), "ood_alarm": RateAlarm()}
        if kind == "ood":
            one, other = (lambda: OutOfDistribution(30)), (lambda: OutOfDistribution(None))
            env: Any = DummyVecEnv([one, other])
        else:
            envs = make_vec_env(lambda: toy_environments.Corridor("image"), n_envs=2)
            env = VecLearnedReward(envs, bundle, image_source="obs")
        record = ClaimedVsTrue(**options)
        DQN("MlpPolicy", env, learning_starts=1000, **SMALL).learn(400, record)
        env.close()
        return record

    words = r"alarm at step \d+: \d+ of the last \d+ claimed"
    if kind == "ood":
        words = r"of the last \d+ episodes show images unlike"
    with pytest.warns(UserWarning, match=words):
        told = trained()
    with pytest.warns(UserWarning, match=words):
        stopped = trained(on_alarm="stop")
    first = told.raised[kind][0]
    assert stopped.raised[kind] == [first] and stopped.episodes[-1]["step"] == first
    assert int(told.episodes[-1]["step"] or 0) > 380 > first
    if kind == "ood":
        flags = [row["ood"] for row in told.episodes]
        assert sum(flags[:58]) == 0 and sum(flags[60:62]) == 1  # type: ignore[arg-type]
        assert 30 * 6 < first < 30 * 6 + 60 and not told.raised["false"]
    assert trained(told=False).raised[kind] == []


@pytest.mark.slow
def test_processes_of_their_own_pay_the_same_on_one_thread_each(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    task, actions = toy_task(bundle), np.random.default_rng(3).integers(0, 2, (30, 2))
    try:
        elsewhere, here = (make_envs(2, task, processes=one) for one in (True, False))
        with contextlib.closing(elsewhere), contextlib.closing(here):
            assert elsewhere.env_method("threads") == [(1, "1", "1")] * 2
            for env in (elsewhere, here):
                env.seed(7)
            np.testing.assert_array_equal(elsewhere.reset(), here.reset())
            for row in actions:
                found, expected = elsewhere.step(row), here.step(row)
                for one, two in zip(found[:3], expected[:3], strict=True):
                    np.testing.assert_allclose(one, two, rtol=1e-5)
                claims = [[info["is_success"] for info in step[3]] for step in (found, expected)]
                assert claims[0] == claims[1]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
