"""Episodes that differ: ranges, what is drawn from them, how it appearance, and what stays true."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hover_batches import IDS, STATES, assert_same_rollout, make
from hover_images import (
    appearance_of,
    camera_of,
    drawn_from,
    fixed,
    params_of,
    scenes,
    seen_by_tinyrenderer,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.errors import ConfigError
from vinoreward_envs import constants as c
from vinoreward_envs.camera.fast import Appearance
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.randomization import (
    COLUMNS,
    DRAWS,
    LAB,
    NEXT_NOISE,
    NOISE_STARTS,
    NOISE_UNIT,
    DomainRandomization,
    by_name,
    checked_randomization,
    noise_table,
    nominal,
)
from vinoreward_envs.scene import HoverScene

PIXELS = IDS[2]
# Of each field two ends that are easy to tell apart.
ENDS: dict[str, tuple[float, float]] = {
    "light": (0.5, 1.5),
    "light_direction": (-40, 40),
    "colour_cast": (-0.3, 0.3),
    "camera_position": (-0.05, 0.05),
    "camera_rotation": (-5, 5),
    "field_of_view": (50, 70),
    "object_size": (0.6, 1.8),
    "object_colour": (0.4, 1.0),
    "object_yaw": (-60, 60),
    "table_tint": (-0.3, 0.3),
    "table_shift": (-0.3, 0.3),
    "sensor_noise": (2, 20),
}
NOISE = COLUMNS["sensor_noise"]


def scene(size: tuple[int, int] = (96, 128)) -> HoverScene:
    made = HoverScene(camera=CameraSpec(*size))
    made.place_object((0.6, 0.15))
    made.move_gripper((0.5, -0.1))
    return made


def image(ranges: DomainRandomization, seed: int = 0) -> Any:
    made = scene()
    made.look(drawn_from(ranges, 1, seed))
    made.place_object((0.6, 0.15))
    return made.render().astype(int)


# --- ranges ---------------------------------------------------------------------------------


def test_by_default_nothing_varies_and_no_random_number_is_used() -> None:
    assert not DomainRandomization().varies and not LAB.scaled(0.0).varies
    plain, given_none = make(5), make(5, randomization={})
    for env in (plain, given_none):
        env.reset(seed=3)
    for _ in range(25):
        actions = plain.action_space.sample()
        for one, other in zip(plain.step(actions)[:4], given_none.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(one, other)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 1))
def test_values_are_within_their_ranges_and_use_them(seed: int, share: float) -> None:
    ranges = LAB.scaled(share)
    drawn = by_name(drawn_from(ranges, 200, seed))
    for field in dataclasses.fields(ranges):
        low, high = getattr(ranges, field.name)
        values = drawn[field.name]
        assert (values >= low).all() and (values <= high).all()
        assert np.ptp(values) >= 0.8 * (high - low)
    assert set(np.unique(drawn["action_delay"])) <= {0.0, 1.0}


def test_ranges_travel_as_plain_data() -> None:
    plain = json.loads(json.dumps(LAB.as_dict()))
    assert checked_randomization(plain) == LAB == checked_randomization("lab")
    assert DomainRandomization().as_dict() == {}
    env = gym.make(STATES, backend="oracle", randomization={"light": [0.5, 1.5]})
    assert env.spec is not None
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.unwrapped.randomization == DomainRandomization(light=(0.5, 1.5))  # type: ignore[attr-defined]


def test_what_cannot_be_drawn_is_refused() -> None:
    wrong: Any
    for wrong, words in (
        ({"light": (1.3, 0.7)}, r"light=\(1.3, 0.7\).*low at most high"),
        ({"sensor_noise": (0.0, math.nan)}, "sensor_noise=.*grey levels"),
        ({"camera_rotation": 3.0}, r"camera_rotation=3.0.*\(low, high\)"),
        ({"action_delay": (0, 0.5)}, "action_delay=.*whole steps"),
        ({"lights": (0.7, 1.3)}, "Found lights in randomization; expected some of light,"),
        ("office", "randomization='office'.*\"lab\""),
    ):
        with pytest.raises(ConfigError, match=words):
            make(2, randomization=wrong)


@pytest.mark.pybullet
def test_only_the_fast_camera_and_kinematic_motion_vary() -> None:
    for other in ({"motion": "dynamics"}, {"camera": "tiny"}, {"fidelity": "article"}):
        with pytest.raises(ConfigError, match="expected the kinematic motion and the fast camera"):
            gym.make(STATES, backend="oracle", randomization="lab", **other)


# --- what environments draw -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("id_", "array", "options"),
    [(PIXELS, "numpy", {}), ("PandaHover-v0", "torch", {"backend": "openvino"})],
)
def test_a_batch_is_its_scalar_environments(id_: str, array: str, options: Any) -> None:
    """Images with their noise, delayed and noisy moves, probabilities."""
    if array == "torch":
        pytest.importorskip("torch")
    ranges = dataclasses.replace(LAB, action_delay=(0, 3), action_noise=(0.0, 0.02)).as_dict()
    near = 0.0 if id_ == PIXELS else 1e-5
    steps = 2 * c.MAX_EPISODE_STEPS + 1
    ended, _ = assert_same_rollout(
        5, steps, near, id_, array, 2e-5, randomization=ranges, **options
    )
    assert ended >= 10


def test_a_delayed_move_is_the_one_asked_for_before() -> None:
    late, exact = (
        make(2, "PandaHover-v0", randomization={"action_delay": (delay, delay)}) for delay in (2, 0)
    )
    starts = [env.reset(seed=0)[0] for env in (late, exact)]
    np.testing.assert_array_equal(*starts)
    actions = np.random.default_rng(0).uniform(-0.03, 0.03, (6, 2, 2)).astype(np.float32)
    places = [[env.step(one)[0] for one in actions] for env in (late, exact)]
    for early in places[0][:2]:
        np.testing.assert_array_equal(early, starts[0])
    np.testing.assert_allclose(places[0][2:], places[1][:4], atol=1e-7)


def test_a_noisy_move_ends_beside_its_end_and_is_refused_as_it_was_asked_for() -> None:
    env = make(2000, "PandaHover-v0", randomization={"action_noise": (0.01, 0.01)})
    start, _ = env.reset(seed=0)
    step = np.full((2000, 2), 0.02, np.float32)
    off = env.step(step)[0] - start - step
    assert np.abs(off.mean(axis=0)).max() < 1e-3
    np.testing.assert_allclose(off.std(axis=0), 0.01, rtol=0.1)
    env.reset(seed=0)
    outwards = np.full((2000, 2), 0.1, np.float32)
    outwards[:, 1] = 0.0
    refused = [env.step(outwards)[4]["refused"].mean() for _ in range(4)]
    assert refused[0] < 0.01 and refused[-1] == 1.0


def test_the_truth_is_of_gripper_and_base_whatever_varies() -> None:
    whole = DomainRandomization(**ENDS, action_noise=(0.0, 0.02), action_delay=(0, 2))
    env = make(64, randomization=whole)
    env.reset(seed=1)
    for _ in range(c.MAX_EPISODE_STEPS - 1):
        places, *_, infos = env.step(env.action_space.sample())
        distance = np.hypot(*(places[:, :2] - places[:, 2:]).T)
        going = ~infos.get("_final_obs", np.zeros(64, np.bool_))
        np.testing.assert_allclose(infos["distance"][going], distance[going], atol=2e-5)
        going &= np.abs(distance - c.SUCCESS_DISTANCE) > 1e-4
        true = distance <= c.SUCCESS_DISTANCE
        assert (infos["true_success"] == true)[going].all()


def test_ranges_are_replaced_between_episodes() -> None:
    env = make(4, "PandaHover-v0")
    env.reset(seed=0)
    env.randomization = LAB
    # Episodes under way go on as they were.
    assert (env.episode_params == by_name(nominal(4))).all()
    for _ in range(c.MAX_EPISODE_STEPS):
        env.step(np.zeros((4, 2), np.float32))
    assert len(set(env.episode_params["light"].tolist())) == 4
    env.randomization = LAB.scaled(0.1)
    env.reset(seed=0)
    assert np.abs(env.episode_params["light"] - 1).max() <= 0.03 + 1e-9
    env.randomization = None
    env.reset()
    assert (env.episode_params == by_name(nominal(4))).all()
    with pytest.raises(ConfigError, match="low at most high"):
        env.randomization = {"light": (2, 1)}
    assert not env.randomization.varies


# --- images -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENDS)
def test_each_field_changes_the_image_at_both_ends_and_nothing_else_does(name: str) -> None:
    plain = image(DomainRandomization())
    low, high = (image(fixed(**{name: end})) for end in ENDS[name])
    assert (plain == scene().render()).all()
    assert np.abs(low - plain).mean() > 0.1
    assert np.abs(high - plain).mean() > 0.1
    assert np.abs(high - low).mean() > 0.1
    if name.startswith("object"):
        assert (high != plain).any(axis=-1).mean() < 0.03  # the object alone
    if name == "light":
        assert low.mean() < plain.mean() < high.mean()


@pytest.mark.pybullet
@pytest.mark.parametrize(
    ("names", "mean_limit"),
    [
        (("camera_position", "camera_rotation", "field_of_view"), 0.25),
        (("light_direction",), 0.1),
        (("object_size", "object_colour", "object_yaw"), 0.1),
    ],
)
def test_a_look_is_tinyrenderers(names: tuple[str, ...], mean_limit: float) -> None:
    """Camera, light and object of TinyRenderer itself, full meshes; the table too is redrawn."""
    ranges = DomainRandomization(**{name: ENDS[name] for name in names})  # type: ignore[arg-type]
    spec = CameraSpec(mesh="full")
    appearance = appearance_of(ranges, 8, spec)
    arguments = scenes(8, appearance)
    expected = seen_by_tinyrenderer(appearance, *arguments[:2]).astype(int)
    with camera_of(appearance, spec) as camera, camera_of(None, spec) as other:
        found = camera.render_batch(*arguments).astype(int)
        plain = other.render_batch(*arguments).astype(int)
    assert np.abs(plain - expected).mean() > 2 * mean_limit or "object_size" in names
    difference = np.abs(found - expected)
    assert difference.mean() < mean_limit
    assert (difference > 16).any(axis=-1).mean() < 0.004


def test_light_and_cast_multiply_what_is_not_too_bright() -> None:
    ranges = DomainRandomization(light=ENDS["light"], colour_cast=ENDS["colour_cast"])
    spec = CameraSpec()
    appearance = appearance_of(ranges, 8, spec)
    arguments = scenes(8, appearance)
    with camera_of(appearance, spec) as camera, camera_of(None, spec) as other:
        found = camera.render_batch(*arguments).astype(float)
        plain = other.render_batch(*arguments).astype(float)
    cast = params_of(appearance)["colour_cast"]
    gains = params_of(appearance)["light"][:, None] * np.stack(
        [1 + cast, np.ones(8), 1 - cast], axis=1
    )
    assert np.ptp(gains) > 0.5
    # Levels are cut, not rounded, before and after.
    low = np.clip(np.floor(plain * gains[:, None, None]) - 1, 0, 254)
    high = np.clip((plain + 1) * gains[:, None, None] + 1, 0, 255)
    right = (found >= low) & (found <= high) | (plain == 255)
    assert right.mean() > 0.999
    assert (plain == 255).mean() < 0.2


@pytest.mark.parametrize("deviation", [0.125, 25.0])
def test_noise_is_whole_grey_levels_added_and_cut_at_black_and_white(deviation: float) -> None:
    spec = CameraSpec(48, 64)
    noisy = {"light": (0.0, 4.0), "sensor_noise": (deviation, deviation)}  # dark and too bright
    appearance = appearance_of(DomainRandomization(**noisy), 3, spec)  # type: ignore[arg-type]
    drawn = params_of(appearance).copy()
    quiet = Appearance(spec, 3)
    quiet.set(np.ones(3, np.bool_), appearance.scenes.params.numpy() * (np.arange(DRAWS) != NOISE))
    steps = [0, 1, 700]
    appearance.show(np.array(steps))
    arguments = scenes(3, appearance)
    with camera_of(appearance, spec) as camera, camera_of(quiet, spec) as other:
        found, plain = (each.render_batch(*arguments) for each in (camera, other))
    for image, before, each, step in zip(found, plain, drawn, steps, strict=True):
        at = (int(NOISE_STARTS * each["image_noise_at"]) + NEXT_NOISE * step) % NOISE_STARTS
        part = noise_table(NOISE_STARTS + image.size)[at : at + image.size]
        noise = np.floor(part / NOISE_UNIT * deviation + 0.5).astype(int)
        wanted = np.clip(before.astype(int) + noise.reshape(image.shape), 0, 255)
        np.testing.assert_array_equal(image, wanted)


# --- who draws from it ----------------------------------------------------------------------


def test_an_audit_looks_at_states_that_look_otherwise() -> None:
    env = gym.make(STATES, backend="oracle", render_mode="rgb_array", randomization="lab")
    env.reset(seed=0)
    space = env.unwrapped.audit_spaces()[1]  # type: ignore[attr-defined]
    images = []
    for state in ([0.5, 0.1, 0.6, 0.2], [0.5, 0.1, 0.6, 0.2001], [0.5, 0.1, 0.6, 0.2]):
        assert space.set_state(np.array(state)) is False
        images.append(np.asarray(env.render(), int))
    assert (images[0] == images[2]).all()
    assert np.abs(images[0] - images[1]).mean() > 1.0
    assert space.set_state(np.array([0.5, 0.1, 0.5, 0.12])) is True
    env.close()
