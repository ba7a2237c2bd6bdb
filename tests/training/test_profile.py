"""The profile's clock and bound, and a real profile of the shipped environment."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vinoreward.errors import ConfigError
from vinoreward_training.configs import ProfileConfig
from vinoreward_training.profile import (
    PARTS,
    Clock,
    amdahl_bound,
    learner_step,
    measured,
    run,
    shares,
)


@given(st.floats(1e-6, 1e3), st.floats(0, 0.99))
def test_the_bound_is_amdahls(total: float, share: float) -> None:
    assert amdahl_bound(total, total * share) == pytest.approx(1 / (1 - share), rel=1e-6)


def test_a_part_that_is_all_has_no_bound() -> None:
    assert amdahl_bound(2.0, 2.0) == float("inf")
    for total, part in ((1.0, 2.0), (1.0, -0.1), (0.0, 0.0)):
        with pytest.raises(ConfigError, match="part of a positive total"):
            amdahl_bound(total, part)


def test_inner_calls_are_taken_out_of_outer_ones() -> None:
    clock = Clock()

    def inner() -> None:
        until = time.perf_counter() + 0.02
        while time.perf_counter() < until:
            pass

    timed = clock.timed("infer", inner)
    began = time.perf_counter()
    with clock.part("other"):
        timed()
        timed()
    whole = time.perf_counter() - began
    seconds = clock.take()
    assert seconds["infer"] >= 0.04
    assert seconds["infer"] + seconds["other"] <= whole
    assert seconds["other"] >= 0
    assert clock.take() == {}


def test_time_is_counted_when_the_call_raises() -> None:
    clock = Clock()
    with pytest.raises(ValueError, match="x"), clock.part("render"):
        raise ValueError("x")
    assert set(clock.take()) == {"render"}


def test_shares_sum_to_one() -> None:
    table = shares([{"render": 3.0, "infer": 1.0}, {"render": 5.0, "infer": 1.0}])
    assert list(table) == list(PARTS)
    assert sum(row["share"] for row in table.values()) == pytest.approx(1.0)
    assert table["render"]["mean"] == 4.0
    assert table["learner"]["share"] == 0.0


def test_no_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        run(ProfileConfig(steps=0, out=tmp_path))


def test_an_environment_without_a_classifier_needs_a_bundle() -> None:
    with pytest.raises(ConfigError, match="--bundle"):
        measured(ProfileConfig(env="CartPole-v1"))


def test_any_other_environment_is_stepped_rendered_and_judged(tmp_path: Path) -> None:
    from toy_environments import save_toy_bundle

    bundle = save_toy_bundle(tmp_path / "bundle").path
    config = ProfileConfig(env="ToyCorridor-v0", bundle=str(bundle), steps=3)
    learned: list[int] = []
    found = measured(config, lambda: learned.append(1))
    assert len(found) == len(learned) == 3
    for seconds in found:
        assert {"motion", "render", "preprocess", "infer", "other", "learner"} == set(seconds)
        assert min(seconds.values()) > 0


def test_an_environment_is_made_with_its_arguments(tmp_path: Path) -> None:
    import toy_environments

    made: list[int] = []

    class Sized(toy_environments.Corridor):
        def __init__(self, size: int, **options: Any) -> None:
            made.append(size)
            super().__init__(**options)

    gym.register("Sized-v0", entry_point=Sized)
    try:
        bundle = str(toy_environments.save_toy_bundle(tmp_path / "bundle").path)
        config = ProfileConfig(env="Sized-v0", env_kwargs={"size": 7}, bundle=bundle, steps=1)
        with learner_step(config) as step:
            measured(config, step)
    finally:
        del gym.registry["Sized-v0"]
    assert set(made) == {7}


def test_the_learners_step_is_one_that_takes_the_environments_actions() -> None:
    import toy_environments

    class Several(toy_environments.Corridor):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.action_space = gym.spaces.MultiDiscrete([2, 2])

    with learner_step(ProfileConfig(env="ToyCorridor-v0")) as step:
        step()
    gym.register("Several-v0", entry_point=Several)
    try:
        with (
            pytest.raises(ConfigError, match=r"MultiDiscrete.*--no-learner"),
            learner_step(ProfileConfig(env="Several-v0")),
        ):
            pass
    finally:
        del gym.registry["Several-v0"]


@pytest.mark.slow
def test_a_profile_of_the_shipped_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(ProfileConfig(steps=2, out=tmp_path / "profile")) == 0
    assert "at most" in capsys.readouterr().out
    found = json.loads((tmp_path / "profile" / "profile.json").read_text(encoding="utf-8"))
    parts = found["parts_seconds"]
    for name in ("motion", "render", "infer", "learner"):
        assert parts[name]["mean"] > 0, name
    assert found["bound"] >= 1.0
    assert (tmp_path / "profile" / "profile.png").read_bytes().startswith(b"\x89PNG")
