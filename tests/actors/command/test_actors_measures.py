"""--profile-only, what it recommends, and how both policies are evaluated."""

import dataclasses

import numpy as np
import pytest
from task_runs import evaluator

from vinoreward_actors.actor_learner.acting.evaluation import Pair
from vinoreward_actors.actor_learner.acting.profile import PARTS, Breakdown
from vinoreward_actors.actor_learner.config import ActorLearnerConfig
from vinoreward_actors.actor_learner.controller import Controller
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.command.config import ActorsConfig
from vinoreward_actors.command.profile import Measured, recommend
from vinoreward_actors.command.report import gap_words
from vinoreward_actors.command.run import Recorder, difference, read_rows
from vinoreward_actors.compression.chain import CompressorChain
from vinoreward_actors.compression.prune import Prune
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.monitoring import (
    CompressionSetting,
    CumulativeReward,
    Monitor,
    ReturnGap,
    Staged,
)
from vinoreward_actors.policies.policy import random_policy
from vinoreward_actors.tasks.networks import network


def measured(acting, learner, push=None):
    """Return a run in which environment steps took so many ms of an actor and of the learner."""
    seconds = dict.fromkeys(PARTS, 0.0) | {"infer": acting * 1e-3}
    # Waiting for the learner is wall time and not acting.
    wall = seconds | {"wait": 0.1}
    return Measured(Breakdown(wall, seconds, 4000), learner * 1e-3, push)


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


def test_the_profile_leaves_starting_out():
    def breakdown(seconds, steps):
        each = dict.fromkeys(PARTS, seconds / steps)
        return Breakdown(each, each, steps)

    found = difference(breakdown(3.0, 300), breakdown(2.0, 100))
    assert found.steps == 200
    assert found.cpu["infer"] == pytest.approx(1.0 / 200)
    assert difference(breakdown(3.0, 300), None).steps == 300


# Evaluations of both policies


def cartpole(seed, version=1):
    return random_policy(network("CartPole-v0", "1x8"), seed).replace(version=version)


def balancing(good):
    """Return a policy that balances the pole, or lets it fall at once."""
    policy = cartpole(0)
    weights = {name: np.zeros_like(each) for name, each in policy.float_parameters().items()}
    first, head = (f"{layer.name}.weight" for layer in policy.spec.layers)
    # The pole's angle and speed, to the right and to the left; push where it falls to.
    weights[first][0, 2:] = 1.0
    weights[first][1, 2:] = -1.0
    weights[head][:, 0] = [-1.0, 1.0] if good else [1.0, -1.0]
    weights[head][:, 1] = [1.0, -1.0] if good else [-1.0, 1.0]
    return policy.replace(parameters=weights)


def test_both_policies_play_the_same_episodes():
    seeds = range(100, 113)  # more than are played side by side
    with evaluator("CartPole-v0") as ours:
        pair = ours.pair(cartpole(0), cartpole(0), seeds)
        again = ours.pair(cartpole(0), cartpole(5), seeds)
        apart = ours.pair(cartpole(0, 9), cartpole(0, 7), range(3))
    assert pair.compressed is not None and pair.seeds == tuple(seeds)
    np.testing.assert_array_equal(pair.full.returns, pair.compressed.returns)
    np.testing.assert_array_equal(pair.full.returns, again.full.returns)
    assert len(set(pair.full.returns)) > 1
    assert "not significantly worse" in gap_words(pair)
    # Policies of different versions are no pair for the monitor.
    assert apart.returns is None and "2 pushes older" in gap_words(apart)
    assert Pair((1,), pair.full, None).returns is None


@pytest.mark.parametrize("version", [1, 3])
def test_a_compressed_policy_may_be_the_better_one(version):
    with evaluator("CartPole-v0") as ours:
        worse = ours.pair(balancing(False).replace(version=version), balancing(True), range(3))
        better = ours.pair(balancing(True).replace(version=version), balancing(False), range(3))
    assert " more return" in gap_words(worse) and " less return" in gap_words(better)
    assert " -" not in gap_words(worse)
    same = Pair((0, 1), worse.full, dataclasses.replace(worse.full, version=version + 1))
    assert "has the same return" in gap_words(same)


def test_stages_go_on_while_compression_is_stopped():
    """The full policy's return is told of every evaluation, the gap of pairs alone."""
    policy = cartpole(0)
    learner = Impala(policy.spec, ImpalaConfig(trajectories=2, precision="fp32"))
    chain = CompressorChain().add(Prune(0.5)).add(Quantize("int8"))
    stopped = CompressionSetting(enabled=False)
    monitor = Monitor([CumulativeReward(), ReturnGap("mean")], Staged(), stopped)
    controller = Controller(learner, ActorLearnerConfig(), chain, monitor)
    with evaluator("CartPole-v0") as ours:

        def evaluated(version, good, compressed):
            full = balancing(good).replace(version=version)
            controller.evaluated(ours.pair(full, compressed, range(2)), version + 5)
            return set(monitor.readings[-1].values)

        assert evaluated(1, False, None) == {"return"}
        assert evaluated(2, False, cartpole(0, version=1)) == {"return"}
        # Compressed as it was before the first stage began, at version 6.
        assert evaluated(6, False, cartpole(0, version=6)) == {"return"}
        assert evaluated(7, False, cartpole(0, version=7)) == {"return", "return_gap_mean"}
        for version in range(8, 18):
            evaluated(version, version > 12, None)
    assert monitor.setting.bits == 16 and not monitor.setting.enabled
    assert "the policy improves" in monitor.changes[-1].reason


def test_a_compressed_policy_that_cannot_act_is_told_of_and_left_out(tmp_path):
    huge = {name: np.full_like(each, 3e38) for name, each in cartpole(3).float_parameters().items()}
    broken = cartpole(3).replace(parameters=huge)
    with (
        evaluator("CartPole-v0") as ours,
        Recorder(tmp_path, total=10, start=0) as recorder,
    ):
        pair = ours.pair(cartpole(3), broken, range(3))
        assert pair.compressed is None and pair.returns is None and "infin" in pair.refused
        recorder.evaluation(pair, {"step": 5, "seconds": 1.0})
    found = read_rows(tmp_path)
    assert [row["kind"] for row in found] == ["evaluation", "event"]
    assert pair.refused in found[1]["text"]
