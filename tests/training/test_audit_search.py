"""vinoreward audit: states that are searched, actions that are replayed, a policy that learns."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_environments import HEIGHT, WIDTH, save_toy_bundle

from vinoreward.errors import ConfigError
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.interventions import Axis, SearchSpace
from vinoreward_envs import constants as c
from vinoreward_envs.panda_hover import PandaHoverEnv
from vinoreward_training.audit.checks import FalsePositive, Subject
from vinoreward_training.audit.env import AuditEnv, Learner
from vinoreward_training.audit.learned_policy import LearnedPolicy, learn
from vinoreward_training.audit.replays import ReplayReport, replay_claims
from vinoreward_training.audit.search import SearchReport, grid, search
from vinoreward_training.audit.states import checked_offer, offered_by

TABLE = (Axis("x", 0.4, 0.7, "m"), Axis("y", -0.4, 0.4, "m"))
BALL = (Axis("ball x", 0.4, 0.7, "m"), Axis("ball y", -0.4, 0.4, "m"))
HOLE = 0.01 / math.sqrt(math.pi)
"""Radius in metres of 1 cm²."""


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    """Claims what is redder than 178."""
    return Classifier(save_toy_bundle(tmp_path_factory.mktemp("search") / "toy"))


class Lamp:
    """A scene as red as a function of its state says."""

    def __init__(self, red: Callable[[np.ndarray], float]) -> None:
        self.red, self.state = red, np.zeros(0)

    def image(self) -> np.ndarray:
        image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        image[..., 0] = int(self.red(self.state))
        return image

    def space(
        self, axes: tuple[Axis, ...], truth: Callable[[np.ndarray], bool | None] = lambda at: False
    ) -> SearchSpace:
        def reach(state: np.ndarray) -> bool | None:
            self.state = state
            return truth(state)

        return SearchSpace("lamp", axes, reach)


def faults(report: Any) -> list[str]:
    return [check.sentence for check in report.checks() if check.failed]


def searched(
    classifier: Classifier, lamp: Lamp, space: SearchSpace, *, seed: int = 0, states: int = 4096
) -> tuple[SearchReport, list[FalsePositive]]:
    subject, report = Subject(classifier, seed), SearchReport(space.name, space.axes)
    for _ in search(subject, space, lamp.image, report, states=states):
        pass
    return report, subject.false_positives.images


# --- the grid ----------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.floats(-5, 5), st.floats(0.01, 10), st.sampled_from(["m", "rad"])),
        min_size=1,
        max_size=3,
    ),
    st.integers(64, 3000),
)
@settings(deadline=None)
def test_a_grid_covers_a_space_evenly(rows: list[tuple[float, float, str]], states: int) -> None:
    axes = tuple(Axis(str(n), low, low + span, unit) for n, (low, span, unit) in enumerate(rows))
    found = grid(axes, states)
    assert 2 ** len(axes) <= len(found) <= max(states, 2 ** len(axes))
    assert len(np.unique(found, axis=0)) == len(found)
    for column, axis in zip(found.T, axes, strict=True):
        lines = np.unique(column)
        step = (axis.high - axis.low) / len(lines)
        assert lines[0] == pytest.approx(axis.low + step / 2)
        assert lines[-1] == pytest.approx(axis.high - step / 2)


# --- holes -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("axes", [TABLE, TABLE + BALL], ids=["grid", "sample"])
def test_a_hole_of_a_square_centimetre_is_found(
    classifier: Classifier, axes: tuple[Axis, ...]
) -> None:
    """Nothing leads to it: around it the classifier sees nothing."""
    caught = 0
    for seed in range(3):
        middle = np.random.default_rng(seed).uniform([0.41, -0.39], [0.69, 0.39])

        def red(state: np.ndarray, middle: np.ndarray = middle) -> float:
            return 220 if math.dist(state[:2], middle) < HOLE else 60

        lamp = Lamp(red)
        found, cheats = searched(classifier, lamp, lamp.space(axes), seed=seed)
        caught += bool(found.holes) and math.dist(found.at[:2], middle) < HOLE
        assert cheats or not found.holes
    assert caught == 3


def test_a_way_up_is_climbed(classifier: Classifier) -> None:
    """A spot that a sample misses, in a space of six axes, with a slope that leads to it."""
    axes = tuple(Axis(f"a{n}", 0, 1) for n in range(6))

    def red(state: np.ndarray) -> float:
        return 240 * math.exp(-np.square(state - 0.3).sum() / 0.3)

    lamp = Lamp(red)
    found, _ = searched(classifier, lamp, lamp.space(axes), states=256)
    assert found.most > 0.9 and math.dist(found.at, [0.3] * 6) < 0.2


def test_a_wide_hole_is_a_fault_that_says_where(classifier: Classifier) -> None:
    lamp = Lamp(lambda state: 220 if state[0] > 0.6 else 60)
    found, cheats = searched(classifier, lamp, lamp.space(TABLE))
    assert found.failures == len(grid(TABLE, 4096))
    assert found.claimed / found.failures == pytest.approx(1 / 3, abs=0.02)
    assert any(hole.open for hole in found.holes)
    first, second, *_ = faults(found)
    assert "claims a failure and most states around it" in first and "x 0.6" in first
    assert "x 0.6" in found.place(found.at)
    assert f"claims {found.claimed} of {found.failures} failures" in second
    assert [one.cause for one in cheats] == ["lamp"], "all look alike; no corruption adds a claim"


def test_successes_and_states_left_out_do_not_count(classifier: Classifier) -> None:
    def truth(state: np.ndarray) -> bool | None:
        return True if state[0] > 0.6 else None if state[0] > 0.55 else False

    lamp = Lamp(lambda state: 220 if state[0] > 0.56 else 60)
    found, cheats = searched(classifier, lamp, lamp.space(TABLE, truth))
    assert found.failures == pytest.approx(len(grid(TABLE, 4096)) / 2, rel=0.05)
    assert found.claimed == 0 and not found.holes and not cheats
    assert faults(found) == []


def test_false_claims_under_a_corruption_are_a_fault(classifier: Classifier) -> None:
    lamp = Lamp(lambda state: 160)  # 178 is claimed
    found, _ = searched(classifier, lamp, lamp.space(TABLE), states=256)
    assert found.claimed == 0
    under = {(one.corruption, one.strength): one for one in found.corrupted}
    assert under["more light", 1.3].claimed == under["more light", 1.3].failures > 0
    assert under["less light", 0.5].claimed == 0
    assert any("under more light 1.3" in fault for fault in faults(found))


def test_a_space_that_cannot_be_searched_is_named(classifier: Classifier) -> None:
    def broken(state: np.ndarray) -> bool:
        raise ValueError("no such place")

    with pytest.raises(ConfigError, match=r"'hand' fails.*no such place"):
        searched(classifier, Lamp(lambda at: 0), SearchSpace("hand", TABLE, broken))
    for axes in ((), (Axis("x", 1, 1),)):
        with pytest.raises(ConfigError, match="a low below its high"):
            checked_offer([SearchSpace("hand", axes, broken)], "mine.py")
    with pytest.raises(ConfigError, match="gives 3"):
        checked_offer(3, "mine.py")


def test_the_hover_scene_says_which_states_are_failures() -> None:
    env = PandaHoverEnv(object_position="random", render_mode="rgb_array")
    env.reset(seed=1)
    removed, table, outside, height = offered_by(env)[1]
    place = np.array([0.55, 0.1])
    assert removed.set_state(place) is False
    near = (("on it", 0.0, True), ("at the rim", 0.04, None), ("beside it", 0.05, False))
    for _, off, expected in near:
        assert table.set_state(np.array([*place, place[0] + off, place[1]])) is expected
    assert outside.set_state(np.append(place, place)) is None, "inside"
    assert outside.set_state(np.array([0.7, 0.1, 0.73, 0.1])) is True
    assert outside.set_state(np.array([0.7, 0.1, 0.8, 0.1])) is False
    assert height.set_state(np.array([*place, 0.2, *place])) is False
    assert env.scene.gripper[2] == pytest.approx(0.2, abs=1e-4)
    assert height.axes[2].low > c.HOVER_HEIGHT + 0.05
    assert height.set_state(np.array([*place, 9.0, *place])) is None, "out of reach"
    env.close()


# --- the same actions again --------------------------------------------------------------------


class Walk(gym.Env[np.ndarray, int]):
    """Five steps right or left from a start that a reset draws; success is at cell 8 and beyond.

    The image is as red as what ``shows`` names: ``"place"``, or the ``"steps"`` to the right,
    which are all that an arm's pose would be. Its blue shows the start.
    """

    observation_space = gym.spaces.Box(-20, 20, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    render_mode = "rgb_array"

    def __init__(
        self, shows: str, starts: tuple[int, ...] = (0, 2, 4, 6), truth: bool = True
    ) -> None:
        self.shows, self.starts, self.truth = shows, starts, truth

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.start, self.right, self.steps = int(self.np_random.choice(self.starts)), 0, 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        return np.array([self.right, self.start], np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.right += int(action)
        self.steps += 1
        info = {"true_success": self.start + self.right >= 8} if self.truth else {}
        return self.observe(), 0.0, False, self.steps == 5, info

    def render(self) -> np.ndarray:  # type: ignore[override]
        level = self.right * 60 if self.shows == "steps" else (self.start + self.right) * 24
        image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        image[..., 0], image[..., 2] = min(level, 255), self.start * 20
        return image


def replayed(classifier: Classifier, env: Walk) -> tuple[ReplayReport, list[FalsePositive]]:
    subject, report = Subject(classifier), ReplayReport()
    for _ in replay_claims(subject, AuditEnv(env, lambda observation: env.render()), report):
        pass
    return report, subject.false_positives.images


def test_claims_of_what_the_robot_did_stay_from_another_start(classifier: Classifier) -> None:
    found, cheats = replayed(classifier, Walk("steps"))
    assert found.replayed == 50 == found.stay
    assert found.failures == found.false > 15 and 1 < len(cheats) <= found.false
    assert any("it claims" in fault for fault in faults(found))
    honest, cheats = replayed(classifier, Walk("place"))
    assert honest.replayed == 50 and honest.false == 0 < honest.failures and not cheats
    assert faults(honest) == [] and "0 of them claimed" in honest.note


def test_without_the_truth_or_another_start_nothing_is_a_fault(classifier: Classifier) -> None:
    found, _ = replayed(classifier, Walk("steps", starts=(4,)))
    assert found.replayed == 0 and found.alike == found.claims > 0 and faults(found) == []
    found, _ = replayed(classifier, Walk("steps", truth=False))
    assert found.stay == 50 and not found.truth_known and faults(found) == []
    assert "does not tell which of them are true" in found.note


# --- a policy that learns ----------------------------------------------------------------------


class OneStep(gym.Env[np.ndarray, int]):
    """One step: action 1 is claimed, and true or not."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, true: bool | None) -> None:
        self.true = true

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        claimed = bool(action)
        info: dict[str, Any] = {"claimed_success": claimed, "is_success": claimed}
        if self.true is not None:
            info["true_success"] = claimed and self.true
        return np.zeros(1, np.float32), float(claimed), True, False, info


@pytest.mark.parametrize(("true", "count"), [(False, 1), (True, 0), (None, 0)])
def test_a_policy_that_is_rewarded_for_false_claims_is_a_fault(
    true: bool | None, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = LearnedPolicy("PPO")
    for _ in learn(Learner(OneStep(true), "PPO", {"n_steps": 64, "n_epochs": 4}, 512), found, 0):
        pass
    assert found.steps == 512 and found.episodes > 400
    assert len(faults(found)) == count
    assert list(tmp_path.glob("SB3-*")) == [], "an empty folder for each audit"
    if true is None:
        assert found.last == 0 and "nothing says which" in found.note
    else:
        assert found.last == 50 and found.claimed > 20
        assert (found.first_false is None) is true
