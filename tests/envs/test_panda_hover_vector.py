"""PandaHoverVectorEnv: what the scalar environment does, in one batch. The scalar one judges."""

from __future__ import annotations

import contextlib
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hover_batches import (
    IDS,
    STATES,
    assert_equal,
    assert_same_rollout,
    gaps,
    make,
    make_scalars,
    moves,
)
from task_runs import run_python

from vinoreward.arrays import to_numpy
from vinoreward.errors import ConfigError, InputError, VinorewardError

needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="needs torch")
KINDS = ["numpy", pytest.param("torch", marks=needs_torch)]


# --- equal to the scalar environment --------------------------------------------------------


@pytest.mark.parametrize("array", KINDS)
def test_64_environments_are_64_scalar_ones(array: str) -> None:
    ended, succeeded = assert_same_rollout(64, 22, 1e-5, array=array)
    assert ended > 120 and succeeded > 10


@pytest.mark.parametrize("options", [{"object_position": (0.5, 0.1)}, {"success_hold_steps": 2}])
def test_each_option_means_what_it_does_to_one(options: dict[str, Any]) -> None:
    assert_same_rollout(8, 22, 1e-5, **options)


@pytest.mark.parametrize("id_", [STATES, IDS[2]])
def test_the_shipped_classifier_decides_the_same(id_: str) -> None:
    """Also how sure it is, and how out of distribution each image is to the guard."""
    arguments: dict[str, Any] = {"backend": "openvino", "success_exit_threshold": 0.3}
    env, scalars = make(6, id_, **arguments), make_scalars(6, id_, **arguments)
    assert_equal(env.reset(seed=3), scalars.reset(seed=3), 1e-5)
    draw, claimed = np.random.default_rng(5), 0
    for _ in range(12):  # to the object or past it
        actions = (gaps(env) + draw.normal(0, 0.03, (6, 2))).astype(np.float32)
        found, expected = env.step(actions), scalars.step(actions)
        assert_equal(found, expected, 1 if id_ == IDS[2] else 1e-5, 2e-5)
        claimed += int(expected[2].sum())
    assert 10 < claimed < 60
    env.close()
    scalars.close()


@pytest.mark.parametrize("array", KINDS)
def test_the_image_of_a_claim_is_the_one_that_was_claimed_and_stays(array: str) -> None:
    ranges = {"light": (0.9, 1.1), "sensor_noise": (1, 2)}
    env = make(8, IDS[2], backend="openvino", array=array, on_ood="ignore", randomization=ranges)
    env.reset(seed=2)
    claims: dict[int, Any] = {}
    for _ in range(8):
        *_, terminated, _, infos = env.step(gaps(env))
        for i in np.flatnonzero(terminated).tolist():
            claims[i] = to_numpy(infos["final_obs"][i]).copy()
            np.testing.assert_array_equal(env.claimed_image(i), claims[i])
    assert len(claims) > 4
    env.randomization = {"light": (0.3, 0.3), "sensor_noise": (20, 20)}
    env.reset()
    for i, image in claims.items():
        np.testing.assert_array_equal(env.claimed_image(i), image)
    env.close()


def test_threads_change_nothing() -> None:
    envs = [make(40, backend="openvino", threads=threads) for threads in (1, 3)]
    for env in envs:
        env.reset(seed=5)
    for step, actions in enumerate(moves(40, 4)):
        envs[1].busy_cores = step % 4  # with 3 none is left
        one, other = (env.step(actions) for env in envs)
        assert_equal(one, other, 2e-5)
    for env in envs:
        env.close()


# --- seeds ----------------------------------------------------------------------------------


def test_an_environment_does_not_depend_on_how_many_there_are() -> None:
    """Neither where it is nor what it draws."""
    envs = [make(count, randomization="lab") for count in (3, 7, 50)]
    starts = [env.reset(seed=20)[0][:3] for env in envs]
    for start in starts[1:]:
        np.testing.assert_array_equal(start, starts[0])
    lights = set()
    for actions in moves(50, 30):
        steps = [env.step(actions[: env.num_envs]) for env in envs]
        for env, step in zip(envs[1:], steps[1:], strict=True):
            for part, expected in zip(step[:4], steps[0][:4], strict=True):
                np.testing.assert_array_equal(part[:3], expected)
            np.testing.assert_array_equal(env.episode_params[:3], envs[0].episode_params)
        lights.add(envs[0].episode_params["light"][0])
    assert 2 <= len(lights) <= 10  # one set of values per episode


def test_environment_i_has_seed_s_plus_i_or_its_own() -> None:
    env = make(4)
    counted, _ = env.reset(seed=30)
    own, _ = env.reset(seed=[33, 32, 31, 30])
    np.testing.assert_array_equal(counted, own[::-1])
    again, _ = env.reset(seed=30)
    np.testing.assert_array_equal(again, counted)
    further, _ = env.reset()
    assert (further[:, 2:] != counted[:, 2:]).all()
    mixed, _ = env.reset(seed=[30, None, None, 33])
    np.testing.assert_array_equal(mixed[[0, 3]], counted[[0, 3]])
    assert (mixed[1:3, 2:] != counted[1:3, 2:]).all()
    one, other = make(8).reset()[0], make(8).reset()[0]  # without a seed
    assert len({tuple(each) for each in (*one[:, 2:].tolist(), *other[:, 2:].tolist())}) == 16


# --- SAME_STEP ------------------------------------------------------------------------------


def test_a_mask_resets_some_and_leaves_the_others() -> None:
    env, scalars = make(6), make_scalars(6)
    env.reset(seed=1)
    scalars.reset(seed=1)
    for step, actions in enumerate(moves(6, 40)):
        assert_equal(env.step(actions), scalars.step(actions), 1e-5)
        if step % 7 == 3:
            mask = np.arange(6) % (step % 3 + 2) == 0
            options = {"reset_mask": mask}
            assert_equal(env.reset(options=options), scalars.reset(options=dict(options)), 1e-5)
            assert options == {"reset_mask": mask}
    place = {"object_position": (0.5, -0.2)}
    assert_equal(env.reset(options=place), scalars.reset(options=dict(place)), 1e-5)
    env.close()
    scalars.close()


@pytest.mark.parametrize("array", KINDS)
def test_what_was_returned_stays_as_it_was(array: Any) -> None:
    for id_ in (STATES, "PandaHoverPixels-v0"):
        env = make(4, id_, array=array)
        kept = [env.reset(seed=0)[0]]
        copies = [np.asarray(kept[0]).copy()]
        for actions in moves(4, 12):
            step = env.step(actions)
            for part in step[:4]:
                kept.append(part)
                copies.append(np.asarray(part).copy())
        for one, copy in zip(kept, copies, strict=True):
            np.testing.assert_array_equal(np.asarray(one), copy)
        env.close()


# --- bad input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "bad"),
    [("numpy", np.nan), ("numpy", -np.inf), pytest.param("torch", np.inf, marks=needs_torch)],
)
def test_an_action_that_is_no_number_ends_that_episode_alone(array: Any, bad: float) -> None:
    env, others = make(5, array=array), make(5)
    env.reset(seed=2)
    others.reset(seed=2)
    for step, actions in enumerate(moves(5, 9)):
        spoiled = actions.copy()
        if step == 4:
            spoiled[3, 1] = bad
        found, expected = env.step(spoiled), others.step(actions)
        for part, other in zip(found[:4], expected[:4], strict=True):
            rest = [0, 1, 2, 4]
            np.testing.assert_array_equal(np.asarray(part)[rest], np.asarray(other)[rest])
        if step == 4:
            _, rewards, terminations, truncations, infos = found
            assert (rewards[3], bool(terminations[3]), bool(truncations[3])) == (0, False, True)
            one_hot = [False, False, False, True, False]
            for place in (infos, infos["final_info"]):
                np.testing.assert_array_equal(np.asarray(place["invalid_action"]), one_hot)
                np.testing.assert_array_equal(np.asarray(place["_invalid_action"]), one_hot)
            assert np.isfinite(np.asarray(infos["final_obs"][3])).all()
        else:
            assert not np.asarray(found[4].get("invalid_action", False)).any()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"num_envs": 0}, "num_envs=0"),
        # More than processors can address.
        ({"num_envs": 10**15}, "host has too little free memory: .*fewer"),
        ({"motion": "dynamics"}, "motion='dynamics'.*no such thing"),
        ({"render_mode": "human"}, "render_mode='human'"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"device": "cuda:-1"}, "device='cuda:-1'"),
        ({"array": "jax"}, "array='jax'"),
        ({"backend": "openvino", "image_size": (64, 64)}, "64"),
    ],
)
def test_what_cannot_work_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(VinorewardError, match=words):
        make(**{"num_envs": 2, **wrong})


def test_a_reset_that_cannot_work_is_refused() -> None:
    env = make(2, render_mode="rgb_array")
    mask = {"reset_mask": np.array([True, False])}
    for early in (
        lambda: env.step(np.zeros((2, 2), np.float32)),
        env.render,
        lambda: env.reset(options=mask),
    ):
        with pytest.raises(ResetNeeded, match="first reset"):
            early()
    env.reset(seed=0)
    for options, words in (
        ({"reset_mask": np.array([True])}, r"bool of shape \(2,\)"),
        ({"reset_mask": np.array([False, False])}, "at least one True"),
        ({"object_position": np.zeros((3, 2))}, "object_position"),
        ({"lights": "off"}, r"reset options \['lights'\]"),
    ):
        with pytest.raises((ConfigError, InputError), match=words):
            env.reset(options=options)
    for seed in (-1, [1], [1, "a"], [True, 1]):
        with pytest.raises(InputError, match="whole number of at least 0"):
            env.reset(seed=seed)
    actions: Any
    for actions in (np.zeros((3, 2)), np.zeros(4), [["a", "b"]] * 2, None):
        with pytest.raises(InputError, match=r"expected numbers of shape \(2, 2\)"):
            env.step(actions)
    env.step(np.zeros((2, 2), np.float32))


# --- cost -----------------------------------------------------------------------------------


def test_arrays_of_numpy_need_no_torch_and_no_camera() -> None:
    run_python("""
import sys, gymnasium as gym, numpy as np, vinoreward
assert "torch" not in sys.modules and "vinoreward_envs" not in sys.modules
env = gym.make_vec("PandaHoverRandom-v0", num_envs=64, vectorization_mode="vector_entry_point",
                   backend="oracle", array="numpy", device="cpu")
env.reset(seed=0)
env.step(np.zeros((64, 2), np.float32))
assert "torch" not in sys.modules and "warp" not in sys.modules
env.close()
""")


def test_batches_beside_each_other_share_networks_and_nothing_else() -> None:
    with contextlib.closing(make(2, backend="openvino")) as one:
        beside = one.sibling_env(3)
        with contextlib.closing(make(3, backend="openvino")) as alone:
            first, _ = one.reset(seed=1)
            for each in (beside, alone):
                each.reset(seed=9)
            for _ in range(12):
                moves = np.full((3, 2), 0.03, np.float32)
                found, expected = beside.step(moves), alone.step(moves)
                for ours, theirs in zip(found[:4], expected[:4], strict=True):
                    np.testing.assert_array_equal(ours, theirs)
                for key in ("reward_prob", "distance"):
                    np.testing.assert_array_equal(found[4][key], expected[4][key])
        assert beside.classifier is one.classifier
        one.randomization = "lab"
        assert one.sibling_env(3).randomization == one.randomization
        beside.close()
        observations, *_ = one.step(np.zeros((2, 2), np.float32))
        np.testing.assert_allclose(observations, first, atol=1e-5)
