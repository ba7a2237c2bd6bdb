"""--profile-only: what it recommends follows from what limits a training."""

import pytest

from vinoreward_actors.actor_learner.acting.profile import PARTS, Breakdown
from vinoreward_actors.command.config import ActorsConfig
from vinoreward_actors.command.profile import Measured, crowded, recommend
from vinoreward_actors.command.run import difference


def measured(acting, learner, push=None):
    """Return a run in which environment steps took so many ms of an actor and of the learner."""
    seconds = dict.fromkeys(PARTS, 0.0) | {"infer": acting * 1e-3}
    # Waiting for the learner is wall time and not acting.
    wall = seconds | {"wait": 0.1}
    return Measured(Breakdown(wall, seconds, 4000), learner * 1e-3, push, steps_per_update=16.0)


NONE = {"compress": "none", "monitor": "default"}
MORE = NONE | {"environments": 8}


@pytest.mark.parametrize(
    ("full", "compressed", "settings", "said", "changes"),
    [
        # Acrobot: measured, compressing makes that training 0.7 times as fast.
        ((2.5, 3.6), (0.6, 3.7), {}, "waits for its learner", NONE),
        # That the second run's learner was warm does not make it compression's merit.
        ((2.5, 3.6), (0.6, 2.6), {}, "waits for its learner", NONE),
        # One actor is slower than the learner, four of them are not.
        ((8.0, 3.6), (0.6, 3.6), {}, "about 2.22 times as fast.", {}),
        ((8.0, 3.6), (0.6, 3.6), {"actors": 4}, "waits for its learner", NONE),
        ((2.5, 0.1), (0.6, 0.1), {}, "about 4.17 times as fast.", {}),
        # The compressor slows the learner down.
        ((2.5, 2.0), (0.6, 3.0), {}, "0.83 times as fast: compressing does not pay", MORE),
        # Two seconds for 16 steps, which every update waits for, or none.
        ((2.5, 0.1), (0.6, 0.1, 2.0), {"lag": 1}, "0.02 times as fast: compressing does not", MORE),
        ((2.5, 0.1), (0.6, 0.1, 2.0), {}, "about 4.17 times as fast.", {}),
        # Nothing gained in an actor: said where its times are.
        ((2.5, 0.1), (2.4, 0.1), {}, "", MORE),
        ((2.5, 0.1), (2.4, 0.1), {"environments": 32}, "", NONE | {"environments": 32}),
        ((2.5, 3.6), (2.4, 3.6), {}, "", NONE),
    ],
)
def test_what_is_recommended_follows_from_what_limits(full, compressed, settings, said, changes):
    config = ActorsConfig(compress="quantize: int8", **settings)
    verdict = recommend(config, measured(*full), measured(*compressed))
    assert verdict.changes == changes
    words = " ".join(verdict.words)
    assert said in words and bool(words) == bool(said)


@pytest.mark.parametrize(
    ("settings", "cores", "said"),
    [
        ({}, 3, ""),
        ({}, 2, "Learner, actor and compressor share 2 cores: the compressor slows"),
        ({"actors": 2}, 1, "2 actors and compressor share 1 core:"),
        ({"threads": 2}, 3, "Learner (2 threads), actor and compressor share 3 cores"),
        ({"actors": 9, "engine": "ray"}, 1, ""),
    ],
)
def test_it_says_when_the_compressor_competes_for_cores(settings, cores, said):
    words = " ".join(crowded(ActorsConfig(**settings), cores))
    assert said in words and bool(words) == bool(said)


def test_the_profile_leaves_starting_out():
    def breakdown(seconds, steps):
        each = dict.fromkeys(PARTS, seconds / steps)
        return Breakdown(each, each, steps)

    found = difference(breakdown(3.0, 300), breakdown(2.0, 100))
    assert found.steps == 200
    assert found.cpu["infer"] == pytest.approx(1.0 / 200)
    assert difference(breakdown(3.0, 300), None).steps == 300
