"""One contract for the three forms of EncodedObservation: the same episodes look the same."""

from __future__ import annotations

import copy
import functools
import json
import pickle
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack
from toy_environments import (
    LATENT,
    Camera,
    Corridor,
    save_toy_bundle,
    save_toy_encoder,
    toy_latents,
)

from vinoreward import (
    EncodedObservation,
    Encoder,
    LearnedReward,
    VecEncodedObservation,
    VecLearnedReward,
    VectorEncodedObservation,
    VectorLearnedReward,
)
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, InputError, PictureMismatchError
from vinoreward.wrappers.encoding import EncodingCore, EncodingOptions
from vinoreward.wrappers.render_once import RenderOnce
from vinoreward.wrappers.sources import PictureSource

ENVS = 3
TRANSITIONS = 25
SEED = 5
MODES = list(AutoresetMode)

OPTIONS: dict[str, dict[str, Any]] = {
    "latent": {},
    "stack": {"frame_stack": 3},
    "keep": {"keep": ("joints", "gear"), "image_source": "obs:camera"},
    "all": {"keep": ["gear"], "frame_stack": 2, "sample": True, "seed": 11},
    "sample": {"sample": True},
    "picture": {"picture_in_info": True, "frame_stack": 2},
}


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return save_toy_encoder(tmp_path_factory.mktemp("encoder") / "toy")


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return save_toy_encoder(tmp_path_factory.mktemp("plain") / "toy", posterior=False)


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return save_toy_bundle(tmp_path_factory.mktemp("classifier") / "toy")


# --- what every form tells: (observation, picture) at the start of an episode and of each step ---

Seen = tuple[Any, Any]


def one_after_another(bundle: Bundle, env: dict[str, Any], **options: Any) -> list[list[Seen]]:
    """The oracle: N single environments in a plain loop; starts and steps in order."""
    everything = []
    for index in range(ENVS):
        single = EncodedObservation(Camera(**env), bundle, **options)
        observation, info = single.reset(seed=SEED + index)
        seen = [(observation, info.get("picture"))]
        for _ in range(TRANSITIONS):
            observation, _, terminated, truncated, info = single.step(0)
            seen.append((observation, info.get("picture")))
            if terminated or truncated:
                observation, info = single.reset()
                seen.append((observation, info.get("picture")))
        single.close()
        everything.append(seen)
    return everything


def picture_at(infos: dict[str, Any], i: int) -> Any:
    return infos["picture"][i].copy() if "picture" in infos and infos["_picture"][i] else None


def vector_rollout(env: VectorEncodedObservation) -> list[list[Seen]]:
    mode = env.metadata["autoreset_mode"]
    observations, infos = env.reset(seed=SEED)
    assert env.observation_space.contains(observations)
    found = [[(observations[i].copy(), picture_at(infos, i))] for i in range(ENVS)]
    for _ in range(2 * TRANSITIONS):
        observations, _, terminated, truncated, infos = env.step(np.zeros(ENVS, int))
        assert env.observation_space.contains(observations)
        over = terminated | truncated
        for i in range(ENVS):
            if mode is AutoresetMode.SAME_STEP and over[i]:
                final = infos["final_obs"][i]
                assert env.single_observation_space.contains(final)
                found[i].append((final, picture_at(infos["final_info"], i)))
            found[i].append((observations[i].copy(), picture_at(infos, i)))
        if mode is AutoresetMode.DISABLED and over.any():
            before = observations.copy()
            observations, infos = env.reset(options={"reset_mask": over})
            np.testing.assert_array_equal(observations[~over], before[~over])
            for i in np.flatnonzero(over):
                found[i].append((observations[i].copy(), picture_at(infos, i)))
    env.close()
    return found


def sb3_rollout(env: VecEncodedObservation) -> list[list[Seen]]:
    env.seed(SEED)
    observations = env.reset()
    found = [[(observations[i].copy(), env.reset_infos[i].get("picture"))] for i in range(ENVS)]
    for _ in range(TRANSITIONS):
        observations, _, dones, infos = env.step(np.zeros(ENVS, int))
        for i, info in enumerate(infos):
            if dones[i]:
                assert env.observation_space.contains(info["terminal_observation"])
                found[i].append((info["terminal_observation"], info.get("picture")))
                info = env.reset_infos[i]
            found[i].append((observations[i].copy(), info.get("picture")))
    env.close()
    return found


def assert_same(found: list[list[Seen]], expected: list[list[Seen]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        shared = min(len(ours), len(theirs))
        assert shared > TRANSITIONS
        for number in range(shared):
            where = f"item {number}"
            # Batches of another size are summed in another order.
            np.testing.assert_allclose(ours[number][0], theirs[number][0], atol=1e-5, err_msg=where)
            np.testing.assert_equal(ours[number][1], theirs[number][1], err_msg=where)


def sync(mode: AutoresetMode, **env: Any) -> SyncVectorEnv:
    return SyncVectorEnv([functools.partial(Camera, **env)] * ENVS, autoreset_mode=mode)


# --- the oracle itself, from first principles ----------------------------------------------------


def test_the_single_form_says_what_the_picture_holds(bundle: Bundle) -> None:
    raw, env = (
        Camera("dict"),
        EncodedObservation(
            Camera("dict"), bundle, keep=["joints", "gear"], frame_stack=3, picture_in_info=True
        ),
    )
    history: deque[np.ndarray] = deque(maxlen=3)
    for episode in range(4):
        seed = 3 if episode == 0 else None
        theirs, info = raw.reset(seed=seed)
        ours, said = env.reset(seed=seed)
        history.extend([toy_latents(theirs["camera"][None])[0, :LATENT]] * 3)
        while True:
            gear = np.eye(3)[theirs["gear"]]
            wanted = np.concatenate([*history, theirs["joints"], gear])
            np.testing.assert_allclose(ours, wanted, atol=1e-4)
            assert ours.dtype == np.float32 and env.observation_space.contains(ours)
            np.testing.assert_array_equal(said["picture"], theirs["camera"])
            if raw.over:
                break
            theirs, _, _, _, info = raw.step(0)
            ours, _, _, _, said = env.step(0)
            assert said["steps"] == info["steps"]
            history.append(toy_latents(theirs["camera"][None])[0, :LATENT])
    env.close()


def test_the_bounds_are_stated(bundle: Bundle, tmp_path: Path) -> None:
    env = EncodedObservation(Camera("dict"), bundle, keep=("joints", "gear"), frame_stack=2)
    space = env.observation_space
    assert isinstance(space, gym.spaces.Box) and space.dtype == np.float32
    assert space.low.tolist() == [-20] * 6 + [-1, -1, 0, 0, 0]
    assert space.high.tolist() == [20] * 6 + [30, 30, 1, 1, 1]
    narrow = EncodedObservation(Camera(), save_toy_encoder(tmp_path / "narrow", bound=0.25))
    observation, _ = narrow.reset(seed=0)
    assert narrow.observation_space.contains(observation)
    assert np.abs(observation).max() == 0.25, "clipped to the bounds"


# --- the three forms -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_vector_form_equals_single_environments(
    bundle: Bundle, mode: AutoresetMode, name: str
) -> None:
    env = {"observation": "dict"}
    expected = one_after_another(bundle, env, **OPTIONS[name])
    assert_same(
        vector_rollout(VectorEncodedObservation(sync(mode, **env), bundle, **OPTIONS[name])),
        expected,
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_sb3_form_equals_single_environments(bundle: Bundle, name: str) -> None:
    expected = one_after_another(bundle, {"observation": "dict"}, **OPTIONS[name])
    venv = DummyVecEnv([functools.partial(Camera, "dict")] * ENVS)
    assert_same(sb3_rollout(VecEncodedObservation(venv, bundle, **OPTIONS[name])), expected)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_vector_form_by_rendering(bundle: Bundle, mode: AutoresetMode) -> None:
    env = {"observation": "vector", "render_mode": "rgb_array"}
    expected = one_after_another(bundle, env, frame_stack=2)
    found = vector_rollout(VectorEncodedObservation(sync(mode, **env), bundle, frame_stack=2))
    assert_same(found, expected)


@pytest.mark.parametrize("kind", ["picture", "planes", "dict"])
def test_every_layout_of_one_picture_is_the_same_picture(bundle: Bundle, kind: str) -> None:
    expected = one_after_another(bundle, {"observation": "picture"}, picture_in_info=True)
    assert_same(one_after_another(bundle, {"observation": kind}, picture_in_info=True), expected)
    venv = DummyVecEnv([functools.partial(Camera, kind)] * ENVS)
    assert_same(sb3_rollout(VecEncodedObservation(venv, bundle, picture_in_info=True)), expected)


@pytest.mark.parametrize("kind", ["stack", "stack_planes", "channels", "channels_first"])
def test_stacked_pictures_are_encoded_one_by_one(bundle: Bundle, kind: str) -> None:
    """The environment stacks two pictures, the first twice: frame_stack=2 of single ones."""
    expected = one_after_another(bundle, {}, frame_stack=2, picture_in_info=True)
    env = {"observation": kind}
    assert_same(one_after_another(bundle, env, picture_in_info=True), expected)
    for mode in MODES:
        vector = VectorEncodedObservation(sync(mode, **env), bundle, picture_in_info=True)
        assert_same(vector_rollout(vector), expected)


def test_stacks_of_stacks_are_oldest_first(bundle: Bundle) -> None:
    env = EncodedObservation(Camera("channels"), bundle, frame_stack=2)
    raw = Camera("stack")
    pairs = [raw.reset(seed=1)[0]]
    env.reset(seed=1)
    pairs.append(raw.step(0)[0])
    observation, *_ = env.step(0)
    wanted = [toy_latents(pair)[:, :LATENT].reshape(-1) for pair in pairs]
    np.testing.assert_allclose(observation, np.concatenate(wanted), atol=1e-4)


def test_sb3s_own_frame_stack_is_understood(bundle: Bundle) -> None:
    stacked = VecEncodedObservation(VecFrameStack(DummyVecEnv([Camera] * ENVS), 2), bundle)
    assert stacked.observation_space.shape == (2 * LATENT,)
    stacked.seed(SEED)
    first = stacked.reset()
    # SB3 fills the past with black pictures, not with the first one.
    black = toy_latents(np.zeros((1, 6, 8, 3), np.uint8))[0, :LATENT]
    np.testing.assert_allclose(first[:, :LATENT], np.tile(black, (ENVS, 1)), atol=1e-4)
    stacked.close()


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_vector_form_over_processes(bundle: Bundle, mode: AutoresetMode) -> None:
    options = OPTIONS["all"]
    expected = one_after_another(bundle, {"observation": "dict"}, **options)
    inner = AsyncVectorEnv(
        [functools.partial(Camera, "dict")] * ENVS, autoreset_mode=mode, context="spawn"
    )
    assert_same(vector_rollout(VectorEncodedObservation(inner, bundle, **options)), expected)


@pytest.mark.slow
def test_sb3_form_over_processes(bundle: Bundle) -> None:
    expected = one_after_another(bundle, {"observation": "dict"}, **OPTIONS["all"])
    venv = SubprocVecEnv([functools.partial(Camera, "dict")] * ENVS, start_method="spawn")
    assert_same(sb3_rollout(VecEncodedObservation(venv, bundle, **OPTIONS["all"])), expected)


def wrapped(path: str) -> gym.Env[Any, Any]:
    return EncodedObservation(Camera("dict"), path, frame_stack=2)


@pytest.mark.slow
def test_wrapped_environments_run_in_spawned_workers(bundle: Bundle) -> None:
    expected = one_after_another(bundle, {"observation": "dict"}, frame_stack=2)
    venv = SubprocVecEnv(
        [functools.partial(wrapped, str(bundle.path))] * ENVS, start_method="spawn"
    )
    venv.seed(SEED)
    first = venv.reset()
    np.testing.assert_allclose(first, [seen[0][0] for seen in expected], atol=1e-5)
    venv.close()


def test_a_wrapped_environment_can_be_pickled(bundle: Bundle) -> None:
    env = EncodedObservation(Camera("dict"), bundle, frame_stack=2, sample=True, seed=3)
    env.reset(seed=1)
    env.step(0)
    twin = pickle.loads(pickle.dumps(env))
    np.testing.assert_array_equal(twin.step(0)[0], env.step(0)[0])
    env.close()
    twin.close()


# --- samples -------------------------------------------------------------------------------------


def run(env: gym.Env[Any, Any], *seeds: int | None) -> np.ndarray:
    seen = []
    for seed in seeds:
        seen.append(env.reset(seed=seed)[0])
        seen += [env.step(0)[0] for _ in range(2)]
    env.close()
    return np.array(seen)


def test_samples_are_the_same_for_the_same_seeds_only(bundle: Bundle) -> None:
    make = functools.partial(EncodedObservation, bundle=bundle, sample=True)
    first = run(make(Camera(), seed=4), 1, None)
    np.testing.assert_array_equal(first, run(make(Camera(), seed=4), 1, None))
    assert not np.allclose(first, run(make(Camera(), seed=5), 1, None))
    assert not np.allclose(first, run(make(Camera()), 1, None))
    np.testing.assert_array_equal(run(make(Camera()), 1, None), run(make(Camera()), 1, None))
    mean = run(EncodedObservation(Camera(), bundle), 1, None)
    assert not np.allclose(first, mean) and first.shape == mean.shape


def test_a_plain_autoencoder_has_nothing_to_sample(plain: Bundle) -> None:
    EncodedObservation(Camera(), plain).close()
    with pytest.raises(ConfigError, match="posterior"):
        EncodedObservation(Camera(), plain, sample=True)


# --- frame stacks --------------------------------------------------------------------------------


@given(
    depth=st.integers(1, 5),
    events=st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=40),
)
@settings(deadline=None, max_examples=60)
def test_stacks_are_those_of_a_deque(depth: int, events: list[tuple[int, bool]]) -> None:
    core = EncodingCore.__new__(EncodingCore)
    core.options = EncodingOptions(frame_stack=depth)
    core._kept = {}
    core._stacks = np.zeros((3, depth, 2), np.float32)
    naive = [deque([np.zeros(2, np.float32)] * depth, maxlen=depth) for _ in range(3)]
    for number, (index, starts) in enumerate(events):
        latent = np.array([number, -number], np.float32)
        if starts:
            core.begin(index, latent)
            naive[index].extend([latent] * depth)
        else:
            core.push(index, latent)
            naive[index].append(latent)
        for i in range(3):
            np.testing.assert_array_equal(core.observation(i, None), np.concatenate(naive[i]))


# --- with a learned reward -----------------------------------------------------------------------


class CountedCorridor(Corridor):
    """A corridor that counts how often others render it."""

    drawn = 0

    def render(self) -> Any:
        self.drawn += 1
        return super().render()

    def _observe(self) -> Any:
        return np.array([self.cell, self.steps], np.float32)


@pytest.mark.parametrize("inside", ["reward", "encoder"])
def test_one_frame_is_rendered_once(bundle: Bundle, classifier: Bundle, inside: str) -> None:
    raw = CountedCorridor(render_mode="rgb_array", first_cells=(1,))
    env: gym.Env[Any, Any] = raw
    for kind in ("reward", "encoder") if inside == "reward" else ("encoder", "reward"):
        if kind == "reward":
            env = LearnedReward(env, classifier, reward_mode="potential")
        else:
            env = EncodedObservation(env, bundle)
    layers, layer = 0, env
    while isinstance(layer, gym.Wrapper):
        layers += isinstance(layer, RenderOnce)
        layer = layer.env
    assert layers == 1
    observation, _ = env.reset(seed=0)
    assert raw.drawn == 1
    for step in range(4):
        observation, _, terminated, truncated, info = env.step(1)
        assert raw.drawn == step + 2
        frame = env.render()
        assert raw.drawn == step + 2
        wanted = toy_latents(np.asarray(frame)[None])[0, :LATENT]
        np.testing.assert_allclose(observation, wanted, atol=1e-4)
        assert info["is_success"] is (raw.cell >= 5)
    assert terminated and not truncated
    env.close()


def test_who_draws_on_a_frame_draws_on_a_copy() -> None:
    env = RenderOnce(Camera(render_mode="rgb_array"))
    env.reset(seed=0)
    first = env.render()
    kept = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(env.render(), kept)
    assert env.unwrapped.renders == 1
    env.step(0)
    assert not np.array_equal(env.render(), kept)
    env.reset(seed=0)
    np.testing.assert_array_equal(env.render(), kept)
    assert env.unwrapped.renders == 3


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("inside", ["reward", "encoder"])
def test_the_vector_forms_compose_in_both_orders(
    bundle: Bundle, classifier: Bundle, mode: AutoresetMode, inside: str
) -> None:
    """Claimed successes end episodes of which the environments below know nothing."""
    make = functools.partial(CountedCorridor, render_mode="rgb_array")
    env: Any = SyncVectorEnv([make] * ENVS, autoreset_mode=mode)
    raws = [item.unwrapped for item in env.envs]
    singles = [
        EncodedObservation(LearnedReward(make(), classifier), bundle, frame_stack=2)
        for _ in range(ENVS)
    ]
    for kind in ("reward", "encoder") if inside == "reward" else ("encoder", "reward"):
        if kind == "reward":
            env = VectorLearnedReward(env, classifier)
        else:
            env = VectorEncodedObservation(env, bundle, frame_stack=2)
    observations, _ = env.reset(seed=SEED)
    wanted = np.array([one.reset(seed=SEED + i)[0] for i, one in enumerate(singles)])
    np.testing.assert_allclose(observations, wanted, atol=1e-4)
    waiting = np.zeros(ENVS, np.bool_)
    random = np.random.default_rng(0)
    claims = 0
    for _ in range(30):
        actions = (random.random(ENVS) < 0.7).astype(int)
        for raw in raws:
            raw.drawn = 0
        observations, rewards, terminated, truncated, _ = env.step(actions)
        # A masked reset of what below does not know to be over shows a frame of its own.
        assert max(raw.drawn for raw in raws) <= (2 if waiting.any() else 1)
        over = terminated | truncated
        for i, one in enumerate(singles):
            if waiting[i]:
                seen, _ = one.reset()
                assert rewards[i] == 0
            else:
                seen, reward, ended, cut, info = one.step(int(actions[i]))
                claims += bool(info["is_success"])
                assert (rewards[i], terminated[i], truncated[i]) == (reward, ended, cut)
            np.testing.assert_allclose(observations[i], seen, atol=1e-4)
        waiting = over if mode is AutoresetMode.NEXT_STEP else waiting
        if mode is AutoresetMode.DISABLED and over.any():
            observations, _ = env.reset(options={"reset_mask": over})
            for i in np.flatnonzero(over):
                np.testing.assert_allclose(observations[i], singles[i].reset()[0], atol=1e-4)
    assert claims > 3
    env.close()


def test_same_step_composes_with_claims(bundle: Bundle, classifier: Bundle) -> None:
    inner = SyncVectorEnv(
        [functools.partial(Corridor, "picture", first_cells=(4,))] * ENVS,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    rewarded = VectorLearnedReward(inner, classifier, image_source="obs")
    env = VectorEncodedObservation(rewarded, bundle, frame_stack=2)
    first, _ = env.reset(seed=0)
    observations, _, terminated, _, infos = env.step(np.ones(ENVS, int))
    assert terminated.all()
    for i in range(ENVS):
        final = infos["final_obs"][i]
        np.testing.assert_array_equal(final[:LATENT], first[i][LATENT:])
        assert not np.allclose(final[LATENT:], final[:LATENT])
        np.testing.assert_array_equal(observations[i][:LATENT], observations[i][LATENT:])
    env.close()


def test_the_sb3_forms_compose(bundle: Bundle, classifier: Bundle) -> None:
    make = functools.partial(Corridor, "dict")
    rewarded = VecLearnedReward(DummyVecEnv([make] * ENVS), classifier, image_source="obs:image")
    env = VecEncodedObservation(rewarded, bundle, keep="position", frame_stack=2)
    singles = [
        EncodedObservation(
            LearnedReward(make(), classifier, image_source="obs:image"),
            bundle,
            keep=["position"],
            frame_stack=2,
        )
        for _ in range(ENVS)
    ]
    env.seed(SEED)
    wanted = np.array([one.reset(seed=SEED + i)[0] for i, one in enumerate(singles)])
    np.testing.assert_allclose(env.reset(), wanted, atol=1e-4)
    for _ in range(25):
        observations, rewards, dones, infos = env.step(np.ones(ENVS, int))
        for i, one in enumerate(singles):
            seen, reward, ended, cut, _ = one.step(1)
            assert (rewards[i], dones[i]) == (reward, ended or cut)
            if dones[i]:
                np.testing.assert_allclose(infos[i]["terminal_observation"], seen, atol=1e-4)
                seen, _ = one.reset()
            np.testing.assert_allclose(observations[i], seen, atol=1e-4)
    env.close()


# --- what others say about it --------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_checkers_have_nothing_to_say(bundle: Bundle, options: dict[str, Any]) -> None:
    env = EncodedObservation(Camera("dict"), bundle, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Gymnasium asks for the unwrapped environment by a warning, and for renders of its modes.
        warnings.filterwarnings("ignore", message=".*is different from the unwrapped version.*")
        check_env(env, skip_render_check=True)
        sb3_check_env(env)
    env.close()


def test_the_specification_can_be_written_and_made_again(bundle: Bundle) -> None:
    made = gym.make("ToyCamera-v0", observation="vector", render_mode="rgb_array")
    env = EncodedObservation(made, str(bundle.path), frame_stack=2)
    assert env.spec is not None
    text = env.spec.to_json()
    json.loads(text)
    again = gym.make(gym.envs.registration.EnvSpec.from_json(text), render_mode="rgb_array")
    np.testing.assert_allclose(again.reset(seed=1)[0], env.reset(seed=1)[0], atol=1e-6)
    env.close()
    again.close()


def test_the_environments_own_arrays_are_left_alone(bundle: Bundle) -> None:
    env = EncodedObservation(Camera(), bundle, picture_in_info=True)
    _, info = env.reset(seed=0)
    kept = copy.deepcopy(info["picture"])
    info["picture"][:] = 0
    np.testing.assert_array_equal(env.unwrapped.now, kept)
    env.close()


# --- what is refused, at construction ------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("two", {}, "left, right"),
        ("vector", {}, "no picture"),
        ("float", {}, "uint8"),
        ("mask", {}, "0 to 255"),
        ("uneven", {}, "divide"),
        ("small", {}, "6 x 7"),
        ("dict", {"image_source": "obs"}, "obs:<key>"),
        ("dict", {"image_source": "obs:wrist"}, "camera, gear, joints"),
        ("dict", {"image_source": "obs:joints"}, "uint8"),
        ("picture", {"image_source": "render"}, "render_mode"),
        ("picture", {"image_source": "pixels"}, "image_source"),
        ("picture", {"keep": "joints"}, "Dict"),
        ("dict", {"keep": ("wheel",)}, "camera, gear, joints"),
        ("dict", {"keep": ("camera",)}, "not the picture"),
        ("dict", {"keep": ("gear", "gear")}, "different"),
        ("dict", {"frame_stack": 0}, "frame_stack"),
        ("dict", {"frame_stack": 1.5}, "frame_stack"),
        ("dict", {"seed": -1}, "seed"),
        ("dict", {"sample": 1}, "sample"),
        ("dict", {"precision": "int8"}, "INT8"),
    ],
)
def test_what_cannot_be_right_is_refused_at_once(
    bundle: Bundle, kind: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        EncodedObservation(Camera(kind), bundle, **options)
    with pytest.raises(ConfigError):
        VectorEncodedObservation(sync(AutoresetMode.NEXT_STEP, observation=kind), bundle, **options)
    with pytest.raises(ConfigError):
        VecEncodedObservation(DummyVecEnv([functools.partial(Camera, kind)]), bundle, **options)


def test_a_classifier_is_no_encoder(bundle: Bundle, classifier: Bundle) -> None:
    with pytest.raises(ConfigError, match="train-vae"):
        EncodedObservation(Camera(), classifier)
    with pytest.raises(ConfigError, match="finetune"):
        LearnedReward(Corridor("picture"), bundle, image_source="obs")


def test_render_is_refused_where_the_frame_is_of_the_next_episode(bundle: Bundle) -> None:
    env = {"observation": "vector", "render_mode": "rgb_array"}
    with pytest.raises(ConfigError, match="NEXT_STEP"):
        VectorEncodedObservation(sync(AutoresetMode.SAME_STEP, **env), bundle)
    with pytest.raises(ConfigError, match="EncodedObservation around each"):
        VecEncodedObservation(DummyVecEnv([functools.partial(Camera, **env)]), bundle)


def test_another_scene_is_refused(tmp_path: Path) -> None:
    bundle = save_toy_encoder(tmp_path / "scened", scene={"mesh": "20"})
    EncodedObservation(Camera(scene={"mesh": "20"}), bundle).close()
    with pytest.raises(PictureMismatchError, match="mesh='full'"):
        EncodedObservation(Camera(scene={"mesh": "full"}), bundle)
    with pytest.raises(PictureMismatchError):
        VecEncodedObservation(
            DummyVecEnv([functools.partial(Camera, scene={"mesh": "full"})]), bundle
        )


def test_a_disabled_autoreset_that_is_forgotten_is_an_error(bundle: Bundle) -> None:
    env = VectorEncodedObservation(sync(AutoresetMode.DISABLED, max_steps=1), bundle)
    env.reset(seed=0)
    env.step(np.zeros(ENVS, int))
    with pytest.raises(ConfigError, match="reset_mask"):
        env.step(np.zeros(ENVS, int))
    env.close()


def test_a_bad_picture_from_a_function_is_an_error(bundle: Bundle) -> None:
    env = EncodedObservation(
        Camera("vector"), bundle, image_source=lambda env, obs: np.zeros((6, 8, 3))
    )
    with pytest.raises(InputError, match="float64"):
        env.reset(seed=0)
    env.close()


@pytest.mark.parametrize(
    ("shape", "count", "layout"),
    [
        ((96, 128, 3), 1, "HWC"),
        ((3, 96, 96), 1, "CHW"),
        ((96, 96, 12), 4, "HWC"),
        ((12, 96, 96), 4, "CHW"),
        ((4, 96, 96, 3), 4, "HWC"),
        ((3, 3, 96, 96), 3, "CHW"),
        ((3, 96, 96, 3), 3, "HWC"),
    ],
)
def test_sides_that_divide_by_three_are_no_channels(
    tmp_path: Path, shape: tuple[int, ...], count: int, layout: str
) -> None:
    """A bundle that resizes takes any size, so that only the shape can tell."""
    bundle = save_toy_encoder(tmp_path / "any", resize="pil_bilinear")
    space = gym.spaces.Box(0, 255, shape, np.uint8)
    source = PictureSource("obs", space, None, bundle, stacked=True)
    assert source.count == count
    picture = np.zeros(shape, np.uint8)
    found = source.pictures(None, picture)
    assert len(found) == count and {item.shape[2] for item in found} == {3}
    assert source._layout == layout


def test_cubes_are_ambiguous(tmp_path: Path) -> None:
    bundle = save_toy_encoder(tmp_path / "any", resize="pil_bilinear")
    space = gym.spaces.Box(0, 255, (12, 12, 12), np.uint8)
    with pytest.raises(ConfigError, match="first or last"):
        PictureSource("obs", space, None, bundle, stacked=True)


def test_the_encoder_is_loaded_late_and_closed(bundle: Bundle) -> None:
    env = EncodedObservation(Camera(), bundle)
    encoder = env.encoder
    assert isinstance(encoder, Encoder)
    env.close()
    with pytest.raises(ConfigError, match="closed"):
        encoder.encode(np.zeros((1, 6, 8, 3), np.uint8))
