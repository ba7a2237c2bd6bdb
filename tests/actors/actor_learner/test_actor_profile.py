"""The breakdown of an actor's step, and the advice that follows from it."""

from __future__ import annotations

import pytest

from vinoreward_actors.actor_learner.acting.profile import COUNTERS, PARTS, Breakdown, Stopwatch


def breakdown(infer: float, env: float) -> Breakdown:
    seconds = dict.fromkeys(PARTS, 0.0) | {"infer": infer, "env": env}
    return Breakdown(seconds, dict(seconds), 10)


def test_every_mark_counts_once() -> None:
    watch = Stopwatch()
    watch.mark("infer")
    watch.mark("env")
    found = watch.take()
    assert set(found) == set(COUNTERS)
    assert found["infer_wall"] > 0 and found["env_wall"] > 0 and found["pull_wall"] == 0
    assert not any(watch.take().values())


def test_counters_become_seconds_per_step() -> None:
    totals = dict.fromkeys(COUNTERS, 0) | {"infer_cpu": 3_000_000, "env_cpu": 1_000_000}
    found = Breakdown.of(totals, 1000)
    assert found.cpu["infer"] == pytest.approx(3e-6)
    assert found.step_cpu == pytest.approx(4e-6)
    assert found.share_of_network == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("infer", "learner", "said"),
    [
        (3e-3, 1e-5, "up to 31.00 times faster. Compare"),
        # 3.1 ms of acting over 1 ms of learning: more than that no compression can give.
        (3e-3, 1e-3, "this training 3.10 times: then the learner, with 1 ms"),
        (3e-3, 4e-3, "the learner is the bottleneck"),
        (1e-5, 1e-6, "The environment is the bottleneck"),
    ],
)
def test_the_advice_names_what_limits(infer: float, learner: float, said: str) -> None:
    assert said in breakdown(infer, 1e-4).advice(learner)


@pytest.mark.parametrize("compressed", [False, True])
def test_without_an_update_nothing_is_recommended(compressed: bool) -> None:
    said = breakdown(3e-3, 1e-4).advice(0.0, compressed=compressed)
    assert "network takes 97%" in said and "run more steps" in said
    assert "faster" not in said and "limits" not in said


def test_several_actors_share_the_learner() -> None:
    # One learner of 1 ms a step is slower than four actors of 3.1 ms.
    assert "the learner is the bottleneck" in breakdown(3e-3, 1e-4).advice(1e-3, actors=4)


def test_the_advice_does_not_say_what_was_not_measured() -> None:
    """Of actors that are compressed it is not known how fast they would be otherwise."""
    for learner, limits in ((1e-3, "the learner"), (1e-5, "acting")):
        said = breakdown(3e-4, 1e-4).advice(learner, compressed=True)
        assert f"{limits} is the bottleneck now" in said and "a run without it" in said
        assert "times faster" not in said and "75%" in said
