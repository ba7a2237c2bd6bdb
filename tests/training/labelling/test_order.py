"""The most useful image first, and blind duplicates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from label_logs import label

from vinoreward.rewards.classifier import Classifier, logit
from vinoreward_training.labelling.order import (
    GAP,
    Opinion,
    most_useful_first,
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


def test_ood_claims_and_contradicted_answers_come_first_and_then_the_uncertain() -> None:
    opinion = opinion_of([9.0, 1.2, NAN, -3.0, 0.9])
    assert most_useful_first(source_of(5), opinion, [], "ann", 0) == [4, 1, 3, 0, 2]
    opinion = opinion_of(
        [1.0, 5.0, 6.0, -9.0, -9.0], [0.5, 2.0, 0.5, 2.0, 0.1], [NAN, NAN, 0.0, 0.0, 1.0]
    )
    # 1 is out of distribution and claimed; 2 and 4 contradict what is recorded; 3 is out of
    # distribution and not claimed.
    assert most_useful_first(source_of(5), opinion, [], "ann", 0) == [1, 2, 4, 0, 3]
    # One image of an episode comes before a second.
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


@given(st.integers(0, 80), st.integers(0, 80), st.floats(0, 0.5), st.integers(0, 5))
def test_every_image_comes_once_and_some_twice(
    left: int, done: int, share: float, seed: int
) -> None:
    names = [f"{n}.png" for n in range(left + done)]
    order = np.random.default_rng(seed).permutation(left).tolist()
    before = list(range(left, left + done))
    repeated = before[: done // 4]
    plan = with_duplicates(names, order, before, repeated, share, seed)
    assert [index for index, twice in plan if not twice] == order
    twice = [index for index, twice in plan if twice]
    assert len(set(twice)) == len(twice) <= max(0, round(share * (left + done)) - len(repeated))
    assert not set(twice) & set(repeated)
    for index in set(twice) & set(order):
        assert plan.index((index, True)) - plan.index((index, False)) > GAP
    if done == 0 and left > 2 * GAP + 10:
        assert len(twice) == round(share * left)


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
