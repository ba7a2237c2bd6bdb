"""The profile's clock and bound, and a real profile of the shipped environment."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import toy_environments

from vinoreward.errors import ConfigError
from vinoreward_training.configs import ProfileConfig
from vinoreward_training.profile import (
    SETTINGS,
    Clock,
    learner_step,
    measured,
    run,
)


class Sized(toy_environments.Corridor):
    """Needs an argument, and notes it."""

    made: list[int] = []  # noqa: RUF012

    def __init__(self, size: int, **options: Any) -> None:
        Sized.made.append(size)
        super().__init__(**options)


class Several(toy_environments.Corridor):
    """Takes two actions at once."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.action_space = gym.spaces.MultiDiscrete([2, 2])


for kind in (Sized, Several):
    gym.register(f"{kind.__name__}-v0", entry_point=kind)


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
    assert seconds["infer"] >= 0.04 and seconds["other"] >= 0
    assert seconds["infer"] + seconds["other"] <= whole
    # Time is counted also when the call raises.
    with pytest.raises(ValueError, match="x"), clock.part("render"):
        raise ValueError("x")
    assert set(clock.take()) == {"render"}


@pytest.mark.parametrize(("env", "field"), [("CartPole-v1", "bundle"), ("Several-v0", "learner")])
def test_what_cannot_be_profiled(tmp_path: Path, env: str, field: str) -> None:
    words = ["--env", env, "--out", str(tmp_path / "out")]
    if field == "bundle":
        words += ["--no-learner"]
    else:
        words += ["--bundle", str(toy_environments.save_toy_bundle(tmp_path / "bundle").path)]
    with pytest.raises(ConfigError) as error:
        run(SETTINGS.parse(words, prog="vinoreward profile"))
    assert error.value.field == field


def test_any_other_environment_is_stepped_rendered_and_scored(tmp_path: Path) -> None:
    bundle = str(toy_environments.save_toy_bundle(tmp_path / "bundle").path)
    config = ProfileConfig(env="Sized-v0", env_kwargs={"size": 7}, bundle=bundle, steps=3)
    Sized.made.clear()
    with learner_step(config) as learn:
        found = measured(config, learn)
    assert len(found) == 3 and set(Sized.made) == {7}
    for seconds in found:
        assert {"motion", "render", "preprocess", "infer", "other", "learner"} == set(seconds)
        assert min(seconds.values()) > 0


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
