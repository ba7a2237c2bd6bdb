"""The certificate of claim precision from sparse labels, and the reward that abstains below it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_environments
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from vinoreward import (
    LearnedReward,
    PrecisionCertificate,
    TrustMonitor,
    VecLearnedReward,
    VectorLearnedReward,
)
from vinoreward.errors import ConfigError
from vinoreward.rewards.precision import Answer

RUNS, BLOCKS, EVERY, LAST = 500, 80, 20, 320
LEAST = 0.9
Policy = Callable[[int, "PrecisionCertificate | None"], float]
POLICIES: dict[str, Policy] = {
    "steady": lambda block, known: LEAST,
    "falls": lambda block, known: 1 - 0.9 * block / BLOCKS,
    "cheats while it is trusted": lambda block, known: (
        0.3 if known and known.run.low > 0.8 else 1.0
    ),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_the_certificate_is_right_at_all_times_in_95_of_100_runs(policy: Policy) -> None:
    """Each run stops once the reward would abstain, or at the worst time there is.

    An interval for one time alone, ``naive``, is wrong in more of them.
    """
    random, wrong, naive, abstained = np.random.default_rng(0), 0, 0, 0
    for _ in range(RUNS):
        precisions: list[float] = []
        answers: list[Answer] = []
        known, missed, far = None, False, False
        for block in range(BLOCKS):
            claims = random.random(EVERY) < policy(block, known)
            precisions.append(float(claims.mean()))
            answers.append("success" if claims[random.integers(EVERY)] else "failure")
            known = PrecisionCertificate.of(answers, EVERY, LAST)
            recent = precisions[-known.last.labels :]
            missed |= not known.run.low <= np.mean(precisions) <= known.run.high
            missed |= not known.last.low <= np.mean(recent) <= known.last.high
            off = abs(known.run.successes - known.run.labels * np.mean(precisions))
            far |= block > 20 and off > 1.96 * np.sqrt(known.run.labels * LEAST * (1 - LEAST))
            assert LAST <= EVERY * len(recent) < 1.5 * LAST or recent == precisions
            if min(known.run.high, known.last.high) < LEAST:
                abstained += 1
                break
        wrong, naive = wrong + missed, naive + far
    assert wrong <= 0.05 * RUNS
    # A steady run's claims are as precise as they must be, and those of one that falls are not.
    assert policy is not POLICIES["steady"] or abstained <= 0.05 * RUNS < naive
    assert policy is not POLICIES["falls"] or abstained > 0.95 * RUNS


def test_few_labels_certify_and_the_last_claims_tell_before_all_do() -> None:
    good = PrecisionCertificate.of(["success"] * 150, every=10, last=500)
    assert good.run.low > 0.95 and good.last.low > 0.8 and good.claims == 1500
    fallen: list[Answer] = ["success"] * 300 + ["failure", "success"] * 25
    found = PrecisionCertificate.of(fallen, every=10, last=500)
    assert found.last.high < LEAST < found.run.high
    monitor = TrustMonitor(precision=LEAST)
    (alarm,) = monitor.labelled(found)
    assert "25 are no successes" in alarm.text and "of the last claims are" in alarm.text
    assert monitor.low_precision and not monitor.labelled(found), "the same finding"
    assert monitor.labelled(good) == [] and not monitor.low_precision
    assert {"precision_low", "last_precision_high"} < monitor.readings().keys()
    unclear = PrecisionCertificate.of(["unclear"] * 60, every=10)
    assert (unclear.run.low, unclear.run.high) == (0.0, 1.0)
    with pytest.raises(ConfigError, match="precision"):
        TrustMonitor(precision=1.5)
    for wrong in ({"every": 0}, {"every": 1, "last": 0}, {"every": 1, "alpha": 1.0}):
        with pytest.raises(ConfigError):
            PrecisionCertificate.of([], **wrong)  # type: ignore[arg-type]


def corridor() -> toy_environments.Corridor:
    """One step away from a claim."""
    return toy_environments.Corridor("image", first_cells=(6,))


FORMS: dict[str, Callable[..., Any]] = {
    "one": lambda *args, **more: LearnedReward(corridor(), *args, **more),
    "vector": lambda *args, **more: VectorLearnedReward(SyncVectorEnv([corridor]), *args, **more),
    "sb3": lambda *args, **more: VecLearnedReward(DummyVecEnv([corridor]), *args, **more),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", ["sparse", "potential"])
def test_a_paused_reward_claims_and_pays_nothing(tmp_path: Path, form: str, mode: str) -> None:
    bundle = toy_environments.save_toy_bundle(tmp_path / "toy")
    env = FORMS[form](bundle, image_source="obs", reward_mode=mode)

    def paid() -> tuple[float, bool]:
        env.reset()
        result = env.step(1 if form == "one" else np.array([1]))
        info = result[-1][0] if form == "sb3" else result[-1]
        return float(np.ravel(result[1])[0]), bool(np.ravel(info["is_success"])[0])

    before = paid()
    env.pause()
    assert paid() == (0.0, False)
    env.pause(False)
    assert paid() == before and before[1]
    env.close()
