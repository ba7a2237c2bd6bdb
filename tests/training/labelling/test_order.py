"""The most useful image first, and blind duplicates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from label_logs import label

from vinoreward.rewards.classifier import Classifier, logit
from vinoreward_training.labelling.order import (
    GAP,
    Opinion,
    most_useful_first,
    recorded,
    scored,
    with_duplicates,
)
from vinoreward_training.labelling.sources import Source, of_folder

NAN = float("nan")


def source_of(count: int, episodes: list[int] | None = None) -> Source:
    return Source(folder=Path(), names=[f"{n}.png" for n in range(count)], episodes=episodes)


def opinion_of(
    log_odds: list[float], ood_score: list[float] | None = None, true: list[float] | None = None
) -> Opinion:
    nothing = [NAN] * len(log_odds)
    return Opinion(
        *(np.array(each or nothing) for each in (log_odds, ood_score, true)), threshold=1.0
    )


def test_uncertain_images_come_first() -> None:
    opinion = opinion_of([9.0, 1.2, NAN, -3.0, 0.9])
    assert most_useful_first(source_of(5), opinion, [], "ann", 0) == [4, 1, 3, 0, 2]


def test_ood_claims_and_contradicted_answers_come_before_them() -> None:
    opinion = opinion_of(
        [1.0, 5.0, 6.0, -9.0, -9.0], [0.5, 2.0, 0.5, 2.0, 0.1], [NAN, NAN, 0.0, 0.0, 1.0]
    )
    # 1 is out of distribution and claimed; 2 and 4 contradict what is recorded; 3 is out of
    # distribution and not claimed.
    assert most_useful_first(source_of(5), opinion, [], "ann", 0) == [1, 2, 4, 0, 3]


def test_one_image_of_an_episode_comes_before_a_second() -> None:
    opinion = opinion_of([1.0, 1.1, 1.2, 5.0, 4.0, 3.0])
    source = source_of(6, [0, 0, 0, 1, 1, 2])
    assert most_useful_first(source, opinion, [], "ann", 0) == [0, 5, 4, 1, 3, 2]


def test_disagreement_comes_first_and_what_others_labelled_last() -> None:
    said = [
        label("2.png", by="bob"), label("2.png", "failure", by="cy"), label("0.png", by="bob"),
    ]  # fmt: skip
    opinion = opinion_of([1.0, 2.0, 9.0, 3.0])
    assert most_useful_first(source_of(4), opinion, said, "ann", 0) == [2, 1, 3, 0]


def test_without_scores_the_seed_draws_the_order() -> None:
    nothing = opinion_of([NAN] * 50)
    orders = [most_useful_first(source_of(50), nothing, [], "ann", seed) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(50)) != orders[0]


def test_a_runs_table_is_an_opinion() -> None:
    source = Source(
        folder=Path(),
        names=["a", "b", "c", "d"],
        numbers={
            "probability": np.array([0.9, 0.6, NAN, 7.0]),
            "ood_score": np.array([0, 0, 2, 0.0]),
        },
        claimed=True,
    )
    opinion = recorded(source)
    assert opinion.log_odds[0] == pytest.approx(np.log(9)) and np.isnan(opinion.log_odds[3])
    assert most_useful_first(source, opinion, [], "ann", 0)[:3] == [2, 1, 0]


@given(st.integers(0, 80), st.integers(0, 80), st.floats(0, 0.5), st.integers(0, 5))
def test_every_image_comes_once_and_some_twice(
    left: int, done: int, share: float, seed: int
) -> None:
    names = [f"{n}.png" for n in range(left + done)]
    order = np.random.default_rng(seed).permutation(left).tolist()
    before = list(range(left, left + done))
    again = before[: done // 4]
    plan = with_duplicates(names, order, before, again, share, seed)
    assert [index for index, twice in plan if not twice] == order
    twice = [index for index, twice in plan if twice]
    assert len(set(twice)) == len(twice) <= max(0, round(share * (left + done)) - len(again))
    assert not set(twice) & set(again)
    for index in set(twice) & set(order):
        assert plan.index((index, True)) - plan.index((index, False)) > GAP
    if done == 0 and left > 2 * GAP + 10:
        assert len(twice) == round(share * left)


def test_the_duplicates_stay_the_same_in_another_order() -> None:
    names = [f"{n}.png" for n in range(100)]
    chosen = []
    for seed in (1, 2):
        order = np.random.default_rng(seed).permutation(100).tolist()
        plan = with_duplicates(names, order, [], [], 0.1, 0)
        chosen.append({index for index, twice in plan if twice})
    assert len(chosen[0]) == 10 and len(chosen[0] & chosen[1]) >= 7  # but for those at an end


def test_a_bundle_and_its_guard_are_asked(tmp_path: Path) -> None:
    from vinoreward_training.data.dataset_files import save_image

    random = np.random.default_rng(0)
    images = random.integers(0, 256, (3, 96, 128, 3), dtype=np.uint8)
    for index, image in enumerate(images):
        save_image(tmp_path / f"{index}.png", image)
    (tmp_path / "broken.png").write_bytes(b"no image")
    opinion = scored(of_folder(tmp_path), "panda-hover-classifier")
    with Classifier("panda-hover-classifier", precision="fp32") as classifier:
        expected = classifier.predict(images)
        threshold = classifier.threshold
    assert np.allclose(opinion.log_odds[:3], expected.log_odds, atol=1e-4)
    assert expected.ood_score is not None and np.allclose(opinion.ood_score[:3], expected.ood_score)
    assert np.isnan(opinion.log_odds[3]) and opinion.threshold == logit(threshold)
