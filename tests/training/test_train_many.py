"""Training with many environments at once: one classification per step, the same rewards."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import toy_environments
from many_runs import SMALL_DQN, TOY, assert_equal, one_by_one, together, toy_config
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv
from train_runs import config

from vinoreward import ClaimedVsTrue, RateAlarm, VecLearnedReward
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.configs import PlayConfig
from vinoreward_training.play.command import play
from vinoreward_training.policy.checkpoint import build_model, restore_checkpoint, save_checkpoint
from vinoreward_training.policy.train import SETTINGS, crowd, train
from vinoreward_training.runs.report import EPISODE_COLUMNS, read_table
from vinoreward_training.tasks.environments import make_env
from vinoreward_training.tasks.many import make_envs


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return toy_environments.save_toy_bundle(tmp_path_factory.mktemp("bundle") / "toy")


@pytest.mark.parametrize(
    "options",
    [
        {"hold": 2, "step_reward": -0.5},
        {"hold": 2, "exit_threshold": 0.05},
        {"reward_mode": "potential", "gamma": 0.9},
        {"reward_mode": "probability"},
        {"image_source": "obs:image", "env_kwargs": {"observation": "dict"}},
        pytest.param({"processes": True}, marks=pytest.mark.slow),
    ],
    ids=lambda options: " ".join(options),
)
def test_environments_in_one_batch_pay_what_single_ones_pay(
    bundle: Bundle, options: dict[str, Any]
) -> None:
    given = {"bundle": str(bundle.path), "wrap_bundle": True, **options}
    processes = given.pop("processes", False)
    actions = (np.random.default_rng(3).random((30, 3)) < 0.65).astype(int)
    expected = one_by_one(3, actions, TOY, **given)
    found = together(3, actions, TOY, processes=processes, **given)
    assert_equal(found, expected)
    assert any(step[3] for steps in found for step in steps)
    ends = options.get("reward_mode") != "probability"
    assert any(step[3] and not step[2] for steps in found for step in steps) is not ends


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({"hold": 2}, {"success_hold_steps": 2, "hold_in_observation": True}),
        (
            {"hold": 2, "exit_threshold": 0.05},
            {
                "success_hold_steps": 2,
                "success_exit_threshold": 0.05,
                "hold_in_observation": True,
            },
        ),
        (
            {"success_reward": 3.0, "step_reward": -0.5},
            {"success_reward": 3.0, "step_reward": -0.5},
        ),
        (
            {"reward_mode": "potential", "gamma": 0.9},
            {"reward_mode": "potential", "gamma": 0.9, "terminate_on_success": True},
        ),
        ({"reward_mode": "log_odds"}, {"reward_mode": "log_odds", "terminate_on_success": False}),
        ({"precision": "fp32", "backend": "torch"}, {"precision": "fp32", "backend": "torch"}),
    ],
    ids=lambda options: " ".join(options),
)
def test_options_become_arguments_of_the_learned_reward(
    bundle: Bundle, options: dict[str, Any], meant: dict[str, Any]
) -> None:
    env = make_env(TOY, bundle=str(bundle.path), wrap_bundle=True, **options)
    assert env.spec is not None
    arguments = env.spec.additional_wrappers[-1].kwargs
    assert arguments is not None and {name: arguments[name] for name in meant} == meant
    env.close()


def test_a_step_of_all_environments_is_one_classification(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    predict = Classifier.predict
    monkeypatch.setattr(
        Classifier,
        "predict",
        lambda self, images: (sizes.append(len(images)), predict(self, images))[1],
    )
    env = make_envs(4, TOY, bundle=str(bundle.path), wrap_bundle=True, processes=False)
    env.reset()
    sizes.clear()
    env.step(np.ones(4, int))
    assert [size for size in sizes if size] == [4]
    env.close()


def test_hover_scenes_in_one_batch_pay_what_single_ones_pay() -> None:
    actions = np.random.default_rng(0).uniform(-0.1, 0.1, (14, 2, 2)).astype(np.float32)
    actions[:4] = (0.05, -0.09)  # towards the object at its fixed place
    arguments: dict[str, Any] = {
        "env_id": "PandaHover-v0",
        "env_kwargs": {"success_threshold": 0.4},
    }
    expected = one_by_one(2, actions, **arguments)
    found = together(2, actions, processes=False, **arguments)
    assert_equal(found, expected)
    paid = {round(float(step[1])) for steps in found for step in steps}
    assert paid == {100, -1, -5}


def test_a_claim_on_a_refused_move_pays_in_one_batch_what_it_pays_alone() -> None:
    actions = np.full((3, 2, 2), (-0.1, 0.0), np.float32)  # out of the workspace, from home
    arguments: dict[str, Any] = {
        "env_id": "PandaHover-v0",
        "env_kwargs": {"object_position": (0.45, 0.0), "success_threshold": 0.1},
        "hold": 2,
    }
    expected = one_by_one(2, actions, **arguments)
    assert [(step[1], step[3]) for step in expected[0][:2]] == [(-5.0, False), (100.0, True)]
    assert_equal(together(2, actions, processes=False, **arguments), expected)


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
    assert 120 - 3 * 6 <= sum(int(row["length"] or 0) for row in rows) <= 120
    more = train(SETTINGS.of(out=out, resume=True, timesteps=180, progress=False))
    assert more.steps == 180
    assert read_table(out / "episodes.csv", EPISODE_COLUMNS)[: len(rows)] == rows
    with pytest.raises(ConfigError, match="num_envs"):
        train(SETTINGS.of(out=out, resume=True, num_envs=2))
    played = play(PlayConfig(run=out, env=TOY, episodes=3, film=0, progress=False))
    assert played.evaluation.claimed is not None and played.evaluation.true is not None


@pytest.mark.slow
def test_a_checkpoint_restores_the_generators_of_all_environments(
    tmp_path: Path, bundle: Bundle
) -> None:
    def learned(env: Any, steps: int, seed: int) -> Any:
        model = build_model("DQN", env, SMALL_DQN, seed=seed, replay_size=100)
        return model.learn(steps)

    given: dict[str, Any] = {"bundle": str(bundle.path), "wrap_bundle": True}
    with (
        contextlib.closing(make_envs(2, TOY, processes=True, **given)) as elsewhere,
        contextlib.closing(make_envs(2, TOY, processes=False, **given)) as here,
    ):
        save_checkpoint(tmp_path / "c.pt", learned(elsewhere, 32, 0))
        two = learned(here, 16, 5)
        restore_checkpoint(tmp_path / "c.pt", two)
        assert (two.num_timesteps, two.replay_buffer.pos) == (32, 16)
        np.testing.assert_array_equal(elsewhere.reset(), here.reset())


def test_as_many_gradient_steps_as_with_one_environment(bundle: Bundle) -> None:
    def updates(env: Any, **more: Any) -> int:
        model = build_model("DQN", env, {**SMALL_DQN, **more}, seed=0, replay_size=100)
        model.learn(120)
        env.close()
        return int(model._n_updates)  # type: ignore[attr-defined]

    def many() -> Any:
        return make_envs(3, TOY, bundle=str(bundle.path), wrap_bundle=True, processes=False)

    single = updates(make_env(TOY, bundle=str(bundle.path), wrap_bundle=True))
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


@pytest.fixture
def only_one() -> Iterator[str]:
    gym.register("OnlyOne-v0", entry_point=OnlyOne)
    yield "OnlyOne-v0"
    gym.registry.pop("OnlyOne-v0")


def test_an_environment_that_cannot_be_made_several_times_is_refused(
    tmp_path: Path, only_one: str
) -> None:
    with pytest.raises(
        ConfigError, match=r"3 environments OnlyOne-v0 .*port is in use.*--num-envs 1"
    ):
        train(config(tmp_path / "a", env=only_one, algorithm="DQN", num_envs=3, vec_env="dummy"))
    # Other processes have not registered it.
    OnlyOne.held = 0
    with pytest.raises(ConfigError, match=r"processes of their own.*--vec-env dummy"):
        train(config(tmp_path / "b", env=only_one, algorithm="DQN", num_envs=2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"image_source": ("obs:camera",), "env_kwargs": {"observation": "dict"}},
            "image, position",
        ),
        ({"image_source": ("obs",)}, "uint8"),
        ({"algorithm": "SAC"}, r"SAC, but .*ToyCorridor-v0 takes.*Discrete.*Expected DQN"),
        ({"algorithm_kwargs": {"policy": "CnnPolicy"}}, r"DQN cannot be set up.*image"),
        # SB3's convolutions need 36 pixels.
        ({"image_source": ("obs:image",), "env_kwargs": {"observation": "dict"}}, "set up.*Kernel"),
        ({"hold": 0}, "hold"),
        ({"exit_threshold": 0.1}, "hold=1.*--hold above 1"),
        ({"exit_threshold": 0.9, "hold": 2}, "0.9.*harder to keep"),
        ({"num_envs": 0}, "num_envs"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_a_step(
    tmp_path: Path, bundle: Bundle, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(toy_config(tmp_path / "run", bundle, **changes))
    assert not (tmp_path / "run" / "episodes.csv").exists()


class Told(toy_environments.Corridor):
    """A corridor whose observation has text in it."""

    def __init__(self) -> None:
        super().__init__("dict")
        told = gym.spaces.Dict({"mission": gym.spaces.Text(9)})
        self.observation_space = gym.spaces.Dict({"told": told, "cell": self.observation_space})

    def _observe(self) -> Any:
        return {"told": {"mission": "go there"}, "cell": super()._observe()}


gym.register("VinorewardTestTold-v0", entry_point=Told)


@pytest.mark.parametrize("algorithm", ["DQN", "PPO"])
def test_text_in_an_observation_is_named(tmp_path: Path, algorithm: str) -> None:
    with pytest.raises(ConfigError, match=r"the entry 'told.mission' of the observation is Text.*"):
        train(config(tmp_path / "run", env="VinorewardTestTold-v0", algorithm=algorithm))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_source": ("obs",)}, r"--image-source obs.*CartPole-v1 has none.*--wrap-bundle"),
        ({"reward_mode": "potential", "env": "PandaHover-v0"}, "--reward-mode potential.*its own"),
        ({"hold": 2}, r"--hold 2"),
        ({"hold": 2, "exit_threshold": 0.1}, r"--hold 2"),
        ({"success_reward": 100.0, "env": "PandaHover-v0"}, "--success-reward 100.*its own"),
        ({"step_reward": -1.0}, "--step-reward -1.*--wrap-bundle"),
    ],
)
def test_options_of_a_reward_that_is_not_there_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(config(tmp_path / "run", **{"env": "CartPole-v1", **changes}))


class Goals(toy_environments.Corridor):
    """Observations as goal-conditioned environments have them."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__("vector", render_mode)
        vector = self.observation_space
        self.observation_space = gym.spaces.Dict({"observation": vector, "desired_goal": vector})

    def _observe(self) -> Any:
        goal = np.array([toy_environments.LAST_CELL, 0], np.float32)
        return {"observation": super()._observe(), "desired_goal": goal}


@pytest.fixture
def goals() -> Iterator[str]:
    gym.register("Goals-v0", entry_point=Goals)
    yield "Goals-v0"
    gym.registry.pop("Goals-v0")


def test_dictionaries_of_observations_train_with_many_environments(
    tmp_path: Path, bundle: Bundle, goals: str
) -> None:
    out = tmp_path / "run"
    assert train(toy_config(out, bundle, env=goals, timesteps=60)).steps == 60
    assert SETTINGS.of(out=out, resume=True).num_envs == 3
    more = train(SETTINGS.of(out=out, resume=True, timesteps=96, progress=False))
    assert more.steps == 96
    assert play(PlayConfig(run=out, episodes=2, film=1, progress=False)).film is not None


@pytest.mark.parametrize("source", ["render", "obs"])
def test_many_environments_are_encoded_together_as_single_ones_are(
    tmp_path: Path, bundle: Bundle, source: str
) -> None:
    encoder = str(toy_environments.save_toy_encoder(tmp_path / "encoder").path)
    pixels = {"observation": "image"}
    given = {
        "env_kwargs": pixels,
        "encoder": encoder,
        "frame_stack": 2,
        "image_source": source,
        "bundle": str(bundle.path),
        "wrap_bundle": True,
    }
    actions = (np.random.default_rng(3).random((20, 2)) < 0.65).astype(int)
    expected, found = one_by_one(2, actions, TOY, **given), together(2, actions, TOY, **given)
    for one in (expected, found):
        for steps in one:
            assert all(step[0].shape == (2 * toy_environments.LATENT,) for step in steps)
            steps[:] = [(np.round(step[0], 4), *step[1:]) for step in steps]
    assert_equal(found, expected)
    if source == "obs":
        return  # one training is enough
    named = {key: given[key] for key in ("env_kwargs", "encoder", "frame_stack")}
    out = tmp_path / "run"
    named |= {"num_envs": 2, "image_source": (source,), "final_episodes": 2}
    assert train(toy_config(out, bundle, timesteps=32, **named)).steps == 32
    more = train(SETTINGS.of(out=out, resume=True, timesteps=40, progress=False))
    assert more.steps == 40
    assert play(PlayConfig(run=out, episodes=1, film=1, progress=False)).film is not None


def test_the_callback_records_claimed_and_true_success_in_any_training(bundle: Bundle) -> None:
    envs = make_vec_env(lambda: toy_environments.Corridor("image"), n_envs=2)
    env = VecLearnedReward(envs, bundle, image_source="obs", terminate_on_success=False)
    record = ClaimedVsTrue(window=5)
    arguments: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}, "buffer_size": 100, "seed": 0}
    model = DQN("MlpPolicy", env, learning_starts=1000, **arguments)
    model.learn(200, callback=record)
    rows = record.episodes
    assert [row["step"] for row in rows] == sorted(int(row["step"] or 0) for row in rows)
    recent = rows[-5:]
    for name in ("claimed", "true"):
        values = [row[name] for row in recent]
        assert record.rates()[name] == np.mean([value for value in values if value is not None])
    # The claim is made one cell before the truth, so the two are different in some episode.
    assert any(row["claimed"] != row["true"] for row in rows)
    assert all(row["reward"] is not None and row["length"] for row in rows)
    env.close()
    with pytest.raises(ConfigError, match="window is 0"):
        ClaimedVsTrue(window=0)


def test_the_callback_tells_of_false_claims_or_stops(bundle: Bundle) -> None:
    # The claim comes one cell before the truth and ends the episode: most claims are none.
    def trained(record: ClaimedVsTrue) -> ClaimedVsTrue:
        envs = make_vec_env(lambda: toy_environments.Corridor("image"), n_envs=2)
        env = VecLearnedReward(envs, bundle, image_source="obs")
        arguments: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}, "buffer_size": 100}
        DQN("MlpPolicy", env, learning_starts=1000, seed=0, **arguments).learn(400, record)
        env.close()
        return record

    with pytest.warns(UserWarning, match=r"alarm at step \d+: \d+ of the last \d+ claimed"):
        told = trained(ClaimedVsTrue(alarm=RateAlarm()))
    with pytest.warns(UserWarning, match="vinoreward audit"):
        stopped = trained(ClaimedVsTrue(alarm=RateAlarm(), on_alarm="stop"))
    assert stopped.raised["false"] == told.raised["false"][:1]
    assert (
        len(told.raised["false"]) > 1
        and told.episodes[-1]["step"] > 380 > stopped.raised["false"][0]
    )
    assert stopped.episodes[-1]["step"] == stopped.raised["false"][0]
    assert trained(ClaimedVsTrue()).raised["false"] == []
    with pytest.raises(ConfigError, match="tell or stop"):
        ClaimedVsTrue(on_alarm="shout")  # type: ignore[arg-type]


class OutOfDistribution(gym.Env[np.ndarray, int]):
    """Episodes of three steps; from episode ``since`` on the second image is unlike the rest."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, since: int | None, guarded: bool = True) -> None:
        self.since, self.guarded, self.episode = since, guarded, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.episode += 1
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        ood = self.since is not None and self.episode >= self.since and self.steps == 2
        info = {"reward_ood": np.float32(1.5 if ood else 0.4)} if self.guarded else {}
        return np.zeros(1, np.float32), 0.0, False, self.steps == 3, info


def test_the_callback_tells_of_ood_images_without_any_truth() -> None:
    """In the middle of an episode, of one environment of two."""

    def trained(since: int | None, *, guarded: bool = True, **options: Any) -> ClaimedVsTrue:
        envs = DummyVecEnv(
            [lambda: OutOfDistribution(since, guarded), lambda: OutOfDistribution(None, guarded)]
        )
        record = ClaimedVsTrue(ood_alarm=RateAlarm(), **options)
        arguments: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}, "buffer_size": 100}
        DQN("MlpPolicy", envs, learning_starts=1000, seed=0, **arguments).learn(400, record)
        return record

    with pytest.warns(UserWarning, match=r"of the last \d+ episodes show images unlike"):
        told = trained(30)
    flags = [row["ood"] for row in told.episodes]
    assert sum(flags[:58]) == 0 and len(set(zip(flags[60::2], flags[61::2], strict=False))) == 1
    assert sum(flags[60:62]) == 1, "of one environment"
    assert (
        told.raised["ood"]
        and 30 * 6 < told.raised["ood"][0] < 30 * 6 + 60
        and not told.raised["false"]
    )
    with pytest.warns(UserWarning, match="unlike those of the classifier.s training"):
        stopped = trained(30, on_alarm="stop")
    assert stopped.episodes[-1]["step"] == stopped.raised["ood"][0] == told.raised["ood"][0]
    assert trained(None).raised["ood"] == []
    assert {row["ood"] for row in trained(1, guarded=False).episodes} == {None}


def test_a_training_tells_of_false_claims_stops_and_goes_on(
    tmp_path: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    stopped = train(toy_config(out, bundle, timesteps=600, on_alarm="stop", final_episodes=2))
    summary = json.loads((out / "summary.json").read_text())
    assert stopped.steps < 600 and summary["alarms"][0] <= stopped.steps
    assert (
        len(summary["alarms"]) == 1
        and "alarms of false claims" in (out / "report.html").read_text()
    )
    said = capsys.readouterr().out
    assert "claimed successes are false" in said and "has no guard: nothing tells" in said
    assert f"Stopped at step {stopped.steps} by the alarm. Continue with: vinoreward train" in said
    more = train(SETTINGS.of(out=out, resume=True, on_alarm="tell", progress=False))
    assert more.steps == 600
    alarms = json.loads((out / "summary.json").read_text())["alarms"]
    assert alarms[0] == summary["alarms"][0] and len(alarms) > 1
    capsys.readouterr()
    quiet = train(toy_config(tmp_path / "quiet", bundle, timesteps=600, on_alarm="off"))
    assert quiet.steps == 600 and "claimed successes are false" not in capsys.readouterr().out


def test_the_callback_leaves_out_what_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    record = ClaimedVsTrue(verbose=1)
    model = DQN("MlpPolicy", gym.make("CartPole-v1"), learning_starts=1000, buffer_size=100, seed=0)
    model.learn(120, callback=record)
    assert record.rates() == {}
    assert {row["claimed"] for row in record.episodes} == {None}
    assert "true success is not known" in capsys.readouterr().out
    named = ClaimedVsTrue("at_goal")
    with pytest.raises(ConfigError, match="without 'at_goal'"):
        model.learn(120, callback=named)


@pytest.mark.slow
@pytest.mark.parametrize("by_user", [None, "2"])
def test_each_process_computes_on_one_thread_unless_the_user_says_otherwise(
    by_user: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if by_user is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", by_user)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        made = make_envs(2, "counting_threads:CountsThreads-v0")
        with contextlib.closing(made) as env:
            expected = by_user or "1"
            assert env.env_method("threads") == [(int(expected), expected, expected)] * 2
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_what_is_said_of_processes_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert crowd(2, 4).endswith("computes on 1 thread.")
    assert "share 2 cores" in crowd(16, 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert "4 threads, as OMP_NUM_THREADS says" in crowd(2, 4)
