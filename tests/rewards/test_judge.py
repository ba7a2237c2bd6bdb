"""A judge, any function of images, pays as a classifier of the same scores does."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from corridor_forms import sb3, single, vector
from toy_environments import MIDDLE, SLOPE, Corridor, save_toy_bundle

from vinoreward import Judge, LearnedReward
from vinoreward.errors import ConfigError, InputError, OutOfDistributionError, OutputError
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.judge import ABSTAINED


def reddish(images: np.ndarray) -> np.ndarray:
    """What the toy bundle says."""
    return 1 / (1 + np.exp(-SLOPE * (images[..., 0].mean((1, 2)) / 255 - MIDDLE)))


def unsure(images: np.ndarray) -> np.ndarray:
    """It abstains from the last two cells."""
    scores = reddish(images)
    return np.where(scores > 0.9, np.nan, scores)


@pytest.mark.parametrize("form", [single, vector, sb3])
def test_a_judge_pays_as_a_bundle_that_says_the_same(
    form: Callable[..., list[tuple[float, ...]]], tmp_path: Path
) -> None:
    bundle = save_toy_bundle(tmp_path / "toy")
    options = {"reward_mode": "potential", "success_threshold": 0.8, "success_hold_steps": 2}
    of_bundle = form(bundle=bundle, **options, on_ood="ignore")
    of_judge = form(judge=reddish, **options)
    assert np.array(of_judge) == pytest.approx(np.array(of_bundle), abs=1e-4)
    assert any(claimed for _, claimed, _ in of_judge)


def test_scores_are_calibrated_by_the_temperature_and_exact_at_the_ends() -> None:
    scores = np.array([0.0, 0.2, 0.5, 0.9, 1.0])
    images = np.zeros((5, 4, 4, 3), np.uint8)
    for heat in (0.5, 1.0, 3.0):
        found = Judge(lambda _: scores, 0.5, temperature=heat).predict(images)
        odds = np.log(scores[1:-1] / (1 - scores[1:-1])) / heat
        assert found.log_odds[1:-1] == pytest.approx(odds, abs=1e-5)
        assert found.probability[1:-1] == pytest.approx(1 / (1 + np.exp(-odds)), abs=1e-6)
        assert np.isfinite(found.log_odds).all()
        assert found.log_odds[0] == -found.log_odds[-1] < -4


def test_an_image_from_which_it_abstains_earns_nothing() -> None:
    judge = Judge(unsure, 0.6)  # only images that it abstains from would be claimed
    assert any(claimed for _, claimed, _ in single(judge=reddish, success_threshold=0.6))
    found = single(judge=judge, reward_mode="log_odds")
    assert min(reward for reward, _, _ in found) == -20.0
    assert not any(claimed for _, claimed, _ in found) and min(p for *_, p in found) == 0.0
    assert not any(claimed for _, claimed, _ in single(judge=judge, on_ood="ignore"))
    images = np.full((1, 6, 8, 3), 255, np.uint8)
    said = judge.predict(images)
    assert (said.probability[0], said.ood_score[0]) == (0.0, ABSTAINED)
    with pytest.raises(OutOfDistributionError, match="the judge abstained from an image"):
        single(judge=judge, on_ood="raise")


def test_its_own_detector_withholds_what_is_unlike_the_training(tmp_path: Path) -> None:
    bundle = save_toy_bundle(tmp_path / "toy", seen=[3, 4])
    with Classifier(bundle) as classifier:
        judge = Judge(reddish, 0.5, guard=classifier.guard)
        images = np.full((2, 6, 8, 3), 17, np.uint8)
        images[:, ..., 0], images[..., 1] = np.array([146, 20])[:, None, None], 0
        found, expected = judge.predict(images), classifier.predict(images).ood_score
        np.testing.assert_array_equal(found.ood_score, expected)
        assert found.ood_score[0] <= 1 < found.ood_score[1]
    with pytest.raises(InputError, match=r"\(2, 4, 4, 3\).*of \(6, 8\) images, as its OOD"):
        judge.predict(images[:, :4, :4])


def fails(images: np.ndarray) -> None:
    raise TimeoutError("no answer in 30 s")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (fails, "failed on 3 images: TimeoutError: no answer in 30 s"),
        (lambda images: images[..., 0].mean((1, 2))[:2], r"returned the shape \(2,\) for 3"),
        (lambda images: 0.5, r"returned the shape \(\)"),
        (lambda images: np.array([0.1, 7.0, -1]), r"returned \[ 7. -1.\] for 3"),
        (lambda images: [np.inf, 0, 0], "returned .inf."),
        (lambda images: ["yes", "no", "no"], "ValueError: could not convert"),
        (lambda images: None, r"returned the shape \(\)"),
    ],
)
def test_what_is_no_score_is_named(function: Callable[..., Any], message: str) -> None:
    images = np.zeros((3, 4, 4, 3), np.uint8)
    with pytest.raises(OutputError, match=message):
        Judge(function, 0.5, name="mine").predict(images)


def test_images_may_be_tensors_and_no_images_give_no_scores() -> None:
    judge = Judge(lambda images: torch.from_numpy(reddish(images)), 0.5)
    images = np.full((2, 6, 8, 3), 200, np.uint8)
    np.testing.assert_array_equal(
        judge.predict(torch.from_numpy(images)).probability, judge.predict(images).probability
    )
    assert len(judge.predict(images[:0]).probability) == 0
    with pytest.raises(InputError, match="given float64"):
        judge.predict(images / 255)


def test_a_judge_keeps_its_thresholds_and_can_be_pickled() -> None:
    judge = Judge(reddish, 0.8, exit_threshold=0.6)
    env = LearnedReward(Corridor("image"), judge=judge, image_source="obs")
    assert (env.classifier.threshold, env.classifier.exit_threshold) == (0.8, 0.6)
    other = LearnedReward(Corridor("image"), judge=judge, image_source="obs", success_threshold=0.7)
    assert (other.classifier.threshold, other.classifier.exit_threshold) == (0.7, 0.7)
    assert judge.threshold == 0.8
    images = np.full((1, 6, 8, 3), 190, np.uint8)
    for copied in (pickle.loads(pickle.dumps(judge)), copy.deepcopy(judge)):
        assert copied.predict(images).probability == judge.predict(images).probability


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "neither of bundle and judge"),
        ({"bundle": "panda-hover-classifier", "judge": reddish}, "both of bundle and judge"),
        ({"judge": reddish}, "success_threshold.*vinoreward calibrate"),
        ({"judge": 3, "success_threshold": 0.5}, "judge=3.*a function of images"),
        ({"judge": reddish, "success_threshold": 1.5}, "success threshold is 1.5"),
        ({"judge": reddish, "success_threshold": 0.5, "image_source": ["obs", "render"]},
         "the judge looks at one image"),
    ],
)  # fmt: skip
def test_a_reward_that_cannot_work_is_refused(given: dict[str, Any], message: str) -> None:
    env: gym.Env[Any, Any] = Corridor("image")
    with pytest.raises(ConfigError, match=message):
        LearnedReward(env, **{"image_source": "obs", **given})
    with pytest.raises(ConfigError, match="temperature=0"):
        Judge(reddish, 0.5, temperature=0)
